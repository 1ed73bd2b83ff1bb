//! Message-signalled interrupts: QEMU keeps the table and hands an event file for each vector that is in use.

use std::fs::File;
use std::io::Write;

/// How many vectors the function has.
pub(crate) const VECTORS: usize = 16;

/// The vectors' event files.
#[derive(Debug)]
pub(crate) struct Vectors {
    files: [Option<File>; VECTORS],
}

impl Default for Vectors {
    fn default() -> Self {
        Self {
            files: [const { None }; VECTORS],
        }
    }
}

impl Vectors {
    /// Sets the files of some vectors; vectors for which no file came are taken out of use.
    pub(crate) fn set(&mut self, start: u32, count: u32, files: Vec<File>) {
        let mut files = files.into_iter();
        let places = self.files.iter_mut().skip(start as usize);
        for place in places.take(count as usize) {
            *place = files.next();
        }
    }

    /// Takes all vectors out of use.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Raises an interrupt. A vector that is not in use, or whose QEMU is gone, raises none.
    pub(crate) fn raise(&self, vector: u32) {
        if let Some(Some(file)) = self.files.get(vector as usize) {
            let mut file: &File = file;
            let _ = file.write_all(&1_u64.to_ne_bytes());
        }
    }
}
