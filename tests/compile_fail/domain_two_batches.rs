//! Who posts in a thread domain has it to itself.

use uverbs::{InDomain, PostError, Qp, Rc, ThreadDomain};

fn post(
    domain: &mut ThreadDomain,
    one: &mut Qp<Rc, InDomain>,
    other: &mut Qp<Rc, InDomain>,
) -> Result<(), PostError> {
    let mut first = one.send(domain)?;
    let mut second = other.send(domain)?;
    first.send_inline(b"first")?;
    second.send_inline(b"second")?;
    first.ring()?;
    second.ring()?;
    Ok(())
}

fn main() {}
