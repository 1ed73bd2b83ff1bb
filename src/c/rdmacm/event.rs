//! Events: converts the kernel's events to librdmacm's, and takes the steps of a connection that go with
//! them.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use uverbs_uapi::rdma_cm::{ConnParam, Event as Kind, EventResp, UdParam};
use zerocopy::FromZeros;

use super::abi::{
    rdma_cm_event, rdma_cm_event_param, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_ud_param,
};
use super::channel;
use super::id::{Acknowledged, Ece, IdObject, migrate};
use super::lookup;
use super::multicast::Group;
use super::qp;
use super::resolve::{query_addr, query_gid, query_path};
use crate::c::failure::{Failure, Result, minus_one};
use crate::c::marshal::path;
use crate::c::object::Object;
use crate::cm::command::{Accept, DestroyId, Frame, GetEvent};
use crate::error::Errno;

/// The length of the field for the peer's data.
const DATA: usize = 256;

/// An event of a C program.
#[repr(C)]
struct EventObject {
    c: rdma_cm_event,
    /// The data that `param` points to.
    data: [u8; DATA],
    /// The objects that count it: the identifier, and the group if it is a group's event.
    counted_by: [Option<Arc<Acknowledged>>; 2],
}

impl EventObject {
    fn new(id: *mut rdma_cm_id, raw: &EventResp) -> Box<Self> {
        Box::new(Self {
            c: rdma_cm_event {
                id,
                listen_id: null_mut(),
                event: raw.event,
                status: raw.status as c_int,
                param: rdma_cm_event_param {
                    ud: rdma_ud_param {
                        private_data: null(),
                        private_data_len: 0,
                        ah_attr: path(&UdParam::default().ah_attr),
                        qp_num: 0,
                        qkey: 0,
                    },
                },
            },
            data: [0; DATA],
            counted_by: [None, None],
        })
    }

    /// Copies the peer's data, and returns the copy's address and length.
    fn data(&mut self, from: &[u8; DATA], length: u8) -> (*const c_void, u8) {
        self.data = *from;
        let data: *const [u8; DATA] = &raw const self.data;
        match length {
            0 => (null(), 0),
            length => (data.cast(), length),
        }
    }

    fn put_conn(&mut self, from: &ConnParam) {
        let (private_data, private_data_len) =
            self.data(&from.private_data.0, from.private_data_len);
        self.c.param.conn = rdma_conn_param {
            private_data,
            private_data_len,
            responder_resources: from.responder_resources,
            initiator_depth: from.initiator_depth,
            flow_control: from.flow_control,
            retry_count: from.retry_count,
            rnr_retry_count: from.rnr_retry_count,
            srq: from.srq,
            qp_num: from.qp_num,
        };
    }

    fn put_ud(&mut self, from: &UdParam) {
        let (private_data, private_data_len) =
            self.data(&from.private_data.0, from.private_data_len);
        self.c.param.ud = rdma_ud_param {
            private_data,
            private_data_len,
            ah_attr: path(&from.ah_attr),
            qp_num: from.qp_num,
            qkey: from.qkey,
        };
    }

    /// Stores the peer's data, in the form for the identifier's type of queue pair.
    fn put(&mut self, id: &IdObject, raw: &EventResp) {
        match id.is_ud() {
            true => self.put_ud(&raw.param.ud()),
            false => self.put_conn(&raw.param.conn()),
        }
    }

    /// Replaces the kernel's event by the failure of a step that this library took.
    fn fail(&mut self, kind: Kind, failure: Failure) {
        self.c.event = kind.0;
        self.c.status = -failure.0.raw_os_error();
    }
}

unsafe extern "C-unwind" {
    /// write(2) of the C library, which requests an event. Whether it blocks depends on the program's flags
    /// of the file. A thread may be cancelled in it (`pthread_cancel(3)`), and then unwinds from there: so
    /// when it is called, no frame up to the program's may hold a value that needs to be dropped.
    fn write(fd: c_int, from: *const c_void, length: usize) -> isize;
}

/// `rdma_get_cm_event(3)`.
pub unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || to.is_null() {
        return minus_one(Err(Failure::INVALID));
    }
    // SAFETY: the caller passes a channel.
    let fd = unsafe { (*channel).fd };
    loop {
        let mut raw = EventResp::new_zeroed();
        let frame = Frame::new(
            &GetEvent::default(),
            (&raw mut raw).expose_provenance() as u64,
        );
        let bytes = frame.bytes();
        // SAFETY: pointer and length describe a slice, and there is room for the answer; nothing here has to
        // be dropped.
        if unsafe { write(fd, bytes.as_ptr().cast(), bytes.len()) } < 0 {
            // The error is in `errno`, where the program expects it.
            return -1;
        }
        if let Some(event) = news(&raw) {
            // SAFETY: the caller passes room for a pointer.
            unsafe { to.write(event) };
            return 0;
        }
    }
}

/// The next event of a channel that the program should see.
fn next(fd: c_int) -> Result<*mut rdma_cm_event> {
    loop {
        if let Some(event) = news(&channel::send(fd, &GetEvent::default())?) {
            return Ok(event);
        }
    }
}

/// The event for the program; `None` if it should not see it.
fn news(raw: &EventResp) -> Option<*mut rdma_cm_event> {
    // The kernel sends such an event for an identifier that was not accepted, which has no number yet.
    if raw.uid == 0 {
        return None;
    }
    read(raw).map(|event| Box::into_raw(event).cast())
}

/// Converts an event for the program; `None` if the program should not see it.
fn read(raw: &EventResp) -> Option<Box<EventObject>> {
    let kind = Kind(raw.event);
    if let Kind::MULTICAST_JOIN | Kind::MULTICAST_ERROR = kind {
        return Some(of_group(raw));
    }
    // SAFETY: the number is the address of an identifier, which stays until its events have been
    // acknowledged.
    let id = unsafe { &*(raw.uid as *const IdObject) };
    let mut event = EventObject::new(id.c(), raw);
    event.counted_by[0] = Some(id.acknowledged.clone());
    match kind {
        Kind::ADDR_RESOLVED => {
            if let Err(failure) = address_resolved(id) {
                event.fail(Kind::ADDR_ERROR, failure);
            }
        }
        Kind::ROUTE_RESOLVED => {
            if let Err(failure) = query_path(id) {
                event.fail(Kind::ROUTE_ERROR, failure);
            }
        }
        Kind::CONNECT_REQUEST => {
            event.put(id, raw);
            match request(id, raw) {
                Ok(new) => (event.c.id, event.c.listen_id) = (new, id.c()),
                Err(failure) => return dropped(id, failure),
            }
        }
        Kind::CONNECT_RESPONSE => {
            event.put_conn(&raw.param.conn());
            match response(id, raw) {
                Ok(kind) => event.c.event = kind.0,
                Err(failure) => {
                    id.state().connect_error = true;
                    event.fail(Kind::CONNECT_ERROR, failure);
                }
            }
        }
        Kind::REJECTED | Kind::DISCONNECTED => {
            if id.state().connect_error {
                id.acknowledged.count();
                return None;
            }
            event.put_conn(&raw.param.conn());
            if kind == Kind::REJECTED {
                // The queue pair may be in any state; the event reports what happened.
                let _ = qp::to_error(id);
            }
        }
        Kind::ADDR_ERROR | Kind::ROUTE_ERROR => {}
        Kind::USER => event.c.param.arg = argument(raw),
        _ if is_looked_up(raw) => {
            event.c.event = Kind::ADDRINFO_RESOLVED.0;
            if let Err(failure) = lookup::arrived(id) {
                event.fail(Kind::ADDRINFO_ERROR, failure);
            }
        }
        Kind::ADDRINFO_ERROR => lookup::failed(id),
        _ => event.put(id, raw),
    }
    Some(event)
}

/// Whether an address has been looked up: by the kernel, or by this library, which makes the kernel report
/// it.
fn is_looked_up(raw: &EventResp) -> bool {
    match Kind(raw.event) {
        Kind::ADDRINFO_RESOLVED => true,
        Kind::INTERNAL => argument(raw) == u64::from(Kind::ADDRINFO_RESOLVED.0),
        _ => false,
    }
}

/// The number in an event that was written by a program.
fn argument(raw: &EventResp) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&raw.param.0[..8]);
    u64::from_ne_bytes(bytes)
}

/// A request for which no identifier could be made. The program does not see it, and the peer is refused.
fn dropped(listener: &IdObject, failure: Failure) -> Option<Box<EventObject>> {
    tracing::warn!(target: "uverbs", errno = %failure.0, "a request for a connection is refused");
    listener.acknowledged.count();
    None
}

/// Finds the device on the route to the peer.
fn address_resolved(id: &IdObject) -> Result<()> {
    query_addr(id)?;
    if id.verbs().is_null() {
        return Err(Failure(Errno::NODEV));
    }
    query_gid(id)
}

/// Makes an identifier from a request.
fn request(listener: &IdObject, raw: &EventResp) -> Result<*mut rdma_cm_id> {
    let made = admit(listener, raw);
    if made.is_err() {
        let channel = listener.channel();
        // SAFETY: a request comes on the listener's channel, and stays on it if this failed.
        let fd = unsafe { (*channel).fd };
        let unusable = DestroyId {
            id: raw.id,
            ..Default::default()
        };
        let _ = channel::send(fd, &unusable);
    }
    made
}

fn admit(listener: &IdObject, raw: &EventResp) -> Result<*mut rdma_cm_id> {
    // SAFETY: the struct is the listener's.
    let mut new = unsafe {
        let c = listener.c();
        IdObject::new((*c).channel, (*c).context, (*c).ps, (*c).qp_type)?
    };
    new.set_handle(raw.id);
    {
        let mut state = new.state();
        if !listener.is_ud() {
            let param = raw.param.conn();
            state.initiator_depth = param.initiator_depth;
            state.responder_resources = param.responder_resources;
        }
        state.remote_ece = Ece {
            vendor_id: raw.ece.vendor_id,
            options: raw.ece.attr_mod,
        };
    }
    query_addr(&new)?;
    query_gid(&new)?;
    query_path(&new)?;
    if listener.state().sync {
        migrate(&new, null_mut())?;
    }
    Ok(new.give())
}

/// The peer has accepted. If the library has the queue pair, the connection is made here; otherwise the
/// program makes it.
fn response(id: &IdObject, raw: &EventResp) -> Result<Kind> {
    let told = Ece {
        vendor_id: raw.ece.vendor_id,
        options: raw.ece.attr_mod,
    };
    if id.qp().is_null() {
        id.state().remote_ece = told;
        return Ok(Kind::CONNECT_RESPONSE);
    }
    let made = qp::agree(id, told).and_then(|()| confirm(id));
    if made.is_err() {
        let _ = qp::to_error(id);
    }
    made?;
    qp::keep_agreed(id)?;
    Ok(Kind::ESTABLISHED)
}

/// Makes the queue pair ready, if the library has it, and confirms to the peer.
pub(super) fn confirm(id: &IdObject) -> Result<()> {
    qp::to_rtr(id, None)?;
    qp::to_rts(id, None)?;
    id.send(&Accept {
        id: id.handle(),
        uid: id.uid(),
        ..Default::default()
    })
}

/// An event of a multicast group.
fn of_group(raw: &EventResp) -> Box<EventObject> {
    // SAFETY: the number is the address of a group, which stays until its events have been acknowledged.
    let group = unsafe { &*(raw.uid as *const Group) };
    // SAFETY: the identifier outlives its groups.
    let id = unsafe { &*group.id };
    let mut event = EventObject::new(id.c(), raw);
    event.counted_by = [
        Some(id.acknowledged.clone()),
        Some(group.acknowledged.clone()),
    ];
    if Kind(raw.event) == Kind::MULTICAST_JOIN {
        event.put_ud(&raw.param.ud());
        if let Err(failure) = group.joined(id, &raw.param.ud().ah_attr) {
            event.fail(Kind::MULTICAST_ERROR, failure);
        }
    }
    // The program's context for the group is passed in this field.
    event.c.param.ud.private_data = group.context;
    event
}

/// `rdma_ack_cm_event(3)`.
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return minus_one(Err(Failure::INVALID));
    }
    // SAFETY: the caller passes an event for the last time, whose struct is at the object's start.
    let event = unsafe { Box::from_raw(event.cast::<EventObject>()) };
    // The group first: the last event may allow the identifier to be freed, and the group with it.
    for counter in event.counted_by.iter().rev().flatten() {
        counter.count();
    }
    0
}

/// Waits for the event that ends a function, if the identifier is synchronous.
pub(super) fn complete(id: &IdObject) -> Result<()> {
    if !id.state().sync {
        return Ok(());
    }
    id.drop_event();
    // SAFETY: the channel is the identifier's own.
    let event = next(unsafe { (*id.channel()).fd })?;
    // SAFETY: the event is new, and the struct the object's.
    let (kind, status) = unsafe {
        (*id.c()).event = event;
        ((*event).event, (*event).status)
    };
    match (Kind(kind), status) {
        (_, 0) => Ok(()),
        (Kind::REJECTED, _) => Err(Failure(Errno::CONNREFUSED)),
        (_, status) => Err(of_status(status)),
    }
}

/// The failure that an event's status means.
pub(super) fn of_status(status: c_int) -> Failure {
    match status.unsigned_abs() {
        number @ 1..=4095 => Failure(Errno::from_raw_os_error(number as i32)),
        _ => Failure::INVALID,
    }
}
