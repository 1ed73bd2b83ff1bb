//! What has been rung is the device's: no more can be said about a request.

use uverbs::{PostError, Qp, Rc};

fn post(qp: &mut Qp<Rc>) -> Result<(), PostError> {
    let mut batch = qp.send();
    let request = batch.send_inline(b"hello")?;
    batch.ring()?;
    request.signaled(7);
    Ok(())
}

fn main() {}
