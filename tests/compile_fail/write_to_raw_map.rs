//! A raw mapping may be one for reading only, which this side does not write to.

use memmap2::MmapRaw;
use uverbs::{mr::OutOfBounds, Mr};

fn write(region: &mut Mr<MmapRaw>) -> Result<(), OutOfBounds> {
    region.write_at(0, b"hello")
}

fn main() {}
