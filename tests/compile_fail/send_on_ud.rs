//! A datagram needs a destination.

use uverbs::{LocalSlice, Qp, Ud};

fn post(qp: &mut Qp<Ud>, here: LocalSlice) {
    let mut batch = qp.send();
    let _ = unsafe { batch.send(here) };
    let _ = batch.send_inline(b"hello");
}

fn main() {}
