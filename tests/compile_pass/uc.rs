//! UC has SEND and RDMA WRITE.

use uverbs::{LocalSlice, PostError, Qp, RemoteSlice, Uc};

pub fn post(
    qp: &mut Qp<Uc>,
    here: LocalSlice,
    there: RemoteSlice,
) -> Result<usize, PostError> {
    let mut batch = qp.send();
    batch.send(here)?.signaled(1);
    batch.write(here, there)?;
    batch.ring()
}

fn main() {}
