//! UC has SEND and RDMA WRITE.

use uverbs::{LocalSlice, PostError, Qp, RemoteSlice, Uc};

pub fn post(
    qp: &mut Qp<Uc>,
    here: LocalSlice,
    there: RemoteSlice,
) -> Result<usize, PostError> {
    let mut batch = qp.batch();
    batch.signaled(1).send(here)?;
    batch.unsignaled(0).write(here, there)?;
    batch.ring()
}

fn main() {}
