//! Memory that is registered for reading only is not written through its region.

use uverbs::{mr::OutOfBounds, Mr};

fn write(region: &mut Mr<&'static [u8]>) -> Result<(), OutOfBounds> {
    region.write_at(0, b"hello")
}

fn main() {}
