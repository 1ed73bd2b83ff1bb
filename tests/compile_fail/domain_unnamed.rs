//! A queue pair of a thread domain is not posted to without the domain.

use uverbs::{Inline, InDomain, PostError, Qp, Rc};

fn post(qp: &mut Qp<Rc, InDomain>) -> Result<(), PostError> {
    let mut batch = qp.batch();
    batch.unsignaled(0).send(Inline(b"hello"))?;
    batch.ring()?;
    Ok(())
}

fn main() {}
