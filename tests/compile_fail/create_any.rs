//! The transport of a new queue pair must be known.

use uverbs::{transport::Any, Caps, Cq, Pd, Qp, Result};

fn create(pd: &Pd, cq: &Cq) -> Result<Qp<Any>> {
    pd.create_qp::<Any>(cq, Caps::default())
}

fn main() {}
