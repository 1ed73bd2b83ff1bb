//! UD sends to a destination.

use uverbs::{Ah, LocalSlice, PostError, Qp, Ud};

pub fn post(qp: &mut Qp<Ud>, ah: &Ah, here: LocalSlice) -> Result<usize, PostError> {
    let peer = ah.to(17, 0x1111_1111);
    let mut batch = qp.send();
    batch.send_to(peer, here)?.signaled(1);
    batch.send_imm_to(peer, here, 2)?;
    batch.send_inline_to(peer, b"hello")?;
    batch.send_imm_inline_to(peer, b"hello", 3)?;
    batch.ring()
}

fn main() {}
