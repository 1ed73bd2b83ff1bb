//! A request of XRC names a shared receive queue of the peer.

use uverbs::{Inline, Qp, transport::Xrc};

fn post(qp: &mut Qp<Xrc>) {
    let _ = qp.one(1).send(Inline(b"to which queue?"));
}

fn main() {}
