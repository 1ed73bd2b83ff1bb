//! A raw mapping may be one for reading only, which nobody writes to.

use memmap2::{MmapOptions, MmapRaw};
use uverbs::Arena;

fn arena(file: &std::fs::File) -> std::io::Result<Arena<MmapRaw>> {
    let map = MmapOptions::new().map_raw_read_only(file)?;
    Arena::new(map)
}

fn main() {}
