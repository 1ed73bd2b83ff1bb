//! An open device: the context in which all other objects are created.
//!
//! A [`Context`] is a handle that is cheap to clone; the device closes when the last clone and the last
//! object created in it are gone. Closing it destroys all objects that the kernel still has for it.

use std::collections::HashMap;
use std::fmt;
#[cfg(test)]
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use arrayvec::ArrayVec;
use rustix::rand::{GetRandomFlags, getrandom};
use slab::Slab;
use uverbs_uapi::enums::{AtomicCap, QpType};
use uverbs_uapi::flags::{CoreSupport, DeviceCapFlags};
use uverbs_uapi::handle::PdHandle;
use zerocopy::IntoBytes;

pub use crate::command::Route;

use crate::alloc::Live;
use crate::command::{AllocAsyncFd, CommandFd, File, GetContextReply, quiet};
use crate::device::{Device, DriverId};
use crate::driver::{self, ContextOptions, Driver};
use crate::error::{Errno, Error, Result, Subject, Verb};
use crate::flight::Flights;
use crate::mr::OnDemand;
use crate::work::Operations;

/// How to open a device.
///
/// ```no_run
/// # fn main() -> uverbs::Result<()> {
/// let device = uverbs::device::find("rxe0")?;
/// let context = uverbs::OpenOptions::new().route(uverbs::context::Route::Ioctl).open(&device)?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is opened before `open`"]
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    route: Route,
    without_blue_flame: bool,
}

impl OpenOptions {
    /// The default options, which [`open`] uses.
    pub fn new() -> Self {
        Self::default()
    }

    /// Restricts how commands reach the kernel.
    pub fn route(mut self, route: Route) -> Self {
        self.route = route;
        self
    }

    /// Whether small requests may be copied into the device's registers (BlueFlame on mlx5). By default they
    /// are, if the device has such registers and the kernel has found that they work.
    ///
    /// Without it the doorbell only announces requests and the device fetches them, so latency is higher. But
    /// on machines with poor write combining the copies cost more than they gain. Setting the environment
    /// variable `MLX5_SHUT_UP_BF` to anything but `0` when the device is opened or imported has the same
    /// effect, as with libmlx5. Drivers that copy nothing ignore both.
    #[doc(alias = "SHUT_UP_BF")]
    pub fn blue_flame(mut self, on: bool) -> Self {
        self.without_blue_flame = !on;
        self
    }

    /// Opens a device.
    ///
    /// # Errors
    ///
    /// The character device is missing or may not be opened; the device is being removed; its driver, or the
    /// version of its driver's ABI, is not built in ([`Cause::Unsupported`](crate::Cause::Unsupported)).
    pub fn open(&self, device: &Device) -> Result<Context> {
        let Some(abi_version) = device.abi_version() else {
            return Err(device.without_chardev());
        };
        let Some(id) = device.driver() else {
            return Err(Error::unsupported(
                Verb::OpenDevice,
                Subject::named("device", device.name()),
                "neither netlink nor sysfs names its driver",
            ));
        };
        let driver = Driver::select(id, abi_version, device.name())?;
        let fd = CommandFd::new(device.open_chardev()?, id.0, self.route);
        let options = ContextOptions {
            write_combining: !self.without_blue_flame,
        };
        let (driver, reply) = driver.get_context(&fd, options)?;
        Ok(Context::new(device.clone(), driver, fd, reply))
    }
}

/// Opens the RDMA device with this name, such as `rxe0` or `mlx5_0`.
///
/// # Errors
///
/// As for [`OpenOptions::open`], and [`Cause::NotFound`](crate::Cause::NotFound) with the names that exist.
/// Manual page: `ibv_open_device(3)`.
#[doc(alias = "ibv_open_device")]
pub fn open(name: &str) -> Result<Context> {
    OpenOptions::new().open(&crate::device::find(name)?)
}

impl Device {
    /// Opens the device.
    ///
    /// # Errors
    ///
    /// As for [`OpenOptions::open`]. Manual page: `ibv_open_device(3)`.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        OpenOptions::new().open(self)
    }
}

/// An open device.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = uverbs::open("rxe0")?;
/// let (device, port) = (context.query_device()?, context.query_port(1)?);
/// println!("{}: {} QPs at most, port 1 is {:?}", context.name(), device.max_qp, port.state);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Context(Arc<Inner>);

/// Properties of the device that queue pairs depend on. They do not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    capabilities: DeviceCapFlags,
    atomics: AtomicCap,
    pub(crate) max_qp_rd_atom: u32,
    pub(crate) max_qp_init_rd_atom: u32,
}

/// Random numbers that are drawn at a time.
const DRAWN: usize = 16;

struct Inner {
    // Before the file: others may hold it too, and the driver frees in it what it has allocated there.
    driver: driver::Device,
    fd: Arc<CommandFd>,
    device: Device,
    num_comp_vectors: u32,
    core_support: CoreSupport,
    /// Queried when the first queue pair needs them.
    limits: OnceLock<Limits>,
    /// Opened on first use: a program that only registers memory needs none.
    async_fd: OnceLock<File>,
    /// Held by the thread that opens it.
    opening: Mutex<()>,
    next_id: AtomicU64,
    /// Random numbers that have not been given out yet.
    drawn: Mutex<ArrayVec<u32, DRAWN>>,
    /// The buffers of users' allocators that are in use, to detect overlap.
    live_buffers: Arc<Live>,
    /// By the handles of their PDs, since one PD may have been imported twice.
    flights: Mutex<HashMap<u32, Weak<Flights>>>,
    on_demand: OnDemand,
    /// Completion queues with the numbers by which events name them, so that an overrun reaches their
    /// pollers. A queue is added and removed by its place; only an overrun searches for a number.
    completion_queues: Mutex<Slab<(u64, driver::CqBacking)>>,
}

impl Context {
    pub(crate) fn new(
        device: Device,
        driver: driver::Device,
        fd: CommandFd,
        reply: GetContextReply,
    ) -> Self {
        let async_fd = match reply.async_fd {
            Some(fd) => OnceLock::from(File::new(fd)),
            None => OnceLock::new(),
        };
        Self(Arc::new(Inner {
            driver,
            fd: Arc::new(fd),
            device,
            num_comp_vectors: reply.num_comp_vectors,
            core_support: CoreSupport::from_bits_retain(reply.core_support),
            limits: OnceLock::new(),
            async_fd,
            opening: Mutex::default(),
            next_id: AtomicU64::new(1),
            drawn: Mutex::default(),
            live_buffers: Arc::default(),
            flights: Mutex::default(),
            on_demand: OnDemand::default(),
            completion_queues: Mutex::default(),
        }))
    }

    /// The queues of a PD and the regions that wait for them, shared by all handles of the PD here.
    pub(crate) fn flights(&self, pd: PdHandle) -> Arc<Flights> {
        let mut all = self
            .0
            .flights
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(flights) = all.get(&pd.0).and_then(Weak::upgrade) {
            return flights;
        }
        // Where the list would grow, and then it has room for twice as many: so each call does little for the
        // others.
        if all.len() == all.capacity() {
            all.retain(|_, flights| flights.strong_count() > 0);
            let live = all.len();
            all.reserve(live + 1);
        }
        let flights = Arc::new(Flights::default());
        all.insert(pd.0, Arc::downgrade(&flights));
        flights
    }

    /// Deregisters the dropped regions of all PDs that need not wait any more.
    pub(crate) fn reap(&self) {
        let all = self.0.flights.lock();
        let all = all.unwrap_or_else(PoisonError::into_inner);
        let flights: Vec<_> = all.values().filter_map(Weak::upgrade).collect();
        // Without the lock: the regions' memory may be of any type.
        drop(all);
        for flights in flights {
            flights.reap();
        }
    }

    /// The regions on demand.
    pub(crate) fn on_demand(&self) -> &OnDemand {
        &self.0.on_demand
    }

    /// A context that writes its commands to this file.
    #[cfg(test)]
    pub(crate) fn over(file: OwnedFd) -> Self {
        Self::over_device(file, driver::samples::device(0))
    }

    /// As [`over`](Self::over), for a device of the sample driver.
    #[cfg(test)]
    pub(crate) fn over_device(file: OwnedFd, device: driver::Device) -> Self {
        let events = file.try_clone().unwrap();
        let fd = CommandFd::new(file, driver::samples::ID.0, Route::Write);
        let reply = GetContextReply {
            num_comp_vectors: 1,
            core_support: 0,
            async_fd: Some(events),
            driver: Default::default(),
        };
        Self::new(Device::nameless(), device, fd, reply)
    }

    /// The device that is open.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        self.0.device.name()
    }

    /// The kernel's number of the device's driver.
    pub fn driver_id(&self) -> DriverId {
        DriverId(self.0.fd.driver_id())
    }

    /// The number of completion vectors. A CQ can choose any number below it.
    ///
    /// It is 1 for an imported context if the driver does not report it.
    pub fn num_comp_vectors(&self) -> u32 {
        self.0.num_comp_vectors
    }

    /// What the kernel's RDMA core supports beyond the basics. Empty for an imported context if the driver
    /// does not report it.
    pub fn core_support(&self) -> CoreSupport {
        self.0.core_support
    }

    /// The operations that queue pairs of a transport have. If they depend on the device's capabilities, the
    /// device is queried, once for each context.
    pub(crate) fn operations(&self, transport: QpType) -> Result<Operations> {
        let operations = self.driver().operations(transport);
        if !operations.intersects(Operations::OF_DEVICE) {
            return Ok(operations);
        }
        let Limits {
            capabilities,
            atomics,
            ..
        } = self.limits()?;
        Ok(operations.with(capabilities, atomics))
    }

    /// What each queue pair needs to know of the device. It is queried once for each context.
    pub(crate) fn limits(&self) -> Result<Limits> {
        if let Some(known) = self.0.limits.get() {
            return Ok(*known);
        }
        let device = self.query_device()?;
        let asked = Limits {
            capabilities: device.capabilities,
            atomics: device.atomic_cap,
            max_qp_rd_atom: device.max_qp_rd_atom,
            max_qp_init_rd_atom: device.max_qp_init_rd_atom,
        };
        Ok(*self.0.limits.get_or_init(|| asked))
    }

    pub(crate) fn fd(&self) -> &Arc<CommandFd> {
        &self.0.fd
    }

    /// Whether its objects, or other handles, have it too.
    #[cfg(feature = "c-abi")]
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Closes the device's files although objects still have them, as [`CommandFd::close`].
    ///
    /// # Safety
    ///
    /// As for [`CommandFd::close`].
    #[cfg(feature = "c-abi")]
    pub(crate) unsafe fn close(&self) {
        // SAFETY: by this function's contract.
        unsafe {
            self.0.fd.close();
            if let Some(events) = self.0.async_fd.get() {
                events.close();
            }
        }
    }

    pub(crate) fn driver(&self) -> &driver::Device {
        &self.0.driver
    }

    pub(crate) fn live_buffers(&self) -> &Arc<Live> {
        &self.0.live_buffers
    }

    /// Records which completion queue events with this number mean. Returns its place.
    pub(crate) fn add_completion_queue(&self, id: u64, backing: driver::CqBacking) -> usize {
        self.completion_queues().insert((id, backing))
    }

    /// Forgets the completion queue at a place.
    pub(crate) fn remove_completion_queue(&self, place: usize) {
        let gone = self.completion_queues().try_remove(place);
        // Not under the lock: with the queue memory may be dropped that an allocator gets back.
        drop(gone);
    }

    /// Makes the next poll of a completion queue report that the queue has overrun.
    pub(crate) fn completion_queue_overran(&self, id: u64) {
        let queues = self.completion_queues();
        if let Some((_, (_, backing))) = queues.iter().find(|(_, (named, _))| *named == id) {
            backing.overran();
        }
    }

    fn completion_queues(&self) -> MutexGuard<'_, Slab<(u64, driver::CqBacking)>> {
        let queues = &self.0.completion_queues;
        // It is whole after every statement, so a panic elsewhere has not spoilt it.
        queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the command file descriptor; unique among the open contexts of the process.
    #[inline]
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.0.fd.as_fd().as_raw_fd()
    }

    /// Whether both are the same open device. Objects of different ones cannot be used together.
    pub(crate) fn is(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Refuses to create `subject` in this context from parts of other contexts. Each part comes with its
    /// name for errors.
    pub(crate) fn check_parts<'a>(
        &self,
        verb: Verb,
        subject: impl FnOnce() -> Subject,
        parts: impl IntoIterator<Item = (&'static str, Option<&'a Context>)>,
    ) -> Result<()> {
        let mut parts = parts.into_iter();
        let foreign = parts.find(|(_, part)| part.is_some_and(|part| !self.is(part)));
        match foreign {
            None => Ok(()),
            Some((what, _)) => {
                let why = format!("{what} belongs to another context");
                Err(Error::invalid(verb, subject(), why))
            }
        }
    }

    /// A random number, for the packet sequence numbers of a connection. The kernel is asked for several at a
    /// time.
    ///
    /// After a fork both processes give out the same numbers. That does no harm: the numbers distinguish late
    /// packets from those of an earlier connection, and the queue pairs of the two processes have different
    /// numbers.
    pub(crate) fn random(&self) -> Result<u32, Errno> {
        // It is whole at any time, so a panic elsewhere has not spoilt it.
        let mut drawn = (self.0.drawn.lock()).unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = drawn.pop() {
            return Ok(number);
        }
        let mut numbers = [0u32; DRAWN];
        // The kernel gives up to 256 bytes at once, or none.
        getrandom(numbers.as_mut_bytes(), GetRandomFlags::empty())?;
        *drawn = numbers.into();
        Ok(drawn.pop().unwrap_or_default())
    }

    /// A number that no other object of this context has. Events of the kernel carry it.
    pub(crate) fn new_id(&self) -> u64 {
        // Relaxed: only the number matters, it publishes nothing.
        self.0.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The file descriptor of asynchronous events, opened at the first call.
    ///
    /// Objects that can have events are created with it, so no event is lost before somebody reads them.
    pub(crate) fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        if let Some(fd) = self.0.async_fd.get() {
            return Ok(fd.as_fd());
        }
        // One thread at a time: the kernel uses the first event file that it allocates as the context's own,
        // which gets events of objects without one. Its state is whole at any time, so a panic elsewhere did
        // no harm.
        let _one = quiet(|| (self.0.opening.lock()).unwrap_or_else(PoisonError::into_inner));
        if let Some(fd) = self.0.async_fd.get() {
            return Ok(fd.as_fd());
        }
        let fd = self.0.fd.execute(&AllocAsyncFd)?;
        Ok(self.0.async_fd.get_or_init(|| File::new(fd)).as_fd())
    }

    /// The event file to create an object with. `None` if the command's route has no argument for it; the
    /// kernel then uses the context's first one.
    pub(crate) fn event_fd(&self) -> Result<Option<RawFd>> {
        match self.async_fd() {
            Ok(fd) => Ok(Some(fd.as_raw_fd())),
            Err(error) if error.is_unsupported() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.name())
            .field("fd", &self.raw_fd())
            .finish()
    }
}

/// The command file descriptor. A process that holds a duplicate of it can name this context's objects.
impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch protection domains that are gone and pile up, and one whose queues are not found again.
    #[test]
    fn domains_that_are_gone_leave_nothing() {
        let (_kernel, file) = rustix::pipe::pipe().unwrap();
        let context = Context::over(file);
        let flights = |handle| context.flights(PdHandle(handle));
        let kept: Vec<_> = (0..20).map(flights).collect();
        for handle in 100..10_000 {
            drop(flights(handle));
        }
        assert!(context.0.flights.lock().unwrap().len() < 100);
        for (handle, known) in (0..).zip(&kept) {
            assert!(Arc::ptr_eq(&flights(handle), known));
        }
    }
}
