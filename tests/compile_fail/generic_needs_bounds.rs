//! Code over any transport has to say what it needs of it.

use uverbs::transport::{Peer, RdmaRead, Reaches};
use uverbs::{LocalSlice, Qp, RemoteSlice, Ud};

fn read<T: Reaches<Peer> + RdmaRead>(qp: &mut Qp<T>, here: LocalSlice<'_>, there: RemoteSlice) {
    let mut batch = qp.batch();
    let _ = batch.unsignaled(0).read(here, there);
}

fn post(qp: &mut Qp<Ud>, here: LocalSlice<'_>, there: RemoteSlice) {
    read(qp, here, there);
}

fn main() {}
