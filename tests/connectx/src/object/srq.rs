//! Shared receive queues. The driver makes ordinary ones as receive memory pools (RMP), and XRC's as such;
//! users make pools by commands of their own.
//!
//! The entries of most are chained: each names the next in its first bytes, and the device follows the chain.
//! Those of a cyclic pool are taken in the order of the ring.

use crate::command::Status;
use crate::function::Function;
use crate::layout::cmd;
use crate::layout::srqc::{rmp, xrc};
use crate::object::umem::Record;
use crate::pages::Pages;
use vfio_model::memory::{GuestMemory, Unmapped};

/// Bytes of an entry in front of its data segments, and of one of these.
const HEADER: usize = 16;
const SEGMENT: usize = 16;

/// In which order the entries of a queue are taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Order {
    /// Each entry names the next.
    Chained,
    /// As they lie in the ring.
    Cyclic,
}

/// The state of a receive memory pool (`MLX5_RMPC_STATE_*`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Ready = 1,
    /// Nothing is taken from it any more.
    Error = 3,
}

impl State {
    fn from_code(code: u64) -> Result<Self, Status> {
        match code {
            1 => Ok(Self::Ready),
            3 => Ok(Self::Error),
            _ => Err(Status::BadParameter),
        }
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    /// The context of the user that made it; 0 for the driver's own.
    uid: u64,
    context: Vec<u8>,
    state: State,
    pages: Pages,
    order: Order,
    /// Bytes in front of an entry's data segments.
    header: usize,
    log_size: u32,
    log_stride: u32,
    record: Record,
    pd: u32,
    /// What only those of XRC have.
    xrc: Option<Xrc>,
    /// An event is due when fewer entries than this are left; 0 for none.
    limit: u16,
    /// How many entries were taken.
    taken: u16,
    /// The next entry to be taken.
    head: u16,
}

/// What a queue of XRC has besides: its queue pairs have neither.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Xrc {
    /// The domain, whose targets receive from it.
    pub(crate) domain: u32,
    /// The completion queue of what is received.
    pub(crate) cqn: u32,
    /// The number that the provider gave the queue, by which it finds it.
    pub(crate) user_index: u32,
}

/// An entry that was taken.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its index; if the queue is cyclic, how many were taken before, as a number of 16 bits.
    pub(crate) index: u16,
    /// What it starts with: which entry is the next. Empty if it has no such part.
    pub(crate) link: Vec<u8>,
    /// Its data segments, and what else its stride holds.
    pub(crate) segments: Vec<u8>,
}

impl SharedReceiveQueue {
    /// The protection domain.
    pub(crate) fn pd(&self) -> u32 {
        self.pd
    }

    /// What it has as a queue of XRC, if it is one.
    pub(crate) fn xrc(&self) -> Option<Xrc> {
        self.xrc
    }

    /// Takes the next entry; none if there is none.
    ///
    /// # Errors
    /// If the queue is not in memory.
    pub(crate) fn take(&mut self, memory: &GuestMemory) -> Result<Option<Entry>, Unmapped> {
        if self.left(memory)? == 0 {
            return Ok(None);
        }
        let slot = self.head & ((1 << self.log_size) - 1);
        let mut bytes = vec![0; 1 << self.log_stride];
        self.pages
            .read(memory, u64::from(slot) << self.log_stride, &mut bytes)?;
        let (index, next) = match self.order {
            Order::Chained => (slot, u16::from_be_bytes([bytes[2], bytes[3]])),
            Order::Cyclic => (self.head, self.head.wrapping_add(1)),
        };
        self.head = next;
        self.taken = self.taken.wrapping_add(1);
        let segments = bytes.split_off(self.header);
        Ok(Some(Entry {
            index,
            link: bytes,
            segments,
        }))
    }

    /// How many entries the doorbell record says wait, if these are more than the queue has.
    pub(crate) fn excess(&self, memory: &GuestMemory) -> Option<u16> {
        let left = self.left(memory).ok()?;
        (u32::from(left) > 1 << self.log_size).then_some(left)
    }

    /// Whether the limit was set and is now undercut; if so, it is unset.
    pub(crate) fn limit_reached(&mut self, memory: &GuestMemory) -> bool {
        let reached = self.limit != 0 && self.left(memory).is_ok_and(|left| left < self.limit);
        if reached {
            self.limit = 0;
        }
        reached
    }

    /// How many entries wait.
    pub(crate) fn left(&self, memory: &GuestMemory) -> Result<u16, Unmapped> {
        if self.state == State::Error {
            return Ok(0);
        }
        let posted = memory.read_be32(self.record.address)?;
        Ok((posted as u16).wrapping_sub(self.taken))
    }

    /// Whether the command of that context may name it: the driver's may, and those of the user that made it.
    pub(crate) fn is_for(&self, uid: u64) -> bool {
        uid == 0 || self.uid == 0 || self.uid == uid
    }

    fn checked(self, function: &Function) -> Result<Self, Status> {
        function.check_pd(self.pd)?;
        // An entry has room for one data segment at least.
        let shortest = (self.header + SEGMENT).ilog2();
        let fits = (shortest..=12).contains(&self.log_stride)
            && self.log_size <= 15
            && self.pages.holds(1 << (self.log_size + self.log_stride));
        if fits {
            Ok(self)
        } else {
            Err(Status::BadParameter)
        }
    }
}

impl Function {
    /// A receive memory pool by its number, for a command of that context.
    fn pool(&mut self, uid: u64, number: u32) -> Result<&mut SharedReceiveQueue, Status> {
        let srq = self.objects.srqs.get_mut(number)?;
        match srq.xrc.is_none() && srq.is_for(uid) {
            true => Ok(srq),
            false => Err(Status::BadResource),
        }
    }
}

/// How the entries of a new pool lie: their order, and the bytes in front of their data segments.
fn form(context: &[u8]) -> Result<(Order, usize), Status> {
    match (rmp::WQ_TYPE.get(context), rmp::BASIC_CYCLIC.is_set(context)) {
        (0, false) => Ok((Order::Chained, HEADER)),
        (1, false) => Ok((Order::Cyclic, HEADER)),
        (1, true) => Ok((Order::Cyclic, 0)),
        // A chain has its links in front. Other types have several messages in each entry.
        _ => Err(Status::BadParameter),
    }
}

/// Executes CREATE_RMP.
///
/// # Errors
/// If the context is one that the model cannot serve.
pub(crate) fn create_rmp(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let context = input
        .get(cmd::RMP_CONTEXT..)
        .ok_or(Status::BadInputLength)?;
    let list = context.get(rmp::PAS..).ok_or(Status::BadInputLength)?;
    let (order, header) = form(context)?;
    if State::from_code(rmp::STATE.get(context))? != State::Ready {
        return Err(Status::BadParameter);
    }
    let uid = cmd::UID.get(input);
    let pages = match rmp::WQ_UMEM_VALID.is_set(context) {
        true => {
            let memory = function.user_memory(uid, rmp::WQ_UMEM_ID.get(context))?;
            memory.part(rmp::WQ_UMEM_OFFSET.get(context))?
        }
        false => Pages::from_command(
            list,
            rmp::LOG_WQ_PG_SZ.get32(context),
            rmp::PAGE_OFFSET.get(context),
        ),
    };
    let record = match rmp::DBR_UMEM_VALID.is_set(context) {
        true => {
            let memory = function.user_memory(uid, rmp::DBR_UMEM_ID.get(context))?;
            memory.record(rmp::DBR_ADDR.get(context))?
        }
        false => Record::at(rmp::DBR_ADDR.get(context)),
    };
    let srq = SharedReceiveQueue {
        uid,
        state: State::Ready,
        pages,
        order,
        header,
        log_size: rmp::LOG_WQ_SZ.get32(context),
        log_stride: rmp::LOG_WQ_STRIDE.get32(context),
        record,
        pd: rmp::PD.get32(context),
        xrc: None,
        limit: rmp::LWM.get(context) as u16,
        taken: 0,
        head: 0,
        context: context[..rmp::PAS].to_vec(),
    };
    let srq = srq.checked(function)?;
    cmd::OBJECT.set(output, function.objects.srqs.insert(srq)?.into());
    Ok(())
}

/// Executes CREATE_XRC_SRQ.
///
/// # Errors
/// If the context is one that the model cannot serve, or names objects that are not there.
pub(crate) fn create_xrc(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let context = input.get(cmd::CONTEXT..).ok_or(Status::BadInputLength)?;
    let list = input.get(cmd::PAS..).ok_or(Status::BadInputLength)?;
    let xrc = Xrc {
        domain: xrc::XRCD.get32(context),
        cqn: xrc::CQN.get32(context),
        user_index: xrc::USER_INDEX.get32(context),
    };
    function.objects.xrcds.get(xrc.domain)?;
    function.objects.cqs.get(xrc.cqn)?;
    let srq = SharedReceiveQueue {
        // Other users' queue pairs receive from it, by its domain.
        uid: 0,
        state: State::Ready,
        order: Order::Chained,
        header: HEADER,
        pages: Pages::from_command(
            list,
            xrc::LOG_PAGE_SIZE.get32(context),
            xrc::PAGE_OFFSET.get(context),
        ),
        log_size: xrc::LOG_XRC_SRQ_SIZE.get32(context),
        log_stride: xrc::LOG_RQ_STRIDE.get32(context) + 4,
        record: Record::at(
            xrc::DB_RECORD_ADDR_H.get(context) << 32 | xrc::DB_RECORD_ADDR_L.get(context) << 2,
        ),
        pd: xrc::PD.get32(context),
        xrc: Some(xrc),
        limit: xrc::LWM.get(context) as u16,
        taken: 0,
        head: 0,
        context: context[..0x40].to_vec(),
    };
    let srq = srq.checked(function)?;
    cmd::OBJECT.set(output, function.objects.srqs.insert(srq)?.into());
    Ok(())
}

/// Executes DESTROY_RMP.
///
/// # Errors
/// If the context has no such pool, or queue pairs or DC targets use it.
pub(crate) fn destroy_rmp(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    function.pool(cmd::UID.get(input), cmd::OBJECT.get32(input))?;
    destroy(function, input, output)
}

/// Executes DESTROY_XRC_SRQ.
///
/// # Errors
/// If there is no such queue, or queue pairs or DC targets use it.
pub(crate) fn destroy(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let srqn = cmd::OBJECT.get32(input);
    let objects = &function.objects;
    let used = objects
        .qps
        .values()
        .any(|qp| qp.shared_queue() == Some(srqn))
        || objects.dcts.values().any(|target| target.srqn() == srqn);
    if used {
        return Err(Status::ResourceBusy);
    }
    function.objects.srqs.remove(srqn).map(drop)
}

/// Executes MODIFY_RMP, which sets the limit if its mask says so, and the state.
///
/// # Errors
/// If the context has no such pool, or it is not in the state that the command says it is in, or has failed
/// and is to be ready again, or the mask names what is not known.
pub(crate) fn modify_rmp(
    function: &mut Function,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Status> {
    const LIMIT: u64 = 1 << 0;
    let context = input
        .get(cmd::RMP_CONTEXT..)
        .ok_or(Status::BadInputLength)?;
    let mask = cmd::RMP_BITMASK.get(input);
    let from = State::from_code(cmd::RMP_STATE.get(input))?;
    let to = State::from_code(rmp::STATE.get(context))?;
    let srq = function.pool(cmd::UID.get(input), cmd::OBJECT.get32(input))?;
    if srq.state != from || (from, to) == (State::Error, State::Ready) {
        return Err(Status::BadResourceState);
    }
    if mask & !LIMIT != 0 {
        return Err(Status::BadParameter);
    }
    if mask & LIMIT != 0 {
        srq.limit = rmp::LWM.get(context) as u16;
    }
    srq.state = to;
    Ok(())
}

/// Executes ARM_XRC_SRQ, which sets the limit.
///
/// # Errors
/// If there is no such queue.
pub(crate) fn arm_xrc(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let srq = function.objects.srqs.get_mut(cmd::OBJECT.get32(input))?;
    srq.limit = cmd::LWM.get(input) as u16;
    Ok(())
}

/// Answers QUERY_RMP.
///
/// # Errors
/// If the context has no such pool.
pub(crate) fn query_rmp(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let srq = function.pool(cmd::UID.get(input), cmd::OBJECT.get32(input))?;
    let mut context = srq.context.clone();
    rmp::STATE.set(&mut context, srq.state as u64);
    rmp::LWM.set(&mut context, srq.limit.into());
    for (to, from) in output.iter_mut().skip(cmd::RMP_CONTEXT).zip(context) {
        *to = from;
    }
    Ok(())
}

/// Answers QUERY_XRC_SRQ.
///
/// # Errors
/// If there is no such queue.
pub(crate) fn query_xrc(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let srq = function.objects.srqs.get(cmd::OBJECT.get32(input))?;
    let mut context = srq.context.clone();
    xrc::LWM.set(&mut context, srq.limit.into());
    for (to, from) in output.iter_mut().skip(cmd::CONTEXT).zip(context) {
        *to = from;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
