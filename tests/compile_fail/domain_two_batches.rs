//! Who posts in a thread domain has it to itself.

use uverbs::{InDomain, Inline, PostError, Qp, Rc, ThreadDomain};

fn post(
    domain: &mut ThreadDomain,
    one: &mut Qp<Rc, InDomain>,
    other: &mut Qp<Rc, InDomain>,
) -> Result<(), PostError> {
    let mut first = one.batch(domain)?;
    let mut second = other.batch(domain)?;
    first.signaled(1).send(Inline(b"first"))?;
    second.signaled(2).send(Inline(b"second"))?;
    first.ring()?;
    second.ring()?;
    Ok(())
}

fn main() {}
