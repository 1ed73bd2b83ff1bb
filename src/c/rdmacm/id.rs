//! Identifiers: creation, destruction, migration to another channel.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, slice_from_raw_parts_mut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use uverbs_uapi::enums::QpType;
use uverbs_uapi::rdma_cm::PortSpace;

use super::abi::{
    rdma_addr, rdma_cm_id, rdma_event_channel, rdma_ib_addr, rdma_route, sockaddr_storage,
};
use super::channel::{self, rdma_destroy_event_channel};
use super::device::Use;
use super::event::rdma_ack_cm_event;
use super::lookup::Lookup;
use super::multicast::Group;
use crate::c::abi::attr::{ibv_ece, ibv_qp_init_attr};
use crate::c::abi::context::ibv_context;
use crate::c::abi::port::ibv_gid;
use crate::c::abi::queue::ibv_qp;
use crate::c::abi::sa::ibv_sa_path_rec;
use crate::c::failure::{Failure, Result, minus_one};
use crate::c::object::{CStruct, Object, object};
use crate::cm::command::{Command, CreateId, DestroyId, MigrateId};

/// An identifier of a C program. The kernel knows it by its address, which its events carry.
#[repr(C)]
pub(super) struct IdObject {
    c: CStruct<rdma_cm_id>,
    /// The kernel's number.
    handle: u32,
    pub(super) acknowledged: Arc<Acknowledged>,
    state: Mutex<State>,
}

// SAFETY: the C struct is the first field.
unsafe impl Object for IdObject {
    type C = rdma_cm_id;
}

/// The library's data about an identifier.
#[derive(Default)]
pub(super) struct State {
    /// It has a channel of its own, and functions wait for their event.
    pub(super) sync: bool,
    pub(super) device: Option<Use>,
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    pub(super) local_ece: Ece,
    pub(super) remote_ece: Ece,
    /// The connection failed on this side: the program does not see what the peer reports about it.
    pub(super) connect_error: bool,
    pub(super) groups: Vec<Arc<Group>>,
    /// The attributes for queue pairs of requests to an endpoint.
    pub(super) qp_init_attr: Option<Template>,
    /// Private data of an endpoint's connection, which come before the program's.
    pub(super) connect_data: Vec<u8>,
    pub(super) lookup: Lookup,
}

/// Options of a queue pair.
#[derive(Clone, Copy, Default)]
pub(super) struct Ece {
    pub(super) vendor_id: u32,
    pub(super) options: u32,
}

impl From<Ece> for ibv_ece {
    fn from(ece: Ece) -> Self {
        Self {
            vendor_id: ece.vendor_id,
            options: ece.options,
            comp_mask: 0,
        }
    }
}

/// Attributes of later queue pairs. Its pointers are the program's.
pub(super) struct Template(pub(super) ibv_qp_init_attr);

// SAFETY: every thread may use objects of libibverbs.
unsafe impl Send for Template {}

/// A count of events that a program has acknowledged. An object is freed when it equals the count of events
/// that the kernel has reported.
#[derive(Default)]
pub(super) struct Acknowledged {
    number: Mutex<u32>,
    more: Condvar,
}

impl Acknowledged {
    /// Counts one more event.
    pub(super) fn count(&self) {
        *lock(&self.number) += 1;
        self.more.notify_all();
    }

    /// Waits until `reported` events have been acknowledged.
    pub(super) fn wait_for(&self, reported: u32) {
        let mut number = lock(&self.number);
        while *number < reported {
            number = self
                .more
                .wait(number)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The identifier that a program passes.
///
/// # Safety
/// The identifier exists, or the pointer is NULL.
pub(super) unsafe fn id<'a>(c: *mut rdma_cm_id) -> Result<&'a IdObject> {
    // SAFETY: the caller vouches for it.
    unsafe { object(c) }.ok_or(Failure::INVALID)
}

impl IdObject {
    /// A new identifier that the kernel does not know yet, or that came with a request.
    pub(super) fn new(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        space: u32,
        qp_type: u32,
    ) -> Result<Box<Self>> {
        let sync = channel.is_null();
        let channel = match sync {
            true => channel::open()?,
            false => channel,
        };
        Ok(Box::new(Self {
            c: CStruct::new(fresh(channel, context, space, qp_type)),
            handle: u32::MAX,
            acknowledged: Arc::default(),
            state: Mutex::new(State {
                sync,
                ..State::default()
            }),
        }))
    }

    pub(super) fn c(&self) -> *mut rdma_cm_id {
        self.c.get()
    }

    /// The kernel's number.
    pub(super) fn handle(&self) -> u32 {
        self.handle
    }

    pub(super) fn set_handle(&mut self, handle: u32) {
        self.handle = handle;
    }

    /// The number that its events carry.
    pub(super) fn uid(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    // The fields of the program's struct, one by one: a reference to all of it would say that no other thread
    // writes any of them meanwhile, also where it reads events of this identifier. A program does not change
    // a field while a call uses it.

    pub(super) fn channel(&self) -> *mut rdma_event_channel {
        // SAFETY: the struct is this object's, and is initialised.
        unsafe { (*self.c()).channel }
    }

    /// NULL if there is none.
    pub(super) fn qp(&self) -> *mut ibv_qp {
        // SAFETY: as above.
        unsafe { (*self.c()).qp }
    }

    /// NULL if the identifier is not bound to a device.
    pub(super) fn verbs(&self) -> *mut ibv_context {
        // SAFETY: as above.
        unsafe { (*self.c()).verbs }
    }

    pub(super) fn is_ud(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.c()).qp_type == QpType::UD.0 }
    }

    pub(super) fn is_of_tcp(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.c()).ps == PortSpace::TCP.0 }
    }

    /// Sends a command on the channel.
    pub(super) fn send<C: Command>(&self, command: &C) -> Result<C::Reply> {
        // SAFETY: the program keeps the channel while the identifier is on it.
        let fd = unsafe { (*self.channel()).fd };
        channel::send(fd, command)
    }

    /// Acknowledges the event that the identifier holds for the program.
    pub(super) fn drop_event(&self) {
        // SAFETY: this library has put the event there, and no other thread has it.
        unsafe {
            let event = std::mem::replace(&mut (*self.c()).event, null_mut());
            if !event.is_null() {
                rdma_ack_cm_event(event);
            }
        }
    }
}

impl Drop for IdObject {
    fn drop(&mut self) {
        let c = self.c();
        let sync = self.state().sync;
        // SAFETY: the paths are a box of this library, and a channel of the identifier's own is freed with
        // it.
        unsafe {
            set_paths(&mut (*c).route, Vec::new());
            if sync {
                rdma_destroy_event_channel((*c).channel);
            }
        }
    }
}

/// Replaces the paths of a route.
///
/// # Safety
/// The existing paths were set by this function.
pub(super) unsafe fn set_paths(route: &mut rdma_route, paths: Vec<ibv_sa_path_rec>) {
    if !route.path_rec.is_null() {
        let old = slice_from_raw_parts_mut(route.path_rec, route.num_paths as usize);
        // SAFETY: the caller vouches for it.
        drop(unsafe { Box::from_raw(old) });
    }
    route.num_paths = paths.len() as c_int;
    route.path_rec = match paths.is_empty() {
        true => null_mut(),
        false => Box::into_raw(paths.into_boxed_slice()).cast(),
    };
}

/// The struct of an identifier that is not bound.
fn fresh(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    space: u32,
    qp_type: u32,
) -> rdma_cm_id {
    const NONE: ibv_gid = ibv_gid { raw: [0; 16] };
    rdma_cm_id {
        verbs: null_mut(),
        channel,
        context,
        qp: null_mut(),
        route: rdma_route {
            addr: rdma_addr {
                src: sockaddr_storage([0; 128]),
                dst: sockaddr_storage([0; 128]),
                ibaddr: rdma_ib_addr {
                    sgid: NONE,
                    dgid: NONE,
                    pkey: 0,
                },
            },
            path_rec: null_mut(),
            num_paths: 0,
        },
        ps: space,
        port_num: 0,
        event: null_mut(),
        send_cq_channel: null_mut(),
        send_cq: null_mut(),
        recv_cq_channel: null_mut(),
        recv_cq: null_mut(),
        srq: null_mut(),
        pd: null_mut(),
        qp_type,
    }
}

/// Creates an identifier; without a channel, a synchronous one.
pub(super) fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    space: u32,
    qp_type: u32,
) -> Result<*mut rdma_cm_id> {
    let mut new = IdObject::new(channel, context, space, qp_type)?;
    let command = CreateId {
        uid: new.uid(),
        ps: space as u16,
        qp_type: qp_type as u8,
        ..Default::default()
    };
    let reply = new.send(&command)?;
    new.set_handle(reply.id);
    Ok(new.give())
}

/// `rdma_create_id(3)`.
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: u32,
) -> c_int {
    let qp_type = match PortSpace(space) {
        PortSpace::IPOIB | PortSpace::UDP => QpType::UD,
        _ => QpType::RC,
    };
    minus_one(create(channel, context, space, qp_type.0).map(|id| {
        // SAFETY: the caller passes room for a pointer.
        unsafe { to.write(id) }
    }))
}

/// `rdma_destroy_id(3)`. Waits until the program has acknowledged the events that it has read.
pub unsafe extern "C" fn rdma_destroy_id(c: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller passes an identifier, for the last time if this succeeds.
    minus_one(unsafe { id(c) }.and_then(end).map(|()| {
        // SAFETY: `give` made it from a box. Neither the kernel nor an event refers to it any more, nor does
        // a reference of this function.
        drop(unsafe { Box::from_raw(c.cast::<IdObject>()) });
    }))
}

/// Destroys an identifier in the kernel, and waits until nothing refers to it any more.
fn end(id: &IdObject) -> Result<()> {
    let reply = id.send(&DestroyId {
        id: id.handle(),
        ..Default::default()
    })?;
    id.drop_event();
    id.acknowledged.wait_for(reply.events_reported);
    Ok(())
}

/// `rdma_migrate_id(3)`. Waits until the program has acknowledged the events of the old channel.
pub unsafe extern "C" fn rdma_migrate_id(c: *mut rdma_cm_id, to: *mut rdma_event_channel) -> c_int {
    // SAFETY: the caller passes an identifier.
    minus_one(unsafe { id(c) }.and_then(|id| migrate(id, to)))
}

/// Moves an identifier to a channel, or to a channel of its own if `to` is NULL.
pub(super) fn migrate(id: &IdObject, to: *mut rdma_event_channel) -> Result<()> {
    let (was_sync, sync) = (id.state().sync, to.is_null());
    if was_sync && sync {
        return Err(Failure::INVALID);
    }
    let to = match sync {
        true => channel::open()?,
        false => to,
    };
    let old = id.channel();
    // SAFETY: both channels exist.
    let moved = unsafe {
        let command = MigrateId {
            id: id.handle(),
            fd: (*old).fd as u32,
            ..Default::default()
        };
        channel::send((*to).fd, &command)
    };
    let reply = match moved {
        Ok(reply) => reply,
        Err(failure) => {
            if sync {
                // SAFETY: only this function has it.
                unsafe { rdma_destroy_event_channel(to) };
            }
            return Err(failure);
        }
    };
    if was_sync {
        id.drop_event();
        // SAFETY: the channel was the identifier's own.
        unsafe { rdma_destroy_event_channel(old) };
    }
    id.state().sync = sync;
    // SAFETY: the field is in the struct.
    unsafe { (*id.c()).channel = to };
    id.acknowledged.wait_for(reply.events_reported);
    Ok(())
}
