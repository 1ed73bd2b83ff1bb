//! UC has no atomic operations.

use uverbs::{LocalSlice, Qp, RemoteSlice, Uc};

fn post(qp: &mut Qp<Uc>, here: LocalSlice<'_>, there: RemoteSlice) {
    let mut batch = qp.batch();
    let _ = batch.unsignaled(0).fetch_add(here, there, 1);
}

fn main() {}
