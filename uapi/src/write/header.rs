//! The headers that precede a command sent by `write()`; an ioctl `INVOKE_WRITE` carries the
//! payload without them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Mask of the command number within [`CmdHdr::command`]; the rest are flag bits.
pub const COMMAND_MASK: u32 = 0xff;

/// Starts every `write()` to the device file. Lengths are counted from this header on, in units of 4 bytes
/// (extended commands: 8).
///
/// Kernel: `struct ib_uverbs_cmd_hdr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CmdHdr {
    /// Command number, with [`crate::cmd::FLAG_EXTENDED`] for an extended one.
    pub command: u32,
    /// Length of the request. Legacy: with headers and driver data; extended: only the core request.
    pub in_words: u16,
    /// Length of the response buffer. Legacy: with driver data; extended: only the core response.
    pub out_words: u16,
}

/// Follows [`CmdHdr`] in an extended command.
///
/// Kernel: `struct ib_uverbs_ex_cmd_hdr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExCmdHdr {
    /// Address of the response buffer; 0 exactly when both output lengths are 0.
    pub response: u64,
    /// Length of the driver's request, which follows the core request, in units of 8 bytes.
    pub provider_in_words: u16,
    /// Room for the driver's response, which follows the core response, in units of 8 bytes.
    pub provider_out_words: u16,
    /// Must be 0.
    pub cmd_hdr_reserved: u32,
}
