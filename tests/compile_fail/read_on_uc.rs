//! UC has no RDMA READ.

use uverbs::{LocalSlice, Qp, RemoteSlice, Uc};

fn post(qp: &mut Qp<Uc>, here: LocalSlice<'_>, there: RemoteSlice) {
    let mut batch = qp.batch();
    let _ = batch.unsignaled(0).read(here, there);
}

fn main() {}
