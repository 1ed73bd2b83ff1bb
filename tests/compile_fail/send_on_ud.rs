//! A datagram needs a destination.

use uverbs::{Inline, LocalSlice, Qp, Ud};

fn post(qp: &mut Qp<Ud>, here: LocalSlice<'_>) {
    let mut batch = qp.batch();
    let _ = batch.unsignaled(0).send(here);
    let _ = batch.unsignaled(0).send(Inline(b"hello"));
}

fn main() {}
