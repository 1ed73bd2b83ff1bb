//! A datagram needs a destination.

use uverbs::{LocalSlice, Qp, Ud};

fn post(qp: &mut Qp<Ud>, here: LocalSlice<'_>) {
    let mut batch = qp.send();
    let _ = batch.send(here);
    let _ = batch.send_inline(b"hello");
}

fn main() {}
