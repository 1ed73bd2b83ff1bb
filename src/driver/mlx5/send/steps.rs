//! Requests in two steps, as C programs may tell of them: all but the payload, then that.

use uverbs_uapi::flags::SendFlags;

use super::{
    BLOCK, Be32, Control, LONGEST_SLICE, SendBatch, UNIT, blocks, control, flags_word, put_payload,
    word, write_request,
};
use crate::driver::contract::Opened;
use crate::work::{Operation, Payload};

impl SendBatch<'_> {
    /// See [`open`](crate::driver::contract::SendBatch::open).
    #[inline(always)]
    pub(super) fn open_ordinary(
        &mut self,
        operation: Operation,
        wr_id: u64,
        flags: SendFlags,
    ) -> Option<Opened> {
        let (queue, request) = (&*self.queue, self.block);
        if request.addr().get() >= self.ordinary_until || !is_first_plain(operation) {
            return None;
        }
        // SAFETY: an ordinary request has room in the ring, in one piece. The note is the ledger's, which the
        // queue keeps.
        unsafe {
            // Each value is used as early as can be, so that none has to be kept.
            self.note.as_ref().write(wr_id, self.count + 1);
            let nothing = Payload::Sges(&[]);
            let head = write_request::<true>(request, queue.qpn, operation, None, nothing);
            let control = request.cast::<Control>().as_ptr();
            let flags = queue.always | FLAGS[(flags.bits() & 7) as usize];
            (&raw mut (*control).fm_ce_se_imm).write(flags | word(Be32::ZERO, head.imm));
            let index = u32::from(self.post as u16) << 8;
            (&raw mut (*control).opmod_idx_opcode).write(Be32::new(index | u32::from(head.opcode)));
            let payload = request.add(head.units as usize * UNIT);
            Some(Opened { request, payload })
        }
    }

    /// See [`close`](crate::driver::contract::SendBatch::close).
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn close_ordinary(
        &mut self,
        Opened { request, payload }: Opened,
        carried: Payload<'_>,
    ) -> bool {
        if let Payload::Sges(sges) = carried
            && sges.iter().any(|sge| sge.length > LONGEST_SLICE)
        {
            return false;
        }
        let queue = &*self.queue;
        // Not beside the other count: the compiler would add the two as one.
        self.count += 1;
        // SAFETY: the request is the batch's next one, with room for the payload by this function's contract:
        // one that is plain has as much as any. What is behind its blocks lies in the ring, or behind its
        // last byte, and so it is with the notes.
        unsafe {
            let before = payload.offset_from(request) as u32 / UNIT as u32;
            let units = before + put_payload::<false>(payload, carried);
            let control = request.cast::<Control>().as_ptr();
            (&raw mut (*control).qpn_ds).write(Be32::new(queue.qpn | units));
            let blocks = blocks(units);
            self.post = self.post.wrapping_add(blocks);
            self.block = request.add(blocks as usize * BLOCK);
            self.note = self.note.add(blocks as usize);
        }
        self.last = request;
        true
    }
}

/// Whether a request has nothing but where it goes and its payload, and leaves keys alone.
#[inline(always)]
fn is_first_plain(operation: Operation) -> bool {
    match operation {
        Operation::Send
        | Operation::SendImm { .. }
        | Operation::SendInv { .. }
        | Operation::Write { .. }
        | Operation::WriteImm { .. }
        | Operation::Read { .. } => true,
        Operation::CompareSwap { .. }
        | Operation::FetchAdd { .. }
        | Operation::LocalInv { .. }
        | Operation::BindMw(_)
        | Operation::AtomicWrite { .. }
        | Operation::Flush { .. } => false,
    }
}

/// By a program's flags, their word in the control segment. There is no smaller fence in an ordinary request,
/// whose place a fence would take.
static FLAGS: [u64; 8] = {
    let mut words = [0; 8];
    let mut at = 0;
    while at < words.len() {
        let flags = SendFlags::from_bits_retain(at as u32);
        let mut bits = 0;
        if flags.contains(SendFlags::SIGNALED) {
            bits |= control::CQ_UPDATE;
        }
        if flags.contains(SendFlags::SOLICITED) {
            bits |= control::SOLICITED;
        }
        if flags.contains(SendFlags::FENCE) {
            bits |= control::FENCE;
        }
        words[at] = flags_word(bits);
        at += 1;
    }
    words
};

const _: () = {
    let known = SendFlags::SIGNALED.bits() | SendFlags::SOLICITED.bits() | SendFlags::FENCE.bits();
    assert!(known == 7);
};
