//! The send doorbell of drivers whose doorbell is a system call: it makes the kernel look into the ring.
//!
//! It is the write command POST_SEND without a work request. write(2) costs least, but only the process that
//! opened the command file may use it (`ib_uverbs_write` compares credentials and answers EACCES). Others
//! ring by the ioctl `INVOKE_WRITE`.

use std::sync::Arc;

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
    /// It has its own address in it, so it never moves.
    command: Box<Buffers>,
    /// The same for the ioctl; built when that is first needed.
    request: Option<Box<Request>>,
}

/// The argument of write(2), and where the kernel puts the answer.
#[derive(Debug)]
struct Buffers {
    written: Written,
    /// Nobody reads it.
    response: PostSendResp,
}

#[derive(Debug, IntoBytes, Immutable)]
#[repr(C)]
struct Written {
    header: CmdHdr,
    core: PostSend,
}

#[allow(dead_code, reason = "not every driver has such a doorbell")]
impl Doorbell {
    /// The doorbell of the QP with handle `qp`.
    pub(crate) fn new(fd: Arc<CommandFd>, qp: QpHandle) -> Self {
        const WORD: usize = 4;
        let header = CmdHdr {
            command: cmd::POST_SEND,
            in_words: (size_of::<Written>() / WORD) as u16,
            out_words: (size_of::<PostSendResp>() / WORD) as u16,
        };
        let core = PostSend {
            qp_handle: qp.0,
            // There is no request, but the kernel checks that this is at least the size of one.
            wqe_size: size_of::<SendWr>() as u32,
            ..PostSend::default()
        };
        let written = Written { header, core };
        let response = PostSendResp::default();
        let mut command = Box::new(Buffers { written, response });
        let response = &raw mut command.response;
        command.written.core.response = response.expose_provenance() as u64;
        Self {
            way: fd.routes.doorbell(),
            fd,
            command,
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
        rustix::io::write(&self.fd.fd, self.command.written.as_bytes()).map(drop)
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
        let core = &self.command.written.core;
        let request = self.request.get_or_insert_with(|| {
            let mut request = Box::new(Request::new());
            request.write_command::<_, PostSendResp>(cmd::POST_SEND, core);
            request
        });
        self.fd.ioctl(request)
    }
}
