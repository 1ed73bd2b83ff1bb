//! A batch of receives that is not rung yet borrows the regions that its requests name.

use uverbs::{Mr, PostError, Qp, Rc};

fn post(qp: &mut Qp<Rc>, region: Mr<Vec<u8>>) -> Result<Vec<u8>, PostError> {
    let mut batch = qp.recv_batch();
    batch.post(1, region.slice(..).unwrap())?;
    let memory = region.deregister().unwrap();
    batch.ring();
    Ok(memory)
}

fn main() {}
