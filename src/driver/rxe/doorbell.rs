//! The send doorbell of rxe: a system call that makes the kernel look into the ring.
//!
//! It is the write command POST_SEND without a work request. write(2) costs least, but only the process that
//! opened the command file may use it (`ib_uverbs_write` compares credentials and answers EACCES). Others
//! ring by the ioctl `INVOKE_WRITE`. Both buffers are built once.

use std::sync::Arc;

use uverbs_uapi::handle::QpHandle;
use uverbs_uapi::types::SendWr;
use uverbs_uapi::{cmd, write as abi};

use crate::command::{CommandFd, Prepared, Request};
use crate::error::Errno;

/// The doorbell of one QP.
#[derive(Debug)]
pub(super) struct Doorbell {
    fd: Arc<CommandFd>,
    command: Prepared,
}

impl Doorbell {
    /// The doorbell of the QP with handle `qp`.
    pub(super) fn new(fd: Arc<CommandFd>, qp: QpHandle) -> Self {
        let core = abi::PostSend {
            qp_handle: qp.0,
            // There is no request, but the kernel checks that this is at least the size of one.
            wqe_size: size_of::<SendWr>() as u32,
            ..Default::default()
        };
        let mut request = Request::new();
        request.write_command::<_, abi::PostSendResp>(cmd::POST_SEND, &core);
        let command = fd.prepare(request);
        Self { fd, command }
    }

    /// Makes the kernel look into the send ring.
    #[inline(always)]
    pub(super) fn ring(&mut self) -> Result<(), Errno> {
        self.fd.repeat(&mut self.command)
    }
}
