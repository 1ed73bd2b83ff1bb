//! A queue is not polled while completions of it are looked at.

use uverbs::{cq::PollError, Cq};

fn poll(cq: &mut Cq) -> Result<(), PollError> {
    for completion in &mut cq.poll()? {
        let _ = cq.poll()?;
        println!("{completion:?}");
    }
    Ok(())
}

fn main() {}
