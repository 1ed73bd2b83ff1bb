//! Message-signalled interrupts: QEMU keeps the table and hands an event file for each vector that is in use.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;

/// The vectors' event files.
#[derive(Debug, Default)]
pub struct Vectors {
    files: BTreeMap<u32, File>,
}

impl Vectors {
    /// Sets the files of some vectors; vectors for which no file came are taken out of use.
    pub fn set(&mut self, start: u32, count: u32, files: Vec<File>) {
        let vectors = start..start.saturating_add(count);
        self.files.retain(|vector, _| !vectors.contains(vector));
        self.files.extend(vectors.zip(files));
    }

    /// Takes all vectors out of use.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Raises an interrupt. A vector that is not in use, or whose QEMU is gone, raises none.
    pub fn raise(&self, vector: u32) {
        if let Some(file) = self.files.get(&vector) {
            let mut file: &File = file;
            let _ = file.write_all(&1_u64.to_ne_bytes());
        }
    }
}
