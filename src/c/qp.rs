//! Queue pairs: creation and destruction. [`super::qp_state`] changes them, [`super::send`] and
//! [`super::recv`] post to them.

use std::ffi::c_int;
use std::sync::atomic::AtomicU32;

use uverbs_uapi::enums::{QpState, QpType};
use uverbs_uapi::flags::QpCreateFlags;
use uverbs_uapi::handle::QpHandle;

use super::abi::attr::{ibv_qp_cap, ibv_qp_init_attr};
use super::abi::ibv_pd;
use super::abi::queue::{ibv_cq, ibv_qp, ibv_qp_ex};
use super::cq::{CqObject, cq};
use super::failure::{Failure, Result, pointer};
use super::lock::{Gate, Locked, Owner, wait_until};
use super::object::{CStruct, Object, destroy_awaited, object};
use super::pd::{PdObject, pd};
use super::send::Sender;
use super::srq::{SrqObject, srq};
use super::wr::Extended;
use crate::command::{DestroyCounting, QpSpec};
use crate::context::Context;
use crate::domain::DomainState;
use crate::driver::Refusals;
use crate::driver::{DcStreams, DcTargetBacking, NewQp, QpBacking, QpParts, RecvQueue, SendQueue};
use crate::pd::{PdUse, User};
use crate::qp::transport::Addressing;
use crate::work::Operations;

/// A queue pair of a C program: always with the extended struct, of which a plain one uses the start.
#[repr(C)]
pub(super) struct QpObject {
    c: CStruct<ibv_qp_ex>,
    pub(super) operations: Operations,
    /// The capacities of its queues. A target of XRC has none.
    pub(super) caps: ibv_qp_cap,
    /// Shut in the states in which libibverbs's provider refuses to post.
    pub(super) sends: Gate,
    pub(super) receives: Gate,
    pub(super) send: Locked<Sender>,
    /// The functions of a driver's own, once a program has requested them.
    own_functions: CStruct<OwnFunctions>,
    /// The thread that holds the lock of `send` since `ibv_wr_start`.
    pub(super) batch: Owner,
    /// `None` if it receives from a shared queue.
    pub(super) recv: Locked<Option<RecvQueue>>,
    pub(super) handle: QpHandle,
    pub(super) transport: QpType,
    pub(super) addressing: Addressing,
    /// It was created for the functions of `ibv_wr_*(3)`.
    has_functions: bool,
    pub(super) refusals: Refusals,
    /// After the queues, and before the objects that they use, in the order of drops. A target of XRC has
    /// neither queues nor a protection domain.
    pub(super) backing: Option<QpBacking>,
    /// The parts of a target of dynamic connections, which it has instead.
    pub(super) dc_target: Option<DcTargetBacking>,
    pub(super) pd: Option<PdUse>,
    pub(super) context: Context,
}

/// Room for a struct of functions of a driver's own, which programs call through a pointer to it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct OwnFunctions([usize; 13]);

impl OwnFunctions {
    const NONE: Self = Self([0; 13]);
}

// SAFETY: the C struct is the first field, and starts with the plain one.
unsafe impl Object for QpObject {
    type C = ibv_qp;
}

impl QpObject {
    /// Opens or shuts its queues for a new state: sends are refused until RTS.
    pub(super) fn came_to(&self, state: QpState) {
        let refuses = self.refusals.in_error;
        let shuts_receives = state == QpState::RESET || refuses && state == QpState::ERR;
        self.receives.shut(shuts_receives);
        match state {
            QpState::RESET => self.sends.shut(true),
            QpState::SQE | QpState::ERR if refuses => self.sends.shut(true),
            QpState::ERR if self.refusals.flushes_early_sends => self.sends.shut(false),
            QpState::RTS | QpState::SQD => self.sends.shut(false),
            _ => {}
        }
    }

    /// Calls `act` with the sender, under its lock. Between `ibv_wr_start` and `ibv_wr_complete` this thread
    /// holds the lock already.
    pub(super) fn with_sender<T>(&self, act: impl FnOnce(&mut Sender) -> T) -> T {
        match self.batch.is_this_thread() {
            // SAFETY: this thread has the lock, and the call that took it has returned.
            true => act(unsafe { self.send.held() }),
            false => act(&mut self.send.lock()),
        }
    }

    /// The address of the functions of the driver's own.
    #[allow(dead_code, reason = "direct verbs need it, and may not be built in")]
    pub(super) fn own_functions(&self) -> *mut OwnFunctions {
        self.own_functions.get()
    }

    /// The extended struct of the queue pair that has these functions of its own.
    #[allow(dead_code, reason = "direct verbs need it, and may not be built in")]
    pub(super) fn of_own_functions(functions: *mut OwnFunctions) -> *mut ibv_qp_ex {
        functions
            .wrapping_byte_sub(std::mem::offset_of!(Self, own_functions))
            .cast()
    }

    #[allow(dead_code, reason = "direct verbs need it, and may not be built in")]
    pub(super) fn handle(&self) -> QpHandle {
        self.handle
    }

    #[allow(dead_code, reason = "direct verbs need it, and may not be built in")]
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// The struct of plain queue pairs.
    pub(super) fn c(&self) -> *mut ibv_qp {
        self.c.get().cast()
    }

    /// The completion queues to which it reports. One that it does not have is NULL.
    pub(super) fn cqs(&self) -> [*mut ibv_cq; 2] {
        // SAFETY: the C struct lies in the object.
        unsafe { [(*self.c()).send_cq, (*self.c()).recv_cq] }
    }

    /// Whether each request names its destination, as for datagrams and XRC.
    #[inline(always)]
    pub(super) fn names_destination(&self) -> bool {
        self.addressing != Addressing::Connection
    }

    fn events_acknowledged(&self) -> &AtomicU32 {
        // SAFETY: the field is the object's, and is only accessed atomically.
        unsafe { &(*self.c()).events_completed }
    }
}

fn caps(send: &SendQueue, recv: Option<&RecvQueue>) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: send.capacity(),
        max_recv_wr: recv.map_or(0, RecvQueue::capacity),
        max_send_sge: send.max_sge(),
        max_recv_sge: recv.map_or(0, RecvQueue::max_sge),
        max_inline_data: send.max_inline(),
    }
}

/// The object of a C program's queue pair.
///
/// # Safety
///
/// The contract of [`object`].
#[inline(always)]
pub(super) unsafe fn qp<'a>(c: *mut ibv_qp) -> Result<&'a QpObject> {
    // SAFETY: the caller vouches for it.
    unsafe { object::<QpObject>(c) }.ok_or(Failure::INVALID)
}

/// The properties with which a queue pair is created, besides its plain attributes.
struct Parts<'a> {
    send_cq: &'a CqObject,
    recv_cq: &'a CqObject,
    srq: Option<&'a SrqObject>,
    flags: QpCreateFlags,
    /// The requested operations of the functions `ibv_wr_*(3)`, possibly empty; `None` if the functions were
    /// not requested.
    functions: Option<Operations>,
    own: Own,
}

/// Properties that only a driver's own function requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Own {
    /// A queue pair of the device's own type accepts lists of requests, which then can only have messages.
    pub(super) by_lists: bool,
    pub(super) unsolicited_writes: bool,
    pub(super) service_level: Option<u8>,
    /// It is an initiator of dynamic connections.
    pub(super) initiator: bool,
    pub(super) streams: Option<DcStreams>,
}

/// Creates a queue pair; its actual capacities are written to the attributes.
fn create(
    pd: &PdObject,
    c: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    parts: &Parts<'_>,
) -> Result<*mut ibv_qp> {
    let context = pd.pd().context();
    let transport = match parts.own.initiator {
        true => QpType::DCI,
        false => QpType(init.qp_type),
    };
    if transport.name().is_none() {
        return Err(Failure::INVALID);
    }
    let mut operations = context.operations(transport)?;
    if transport == QpType::DRIVER && parts.functions.is_none() {
        operations &= Operations::of(QpType::UD);
    }
    // Requests of a device's own type name a destination, even WRITEs and READs. A list has no room for it:
    // these need the functions.
    let by_functions = parts.functions.is_some() || parts.own.by_lists;
    if (transport == QpType::DRIVER && !by_functions) || !context.driver().has_type(transport) {
        return Err(Failure::UNSUPPORTED);
    }
    // rdma-core's providers create it also for SENDs with invalidation, which are not among the messages of
    // unreliable connections. Such a request is refused.
    let only_created = match transport {
        QpType::UC => Operations::SEND_INV,
        _ => Operations::empty(),
    };
    let wanted = parts.functions.unwrap_or(Operations::empty());
    if !operations.union(only_created).contains(wanted) {
        return Err(Failure::UNSUPPORTED);
    }
    // Events identify the queue pair by its address, so its memory is allocated first.
    let place: Box<std::mem::MaybeUninit<QpObject>> = Box::new_uninit();
    let spec = QpSpec {
        pd: pd.pd().handle(),
        send_cq: parts.send_cq.handle(),
        recv_cq: parts.recv_cq.handle(),
        srq: parts.srq.map(SrqObject::handle),
        qp_type: transport,
        cap: at_least_one(init.cap, transport),
        sq_sig_all: init.sq_sig_all != 0,
        flags: parts.flags,
        user_handle: place.as_ptr().expose_provenance() as u64,
        event_fd: context.event_fd()?,
    };
    let domain = pd.pd().domain().and_then(DomainState::thread_domain);
    let made_of = QpParts {
        send_cq: parts.send_cq.backing(),
        recv_cq: parts.recv_cq.backing(),
        srq: parts.srq.map(SrqObject::backing),
        buffers: pd.pd().buffers(),
        // SAFETY: by ibv_alloc_td(3) only one thread at a time uses the objects in the domain.
        thread_domain: domain.map(|domain| unsafe { domain.hardware() }),
        inline_scatter: false,
        out_of_order: false,
        unsolicited_writes: parts.own.unsolicited_writes,
        streams: parts.own.streams,
        for_agent: false,
        service_level: parts.own.service_level,
        // Programs keep posting where libibverbs lets them, whether they have taken the completions or not:
        // `ib_send_lat -e` continues after an event whose completion it took before. If they deregister a
        // region, the kernel does so at once.
        follows_requests: false,
    };
    let NewQp {
        handle,
        qpn,
        send,
        recv,
        backing,
    } = context.driver().create_qp(context.fd(), &spec, &made_of)?;
    let caps = caps(&send, recv.as_ref());
    init.cap = caps;
    let plain = ibv_qp {
        context: pd.c_context(),
        qp_context: init.qp_context,
        pd: c,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: handle.0,
        qp_num: qpn,
        state: QpState::RESET.0,
        qp_type: init.qp_type,
        mutex: Default::default(),
        cond: Default::default(),
        events_completed: AtomicU32::new(0),
    };
    let refusals = context.driver().refusals();
    let object = QpObject {
        c: CStruct::new(context.driver().with(Extended {
            qp: plain,
            // Only one thread at a time uses the objects in a thread domain.
            single_threaded: domain.is_some(),
        })),
        sends: Gate::new(true),
        receives: Gate::new(true),
        has_functions: parts.functions.is_some(),
        operations,
        caps,
        refusals,
        send: Locked::new(Sender::new(Some(send)), domain.is_some()),
        batch: Owner::new(),
        recv: Locked::new(recv, domain.is_some()),
        handle,
        transport,
        addressing: Addressing::of(transport),
        backing: Some(backing),
        dc_target: None,
        own_functions: CStruct::new(OwnFunctions::NONE),
        pd: Some(pd.pd().user(User::Qp)),
        context: context.clone(),
    };
    Ok(Box::write(place, object).give())
}

/// Memory for a target. Events identify the queue pair by its address, so the memory is allocated first.
pub(super) type TargetPlace = Box<std::mem::MaybeUninit<QpObject>>;

/// A target of XRC, which has no queues.
pub(super) fn target(
    place: TargetPlace,
    context: &Context,
    plain: ibv_qp,
    handle: QpHandle,
) -> *mut ibv_qp {
    without_queues(place, context, plain, handle, (QpType::XRC_RECV, None))
}

/// A target of dynamic connections.
#[allow(dead_code, reason = "direct verbs need it, and may not be built in")]
pub(super) fn dc_target(
    place: TargetPlace,
    context: &Context,
    plain: ibv_qp,
    handle: QpHandle,
    parts: (DcTargetBacking, PdUse),
) -> *mut ibv_qp {
    without_queues(place, context, plain, handle, (QpType::DRIVER, Some(parts)))
}

fn without_queues(
    place: TargetPlace,
    context: &Context,
    plain: ibv_qp,
    handle: QpHandle,
    (transport, parts): (QpType, Option<(DcTargetBacking, PdUse)>),
) -> *mut ibv_qp {
    let (dc_target, pd) = parts.unzip();
    let refusals = context.driver().refusals();
    let object = QpObject {
        c: CStruct::new(ibv_qp_ex {
            // Without it no other of the functions may be called.
            wr_start: None,
            ..context.driver().with(Extended {
                qp: plain,
                single_threaded: false,
            })
        }),
        sends: Gate::new(false),
        receives: Gate::new(true),
        has_functions: false,
        operations: Operations::empty(),
        caps: ibv_qp_cap::default(),
        refusals,
        send: Locked::new(Sender::new(None), false),
        batch: Owner::new(),
        recv: Locked::new(None, false),
        handle,
        transport,
        addressing: Addressing::Connection,
        backing: None,
        dc_target,
        own_functions: CStruct::new(OwnFunctions::NONE),
        pd,
        context: context.clone(),
    };
    Box::write(place, object).give()
}

/// The capacities to request if a program wants no requests of a kind: not every driver's kernel part can
/// create a queue pair without.
fn at_least_one(cap: ibv_qp_cap, transport: QpType) -> ibv_qp_cap {
    if transport == QpType::XRC_SEND || transport == QpType::DCI {
        return ibv_qp_cap {
            max_send_wr: cap.max_send_wr.max(1),
            max_recv_wr: 0,
            max_recv_sge: 0,
            ..cap
        };
    }
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr.max(1),
        max_recv_wr: cap.max_recv_wr.max(1),
        ..cap
    }
}

/// Creates a queue pair with the objects that its attributes name.
///
/// # Safety
///
/// The pointers are to a PD, and in the attributes to objects of the same context.
pub(super) unsafe fn create_with(
    c: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    flags: QpCreateFlags,
    functions: Option<Operations>,
    own: Own,
) -> Result<*mut ibv_qp> {
    // SAFETY: by this function's contract.
    unsafe {
        let pd = pd(c)?;
        // Initiators receive nothing.
        let receives = init.qp_type != QpType::XRC_SEND.0 && !own.initiator;
        let parts = Parts {
            send_cq: cq(init.send_cq)?,
            recv_cq: match receives {
                true => cq(init.recv_cq)?,
                false => cq(init.send_cq)?,
            },
            srq: match receives && !init.srq.is_null() {
                true => Some(srq(init.srq)?),
                false => None,
            },
            flags,
            functions,
            own,
        };
        create(pd, c, init, &parts)
    }
}

/// `ibv_create_qp(3)`.
pub unsafe extern "C" fn ibv_create_qp(c: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller passes a PD and attributes with objects of the same context.
    pointer(unsafe {
        init.as_mut()
            .ok_or(Failure::INVALID)
            .and_then(|init| create_with(c, init, QpCreateFlags::empty(), None, Own::default()))
    })
}

/// `ibv_qp_to_qp_ex(3)`: NULL if the queue pair was not created for the functions.
pub unsafe extern "C" fn ibv_qp_to_qp_ex(c: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the caller passes a queue pair.
    match unsafe { qp(c) } {
        Ok(qp) if qp.has_functions => c.cast(),
        _ => std::ptr::null_mut(),
    }
}

/// `ibv_destroy_qp(3)`: waits until all events that were read have been acknowledged.
pub unsafe extern "C" fn ibv_destroy_qp(c: *mut ibv_qp) -> c_int {
    // SAFETY: the caller passes a queue pair, for the last time if this succeeds. Its completion queues stay
    // at least until this returns.
    unsafe {
        let cqs = qp(c).map(QpObject::cqs);
        let status = destroy_awaited(c, |qp: &QpObject| {
            let counts = qp.context.fd().execute(&DestroyCounting(qp.handle))?;
            if let Some(backing) = &qp.backing {
                backing.close();
                backing.forget_unread();
            }
            wait_until(qp.events_acknowledged(), counts.events_reported);
            Ok(())
        });
        if let (0, Ok(cqs)) = (status, cqs) {
            clean(cqs);
        }
        status
    }
}

/// Gives the places of completions that were dropped back to the device.
///
/// # Safety
///
/// The pointers are to completion queues, or NULL.
pub(super) unsafe fn clean([first, second]: [*mut ibv_cq; 2]) {
    // SAFETY: by this function's contract.
    unsafe {
        if let Ok(cq) = cq(first) {
            cq.clean();
        }
        if first != second
            && let Ok(cq) = cq(second)
        {
            cq.clean();
        }
    }
}
