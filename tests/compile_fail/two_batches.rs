//! One batch at a time: posting borrows the queue exclusively.

use uverbs::{PostError, Qp, Rc};

fn post(qp: &mut Qp<Rc>) -> Result<(), PostError> {
    let mut first = qp.batch();
    let mut second = qp.batch();
    first.send_inline(b"first")?;
    second.send_inline(b"second")?;
    Ok(())
}

fn main() {}
