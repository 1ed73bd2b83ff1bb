//! UC has no RDMA READ.

use uverbs::{LocalSlice, Qp, RemoteSlice, Uc};

fn post(qp: &mut Qp<Uc>, here: LocalSlice, there: RemoteSlice) {
    let mut batch = qp.send();
    let _ = unsafe { batch.read(here, there) };
}

fn main() {}
