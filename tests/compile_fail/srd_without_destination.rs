//! Reliable datagrams have WRITE and READ, but no peer: each request has to have a destination. They have no
//! atomic operations.

use uverbs::transport::Srd;
use uverbs::{LocalSlice, Qp, RemoteSlice};

fn post(qp: &mut Qp<Srd>, here: LocalSlice<'_>, there: RemoteSlice) {
    let mut batch = qp.batch();
    let _ = batch.unsignaled(0).write(here, there);
    let _ = batch.unsignaled(0).read(here, there);
}

fn swap<T: uverbs::transport::Atomic>() {}

fn main() {
    swap::<Srd>();
}
