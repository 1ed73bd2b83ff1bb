//! The command file descriptor: an open `/dev/infiniband/uverbsN` and the system calls on it.

mod doorbell;
mod file;
mod mapped;
#[cfg(test)]
mod refusals;

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use rustix::io::Errno;
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode};
use tracing::Level;
use uverbs_uapi::ioctl::RDMA_VERBS_IOCTL;
use uverbs_uapi::types::QueryDeviceResp;
use uverbs_uapi::{cmd, write as abi};

use super::quiet::tell;
use super::routes::{Routes, Way};
use super::write::WriteBuffer;
use super::{Command, Decode, Destroy, Malformed, Object, Request, Route};
use crate::error::{Error, Result, Verb};
use crate::probes;

pub(crate) use doorbell::{Doorbell, Unread};
pub(crate) use file::File;
pub(crate) use mapped::Mapped;

use mapped::Mappings;

/// An open uverbs file, its driver, and what is known about the kernel.
#[derive(Debug)]
pub(crate) struct CommandFd {
    fd: File,
    driver_id: u32,
    routes: Routes,
    mappings: Mappings,
    /// What a test has the kernel refuse.
    #[cfg(test)]
    refusals: refusals::Refusals,
}

/// Sends a command by write(2). The kernel writes the answer elsewhere into memory. rustix's own function
/// promises the compiler that the call changes no memory, so the compiler might take the old contents for the
/// answer.
pub(crate) fn write(fd: BorrowedFd<'_>, command: &[u8]) -> Result<(), Errno> {
    // SAFETY: the length is that of the bytes, and the sender is responsible for the addresses in the
    // command.
    match unsafe { libc::write(fd.as_raw_fd(), command.as_ptr().cast(), command.len()) } {
        ..0 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}

impl CommandFd {
    /// Takes an open uverbs character device with the driver `driver_id`.
    pub(crate) fn new(fd: OwnedFd, driver_id: u32, route: Route) -> Self {
        Self {
            fd: File::new(fd),
            driver_id,
            routes: Routes::new(route),
            mappings: Mappings::default(),
            #[cfg(test)]
            refusals: Default::default(),
        }
    }

    /// Notes that whole pages of the file are mapped at this address.
    #[allow(dead_code, reason = "not every driver maps the file")]
    pub(crate) fn mapped(&self, base: NonNull<u8>, length: usize) -> Mapped {
        self.mappings.note(base, length)
    }

    /// Closes the file although objects may still have it: the kernel destroys everything that was made
    /// through it, unless another process or a duplicate has it too. After this the objects read zeros where
    /// they had registers and rings of the kernel, and their commands fail.
    ///
    /// # Safety
    ///
    /// Nothing uses the file or its objects meanwhile.
    #[cfg(feature = "c-abi")]
    pub(crate) unsafe fn close(&self) {
        // SAFETY: by this function's contract.
        unsafe {
            self.mappings.replace();
            self.fd.close();
        }
    }

    /// The kernel's number of the driver, an `RDMA_DRIVER_*`.
    pub(crate) fn driver_id(&self) -> u32 {
        self.driver_id
    }

    /// Sends a command in the best way that this kernel has, and reads the answer.
    ///
    /// If a command creates an object and its answer is malformed, the object is destroyed, provided that the
    /// answer has its handle.
    #[inline]
    pub(crate) fn execute<C: Command>(&self, command: &C) -> Result<C::Reply> {
        self.carry_out(command).map_err(|failed| failed.error)
    }

    /// As [`execute`](Self::execute), for a command that gives the kernel something of this process, such as
    /// the memory of a ring. If it fails, `given` is dropped, unless the kernel may use it nevertheless: then
    /// it stays forever.
    #[inline]
    pub(crate) fn execute_with<C: Command, G>(
        &self,
        command: &C,
        given: G,
    ) -> Result<(C::Reply, G)> {
        // If a subscriber of traces panics behind the command, the kernel may have it.
        let given = ManuallyDrop::new(given);
        match self.carry_out(command) {
            Ok(reply) => Ok((reply, ManuallyDrop::into_inner(given))),
            Err(Failed { error, is_undone }) => {
                if is_undone {
                    drop(ManuallyDrop::into_inner(given));
                }
                Err(error)
            }
        }
    }

    #[inline]
    fn carry_out<C: Command>(&self, command: &C) -> Result<C::Reply, Failed> {
        let mut refusal = None;
        loop {
            let mut request = Request::new();
            let Some((way, decode)) = self.spell(command, &mut request) else {
                return Err(self.no_route(command, refusal).into());
            };
            let Err(errno) = self.send(C::VERB, &mut request, way) else {
                return decode(command, &request)
                    .map_err(|malformed| self.malformed(command, &request, malformed));
            };
            if C::REFUSED_BY_DEVICE == Some(errno) {
                return refused_by_device(command, &mut request, decode).map_err(Failed::from);
            }
            let is_private = request.has_driver_attributes();
            let probe = || self.invokes_write();
            if !self.routes.learn(C::VERB, way, errno, is_private, probe) {
                return Err(self.refused(command, errno, is_private).into());
            }
            refusal = Some(errno);
        }
    }

    /// Encodes a command in the best form that both it and the kernel have. Returns how to send it and how to
    /// read its answer.
    #[inline(always)]
    fn spell<C: Command>(&self, command: &C, request: &mut Request) -> Option<(Way, Decode<C>)> {
        if self.routes.takes_method(C::VERB)
            && let Some(decode) = command.native(request)
        {
            return Some((Way::Method, decode));
        }
        let way = self.routes.for_write()?;
        let decode = command.write(request)?;
        // A write command has no room for these attributes, and without them it would be another command.
        (!request.has_driver_attributes()).then_some((way, decode))
    }

    /// Destroys an object whose creation failed after the kernel had created it.
    ///
    /// The caller returns the first error, so an error here is dropped. If the object stays, it is destroyed
    /// with the context.
    #[cold]
    pub(crate) fn abandon<H: Object>(&self, handle: H) {
        self.abandon_with(handle, ());
    }

    /// As [`abandon`](Self::abandon), for an object that uses `given`, which is dropped once the object is
    /// gone. If the object stays, so does `given`.
    #[cold]
    pub(crate) fn abandon_with<H: Object, G>(&self, handle: H, given: G) {
        let given = ManuallyDrop::new(given);
        if self.destroy_patiently(handle).is_ok() {
            drop(ManuallyDrop::into_inner(given));
        }
    }

    /// Destroys an object for a caller that cannot return an error.
    ///
    /// While another holder of the file has a command on the handle under way, the kernel refuses with EBUSY
    /// (`uverbs_try_lock_object` in `rdma_core.c`), as it may if other objects use this one. The former is
    /// over soon, so the kernel is asked a few times.
    pub(crate) fn destroy_patiently<H: Object>(&self, handle: H) -> Result<()> {
        for pause in PAUSES {
            match self.execute(&Destroy(handle)) {
                Err(error) if error.errno() == Some(Errno::BUSY) => std::thread::sleep(pause),
                result => return result,
            }
        }
        self.execute(&Destroy(handle))
    }

    /// Whether the kernel has `INVOKE_WRITE`: QUERY_DEVICE without room for its answer is then ENOSPC.
    fn invokes_write(&self) -> bool {
        let core = abi::QueryDevice::default();
        let mut probe = Request::new();
        probe.write_command::<_, ()>(cmd::QUERY_DEVICE, &core);
        matches!(self.ioctl(&mut probe), Err(Errno::NOSPC) | Ok(()))
    }

    /// Whether the kernel still has the device: it answers QUERY_DEVICE by itself then, without the device.
    /// False without ioctl, where nothing is asked.
    #[cold]
    fn has_device(&self) -> bool {
        if !self.routes.may_ioctl() {
            return false;
        }
        let core = abi::QueryDevice::default();
        let mut question = Request::new();
        question.write_command::<_, QueryDeviceResp>(cmd::QUERY_DEVICE, &core);
        self.send(Verb::QueryDevice, &mut question, Way::InvokeWrite)
            .is_ok()
    }

    #[inline(always)]
    fn send(&self, verb: Verb, request: &mut Request, way: Way) -> Result<(), Errno> {
        #[cfg(test)]
        if let Some(played) = self.refusals.play(verb) {
            return played;
        }
        let result = match way {
            Way::Method | Way::InvokeWrite => self.ioctl(request),
            Way::Write => self.write(request),
        };
        probes::command(verb.name(), result.map_or_else(Errno::raw_os_error, |()| 0));
        if tracing::enabled!(target: "uverbs::command", Level::TRACE) {
            self.trace(verb, request, way, result);
        }
        result
    }

    #[cold]
    fn trace(&self, verb: Verb, request: &Request, way: Way, result: Result<(), Errno>) {
        let fd = self.as_fd().as_raw_fd();
        let result = result.map_or_else(|errno| errno.to_string(), |()| "ok".into());
        let text = format!("{verb}: {request} -> {result}");
        tell(move || tracing::trace!(target: "uverbs::command", fd, via = ?way, "{text}"));
    }

    #[inline(always)]
    fn ioctl(&self, request: &mut Request) -> Result<(), Errno> {
        request.arm(self.driver_id);
        // If a signal interrupts the method, the kernel reports that only if it has created no object, so it
        // is safe to send the method again.
        loop {
            // SAFETY: the request is armed: its frame has the layout of RDMA_VERBS_IOCTL, its header has its
            // true length, and every address in it points into the request's bytes, with the length next to
            // it. It is borrowed and not accessed until the call returns.
            match unsafe { ioctl::ioctl(&self.fd, Frame(request.frame())) } {
                Err(Errno::INTR) => {}
                result => return result,
            }
        }
    }

    #[inline(never)]
    fn write(&self, request: &mut Request) -> Result<(), Errno> {
        let mut command = WriteBuffer::new(request);
        command.aim();
        loop {
            match write(self.fd.as_fd(), &command.buffer) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
                Ok(()) => break,
            }
        }
        let (core, driver) = command.responses();
        request.absorb_response(core, driver);
        Ok(())
    }

    /// Sends a command without an answer by write(2), from a buffer that has all of it. `None` if this
    /// process may not write to the file, and there is another way.
    pub(super) fn write_plain<C: Command>(&self, command: &C, buffer: &[u8]) -> Option<Result<()>> {
        if !self.routes.may_write() {
            return None;
        }
        let result = loop {
            match rustix::io::write(&self.fd, buffer) {
                Err(Errno::INTR) => {}
                result => break result.map(drop),
            }
        };
        if tracing::enabled!(target: "uverbs::command", Level::TRACE) {
            self.trace_written(command, result);
        }
        match result {
            Ok(()) => Some(Ok(())),
            Err(Errno::ACCESS) if self.routes.may_ioctl() => {
                self.routes.without_write();
                None
            }
            Err(errno) => Some(Err(self.refused(command, errno, false))),
        }
    }

    #[cold]
    fn trace_written<C: Command>(&self, command: &C, result: Result<(), Errno>) {
        let mut request = Request::new();
        let _ = command.write(&mut request);
        self.trace(C::VERB, &request, Way::Write, result);
    }

    /// The error for a command that has no way to the kernel, or none left after a refusal.
    #[cold]
    fn no_route<C: Command>(&self, command: &C, refusal: Option<Errno>) -> Error {
        if self.routes.may_ioctl() && self.routes.lacks_native(C::VERB) {
            return self.refused(command, refusal.unwrap_or(Errno::PROTONOSUPPORT), false);
        }
        Error::unsupported(
            C::VERB,
            command.subject(),
            "this kernel offers no way to ask for it that is open to this context",
        )
    }

    /// The error for a malformed answer. An object that the command created is destroyed.
    #[cold]
    fn malformed<C: Command>(&self, command: &C, answer: &Request, malformed: Malformed) -> Failed {
        let is_undone = match (C::UNDO, answer.created()) {
            (Some(undo), Some(handle)) => undo(self, handle),
            _ => false,
        };
        let error = Error::malformed(C::VERB, command.subject(), malformed.to_string());
        Failed { error, is_undone }
    }

    #[cold]
    fn refused<C: Command>(&self, command: &C, errno: Errno, is_private: bool) -> Error {
        let missing = match errno {
            Errno::OPNOTSUPP | Errno::NOSYS => "the driver does not have this verb",
            // The kernel removes methods that the driver does not implement, so it cannot distinguish the
            // two.
            Errno::PROTONOSUPPORT if is_private => {
                "the kernel or the driver does not have this method, or not the driver's own attributes of it"
            }
            Errno::PROTONOSUPPORT => "the kernel or the driver does not have this method",
            Errno::NOTTY => "the kernel does not have this method",
            // mlx5's driver answers EIO for a command that the device has failed, too (`cmd_status_to_err` in
            // drivers/net/ethernet/mellanox/mlx5/core/cmd.c).
            Errno::IO if self.has_device() => {
                return Error::failed_by_device(C::VERB, command.subject(), errno);
            }
            errno => return Error::os(C::VERB, command.subject(), errno),
        };
        Error::unsupported_by_kernel(C::VERB, command.subject(), errno, missing)
    }
}

impl AsFd for CommandFd {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads the answer of a device that has refused.
///
/// The kernel writes the handle of a new object before the device is asked (`uverbs_process_attr` in
/// `uverbs_ioctl.c`), and frees it when the device refuses: by now it may be another object's.
#[cold]
fn refused_by_device<C: Command>(
    command: &C,
    request: &mut Request,
    decode: Decode<C>,
) -> Result<C::Reply> {
    request.forget_new();
    decode(command, request)
        .map_err(|malformed| Error::malformed(C::VERB, command.subject(), malformed.to_string()))
}

/// How long to wait before a refused object is destroyed again: a command on one handle takes microseconds.
const PAUSES: [Duration; 5] = [
    Duration::from_micros(1),
    Duration::from_micros(10),
    Duration::from_micros(50),
    Duration::from_micros(200),
    Duration::from_micros(500),
];

/// A command that failed.
struct Failed {
    error: Error,
    /// Whether the kernel is as it was. False if it has carried the command out, gave an answer that makes no
    /// sense, and did not destroy what it had created, if anything.
    is_undone: bool,
}

/// A command that was refused, or not sent.
impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let is_undone = true;
        Self { error, is_undone }
    }
}

/// The address of the frame of an armed request.
struct Frame(*mut u8);

// SAFETY: the opcode belongs to a frame, and the pointer is to a frame, which starts with a header with its
// length. The kernel reads and writes only within that length.
unsafe impl Ioctl for Frame {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        RDMA_VERBS_IOCTL as Opcode
    }

    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        self.0.cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut core::ffi::c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}
