//! Posting registered memory is a promise about it, made in an unsafe block.

use uverbs::{LocalSlice, PostError, Qp, Rc};

fn post(qp: &mut Qp<Rc>, here: LocalSlice) -> Result<(), PostError> {
    qp.send().send(here)?;
    qp.recv().post(1, here)
}

fn main() {}
