//! Queue pairs: creation, and the reset, which the kernel's driver does only in part.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use uverbs_uapi::enums::QpType;
use uverbs_uapi::rxe as abi;
use uverbs_uapi::types::QpCap;

use super::map::{Keep, Maps, RingMap, RingView};
use super::recv::RecvQueue;
use super::send::{SLOT, SendQueue};
use super::srq::{Attached, SrqRing};
use super::watch::{Shared, Watch};
use super::{Parts, RECV, SEND, producer};
use crate::alloc::Buffers;
use crate::command::{CommandFd, CreateQp, CreateQpReply, Doorbell, DriverData, QpSpec, Unread};
use crate::driver::answer;
use crate::driver::contract::{self, ResetQp, SendQueue as _, SrqBacking};
use crate::error::{Error, Result, Subject, Verb};
use crate::work::{LocalKey, PostError, Progress};

pub(super) type NewQp = contract::NewQp<SendQueue, RecvQueue, QpCore>;

/// What is known of a queue pair, so that another like it can be made.
#[derive(Clone, Debug)]
pub(crate) struct QpCore(Arc<Core>);

#[derive(Debug)]
struct Core {
    spec: QpSpec,
    /// It has been in the state RTR: before that it neither sends nor receives anything.
    ///
    /// Relaxed throughout: both are done under the lock of the queue pair.
    begun: AtomicBool,
    /// The view of other threads on its rings, which are in `_maps`, so these fields are dropped first. The
    /// kernel itself also keeps the pages.
    send: RingView,
    recv: Option<RingView>,
    /// Its share in a shared receive queue, instead of the receive ring.
    srq: Option<Attached>,
    /// The completion queues of its sends and of its receives, where completions that nobody has taken count
    /// for what may be posted.
    watched: Option<[Arc<Shared>; 2]>,
    qpn: u32,
    /// For the doorbell.
    answer: Unread,
    _maps: ArrayVec<RingMap, 2>,
}

impl Maps for Core {}

impl contract::QpBacking for QpCore {
    fn sends(&self) -> Progress {
        self.0.send.progress()
    }

    fn receives(&self) -> Option<Progress> {
        self.0.recv.as_ref().map(RingView::progress)
    }

    fn sends_name(&self, in_flight: Progress, key: LocalKey) -> bool {
        self.0.send.names(in_flight, key)
    }

    fn receives_name(&self, in_flight: Progress, key: LocalKey) -> bool {
        let recv = self.0.recv.as_ref();
        recv.is_some_and(|recv| recv.names(in_flight, key))
    }

    /// A reliable one that may have been connected: the kernel's reset (`rxe_qp_reset` in `rxe_qp.c`, Linux
    /// 6.1 to 7.3) keeps leftovers of an interrupted READ. At the requester this is the opcode of the last
    /// reply (`qp->comp.opcode`): the next READ or atomic then completes with success and has read nothing
    /// (`check_ack` in `rxe_comp.c`). At the responder it is the reply under way (`qp->resp.res`), which is
    /// sent for the next request, from memory that has been freed. Whether the peer was reading is not known.
    fn needs_replacement(&self) -> bool {
        self.0.spec.qp_type == QpType::RC && self.0.begun.load(Ordering::Relaxed)
    }

    fn begins(&self) {
        if let Some(srq) = &self.0.srq {
            srq.begin();
        }
    }

    fn has_begun(&self) {
        self.0.begun.store(true, Ordering::Relaxed);
    }
}

/// Creates a queue pair and maps its rings.
pub(super) fn create(fd: &Arc<CommandFd>, spec: &QpSpec, parts: &Parts<'_>) -> Result<NewQp> {
    refuse_lost(parts.srq, spec)?;
    let srq = parts.srq.filter(|_| parts.follows_requests);
    if let Some(srq) = srq
        && srq.pd() != spec.pd
    {
        let why = format!(
            "the SRQ is in PD {}: soft-RoCE looks in the QP's PD for the memory of its requests, and finds none",
            srq.pd().0
        );
        return Err(Error::invalid(Verb::CreateQp, subject(spec), why));
    }
    let attach = |qpn| srq.map(|srq| Attached::new(qpn, srq, parts.recv_cq, spec.qp_type));
    let cqs = || [parts.send_cq, parts.recv_cq].map(Arc::clone);
    let watched = parts.follows_requests.then(cqs);
    create_as(fd, spec, parts.buffers, watched, attach)
}

/// The name, in errors, of a queue pair that is not created.
fn subject(spec: &QpSpec) -> Subject {
    Subject::named("QP", format_args!("in PD {}", spec.pd.0))
}

/// Refuses a shared receive queue that is lost.
fn refuse_lost(srq: Option<&Arc<SrqRing>>, spec: &QpSpec) -> Result<()> {
    match srq.is_some_and(SrqBacking::is_lost) {
        false => Ok(()),
        true => {
            let why = PostError::QueueLost.to_string();
            Err(Error::invalid(Verb::CreateQp, subject(spec), why))
        }
    }
}

/// Creates a queue pair from its description. `attach` gives its share in a shared receive queue once its
/// number is known.
fn create_as(
    fd: &Arc<CommandFd>,
    spec: &QpSpec,
    buffers: Option<&Buffers>,
    watched: Option<[Arc<Shared>; 2]>,
    attach: impl FnOnce(u32) -> Option<Attached>,
) -> Result<NewQp> {
    let mut command = CreateQp {
        spec: *spec,
        driver: DriverData::output::<abi::CreateQpResp>(),
    };
    command.spec.cap = asked(&spec.cap);
    let reply = fd.execute(&command)?;
    let handle = reply.handle;
    let mapped = map(fd, spec, &reply, buffers, watched, attach);
    if mapped.is_err() {
        fd.abandon(handle);
    }
    mapped
}

fn map(
    fd: &Arc<CommandFd>,
    spec: &QpSpec,
    reply: &CreateQpReply,
    buffers: Option<&Buffers>,
    watched: Option<[Arc<Shared>; 2]>,
    attach: impl FnOnce(u32) -> Option<Attached>,
) -> Result<NewQp> {
    let CreateQpReply {
        handle,
        qpn,
        cap,
        driver,
    } = reply;
    let (handle, qpn) = (*handle, *qpn);
    let abi::CreateQpResp { rq_mi, sq_mi } =
        answer(Verb::CreateQp, || Subject::the(SEND.name), driver)?;
    let (max_sge, max_inline) = granted_send(cap);
    let (mut send, map) = producer(fd, sq_mi, SLOT, SEND, buffers)?;
    let mut maps = ArrayVec::<_, 2>::new();
    maps.push(map);
    let mut recv = None;
    if spec.srq.is_none() {
        let (ring, map) = producer(fd, rq_mi, size_of::<abi::RecvWqe>(), RECV, buffers)?;
        maps.push(map);
        recv = Some(ring);
    }
    if let Some([sends, receives]) = &watched {
        send.heed(Watch::new(sends, qpn, false));
        if let Some(recv) = &mut recv {
            recv.heed(Watch::new(receives, qpn, true));
        }
    }
    let core = Arc::new(Core {
        spec: *spec,
        begun: AtomicBool::new(false),
        send: RingView::new(&send, None),
        recv: recv.as_ref().map(|recv| RingView::new(recv, None)),
        srq: attach(qpn),
        watched,
        qpn,
        answer: Unread::new(0),
        _maps: maps,
    });
    // SAFETY: the send queue, which has the doorbell, keeps the core too.
    let doorbell = unsafe { Doorbell::new(Arc::clone(fd), handle, NonNull::from(&core.answer)) };
    let keep = || Some(Arc::clone(&core) as Keep);
    let recv = recv.map(|ring| RecvQueue::new(ring, cap.max_recv_sge, keep()));
    let send = SendQueue::new(send, doorbell, max_sge, max_inline, keep());
    Ok(NewQp {
        handle,
        qpn,
        send,
        recv,
        backing: QpCore(core),
    })
}

/// Takes a queue pair to the state RESET. One that is replaced is reset too, so that it sends and receives
/// nothing more, not even while it is destroyed: the kernel warns of a packet that comes then
/// (`rxe_sched_task`).
///
/// One that is not replaced is reset twice if requests waited. The kernel of 6.12 and later runs its
/// requester once more before it removes the waiting requests (`rxe_sender` in `rxe_qp_reset`). The requester
/// would then send the contents of their slots, nothing but zeros, as WRITEs on the next connection. At the
/// second reset nothing waits.
///
/// Its completions that wait stay in the ring. They no longer count for what may be posted: otherwise a
/// program that never takes those of its failed requests could not post again. The completion queue has room
/// for as many of them as its capacity, in addition to what is posted from now on.
pub(super) fn reset(
    fd: &CommandFd,
    reset: ResetQp<'_, SendQueue, RecvQueue, QpCore>,
) -> Result<()> {
    let waited = reset.send.in_flight() > 0;
    fd.execute(reset.command)?;
    let QpCore(core) = reset.backing;
    if !reset.is_replaced {
        if waited {
            fd.execute(reset.command)?;
        }
        for cq in core.watched.iter().flatten() {
            cq.forget(core.qpn);
        }
    }
    if let Some(srq) = &core.srq {
        srq.stop();
    }
    Ok(())
}

/// Creates the queue pair that takes the place of another when that is reset.
pub(super) fn replacement(
    fd: &Arc<CommandFd>,
    QpCore(of): &QpCore,
    buffers: Option<&Buffers>,
) -> Result<NewQp> {
    let Core {
        spec, srq, watched, ..
    } = &**of;
    let attach = |qpn| srq.as_ref().map(|srq| srq.renew(qpn));
    refuse_lost(srq.as_ref().map(Attached::ring), spec)
        .and_then(|()| create_as(fd, spec, buffers, watched.clone(), attach))
        .map_err(|error| error.with_detail("a QP in the place of one that is reset"))
}

/// The capacities to ask for so that a program has those that it wants.
///
/// At least one request of each kind: the driver makes a ring without slots for none, which is no ring. And
/// at least one slice of a send request: the kernel compares the number of slices that it has passed with
/// this even where the bytes are inline; if this is 0, it ends such a request with an error (`rxe_requester`
/// in `rxe_req.c`, `copy_data`).
pub(super) fn asked(cap: &QpCap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr.max(1),
        max_recv_wr: cap.max_recv_wr.max(1),
        max_send_sge: cap.max_send_sge.max(1),
        ..*cap
    }
}

/// The slices and the inline bytes that a send request can really have.
///
/// The driver makes slots that hold either, whichever needs more. Since Linux 6.2 it reports that; 6.1
/// repeats what was asked for (`rxe_qp_init_req` in `rxe_qp.c`).
pub(super) fn granted_send(cap: &QpCap) -> (u32, u32) {
    let sge = size_of::<abi::Sge>() as u32;
    let bytes = cap
        .max_inline_data
        .max(cap.max_send_sge.saturating_mul(sge));
    (bytes / sge, bytes)
}

#[cfg(test)]
impl QpCore {
    /// A queue pair of this type, with this share in a shared receive queue.
    pub(super) fn sample(spec: QpSpec, send: RingView, srq: Attached) -> Self {
        Self(Arc::new(Core {
            spec,
            begun: AtomicBool::new(true),
            send,
            recv: None,
            srq: Some(srq),
            watched: None,
            qpn: 17,
            answer: Unread::new(0),
            _maps: ArrayVec::new(),
        }))
    }
}
