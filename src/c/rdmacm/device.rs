//! The devices that identifiers are bound to. Each is opened once, and stays open until it is removed:
//! programs keep using the context when the identifier is gone. As long as a device has identifiers, they
//! share a protection domain and an XRC domain.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::last_errno;
use super::verbs;
use crate::c::abi::context::ibv_context;
use crate::c::abi::device::{ibv_device, ibv_device_attr};
use crate::c::abi::domain::ibv_xrcd;
use crate::c::abi::ibv_pd;
use crate::c::failure::{Failure, Result, pointer};
use crate::error::Errno;

/// An open device.
struct Device {
    /// It stays the same while a context of the device is open.
    device: *mut ibv_device,
    verbs: *mut ibv_context,
    /// NULL while no identifier uses the device.
    pd: *mut ibv_pd,
    /// NULL until an identifier needs one.
    xrcd: *mut ibv_xrcd,
    guid: u64,
    /// -1 if it is not known.
    index: c_int,
    limits: Limits,
    /// The number of identifiers, and of programs' lists, with this device.
    users: u32,
}

// SAFETY: every thread may use objects of libibverbs.
unsafe impl Send for Device {}

/// How many READs and atomics the device can have in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
}

static DEVICES: Mutex<Vec<Device>> = Mutex::new(Vec::new());

fn devices() -> MutexGuard<'static, Vec<Device>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A use of a device, which ends when this is dropped.
pub(super) struct Use {
    pub(super) verbs: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) limits: Limits,
}

// SAFETY: every thread may use objects of libibverbs.
unsafe impl Send for Use {}

impl Use {
    /// The device that the kernel reports, opened if it is not open yet.
    pub(super) fn of(guid: u64, index: u32) -> Result<Self> {
        let mut devices = devices();
        let at = match devices.iter().position(|device| device.is(guid, index)) {
            Some(at) => at,
            None => {
                find_new(&mut devices, |device| device.is(guid, index))?;
                let found = devices.iter().position(|device| device.is(guid, index));
                found.ok_or(Failure(Errno::NODEV))?
            }
        };
        let device = &mut devices[at];
        if device.pd.is_null() {
            // SAFETY: the context is open.
            device.pd = verbs::made(unsafe { verbs::ibv_alloc_pd(device.verbs) })?;
        }
        device.users += 1;
        Ok(Self {
            verbs: device.verbs,
            pd: device.pd,
            limits: device.limits,
        })
    }
}

/// The XRC domain of an open device that is in use.
pub(super) fn xrcd(verbs: *mut ibv_context) -> Result<*mut ibv_xrcd> {
    let mut devices = devices();
    let device = devices.iter_mut().find(|device| device.verbs == verbs);
    let device = device.ok_or(Failure::INVALID)?;
    if device.xrcd.is_null() {
        // SAFETY: the context is open.
        device.xrcd = unsafe { verbs::open_xrcd(device.verbs) }?;
    }
    Ok(device.xrcd)
}

impl Drop for Use {
    fn drop(&mut self) {
        release(&mut devices(), self.verbs);
    }
}

/// Ends a use of a device. The domains are freed with the last use, unless a program has left objects in
/// them.
fn release(devices: &mut [Device], verbs: *mut ibv_context) {
    let Some(device) = devices.iter_mut().find(|device| device.verbs == verbs) else {
        return;
    };
    device.users = device.users.saturating_sub(1);
    if device.users > 0 {
        return;
    }
    if !device.xrcd.is_null() {
        // SAFETY: as for the other domain.
        if unsafe { verbs::close_xrcd(verbs, device.xrcd) }.is_ok() {
            device.xrcd = null_mut();
        }
    }
    if !device.pd.is_null() {
        // SAFETY: the domain exists, and no identifier uses it any more.
        if unsafe { verbs::ibv_dealloc_pd(device.pd) } == 0 {
            device.pd = null_mut();
        }
    }
}

impl Device {
    /// Whether neither an identifier nor a program's list has it, and no domain is left.
    fn is_unused(&self) -> bool {
        self.users == 0 && self.pd.is_null() && self.xrcd.is_null()
    }

    /// Whether this is the device that the kernel reports. A GUID may be 0, and libibverbs may not know an
    /// index.
    fn is(&self, guid: u64, index: u32) -> bool {
        match u32::try_from(self.index) {
            Ok(own) => own == index,
            Err(_) => self.guid == guid,
        }
    }

    /// The data about a device before it is opened.
    fn closed(device: *mut ibv_device) -> Self {
        // SAFETY: the device is in a list that has not been freed.
        let (guid, index) = unsafe {
            (
                verbs::ibv_get_device_guid(device),
                verbs::ibv_get_device_index(device),
            )
        };
        Self {
            device,
            verbs: null_mut(),
            pd: null_mut(),
            xrcd: null_mut(),
            guid,
            index,
            limits: Limits {
                initiator_depth: 0,
                responder_resources: 0,
            },
            users: 0,
        }
    }

    fn open(&mut self) -> Result<()> {
        // SAFETY: the device is in a list that has not been freed.
        let verbs = verbs::made(unsafe { verbs::ibv_open_device(self.device) })?;
        let mut attr = std::mem::MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and zeros are valid attributes.
        let attr = unsafe {
            if verbs::ibv_query_device(verbs, attr.as_mut_ptr()) != 0 {
                let failure = last_errno();
                verbs::ibv_close_device(verbs);
                return Err(failure);
            }
            attr.assume_init()
        };
        self.verbs = verbs;
        // The header's fields have eight bits, and so do the fields in the packets.
        self.limits = Limits {
            initiator_depth: attr.max_qp_init_rd_atom as u8,
            responder_resources: attr.max_qp_rd_atom as u8,
        };
        Ok(())
    }
}

/// Opens those new devices that are `wanted`, and closes those that have been removed and have no users.
/// Returns the devices that exist.
fn find_new(
    devices: &mut Vec<Device>,
    wanted: impl Fn(&Device) -> bool,
) -> Result<Vec<*mut ibv_device>> {
    let mut number = 0;
    // SAFETY: the function fills in the number.
    let list = verbs::made(unsafe { verbs::ibv_get_device_list(&mut number) })?;
    let present: Vec<_> = (0..usize::try_from(number).unwrap_or(0))
        // SAFETY: the list has that many devices.
        .map(|at| unsafe { *list.add(at) })
        .collect();
    devices.retain(|known| {
        let stays = present.contains(&known.device) || !known.is_unused();
        if !stays {
            // SAFETY: the context is open, and with the entry its last user goes, as in rdma-core's.
            unsafe { verbs::ibv_close_device(known.verbs) };
        }
        stays
    });
    for &device in &present {
        let mut new = Device::closed(device);
        let known = devices.iter().any(|known| known.device == device);
        // A device that does not open is not one of this library's.
        if !known && wanted(&new) && new.open().is_ok() {
            devices.push(new);
        }
    }
    // SAFETY: the list is this function's. Opened devices stay.
    unsafe { verbs::ibv_free_device_list(list) };
    Ok(present)
}

/// All devices, in the order of their indices, each with one more use.
fn list() -> Result<Vec<*mut ibv_context>> {
    let mut devices = devices();
    let present = find_new(&mut devices, |_| true)?;
    if present.is_empty() {
        return Err(Failure(Errno::NODEV));
    }
    devices.sort_by_key(|device| device.index);
    let present = devices
        .iter_mut()
        .filter(|device| present.contains(&device.device));
    let contexts = present.map(|device| {
        device.users += 1;
        device.verbs
    });
    Ok(contexts.collect())
}

/// `rdma_get_devices(3)`.
pub unsafe extern "C" fn rdma_get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    let found = list();
    if !number.is_null() {
        let length = found.as_ref().map_or(0, Vec::len);
        // SAFETY: the caller passes room for a number, or NULL.
        unsafe { number.write(length as c_int) };
    }
    pointer(found.map(|mut contexts| {
        contexts.push(null_mut());
        Box::into_raw(contexts.into_boxed_slice()).cast()
    }))
}

/// `rdma_free_devices(3)`.
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    if list.is_null() {
        return;
    }
    // SAFETY: the caller passes a list for the last time, which ends with a NULL.
    let list = unsafe {
        let mut length = 1;
        while !(*list.add(length - 1)).is_null() {
            length += 1;
        }
        Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, length))
    };
    let mut devices = devices();
    for verbs in list.iter().filter(|verbs| !verbs.is_null()) {
        release(&mut devices, *verbs);
    }
}
