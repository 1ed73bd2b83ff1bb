//! The list of devices. There is one for the process, and while a device exists, all lists have the same
//! pointer for it: librdmacm compares them.

use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

use super::abi::device::ibv_device;
use super::failure::{Failure, Result, pointer};
use super::object::CStruct;
use crate::device::{Device, Discovery, DriverId, NodeType};
use crate::driver;
use crate::error::Errno;

/// A device. The list and each open context hold an `Arc` of it.
#[repr(C)]
pub(super) struct DeviceObject {
    c: CStruct<ibv_device>,
    /// libmlx5 and libefa read the `ops` of their own devices here, and find none.
    _ops_of_providers: [u64; 6],
    device: Device,
}

// SAFETY: the C struct is written once, before the device is in the list.
unsafe impl Send for DeviceObject {}
// SAFETY: as above.
unsafe impl Sync for DeviceObject {}

/// The devices that the last search found.
static LIST: Mutex<Vec<Arc<DeviceObject>>> = Mutex::new(Vec::new());

impl DeviceObject {
    pub(super) fn new(device: Device) -> Arc<Self> {
        Arc::new(Self {
            c: CStruct::new(described(&device)),
            _ops_of_providers: [0; 6],
            device,
        })
    }

    /// The crate's device.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// The struct that C programs see.
    pub(super) fn c(&self) -> *mut ibv_device {
        self.c.get()
    }

    /// Whether a new search has found the same device.
    fn is(&self, device: &Device) -> bool {
        let identity = |device: &Device| (device.index(), device.rdev(), device.node_guid());
        self.device.name() == device.name() && identity(&self.device) == identity(device)
    }

    /// Another reference to a device that a program has a pointer to.
    ///
    /// # Safety
    ///
    /// The pointer comes from a list that has not been freed, or from an open context.
    pub(super) unsafe fn shared(c: *mut ibv_device) -> Arc<Self> {
        let object = c.cast::<Self>().cast_const();
        // SAFETY: all such pointers come from `Arc::into_raw`, and the C struct is at the start; the list or
        // the context holds a count.
        unsafe {
            Arc::increment_strong_count(object);
            Arc::from_raw(object)
        }
    }
}

/// The struct of a device for C programs.
fn described(device: &Device) -> ibv_device {
    let (node_type, transport_type) = kind(device.node_type());
    let mut c = ibv_device::new(node_type, transport_type);
    let chardev = device.path();
    let chardev = chardev.as_ref().and_then(|path| path.file_name());
    let chardev = chardev.map_or("", |name| name.to_str().unwrap_or_default());
    put(&mut c.name, device.name());
    put(&mut c.dev_name, chardev);
    put(
        &mut c.dev_path,
        &format!("/sys/class/infiniband_verbs/{chardev}"),
    );
    put(
        &mut c.ibdev_path,
        &format!("/sys/class/infiniband/{}", device.name()),
    );
    c
}

/// Writes as much of a text as fits, and a zero after it.
pub(super) fn put(field: &mut [c_char], text: &str) {
    let room = field.len() - 1;
    for (to, from) in field[..room].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// `enum ibv_node_type` and `enum ibv_transport_type`.
fn kind(node_type: Option<NodeType>) -> (c_int, c_int) {
    match node_type {
        Some(NodeType::ChannelAdapter) => (1, 0),
        Some(NodeType::Switch) => (2, 0),
        Some(NodeType::Router) => (3, 0),
        Some(NodeType::Rnic) => (4, 1),
        Some(NodeType::Usnic) => (5, 2),
        Some(NodeType::UsnicUdp) => (6, 3),
        Some(NodeType::Unspecified) => (7, 4),
        Some(NodeType::Other(_)) | None => (-1, -1),
    }
}

/// Whether this process sees it in the list. C programs take devices from the list and expect that they can
/// open them. As with libibverbs, a device without a node is not in it, but one whose node may not be opened
/// is.
fn is_listed(device: &Device) -> bool {
    has_driver(device) && device.has_node()
}

/// Whether this library can open it.
fn has_driver(device: &Device) -> bool {
    match (device.driver(), device.abi_version()) {
        (Some(id), Some(abi)) => driver::Driver::select(id, abi, device.name()).is_ok(),
        _ => false,
    }
}

/// The list's entry for this device.
pub(super) fn known(device: &Device) -> Result<Arc<DeviceObject>> {
    let mut list = refresh()?.into_iter();
    let known = list.find(|known| known.is(device));
    known.ok_or(Failure(Errno::NODEV))
}

/// Searches, and sets the list to the devices found.
pub(super) fn refresh() -> Result<Vec<Arc<DeviceObject>>> {
    super::log::start();
    // Locked before the search: of two concurrent searches, the one that began first could end last, and
    // remove a device that the other has just added.
    let mut list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
    let found = search(&Discovery::Automatic)?;
    let known = std::mem::take(&mut *list);
    *list = found
        .into_iter()
        .filter(is_listed)
        .map(
            |device| match known.iter().find(|known| known.is(&device)) {
                Some(known) => Arc::clone(known),
                None => DeviceObject::new(device),
            },
        )
        .collect();
    Ok(list.clone())
}

/// The devices that there are. That the kernel has no RDMA is an error.
fn search(how: &Discovery) -> Result<Vec<Device>> {
    how.devices_of_rdma()?.ok_or(Failure(Errno::NOSYS))
}

/// The driver of a device, if it is known.
///
/// # Safety
///
/// The pointer is to a device of a list or a context.
#[allow(dead_code, reason = "direct verbs ask, and may not be built in")]
pub(super) unsafe fn driver_of(device: *mut ibv_device) -> Option<DriverId> {
    // SAFETY: by this function's contract.
    unsafe { &*device.cast::<DeviceObject>() }.device.driver()
}

/// `ibv_get_device_list(3)`.
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let tell = |number: usize| {
        if !count.is_null() {
            // SAFETY: the caller passes NULL or room for the number.
            unsafe { *count = number as c_int };
        }
    };
    tell(0);
    pointer(refresh().and_then(|devices| {
        // SAFETY: calloc has no conditions. The program frees its result with `free`.
        let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) };
        let list: *mut *mut ibv_device = list.cast();
        if list.is_null() {
            return Err(Failure(Errno::NOMEM));
        }
        tell(devices.len());
        for (at, device) in devices.into_iter().enumerate() {
            let device = Arc::into_raw(device).cast_mut().cast();
            // SAFETY: there is room for one more than these.
            unsafe { list.add(at).write(device) };
        }
        Ok(list)
    }))
}

/// `ibv_free_device_list(3)`.
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if list.is_null() {
        return;
    }
    // SAFETY: the caller passes a list of `ibv_get_device_list`, which ends with NULL, holds an `Arc` of each
    // device, and was allocated with `calloc`.
    unsafe {
        let mut at = list;
        while !(*at).is_null() {
            drop(Arc::from_raw((*at).cast::<DeviceObject>().cast_const()));
            at = at.add(1);
        }
        libc::free(list.cast());
    }
}

/// `ibv_get_device_name(3)`.
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller passes a device; the name stays with it.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_guid(3)`: in network byte order.
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the caller passes a device of a list or a context.
    let device = unsafe { &*device.cast::<DeviceObject>() };
    let guid = device.device.node_guid();
    guid.map_or(0, |guid| guid.0.to_be())
}

/// `ibv_get_device_index(3)`: -1 if the kernel has not reported it.
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: as in `ibv_get_device_guid`.
    let device = unsafe { &*device.cast::<DeviceObject>() };
    let index = device.device.index();
    index.and_then(|index| index.try_into().ok()).unwrap_or(-1)
}

const _: () = assert!(std::mem::offset_of!(DeviceObject, _ops_of_providers) == 664);

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a list that is empty where the manual page has an error.
    #[test]
    fn without_rdma_there_is_no_list() {
        let sysfs = tempfile::tempdir().unwrap();
        let found = search(&Discovery::Sysfs(sysfs.path().to_owned()));
        assert_eq!(found.err(), Some(Failure(Errno::NOSYS)));
        std::fs::create_dir_all(sysfs.path().join("class/infiniband")).unwrap();
        let found = search(&Discovery::Sysfs(sysfs.path().to_owned()));
        assert_eq!(found.map(|devices| devices.len()).ok(), Some(0));
    }
}
