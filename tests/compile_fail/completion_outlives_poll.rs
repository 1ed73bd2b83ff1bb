//! Completions lie in the ring and go back to the device with the poll's result.

use uverbs::{Completion, Cq};

fn first(cq: &mut Cq) -> Option<Completion<'_>> {
    let mut completions = cq.poll().ok()?;
    completions.iter().next()
}

fn main() {}
