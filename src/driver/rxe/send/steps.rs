//! Requests in two steps, as C programs may tell of them: all but the payload, then that.

use std::ptr::NonNull;

use uverbs_uapi::flags::SendFlags;
use uverbs_uapi::rxe::SendWqe;

use super::{SendBatch, write_payload, write_request};
use crate::driver::contract::Opened;
use crate::work::{Operation, Payload};

impl SendBatch<'_> {
    /// See [`open`](crate::driver::contract::SendBatch::open).
    #[inline(always)]
    pub(super) fn open_usual(
        &mut self,
        operation: Operation,
        wr_id: u64,
        flags: SendFlags,
    ) -> Option<Opened> {
        // A copy: the batch goes on behind it when it is whole.
        let request = self.queue.ring.known_slot(&mut { self.filling })?;
        let wqe: NonNull<SendWqe> = request.cast();
        // SAFETY: the slot is free, so it is ours alone until it is published; it is aligned to 8 and holds
        // a `SendWqe` with a payload behind it, which `SendQueue::new` made sure of.
        unsafe {
            write_request(wqe, operation, None);
            (&raw mut (*wqe.as_ptr()).wr.wr_id).write(wr_id);
            (&raw mut (*wqe.as_ptr()).wr.send_flags).write(flags.bits());
            Some(Opened {
                request,
                payload: request,
            })
        }
    }

    /// See [`close`](crate::driver::contract::SendBatch::close).
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn close_usual(&mut self, opened: Opened, payload: Payload<'_>) -> bool {
        let wqe: NonNull<SendWqe> = opened.request.cast();
        // SAFETY: the slot is the batch's next one, which is free, and has room for the payload by this
        // function's contract.
        unsafe {
            write_payload(wqe, payload);
            if let Payload::Inline(_) | Payload::InlineSges(_) = payload {
                let flags = &raw mut (*wqe.as_ptr()).wr.send_flags;
                flags.write(flags.read() | SendFlags::INLINE.bits());
            }
        }
        self.queue.ring.known_slot(&mut self.filling).is_some()
    }
}
