//! RC has all operations but those with a destination.

use uverbs::{LocalSlice, PostError, Qp, Rc, RemoteSlice};

pub fn post(
    qp: &mut Qp<Rc>,
    here: LocalSlice,
    there: RemoteSlice,
) -> Result<usize, PostError> {
    let mut batch = qp.send();
    batch.send(here)?.signaled(1);
    batch.send_imm([here, here], 2)?.fence().solicited();
    batch.write(here, there)?.id(3);
    batch.write_imm(here, there, 4)?;
    batch.read(here, there)?;
    batch.compare_swap(here, there, 5, 6)?;
    batch.fetch_add(here, there, 7)?;
    batch.send_inline(b"hello")?;
    batch.send_imm_inline(b"hello", 8)?;
    batch.write_inline(b"hello", there)?;
    batch.write_imm_inline(b"hello", there, 9)?;
    batch.ring()
}

fn main() {}
