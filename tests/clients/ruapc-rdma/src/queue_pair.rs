//! Queue pairs that have the buffers of their requests until the device has done with them.
//!
//! Any thread may post. A lock for each direction has its half of the queue pair, with the number of the next
//! request; what requests hold has locks of its own, so that who polls does not wait for a doorbell.

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::DerefMut;
use std::sync::{Arc, Mutex, PoisonError};

use arrayvec::ArrayVec;
use ruapc_bufpool::{Buffer, DeviceIndex};
use uverbs::mr::LocalKey;
use uverbs::qp::{Control, QpState, RecvHalf, SendHalf};
use uverbs::{Caps, LocalSlice, PostError, Qp, Rc, RemoteSlice};

use crate::completion::{Completion, CompletionIdentity, CompletionQueue};
use crate::connect::{QpConnectionConfig, attributes};
use crate::header::{
    ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_type, ibv_send_flags, ibv_wc,
};
use crate::held::Held;
use crate::memory::ProtectionDomain;
use crate::read::Batch;
use crate::types::{WRID, WRType};
use crate::{Error, ErrorKind, Result, lock};

/// How many pieces a message may have at most.
pub const MAX_GATHER_SGE: usize = 32;

type Pieces = ArrayVec<LocalSlice<'static>, MAX_GATHER_SGE>;

/// The buffers of a send or a receive.
#[derive(Debug)]
pub enum WrBuffers {
    /// One.
    One(Buffer),
    /// The pieces of a message.
    Many(Box<[Buffer]>),
}

impl WrBuffers {
    /// The buffer, if it is one.
    pub fn into_single(self) -> Option<Buffer> {
        match self {
            Self::One(buffer) => Some(buffer),
            Self::Many(_) => None,
        }
    }
}

impl From<Buffer> for WrBuffers {
    fn from(buffer: Buffer) -> Self {
        Self::One(buffer)
    }
}

/// What a send has until it has completed.
#[derive(Debug)]
enum Sent {
    Buffers(WrBuffers),
    Read(Arc<Batch>),
}

impl Sent {
    fn is_read(&self) -> bool {
        matches!(self, Self::Read(_))
    }

    fn is_buffers(&self) -> bool {
        !self.is_read()
    }
}

/// Has nothing in it: how far earlier sends have been given up, the queue pair knows itself.
#[derive(Debug, Default)]
pub struct CompletionCursor(());

/// What a completion has released.
#[derive(Debug)]
pub struct CompletedWork<'a> {
    /// What it says.
    pub wc: &'a ibv_wc,
    /// The buffers of the request itself.
    pub buffer: Option<WrBuffers>,
    /// How many earlier sends have given up their buffers: they have completed, and said nothing.
    pub swept_sends: usize,
}

/// Which requests report their completion.
#[derive(Clone, Copy)]
enum Signal {
    /// Every so many.
    Some,
    All,
    /// Those whose flags say so.
    AsFlagged,
}

/// One direction: its half of the queue pair, and the number of the next request.
struct Direction<H> {
    half: ManuallyDrop<H>,
    next: u64,
}

/// A reliable connection. Its requests complete on one completion queue.
pub struct QueuePair {
    send: Mutex<Direction<SendHalf<Rc>>>,
    recv: Mutex<Direction<RecvHalf<Rc>>>,
    control: Control,
    sent: Mutex<Held<Sent>>,
    received: Mutex<Held<WrBuffers>>,
    cq: Arc<CompletionQueue>,
    pd: Arc<ProtectionDomain>,
    identity: CompletionIdentity,
    /// By it a plan of READs knows its queue pair.
    owner: Arc<()>,
    signal_interval: u64,
    gather_limit: usize,
    /// Whose keys of buffers are used.
    pub device_index: DeviceIndex,
}

impl QueuePair {
    /// Creates one of type RC, and writes what it can do to `init_attr.cap`.
    pub fn create(
        pd: &Arc<ProtectionDomain>,
        cq: &Arc<CompletionQueue>,
        init_attr: &mut ibv_qp_init_attr,
        device_index: DeviceIndex,
    ) -> Result<Self> {
        if init_attr.qp_type != ibv_qp_type::IBV_QPT_RC || !Arc::ptr_eq(&pd.context, cq.context()) {
            return Err(ErrorKind::InvalidQueuePairConfig.into());
        }
        let cap = &mut init_attr.cap;
        let on = cq.cq();
        let qp = pd.inner.qp(&on).caps(Caps {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        });
        let qp = qp.signal_all(init_attr.sq_sig_all != 0).create::<Rc>();
        let qp = qp.map_err(ErrorKind::IBCreateQueuePairFail.because())?;
        drop(on);
        let caps = qp.caps();
        cap.max_send_wr = caps.max_send_wr;
        cap.max_recv_wr = caps.max_recv_wr;
        cap.max_send_sge = caps.max_send_sge;
        cap.max_recv_sge = caps.max_recv_sge;
        cap.max_inline_data = caps.max_inline_data;
        let identity = cq.registry().enter(qp.qpn())?;
        let first = identity.first_sequence();
        let control = qp.control();
        let (send, recv) = qp.split();
        Ok(Self {
            send: Mutex::new(Direction {
                half: ManuallyDrop::new(send),
                next: first,
            }),
            recv: Mutex::new(Direction {
                half: ManuallyDrop::new(recv),
                next: first,
            }),
            control,
            sent: Mutex::new(Held::new(first, caps.max_send_wr)),
            received: Mutex::new(Held::new(first, caps.max_recv_wr)),
            cq: Arc::clone(cq),
            pd: Arc::clone(pd),
            identity,
            owner: Arc::new(()),
            signal_interval: 1,
            gather_limit: MAX_GATHER_SGE.min(caps.max_send_sge as usize),
            device_index,
        })
    }

    /// Which completions are its own.
    pub fn identity(&self) -> CompletionIdentity {
        self.identity
    }

    /// The completion queue.
    pub fn cq(&self) -> &Arc<CompletionQueue> {
        &self.cq
    }

    /// Its number.
    pub fn qp_num(&self) -> u32 {
        self.identity.qp_num()
    }

    /// How many pieces a message may have.
    pub fn gather_limit(&self) -> usize {
        self.gather_limit
    }

    /// Has only every so many sends of [`QueuePair::send`] report their completion, but two in each filling
    /// of the queue.
    pub fn set_send_signal_interval(&mut self, interval: u32, max_send_wr: u32) {
        self.signal_interval = interval.clamp(1, (max_send_wr / 2).max(1)).into();
    }

    /// Connects it: three transitions.
    pub fn connect(&self, config: &QpConnectionConfig) -> Result<()> {
        config.validate()?;
        for (transition, attr) in config.transitions() {
            self.control.modify(&attr).map_err(|error| {
                let msg = format!("{transition}: {error}; {config:?}");
                Error::new(ErrorKind::IBModifyQueuePairFail, msg)
            })?;
        }
        Ok(())
    }

    /// Changes attributes. There is no way back to RESET: make another queue pair.
    pub fn modify(&self, attr: &mut ibv_qp_attr, attr_mask: i32) -> Result<()> {
        let attr = attributes(attr, ibv_qp_attr_mask(attr_mask as u32))?;
        if attr.state == Some(QpState::RESET) {
            let msg = "a queue pair is not used again".to_owned();
            return Err(Error::new(ErrorKind::IBModifyQueuePairFail, msg));
        }
        let modified = self.control.modify(&attr);
        modified.map_err(ErrorKind::IBModifyQueuePairFail.because())
    }

    /// Sends a buffer and returns the number of the request. It reports its completion if it is its turn.
    pub fn send(&self, buffer: Buffer, flags: ibv_send_flags) -> Result<u64> {
        self.send_one(buffer, None, flags, Signal::Some)
    }

    /// Sends a buffer; the request reports its completion.
    pub fn send_signaled(&self, buffer: Buffer, flags: ibv_send_flags) -> Result<u64> {
        self.send_one(buffer, None, flags, Signal::All)
    }

    /// Sends a buffer with immediate data.
    pub fn send_imm(&self, buffer: Buffer, imm: u32, flags: ibv_send_flags) -> Result<u64> {
        self.send_one(buffer, Some(imm), flags, Signal::AsFlagged)
    }

    /// Sends immediate data alone.
    pub fn send_imm_only(&self, imm: u32, flags: ibv_send_flags) -> Result<()> {
        let sent = self.post_message(None, Pieces::new(), Some(imm), flags, Signal::AsFlagged);
        sent.map(drop)
    }

    /// Sends buffers as one message, perhaps with immediate data; the request reports its completion.
    pub fn send_gather(&self, buffers: Box<[Buffer]>, imm: Option<u32>) -> Result<u64> {
        if buffers.is_empty() || buffers.len() > self.gather_limit {
            let msg = format!("{} pieces, of at most {}", buffers.len(), self.gather_limit);
            return Err(Error::new(ErrorKind::IBPostSendFail, msg));
        }
        let pieces = buffers
            .iter()
            .map(|buffer| self.slice(buffer, 0, buffer.len()));
        let pieces = pieces.collect::<Result<Pieces>>()?;
        let flags = ibv_send_flags::IBV_SEND_SIGNALED;
        self.post_message(
            Some(WrBuffers::Many(buffers)),
            pieces,
            imm,
            flags,
            Signal::All,
        )
    }

    fn send_one(
        &self,
        buffer: Buffer,
        imm: Option<u32>,
        flags: ibv_send_flags,
        signal: Signal,
    ) -> Result<u64> {
        let mut pieces = Pieces::new();
        pieces.push(self.slice(&buffer, 0, buffer.len())?);
        self.post_message(Some(buffer.into()), pieces, imm, flags, signal)
    }

    /// Posts a message. The buffers are held before the device can see the request.
    fn post_message(
        &self,
        buffers: Option<WrBuffers>,
        pieces: Pieces,
        imm: Option<u32>,
        flags: ibv_send_flags,
        signal: Signal,
    ) -> Result<u64> {
        if flags.intersects(ibv_send_flags::IBV_SEND_INLINE | ibv_send_flags::IBV_SEND_IP_CSUM) {
            let msg = format!("{flags:?} is not supported");
            return Err(Error::new(ErrorKind::IBPostSendFail, msg));
        }
        let kind = match imm {
            Some(_) => WRType::SendImm,
            None => WRType::SendData,
        };
        self.post_send(buffers.map(Sent::Buffers), |half, number| {
            let id = WRID::new(kind, number).raw();
            half.post(|batch| {
                let mut request = match self.is_signaled(number, flags, signal) {
                    true => batch.signaled(id),
                    false => batch.unsignaled(id),
                };
                if flags.contains(ibv_send_flags::IBV_SEND_FENCE) {
                    request = request.fence();
                }
                if flags.contains(ibv_send_flags::IBV_SEND_SOLICITED) {
                    request = request.solicited();
                }
                match imm {
                    Some(imm) => request.send_imm(&pieces, imm)?,
                    None => request.send(&pieces)?,
                }
                Ok(())
            })
        })
    }

    /// Posts a READ of a plan.
    pub(crate) fn post_planned(
        &self,
        into: &[LocalSlice<'static>],
        from: RemoteSlice,
        batch: &Arc<Batch>,
    ) -> Result<()> {
        let sent = Some(Sent::Read(Arc::clone(batch)));
        let posted = self.post_send(sent, |half, number| {
            let id = WRID::new(WRType::Read, number).raw();
            half.post(|batch| {
                batch.signaled(id).read(into, from)?;
                Ok(())
            })
        });
        posted.map(drop)
    }

    /// Numbers a request of the send queue, has it hold what it needs, and posts it.
    fn post_send(
        &self,
        sent: Option<Sent>,
        post: impl FnOnce(&mut SendHalf<Rc>, u64) -> Result<usize, PostError>,
    ) -> Result<u64> {
        let mut direction = lock(&self.send);
        let failed = ErrorKind::IBPostSendFail;
        post_to(&mut direction, &self.sent, sent, failed, post)
    }

    /// Posts a receive into all of a buffer.
    pub fn recv(&self, buffer: Buffer) -> Result<()> {
        let piece = self.slice(&buffer, 0, buffer.capacity())?;
        let mut direction = lock(&self.recv);
        let failed = ErrorKind::IBPostRecvFail;
        let held = Some(WrBuffers::One(buffer));
        let posted = post_to(
            &mut direction,
            &self.received,
            held,
            failed,
            |half, number| {
                let mut batch = half.batch();
                batch.post(WRID::new(WRType::Recv, number).raw(), piece)?;
                Ok(batch.ring())
            },
        );
        posted.map(drop)
    }

    fn is_signaled(&self, number: u64, flags: ibv_send_flags, signal: Signal) -> bool {
        match signal {
            Signal::All => true,
            Signal::AsFlagged => flags.contains(ibv_send_flags::IBV_SEND_SIGNALED),
            Signal::Some => {
                let nth = number - self.identity.first_sequence();
                nth.is_multiple_of(self.signal_interval)
            }
        }
    }

    /// Takes what the request of a completion held, and what earlier sends held that reported none: in a
    /// reliable connection they have completed too.
    pub fn complete<'a>(
        &self,
        completion: Completion<'a>,
        _cursor: &mut CompletionCursor,
    ) -> Result<CompletedWork<'a>> {
        let wc = completion.of(&self.cq, self.identity)?;
        let number = wc.wr_id.sequence();
        if wc.is_recv() {
            return Ok(CompletedWork {
                wc,
                buffer: lock(&self.received).take(number),
                swept_sends: 0,
            });
        }
        let mut swept_sends = 0;
        // A buffer that goes may wake somebody, who may post: each goes without the lock.
        while let Some(earlier) = self.sent_before(number) {
            drop(earlier);
            swept_sends += 1;
        }
        let sent = lock(&self.sent).take(number);
        let buffer = match sent {
            Some(Sent::Buffers(buffers)) => Some(buffers),
            Some(Sent::Read(batch)) => {
                batch.arrive(wc.succ());
                None
            }
            None => None,
        };
        Ok(CompletedWork {
            wc,
            buffer,
            swept_sends,
        })
    }

    fn sent_before(&self, number: u64) -> Option<Sent> {
        lock(&self.sent).before(number, Sent::is_buffers)
    }

    /// Whether READs are in flight.
    pub fn has_pending_reads(&self) -> bool {
        self.pending_read_count() != 0
    }

    /// How many READs are in flight.
    pub fn pending_read_count(&self) -> usize {
        lock(&self.sent).count(Sent::is_read)
    }

    /// None ever: every READ has its place.
    pub fn read_slot_spills(&self) -> usize {
        0
    }

    pub(crate) fn owner(&self) -> &Arc<()> {
        &self.owner
    }

    /// Part of a buffer, for a request of this queue pair, which is to hold the buffer until it has
    /// completed.
    pub(crate) fn slice(
        &self,
        buffer: &Buffer,
        offset: usize,
        length: usize,
    ) -> Result<LocalSlice<'static>> {
        let failed = ErrorKind::IBRegMemoryRegionFail;
        let key = buffer.memory_key(&self.device_index);
        let key = LocalKey(key.map_err(failed.because())?.lkey);
        let length = u32::try_from(length).map_err(ErrorKind::InsufficientBuffer.because())?;
        let address = buffer.as_ptr() as u64 + offset as u64;
        // SAFETY: the request holds the buffer, or its plan does, so nobody else has references to its bytes,
        // and its pool keeps them registered. Regions here are named by the addresses of their memory: should
        // the key be that of another region, as of another device, then the device finds these bytes by it or
        // none.
        let slice = unsafe { self.pd.inner.raw_slice(key, address, length) };
        slice.map_err(ErrorKind::InsufficientBuffer.because())
    }
}

/// Numbers a request, has it hold what it needs before the device can see it, and posts it.
fn post_to<H, T>(
    direction: &mut impl DerefMut<Target = Direction<H>>,
    held: &Mutex<Held<T>>,
    value: Option<T>,
    failed: ErrorKind,
    post: impl FnOnce(&mut H, u64) -> Result<usize, PostError>,
) -> Result<u64> {
    let direction = &mut **direction;
    let number = direction.next;
    if number > WRID::MAX_SEQUENCE {
        return Err(ErrorKind::WorkRequestIdsExhausted.into());
    }
    let refused = lock(held).push(value);
    refused.map_err(|_| Error::from(ErrorKind::WorkRequestSlotsExhausted))?;
    match post(&mut direction.half, number) {
        // Where the doorbell failed, the request is in the ring: it is worked on, flushed, or goes with the
        // queue pair.
        Ok(_) | Err(PostError::Doorbell(_)) => {
            direction.next += 1;
            Ok(number)
        }
        Err(error) => {
            let undone = lock(held).undo();
            drop(undone);
            Err(failed.because()(error))
        }
    }
}

impl Drop for QueuePair {
    /// Destroys it, before the buffers go. A kernel that refuses may go on with them: then they stay for
    /// good.
    fn drop(&mut self) {
        let send = self.send.get_mut().unwrap_or_else(PoisonError::into_inner);
        let recv = self.recv.get_mut().unwrap_or_else(PoisonError::into_inner);
        let next = send.next.max(recv.next);
        // SAFETY: both are taken here alone, and nobody looks at them afterwards.
        let halves = unsafe {
            (
                ManuallyDrop::take(&mut send.half),
                ManuallyDrop::take(&mut recv.half),
            )
        };
        // The kernel may give the number out again at once: whoever gets it waits to enter it.
        let mut registry = self.cq.registry();
        let destroyed = match Qp::join(halves.0, halves.1) {
            Ok(qp) => qp.destroy().map_err(mem::forget),
            Err(halves) => {
                mem::forget(halves);
                Err(())
            }
        };
        match destroyed {
            Ok(()) => registry.leave(self.identity, next),
            Err(()) => {
                mem::forget(mem::replace(&mut self.sent, Mutex::new(Held::new(0, 0))));
                mem::forget(mem::replace(
                    &mut self.received,
                    Mutex::new(Held::new(0, 0)),
                ));
            }
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}
