//! Queue pairs: creation, and the reset that the kernel's driver does in part only.

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
use super::srq::Attached;
use super::watch::{Shared, Watch};
use super::{Parts, RECV, SEND, producer};
use crate::alloc::Buffers;
use crate::command::{
    CommandFd, CreateQp, CreateQpReply, Doorbell, DriverData, DriverReply, QpSpec, Unread,
};
use crate::driver::answer;
use crate::driver::contract::{self, Replacement, ResetQp, SendQueue as _};
use crate::error::{Result, Subject, Verb};
use crate::work::{LocalKey, Progress};

pub(super) type NewQp = contract::NewQp<SendQueue, RecvQueue, QpCore>;

/// What is known of a queue pair, to make another like it.
#[derive(Clone, Debug)]
pub(crate) struct QpCore(Arc<Core>);

#[derive(Debug)]
struct Core {
    spec: QpSpec,
    /// It has left the state RESET.
    ///
    /// Relaxed throughout: whoever resets the queue pair has it to itself, so its changes of state are over.
    begun: AtomicBool,
    /// Its rings, as far as others than poster and kernel ask about them: in `maps`, so before them. The
    /// kernel keeps its own hold on their pages.
    send: RingView,
    recv: Option<RingView>,
    /// Its share in a shared receive queue, instead of the receive ring.
    srq: Option<Attached>,
    /// Those of its sends and of its receives, where completions name it by its number, if those that wait
    /// unread count.
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

    fn modified(&self, _: &DriverReply) {
        self.0.begun.store(true, Ordering::Relaxed);
    }
}

/// Creates a queue pair and maps its rings.
pub(super) fn create(fd: &Arc<CommandFd>, spec: &QpSpec, parts: &Parts<'_>) -> Result<NewQp> {
    let srq = parts.srq.filter(|_| parts.follows_requests);
    let attach = |qpn| srq.map(|srq| Attached::new(qpn, srq, parts.recv_cq));
    let cqs = || [parts.send_cq, parts.recv_cq].map(Arc::clone);
    let watched = parts.follows_requests.then(cqs);
    create_as(fd, spec, parts.buffers, watched, attach)
}

/// Creates a queue pair that is described, with its share in a shared receive queue once its number is known.
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
    command.spec.cap.max_send_sge = asked_slices(&spec.cap);
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

/// Takes a queue pair to the state RESET.
///
/// A reliable one that may have been connected is replaced, for the kernel's reset (`rxe_qp_reset` in
/// `rxe_qp.c`, Linux 6.1 to 7.3) keeps what a READ that was cut off has left: at the requester the opcode of
/// the last reply (`qp->comp.opcode`), so that the next READ or atomic completes well and has brought nothing
/// (`check_ack` in `rxe_comp.c`); at the responder the reply under way (`qp->resp.res`), which is sent for
/// the next request, from memory that has been freed. Whether the peer was reading nobody can tell.
pub(super) fn reset(
    fd: &Arc<CommandFd>,
    reset: ResetQp<'_, SendQueue, RecvQueue, QpCore>,
) -> Result<Option<Replacement<QpCore>>> {
    let core = &reset.backing.0;
    let keeps_something = core.spec.qp_type == QpType::RC && core.begun.load(Ordering::Relaxed);
    match keeps_something && !reset.in_place {
        true => replace(fd, reset).map(Some),
        false => empty(fd, reset).map(|()| None),
    }
}

/// Resets a queue pair in its place, twice if requests waited.
///
/// The kernel of 6.12 and later looks where its requester goes on before it takes the waiting requests away
/// (`rxe_sender` in `rxe_qp_reset`). It would then send what lies in their slots, nothing but zeros, as
/// WRITEs on the next connection. The second time nothing waits.
///
/// Completions that wait stay where they are. They count no longer for what may be posted: else a program
/// that never takes those of its failed requests could not post again. For as many as the completion queue is
/// said to hold there is room besides what is posted from now on.
fn empty(fd: &CommandFd, reset: ResetQp<'_, SendQueue, RecvQueue, QpCore>) -> Result<()> {
    let waited = reset.send.in_flight() > 0;
    fd.execute(reset.command)?;
    if waited {
        fd.execute(reset.command)?;
    }
    let Core { watched, qpn, .. } = &*reset.backing.0;
    for cq in watched.iter().flatten() {
        cq.forget(*qpn);
    }
    Ok(())
}

/// Puts a new queue pair in the place of one. The old one is reset first, so that nothing more comes of it or
/// to it, also while it is destroyed: of a packet that comes then the kernel warns (`rxe_sched_task`).
fn replace(
    fd: &Arc<CommandFd>,
    reset: ResetQp<'_, SendQueue, RecvQueue, QpCore>,
) -> Result<Replacement<QpCore>> {
    let Core {
        spec, srq, watched, ..
    } = &*reset.backing.0;
    let attach = |qpn| srq.as_ref().map(|srq| srq.renew(qpn));
    let NewQp {
        handle,
        qpn,
        send,
        recv,
        backing,
    } = create_as(fd, spec, reset.buffers, watched.clone(), attach)
        .map_err(|error| error.with_detail("a QP in the place of one that is reset"))?;
    fd.execute(reset.command)
        .inspect_err(|_| fd.abandon(handle))?;
    // A window holds on to its queue pair, whose end would wait for it (`rxe_do_bind_mw` in `rxe_mw.c`).
    let stays = reset.send.has_bound_windows();
    *reset.send = send;
    if let (Some(old), Some(new)) = (reset.recv, recv) {
        *old = new;
    }
    Ok(Replacement {
        handle,
        qpn,
        backing,
        stays,
    })
}

/// The slices of a send request to ask for: at least one. The kernel compares the count of slices that it has
/// passed even where the bytes are inline, and without any it ends such a request with an error
/// (`rxe_requester` in `rxe_req.c`, `copy_data`).
pub(super) fn asked_slices(cap: &QpCap) -> u32 {
    cap.max_send_sge.max(1)
}

/// The slices and the inline bytes that a send request can really have.
///
/// The driver makes slots that hold either, whichever needs more, and since 6.2 says so; 6.1 echoes what
/// was asked for (`rxe_qp_init_req` in `rxe_qp.c`).
pub(super) fn granted_send(cap: &QpCap) -> (u32, u32) {
    let sge = size_of::<abi::Sge>() as u32;
    let bytes = cap
        .max_inline_data
        .max(cap.max_send_sge.saturating_mul(sge));
    (bytes / sge, bytes)
}
