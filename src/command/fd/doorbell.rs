//! The send doorbell of drivers whose doorbell is a system call: it makes the kernel look into the ring.
//!
//! It is the write command POST_SEND without a work request. write(2) costs least, but only the process that
//! opened the command file may use it (`ib_uverbs_write` compares credentials and answers EACCES). Others
//! ring by the ioctl `INVOKE_WRITE`.

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

/// The doorbell of one QP. What is sent is built once.
#[derive(Debug)]
#[allow(dead_code, reason = "not every driver has such a doorbell")]
pub(crate) struct Doorbell {
    fd: Arc<CommandFd>,
    way: Way,
    /// The argument of write(2). It has the address of the place for the answer in it.
    command: Written,
    /// The same for the ioctl; built when that is first needed.
    request: Option<Box<Request>>,
}

/// Where the kernel puts the answer to a doorbell, which nobody reads.
pub(crate) type Unread = AtomicU32;

#[derive(Debug, IntoBytes, Immutable)]
#[repr(C)]
struct Written {
    header: CmdHdr,
    core: PostSend,
}

#[allow(dead_code, reason = "not every driver has such a doorbell")]
impl Doorbell {
    /// The doorbell of the QP with handle `qp`. Answers go to `answer`.
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
            // There is no request, but the kernel checks that this is at least the size of one.
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

    /// Makes the kernel look into the send ring.
    #[inline(always)]
    pub(crate) fn ring(&mut self) -> Result<(), Errno> {
        if self.is_write() {
            return match self.write() {
                Ok(()) => Ok(()),
                Err(errno) => self.after(errno),
            };
        }
        self.by_ioctl()
    }

    /// Whether it is rung by write(2).
    #[inline(always)]
    pub(crate) fn is_write(&self) -> bool {
        self.way == Way::Write
    }

    /// Rings it by write(2).
    #[inline(always)]
    pub(crate) fn write(&self) -> Result<(), Errno> {
        rustix::io::write(&self.fd.fd, self.command.as_bytes()).map(drop)
    }

    /// What to do when write(2) has failed.
    #[cold]
    pub(crate) fn after(&mut self, errno: Errno) -> Result<(), Errno> {
        match errno {
            Errno::INTR => self.ring(),
            Errno::ACCESS if self.fd.routes.may_ioctl() => {
                // Another process opened the file. The ioctl has no such rule.
                self.way = Way::InvokeWrite;
                self.by_ioctl()
            }
            errno => Err(errno),
        }
    }

    // Not the usual path: the code after write(2) stays close to it.
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
