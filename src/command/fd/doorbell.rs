//! The send doorbell of drivers whose doorbell is a system call: it makes the kernel look at the ring.
//!
//! It is the write command POST_SEND without a work request. write(2) costs least, but only the process that
//! opened the command file may use it (`ib_uverbs_write` compares credentials and answers EACCES). Other
//! processes ring with the ioctl `INVOKE_WRITE`.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use uverbs_uapi::cmd;
use uverbs_uapi::handle::QpHandle;
use uverbs_uapi::types::SendWr;
use uverbs_uapi::write::{CmdHdr, PostSend, PostSendResp};
use zerocopy::{Immutable, IntoBytes};

use super::CommandFd;
use crate::command::Request;
use crate::command::routes::Way;
use crate::error::Errno;

/// The doorbell of one QP. Its command is built once.
#[derive(Debug)]
#[allow(dead_code, reason = "not every driver has such a doorbell")]
pub(crate) struct Doorbell {
    fd: Arc<CommandFd>,
    way: Way,
    /// The argument of write(2). It contains the address of the memory for the answer.
    command: Written,
    /// The same for the ioctl; built when it is first needed.
    request: Option<Box<Request>>,
}

/// The kernel's answer to a write(2) that failed. It is examined out of line.
#[derive(Clone, Copy, Debug)]
struct Failed(i32);

impl Failed {
    fn errno(self) -> Errno {
        Errno::from_raw_os_error(-self.0)
    }
}

/// The memory for the answer to a doorbell, which nothing reads.
pub(crate) type Unread = AtomicU32;

#[derive(Debug, IntoBytes, Immutable)]
#[repr(C)]
struct Written {
    header: CmdHdr,
    core: PostSend,
}

#[allow(dead_code, reason = "not every driver has such a doorbell")]
impl Doorbell {
    /// The doorbell of the QP with handle `qp`. The kernel writes answers to `answer`.
    ///
    /// # Safety
    ///
    /// It stays there as long as the doorbell is used.
    pub(crate) unsafe fn new(fd: Arc<CommandFd>, qp: QpHandle, answer: NonNull<Unread>) -> Self {
        const WORD: usize = 4;
        const { assert!(size_of::<Unread>() == size_of::<PostSendResp>()) };
        let header = CmdHdr {
            command: cmd::POST_SEND,
            in_words: (size_of::<Written>() / WORD) as u16,
            out_words: (size_of::<PostSendResp>() / WORD) as u16,
        };
        let core = PostSend {
            response: answer.as_ptr().expose_provenance() as u64,
            qp_handle: qp.0,
            // There is no request, but the kernel requires at least the size of one here.
            wqe_size: size_of::<SendWr>() as u32,
            ..PostSend::default()
        };
        Self {
            way: fd.routes.doorbell(),
            fd,
            command: Written { header, core },
            request: None,
        }
    }

    /// Makes the kernel look at the send ring.
    #[inline(always)]
    pub(crate) fn ring(&mut self) -> Result<(), Errno> {
        if self.is_write() {
            return match self.write() {
                Ok(()) => Ok(()),
                Err(failed) => self.after(failed),
            };
        }
        self.by_ioctl()
    }

    /// Whether write(2) rings it.
    #[inline(always)]
    fn is_write(&self) -> bool {
        self.way == Way::Write
    }

    /// Rings it with write(2).
    #[inline(always)]
    fn write(&self) -> Result<(), Failed> {
        write(self.fd.fd.as_fd(), self.command.as_bytes())
    }

    /// Handles a write(2) that has failed.
    #[cold]
    fn after(&mut self, failed: Failed) -> Result<(), Errno> {
        match failed.errno() {
            Errno::INTR => self.ring(),
            Errno::ACCESS if self.fd.routes.may_ioctl() => {
                // Another process opened the file. The ioctl does not check that.
                self.way = Way::InvokeWrite;
                self.by_ioctl()
            }
            errno => Err(errno),
        }
    }

    // The unusual path, out of line, so that the code around write(2) stays compact.
    #[cold]
    fn by_ioctl(&mut self) -> Result<(), Errno> {
        let core = &self.command.core;
        let request = self.request.get_or_insert_with(|| {
            let mut request = Box::new(Request::new());
            request.write_command::<_, PostSendResp>(cmd::POST_SEND, core);
            request
        });
        self.fd.ioctl(request)
    }
}

/// write(2). This one is written here since one comparison decides whether the call failed. rustix, which may
/// not assume which values the kernel never returns, needs two, and converts each value.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
#[inline(always)]
fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Failed> {
    use std::os::fd::AsRawFd;

    let answer: isize;
    // SAFETY: the system call reads these bytes, and the driver's doorbell decides what happens then. It
    // changes only these registers.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_write as isize => answer,
            in("rdi") fd.as_raw_fd(),
            in("rsi") bytes.as_ptr(),
            in("rdx") bytes.len(),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, preserves_flags),
        );
    }
    match answer >= 0 {
        true => Ok(()),
        false => Err(Failed(answer as i32)),
    }
}

#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", not(miri))))]
#[inline(always)]
fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Failed> {
    match rustix::io::write(fd, bytes) {
        Ok(_) => Ok(()),
        Err(errno) => Err(Failed(-errno.raw_os_error())),
    }
}
