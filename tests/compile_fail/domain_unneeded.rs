//! A queue pair of no thread domain is none of any.

use uverbs::{InDomain, Qp, Rc};

fn join(qp: Qp<Rc>) -> Qp<Rc, InDomain> {
    qp
}

fn main() {}
