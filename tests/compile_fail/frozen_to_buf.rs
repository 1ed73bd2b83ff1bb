//! Constant bytes do not become writable by way of what can be sent: clones of them may be read meanwhile.

use uverbs::aio::Payload;

fn launder<A: Payload, B: Payload>(from: A) -> B {
    B::unload(from.load())
}

fn main() {}
