//! RC has all operations but those with a destination.

use uverbs::{Inline, LocalSlice, PostError, Qp, Rc, RemoteSlice};

pub fn post(
    qp: &mut Qp<Rc>,
    here: LocalSlice,
    there: RemoteSlice,
) -> Result<usize, PostError> {
    let mut batch = qp.batch();
    batch.signaled(1).send(here)?;
    batch.unsignaled(0).fence().solicited().send_imm([here, here], 2)?;
    batch.unsignaled(3).write(here, there)?;
    batch.unsignaled(0).write_imm(here, there, 4)?;
    batch.unsignaled(0).read(here, there)?;
    batch.unsignaled(0).compare_swap(here, there, 5, 6)?;
    batch.unsignaled(0).fetch_add(here, there, 7)?;
    batch.unsignaled(0).send(Inline(b"hello"))?;
    batch.unsignaled(0).send_imm(Inline(b"hello"), 8)?;
    batch.unsignaled(0).write(Inline(b"hello"), there)?;
    batch.unsignaled(0).write_imm(Inline(b"hello"), there, 9)?;
    batch.ring()
}

fn main() {}
