//! UC has no atomic operations.

use uverbs::{LocalSlice, Qp, RemoteSlice, Uc};

fn post(qp: &mut Qp<Uc>, here: LocalSlice<'_>, there: RemoteSlice) {
    let mut batch = qp.send();
    let _ = batch.fetch_add(here, there, 1);
}

fn main() {}
