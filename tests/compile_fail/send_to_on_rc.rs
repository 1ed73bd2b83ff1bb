//! A connected queue pair sends to its peer only.

use uverbs::{LocalSlice, Qp, Rc, UdPeer};

fn post(qp: &mut Qp<Rc>, to: UdPeer<'_>, here: LocalSlice<'_>) {
    let mut batch = qp.batch();
    let _ = batch.unsignaled(0).to(to).send(here);
}

fn main() {}
