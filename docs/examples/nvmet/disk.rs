//! The disk behind the namespace: a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Result;
use super::wire::Status;

/// Bytes of a block, as a power of two.
pub(crate) const BLOCK_LOG: u8 = 9;
const BLOCK: u64 = 1 << BLOCK_LOG;

pub(crate) struct Disk {
    file: File,
    blocks: u64,
    counters: Counters,
}

/// What hosts have done. Relaxed throughout: the numbers guard no memory.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
}

impl Disk {
    /// The whole blocks of this file, which must be there.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let named = |error| format!("{}: {error}", path.display());
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(named)?;
        let blocks = file.metadata().map_err(named)?.len() / BLOCK;
        if blocks == 0 {
            return Err(format!("{}: it has no block of {BLOCK} bytes", path.display()).into());
        }
        Ok(Self {
            file,
            blocks,
            counters: Counters::default(),
        })
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Where these blocks are in the file, and how many bytes they have.
    pub(crate) fn range(&self, first: u64, blocks: u64) -> Result<(u64, usize), Status> {
        let end = first.checked_add(blocks);
        if end.is_none_or(|end| end > self.blocks) {
            return Err(Status::OUT_OF_RANGE);
        }
        let bytes = usize::try_from(blocks * BLOCK).map_err(|_| Status::INVALID_FIELD)?;
        Ok((first * BLOCK, bytes))
    }

    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Status> {
        waiting(|| self.file.read_exact_at(into, at))?;
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = into.len() as u64;
        self.counters.bytes_read.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Status> {
        waiting(|| self.file.write_all_at(bytes, at))?;
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        let bytes = bytes.len() as u64;
        self.counters
            .bytes_written
            .fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn write_zeroes(&self, at: u64, bytes: usize) -> Result<(), Status> {
        static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
        waiting(|| {
            for done in (0..bytes).step_by(ZEROES.len()) {
                let piece = &ZEROES[..ZEROES.len().min(bytes - done)];
                self.file.write_all_at(piece, at + done as u64)?;
            }
            Ok(())
        })
    }

    /// Writes back what the system keeps in memory.
    pub(crate) fn flush(&self) -> Result<(), Status> {
        waiting(|| self.file.sync_data())
    }
}

/// Does something that waits for the file, while other tasks go on.
fn waiting(access: impl FnOnce() -> io::Result<()>) -> Result<(), Status> {
    tokio::task::block_in_place(access).map_err(|error| {
        eprintln!("the disk's file: {error}");
        Status::INTERNAL
    })
}
