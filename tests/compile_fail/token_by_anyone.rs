//! What seals the methods of sealed traits cannot be named, nor made.

use uverbs::aio::cargo::sealed::Inside;

fn main() {
    let _: Inside = Default::default();
}
