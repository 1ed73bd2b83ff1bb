//! UC has no RDMA READ.

use uverbs::{LocalSlice, Qp, RemoteSlice, Uc};

fn post(qp: &mut Qp<Uc>, here: LocalSlice<'_>, there: RemoteSlice) {
    let mut batch = qp.send();
    let _ = batch.read(here, there);
}

fn main() {}
