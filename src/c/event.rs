//! Events: reading and acknowledging them. An event contains a pointer to its object, so destroying the
//! object waits until the program has acknowledged all events that it has read.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::AtomicU32;

use uverbs_uapi::event::{AsyncEventDesc, CompEventDesc};

use super::abi::attr::ibv_async_event;
use super::abi::context::ibv_context;
use super::abi::queue::{ibv_comp_channel, ibv_cq, ibv_qp, ibv_srq};
use super::cq::cq;
use super::failure::{Failure, Result, minus_one};
use super::lock::count;
use crate::error::Errno;
use crate::event::{AsyncEvent, EventSource};
use crate::probes;

unsafe extern "C-unwind" {
    /// read(2) of the C library. Whether it blocks depends on the program's flags of the file, and a signal
    /// ends it with `EINTR`. A thread may be cancelled in it (`pthread_cancel(3)`), and then unwinds from
    /// there: so when it is called, no frame up to the program's may hold a value that needs to be dropped.
    fn read(fd: c_int, to: *mut c_void, length: usize) -> isize;
}

/// The result of a read of a record of `size` bytes: the whole record was read, or an error.
fn whole(read: isize, size: usize) -> Result<()> {
    match usize::try_from(read) {
        Ok(length) if length == size => Ok(()),
        Ok(_) => Err(Failure(Errno::IO)),
        // SAFETY: the address of this thread's errno is always valid.
        Err(_) => Err(Failure(Errno::from_raw_os_error(unsafe {
            *libc::__errno_location()
        }))),
    }
}

/// `ibv_get_cq_event(3)`.
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    to: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    if channel.is_null() {
        return minus_one(Err(Failure::INVALID));
    }
    const SIZE: usize = size_of::<CompEventDesc>();
    let mut event = CompEventDesc::default();
    // SAFETY: the caller passes a channel; the record has room for `SIZE` bytes, and nothing here has to be
    // dropped.
    let length = unsafe { read((*channel).fd, (&raw mut event).cast(), SIZE) };
    // SAFETY: the caller passes room for the two pointers.
    minus_one(unsafe {
        whole(length, SIZE).and_then(|()| {
            let c: *mut ibv_cq = with_exposed_provenance_mut(event.cq_handle as usize);
            // The queue stays until this event has been acknowledged.
            cq(c)?.event_was_read();
            *to = c;
            *cq_context = (*c).cq_context;
            Ok(())
        })
    })
}

/// `ibv_ack_cq_events(3)`.
pub unsafe extern "C" fn ibv_ack_cq_events(c: *mut ibv_cq, number: c_uint) {
    // SAFETY: the caller passes a completion queue.
    if let Ok(cq) = unsafe { cq(c) } {
        count(cq.acknowledged().0, number);
    }
}

/// `ibv_get_async_event(3)`.
pub unsafe extern "C-unwind" fn ibv_get_async_event(
    c: *mut ibv_context,
    to: *mut ibv_async_event,
) -> c_int {
    if c.is_null() {
        return minus_one(Err(Failure::INVALID));
    }
    const SIZE: usize = size_of::<AsyncEventDesc>();
    let mut raw = AsyncEventDesc::default();
    // SAFETY: the caller passes an open context; the record has room for `SIZE` bytes, and nothing here has
    // to be dropped.
    let length = unsafe { read((*c).async_fd, (&raw mut raw).cast(), SIZE) };
    // SAFETY: the caller passes room for an event.
    minus_one(unsafe {
        whole(length, SIZE).map(|()| {
            probes::event(raw.event_type, raw.element);
            to.write(ibv_async_event {
                element: with_exposed_provenance_mut(raw.element as usize),
                event_type: raw.event_type,
            });
        })
    })
}

/// `ibv_ack_async_event(3)`.
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller passes an event that it has got.
    if let Some(event) = unsafe { event.as_ref() }
        && let Some(acknowledged) = acknowledged(event)
    {
        count(acknowledged, 1);
    }
}

/// The count of acknowledged events of an event's object; `None` for ports and devices, which stay anyway.
fn acknowledged(event: &ibv_async_event) -> Option<&AtomicU32> {
    let source = AsyncEvent::from(AsyncEventDesc {
        element: 0,
        event_type: event.event_type,
        reserved: 0,
    })
    .source;
    let element = event.element;
    // SAFETY: the event names an object of this kind, which stays until the event has been acknowledged.
    unsafe {
        match source {
            EventSource::Cq(_) => Some(&(*element.cast::<ibv_cq>()).async_events_completed),
            EventSource::Qp(_) => Some(&(*element.cast::<ibv_qp>()).events_completed),
            EventSource::Srq(_) => Some(&(*element.cast::<ibv_srq>()).events_completed),
            EventSource::Port(_) | EventSource::Device | EventSource::Unknown(_) => None,
        }
    }
}
