//! UD sends to a destination.

use uverbs::{Inline, Ah, LocalSlice, PostError, Qp, Ud};

pub fn post(qp: &mut Qp<Ud>, ah: &Ah, here: LocalSlice) -> Result<usize, PostError> {
    let peer = ah.to(17, 0x1111_1111);
    let mut batch = qp.batch();
    batch.signaled(1).to(peer).send(here)?;
    batch.unsignaled(0).to(peer).send_imm(here, 2)?;
    batch.unsignaled(0).to(peer).send(Inline(b"hello"))?;
    batch.unsignaled(0).to(peer).send_imm(Inline(b"hello"), 3)?;
    batch.ring()
}

fn main() {}
