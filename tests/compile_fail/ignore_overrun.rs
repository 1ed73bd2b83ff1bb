//! A device that does not look whether a queue is full overwrites completions that are being read.

use uverbs::{Context, Cq};

fn queue(context: &Context) -> uverbs::Result<Cq> {
    context.cq(8).ignore_overrun(true).create()
}

fn main() {}
