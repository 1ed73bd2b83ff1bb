//! What has been rung is the device's: no more can be said about a request.

use uverbs::{Inline, PostError, Qp, Rc};

fn post(qp: &mut Qp<Rc>) -> Result<(), PostError> {
    let mut batch = qp.batch();
    let request = batch.unsignaled(0).send(Inline(b"hello"))?;
    batch.ring()?;
    request.signaled(7);
    Ok(())
}

fn main() {}
