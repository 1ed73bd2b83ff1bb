//! What has been rung is the device's: a request that was started before is not added any more.

use uverbs::{Inline, PostError, Qp, Rc};

fn post(qp: &mut Qp<Rc>) -> Result<(), PostError> {
    let mut batch = qp.batch();
    let request = batch.signaled(7);
    batch.ring()?;
    request.send(Inline(b"hello"))
}

fn main() {}
