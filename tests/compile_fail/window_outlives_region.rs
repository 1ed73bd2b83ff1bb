//! What a memory window is to be bound to borrows its region.

use uverbs::mw::Window;
use uverbs::{Access, Mr};

fn part(region: Mr<Vec<u8>>) -> Window<'static> {
    region.window(.., Access::REMOTE_READ).unwrap()
}

fn main() {}
