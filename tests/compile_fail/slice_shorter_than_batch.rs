//! A region that a request names outlives the batch, also if the batch was started before.

use uverbs::{Access, Pd, PostError, Qp, Rc};

fn post(qp: &mut Qp<Rc>, pd: &Pd) -> Result<(), PostError> {
    let mut batch = qp.batch();
    {
        let region = pd.register(vec![0; 8], Access::LOCAL_WRITE).unwrap();
        batch.signaled(1).send(region.slice(..).unwrap())?;
    }
    batch.ring()?;
    Ok(())
}

fn main() {}
