//! UD has no RDMA WRITE.

use uverbs::{LocalSlice, Qp, RemoteSlice, Ud};

fn post(qp: &mut Qp<Ud>, here: LocalSlice<'_>, there: RemoteSlice) {
    let mut batch = qp.send();
    let _ = batch.write(here, there);
    let _ = batch.write_inline(b"hello", there);
}

fn main() {}
