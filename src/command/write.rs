//! Write commands as buffers for write(2).
//!
//! A buffer is a header, for extended commands a second header, the core struct and the driver's input. The
//! response goes to memory that the buffer points to: the core response, then the driver's.
//! Sources: `ib_uverbs_write` and `verify_hdr` in `drivers/infiniband/core/uverbs_main.c`.

use smallvec::{SmallVec, smallvec};
use uverbs_uapi::cmd;
use uverbs_uapi::write::{CmdHdr, ExCmdHdr};
use zerocopy::IntoBytes;

use super::Request;

/// Lengths are counted in words of four bytes; for extended commands in words of eight.
const WORD: usize = 4;
const EX_WORD: usize = 8;

/// A write command: the bytes to write, and the memory for the answer.
#[derive(Debug)]
pub(super) struct WriteBuffer {
    pub(super) buffer: SmallVec<[u8; 256]>,
    response: SmallVec<[u8; 256]>,
    core_out: usize,
}

impl WriteBuffer {
    /// The buffer for a request that was made by [`Request::write_command`].
    ///
    /// The response pointer is not set yet: [`Self::aim`] does that in place. From any other request this
    /// makes command 0 without a body, which the kernel refuses.
    pub(super) fn new(request: &Request) -> Self {
        let command = request.write_number().unwrap_or(0);
        let (core_in, driver_in) = request.write_inputs();
        let (core_out, driver_out) = request.write_outputs();
        let mut buffer: SmallVec<[u8; 256]> = smallvec![];
        if command & cmd::FLAG_EXTENDED == 0 {
            let length = size_of::<CmdHdr>() + core_in.len() + driver_in.len();
            let header = CmdHdr {
                command,
                in_words: (length / WORD) as u16,
                out_words: ((core_out + driver_out) / WORD) as u16,
            };
            buffer.extend_from_slice(header.as_bytes());
        } else {
            let header = CmdHdr {
                command,
                in_words: (core_in.len() / EX_WORD) as u16,
                out_words: (core_out / EX_WORD) as u16,
            };
            let extended = ExCmdHdr {
                response: 0,
                provider_in_words: (driver_in.len() / EX_WORD) as u16,
                provider_out_words: (driver_out / EX_WORD) as u16,
                cmd_hdr_reserved: 0,
            };
            buffer.extend_from_slice(header.as_bytes());
            buffer.extend_from_slice(extended.as_bytes());
        }
        buffer.extend_from_slice(core_in);
        buffer.extend_from_slice(driver_in);
        Self {
            buffer,
            response: smallvec![0; core_out + driver_out],
            core_out,
        }
    }

    /// Writes the response's address into the field where the kernel expects it: the first field after the
    /// header, in the core struct or in the extended header. A command without response has none.
    pub(super) fn aim(&mut self) {
        if self.response.is_empty() {
            return;
        }
        let address = self.response.as_mut_ptr().expose_provenance() as u64;
        let at = size_of::<CmdHdr>();
        self.buffer[at..at + 8].copy_from_slice(&address.to_ne_bytes());
    }

    /// The core response and the driver's.
    pub(super) fn responses(&self) -> (&[u8], &[u8]) {
        self.response.split_at(self.core_out)
    }
}
