//! A connected queue pair sends to its peer only.

use uverbs::{LocalSlice, Qp, Rc, UdPeer};

fn post(qp: &mut Qp<Rc>, to: UdPeer<'_>, here: LocalSlice<'_>) {
    let mut batch = qp.send();
    let _ = batch.send_to(to, here);
}

fn main() {}
