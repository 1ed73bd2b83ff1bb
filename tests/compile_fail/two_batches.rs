//! One batch at a time: posting borrows the queue exclusively.

use uverbs::{Inline, PostError, Qp, Rc};

fn post(qp: &mut Qp<Rc>) -> Result<(), PostError> {
    let mut first = qp.batch();
    let mut second = qp.batch();
    first.signaled(1).send(Inline(b"first"))?;
    second.signaled(2).send(Inline(b"second"))?;
    Ok(())
}

fn main() {}
