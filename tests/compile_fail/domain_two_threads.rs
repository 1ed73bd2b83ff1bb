//! Two threads do not post in one thread domain at a time.

use uverbs::{Inline, InDomain, PostError, Qp, Rc, ThreadDomain};

fn greet(domain: &mut ThreadDomain, qp: &mut Qp<Rc, InDomain>) -> Result<(), PostError> {
    qp.one(domain, 1)?.send(Inline(b"hello"))
}

fn post(domain: &mut ThreadDomain, one: &mut Qp<Rc, InDomain>, other: &mut Qp<Rc, InDomain>) {
    std::thread::scope(|scope| {
        scope.spawn(|| greet(domain, one));
        scope.spawn(|| greet(domain, other));
    });
}

fn main() {}
