//! The device's clock: a counter of 64 bits in a page of its registers.

#[cfg(feature = "c-abi")]
use std::ptr::NonNull;

use rustix::mm::ProtFlags;
use uverbs_uapi::mlx5::MmapCmd;

use super::map::Map;
use crate::command::CommandFd;
use crate::error::{Error, Result, Subject, Verb};

/// Bits of the index in a file offset that is counted in pages; the bits above say what it indexes
/// (`MLX5_IB_MMAP_CMD_SHIFT`).
const INDEX_BITS: u32 = 8;
/// Bytes of the mapping. The kernel offers the clock only if this is a page, so that no other registers are
/// visible.
const PAGE: usize = 4096;

/// The mapped page.
#[derive(Debug)]
pub(super) struct Clock {
    map: Map,
    /// The counter's offset in the page, a multiple of 4 with room for 8 bytes.
    offset: usize,
}

/// Maps the first `bytes` of the first page of a kind, for reading.
pub(super) fn map(fd: &CommandFd, verb: Verb, kind: MmapCmd, bytes: usize) -> Result<Map> {
    let subject = || Subject::the("device's clock");
    let place = u64::from(kind.0) << INDEX_BITS;
    let offset = place * bytes as u64;
    Map::by(verb, subject, fd, offset, bytes, ProtFlags::READ)
}

impl Clock {
    /// Maps the clock, whose counter lies at this offset of its page.
    pub(super) fn map(fd: &CommandFd, offset: u64) -> Result<Self> {
        let subject = || Subject::the("device's clock");
        let offset = usize::try_from(offset)
            .ok()
            .filter(|offset| offset.is_multiple_of(4) && *offset <= PAGE - size_of::<u64>())
            .ok_or_else(|| {
                let what = format!("a clock at offset {offset:#x} of its page");
                Error::malformed(Verb::QueryRtValues, subject(), what)
            })?;
        let map = map(fd, Verb::QueryRtValues, MmapCmd::CORE_CLOCK, PAGE)?;
        Ok(Self { map, offset })
    }

    /// Where the counter is mapped, for reading.
    #[cfg(feature = "c-abi")]
    pub(super) fn address(&self) -> NonNull<u8> {
        // SAFETY: the counter lies in the page.
        unsafe { self.map.base().add(self.offset) }
    }

    /// The counter now.
    pub(super) fn read(&self) -> u64 {
        let half = |at: usize| {
            // SAFETY: both halves lie in the page, aligned to 4, which `map` has checked; the device allows
            // reads of 4 bytes.
            u32::from_be(unsafe {
                self.map
                    .base()
                    .add(self.offset + at)
                    .cast::<u32>()
                    .read_volatile()
            })
        };
        loop {
            let (high, low) = (half(0), half(4));
            // Otherwise the low half has wrapped in between.
            if half(0) == high {
                return u64::from(high) << 32 | u64::from(low);
            }
        }
    }
}
