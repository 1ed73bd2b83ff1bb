//! A piece of local memory is none of the peer's, nor is its key.

use uverbs::{Inline, LocalSlice, PostError, Qp, Rc, RemoteSlice};

fn post(qp: &mut Qp<Rc>, here: LocalSlice<'_>) -> Result<(), PostError> {
    qp.one(1).write(Inline(b"hello"), here)?;
    let there = RemoteSlice {
        address: 0,
        length: 8,
        rkey: here.lkey(),
    };
    qp.one(1).write(Inline(b"hello"), there)?;
    Ok(())
}

fn main() {}
