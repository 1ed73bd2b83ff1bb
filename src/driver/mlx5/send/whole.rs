//! Requests that direct verbs give as a whole: the queue adds their position in the ring, and their numbers.

use std::ptr::NonNull;

use uverbs_uapi::flags::{Access, SendFlags};

use super::super::format::{BLOCK, Control, MOST_UNITS, UNIT, control, opcode};
use super::super::ledger::Does;
use super::super::umr;
use super::{Block, SendQueue, control_flags, put};
use crate::driver::contract::Position;
use crate::work::PostError;

/// A request that is given as a whole: the contents of its control segment, and the segments after that.
#[derive(Clone, Copy, Debug)]
struct Whole<'a> {
    opcode: u8,
    /// The opcode's variant, if it is not the usual one.
    variant: Option<u8>,
    /// Flags of the control segment.
    flags: u32,
    imm: u32,
    segments: &'a [u8],
    does: Does,
}

impl SendQueue {
    /// Writes a request that changes a key's access and the parts that it covers, where these are given. The
    /// next request waits for it.
    ///
    /// # Errors
    ///
    /// As for [`write_whole`](Self::write_whole).
    pub(crate) fn write_gathering(
        &mut self,
        at: Position,
        (wr_id, flags): (u64, SendFlags),
        key: u32,
        access: Option<Access>,
        layout: Option<&umr::Layout>,
    ) -> Result<Position, PostError> {
        let whole = Whole {
            opcode: opcode::UMR,
            variant: None,
            flags: control_flags(at.flags as u8, flags),
            imm: key,
            segments: &umr::gathering(key, access, layout),
            does: Does::Gathers,
        };
        let end = self.write_whole(at, wr_id, whole)?;
        let flags = u64::from(self.always | control::SMALL_FENCE);
        Ok(Position { flags, ..end })
    }

    /// Writes a request that the program has composed itself, its fence included. Only its position in the
    /// ring is added. It has as many units as its control segment says.
    ///
    /// # Errors
    ///
    /// It does not have as many; otherwise as for [`write_whole`](Self::write_whole).
    pub(crate) fn write_raw(
        &mut self,
        at: Position,
        wr_id: u64,
        request: &[u8],
    ) -> Result<Position, PostError> {
        let malformed = PostError::Direct("its control segment has another number of units");
        let (head, segments) = request.split_first_chunk().ok_or(malformed)?;
        if raw_bytes(head) != request.len() {
            return Err(malformed);
        }
        let [[variant, _, _, opcode], _, flags, imm] = words(head);
        let whole = Whole {
            opcode,
            variant: Some(variant),
            flags: u32::from_be_bytes(flags),
            imm: u32::from_be_bytes(imm),
            segments,
            does: Does::Own,
        };
        let end = self.write_whole(at, wr_id, whole)?;
        self.has_own = true;
        Ok(Position {
            flags: at.flags,
            ..end
        })
    }

    /// Writes a request whose segments are given, with a control segment from these parts.
    ///
    /// # Errors
    ///
    /// [`PostError::QueueFull`], or it is longer than the longest request.
    fn write_whole(
        &mut self,
        at: Position,
        wr_id: u64,
        request: Whole<'_>,
    ) -> Result<Position, PostError> {
        let units = request.segments.len().div_ceil(UNIT) + 1;
        let blocks = (units * UNIT).div_ceil(BLOCK) as u32;
        if blocks > self.layout.request_blocks || units > MOST_UNITS {
            let max = self.layout.max_inline;
            let given = request.segments.len();
            return Err(PostError::InlineTooLong { given, max });
        }
        self.check_room(at.count)?;
        let control = Control::new(
            at.at as u16,
            request.opcode,
            self.qpn | units as u32,
            request.flags,
            request.imm,
        );
        let scratch = &mut self.scratch[..blocks as usize];
        scratch.fill(Block([0; BLOCK]));
        let start = NonNull::from(scratch).cast::<u8>();
        // SAFETY: the blocks have room for the control segment and for the segments after it.
        unsafe {
            let behind = put(start, control);
            behind.copy_from_nonoverlapping(
                NonNull::from(request.segments).cast(),
                request.segments.len(),
            );
            if let Some(variant) = request.variant {
                start.write(variant);
            }
        }
        let (index, note) = self.ledger.place(at.at as u32);
        self.wrap_round(index, blocks);
        let count = at.count.wrapping_add(1);
        note.write(wr_id, count);
        note.does(request.does);
        Ok(Position {
            count,
            at: at.at.wrapping_add(blocks.into()),
            last: index.into(),
            flags: at.flags,
        })
    }
}

/// The words of a control segment.
fn words(control: &[u8; CONTROL]) -> [[u8; 4]; 4] {
    zerocopy::transmute!(*control)
}

/// Bytes of the control segment.
pub(crate) const CONTROL: usize = size_of::<Control>();

/// Bytes of a request with this control segment, which says how many.
pub(crate) fn raw_bytes(control: &[u8; CONTROL]) -> usize {
    (u32::from_be_bytes(words(control)[1]) & 0x3f) as usize * UNIT
}
