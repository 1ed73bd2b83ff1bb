//! Shared receive queues. The driver makes ordinary ones as receive memory pools, and XRC's as such.
//!
//! Their entries are chained: each names the next in its first bytes, and the device follows the chain.

use crate::command::Status;
use crate::function::Function;
use crate::layout::cmd;
use crate::layout::srqc::{rmp, xrc};
use crate::object::umem::Record;
use crate::pages::Pages;
use vfio_model::memory::{GuestMemory, Unmapped};

/// Entries of a receive memory pool that are chained, not cyclic.
const LINKED_LIST: u64 = 0;
const READY: u64 = 1;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    context: Vec<u8>,
    pages: Pages,
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
    /// Its index.
    pub(crate) index: u16,
    /// What it starts with: which entry is the next.
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
        let index = self.head & ((1 << self.log_size) - 1);
        let mut bytes = vec![0; 1 << self.log_stride];
        self.pages
            .read(memory, u64::from(index) << self.log_stride, &mut bytes)?;
        self.head = u16::from_be_bytes([bytes[2], bytes[3]]);
        self.taken = self.taken.wrapping_add(1);
        let segments = bytes.split_off(16);
        Ok(Some(Entry {
            index,
            link: bytes,
            segments,
        }))
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
        let posted = memory.read_be32(self.record.address)?;
        Ok((posted as u16).wrapping_sub(self.taken))
    }

    fn checked(self, function: &Function) -> Result<Self, Status> {
        function.check_pd(self.pd)?;
        let fits = (5..=12).contains(&self.log_stride)
            && self.log_size <= 15
            && self.pages.holds(1 << (self.log_size + self.log_stride));
        if fits {
            Ok(self)
        } else {
            Err(Status::BadParameter)
        }
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
    if rmp::WQ_TYPE.get(context) != LINKED_LIST {
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
        pages,
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

/// Executes DESTROY_RMP and DESTROY_XRC_SRQ.
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

/// Executes MODIFY_RMP, which sets the limit.
///
/// # Errors
/// If there is no such queue.
pub(crate) fn modify_rmp(
    function: &mut Function,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Status> {
    let context = input
        .get(cmd::RMP_CONTEXT..)
        .ok_or(Status::BadInputLength)?;
    let srq = function.objects.srqs.get_mut(cmd::OBJECT.get32(input))?;
    srq.limit = rmp::LWM.get(context) as u16;
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
/// If there is no such queue.
pub(crate) fn query_rmp(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let srq = function.objects.srqs.get(cmd::OBJECT.get32(input))?;
    let mut context = srq.context.clone();
    rmp::STATE.set(&mut context, READY);
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
