//! A piece of local memory is none of the peer's, nor is its key.

use uverbs::{LocalSlice, PostError, Qp, Rc, RemoteSlice};

fn post(qp: &mut Qp<Rc>, here: LocalSlice<'_>) -> Result<(), PostError> {
    qp.batch().write_inline(b"hello", here)?;
    let there = RemoteSlice {
        address: 0,
        length: 8,
        rkey: here.lkey(),
    };
    qp.batch().write_inline(b"hello", there)?;
    Ok(())
}

fn main() {}
