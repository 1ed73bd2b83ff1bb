//! A region gives its memory back only when nobody looks at it any more.

use uverbs::Mr;

fn look(region: Mr<Vec<u8>>) -> u8 {
    let bytes = unsafe { region.as_slice() };
    let _ = region.deregister();
    bytes[0]
}

fn main() {}
