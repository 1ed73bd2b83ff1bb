//! A batch that is not rung yet borrows the regions that its requests name.

use uverbs::{Mr, PostError, Qp, Rc};

fn post(qp: &mut Qp<Rc>, region: Mr<Vec<u8>>) -> Result<(), PostError> {
    let mut batch = qp.batch();
    batch.unsignaled(0).send(region.slice(..).unwrap())?;
    drop(region);
    batch.ring()?;
    Ok(())
}

fn main() {}
