//! A queue pair of a thread domain is not posted to without the domain.

use uverbs::{InDomain, PostError, Qp, Rc};

fn post(qp: &mut Qp<Rc, InDomain>) -> Result<(), PostError> {
    let mut batch = qp.send();
    batch.send_inline(b"hello")?;
    batch.ring()?;
    Ok(())
}

fn main() {}
