//! UD has no RDMA WRITE.

use uverbs::{Inline, LocalSlice, Qp, RemoteSlice, Ud};

fn post(qp: &mut Qp<Ud>, here: LocalSlice<'_>, there: RemoteSlice) {
    let mut batch = qp.batch();
    let _ = batch.unsignaled(0).write(here, there);
    let _ = batch.unsignaled(0).write(Inline(b"hello"), there);
}

fn main() {}
