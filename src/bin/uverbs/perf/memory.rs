//! The memory of messages, of each kind that a region may have.

use std::ops::Range;

use clap::ValueEnum;
use memmap2::{MmapMut, MmapOptions};
use serde::{Deserialize, Serialize};
use uverbs::alloc::{DmabufMemory, HugePages, Udmabuf};
use uverbs::dm::Dm;
use uverbs::mr::{DmMr, DmabufMr, OutOfBounds};
use uverbs::{Access, LocalSlice, Mr, Pd, RemoteSlice};

use super::lane::ALIGNMENT;
use crate::failure::{Failure, Kind, Result};

/// What memory messages lie in, on both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum MemoryKind {
    /// Pages of the process, which the kernel pins
    #[default]
    Ordinary,
    /// Huge pages of 2 MiB, of those that are reserved
    Huge,
    /// Pages of the process that the device asks for when it needs them (on-demand paging)
    OnDemand,
    /// A file in memory as a dma-buf (/dev/udmabuf), registered by it
    Dmabuf,
    /// Memory of the adapter
    Device,
}

impl std::fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Ordinary => "ordinary",
            Self::Huge => "huge",
            Self::OnDemand => "on-demand",
            Self::Dmabuf => "dmabuf",
            Self::Device => "device",
        })
    }
}

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// Registered memory, zeroed. The offsets below are from its start.
#[derive(Debug)]
pub(super) enum Data {
    Pages(Mr<Vec<u8>>),
    Huge(Mr<MmapMut>),
    Dmabuf {
        mr: DmabufMr,
        /// A mapping of the same bytes in this process, only for copies.
        pages: Mr<DmabufMemory>,
    },
    Device {
        mr: DmMr,
        dm: Dm,
    },
}

impl Data {
    /// Memory of this many bytes, or some more: whole places.
    pub(super) fn new(pd: &Pd, kind: MemoryKind, bytes: usize, access: Access) -> Result<Self> {
        match kind {
            MemoryKind::Ordinary => Self::pages(pd, bytes, access),
            MemoryKind::OnDemand => Self::pages(pd, bytes, access | Access::ON_DEMAND),
            MemoryKind::Huge => {
                // The error says what is missing.
                HugePages::new().map_err(failed)?;
                let bytes = bytes.next_multiple_of(HUGE);
                let mut options = MmapOptions::new();
                options.len(bytes).huge(Some(HUGE.ilog2() as u8)).populate();
                let memory = options.map_anon().map_err(|error| {
                    let pages = bytes / HUGE;
                    failed(format_args!("mapping {pages} huge pages of 2 MiB: {error}"))
                })?;
                let mr = pd.register(memory, access).map_err(uverbs::Error::from)?;
                Ok(Self::Huge(mr))
            }
            MemoryKind::Dmabuf => {
                let memory = Udmabuf::new(bytes).map_err(failed)?.into_memory();
                // SAFETY: no object has a buffer in it: it only holds messages.
                let file = unsafe { memory.dmabuf().file() };
                let file = file.try_clone_to_owned().map_err(failed)?;
                let range = 0..memory.dmabuf().length();
                let mr = pd.register_dmabuf(file, range, 0, access);
                let pages = pd.register(memory, Access::LOCAL_WRITE);
                Ok(Self::Dmabuf {
                    mr: mr.map_err(uverbs::Error::from)?,
                    pages: pages.map_err(uverbs::Error::from)?,
                })
            }
            MemoryKind::Device => {
                let dm = pd.context().alloc_dm(bytes as u64, ALIGNMENT.ilog2())?;
                let mr = pd.register_dm(&dm, 0..bytes as u64, access)?;
                dm.write_at(0, &vec![0; bytes]).map_err(failed)?;
                Ok(Self::Device { mr, dm })
            }
        }
    }

    fn pages(pd: &Pd, bytes: usize, access: Access) -> Result<Self> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes).map_err(failed)?;
        memory.resize(bytes, 0);
        let mr = pd.register(memory, access).map_err(uverbs::Error::from)?;
        Ok(Self::Pages(mr))
    }

    /// A part of it, for a request.
    #[inline]
    pub(super) fn slice(
        &self,
        range: Range<usize>,
    ) -> std::result::Result<LocalSlice<'_>, OutOfBounds> {
        match self {
            Self::Pages(mr) => mr.slice(range),
            Self::Huge(mr) => mr.slice(range),
            Self::Dmabuf { mr, .. } => mr.slice(range),
            Self::Device { mr, .. } => mr.slice(range),
        }
    }

    /// All of it, as the peer addresses it.
    pub(super) fn remote(&self) -> RemoteSlice {
        match self {
            Self::Pages(mr) => mr.remote(),
            Self::Huge(mr) => mr.remote(),
            Self::Dmabuf { mr, .. } => mr.remote(),
            Self::Device { mr, .. } => mr.remote(),
        }
    }

    /// Copies bytes out.
    #[inline(always)]
    pub(super) fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        match self {
            Self::Pages(mr) => mr.read_at(offset, into).map_err(failed),
            Self::Huge(mr) => mr.read_at(offset, into).map_err(failed),
            Self::Dmabuf { pages, .. } => pages.read_at(offset, into).map_err(failed),
            Self::Device { dm, .. } => {
                let (start, words) = words(dm, offset, into.len())?;
                let first = offset - start;
                into.copy_from_slice(&words[first..first + into.len()]);
                Ok(())
            }
        }
    }

    /// Copies bytes in.
    #[inline(always)]
    pub(super) fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Pages(mr) => mr.write_at(offset, bytes).map_err(failed),
            Self::Huge(mr) => mr.write_at(offset, bytes).map_err(failed),
            Self::Dmabuf { pages, .. } => pages.write_at(offset, bytes).map_err(failed),
            Self::Device { dm, .. } => {
                let (start, mut words) = words(dm, offset, bytes.len())?;
                let first = offset - start;
                words[first..first + bytes.len()].copy_from_slice(bytes);
                dm.write_at(start as u64, &words).map_err(failed)
            }
        }
    }

    /// The byte at an offset. Reading and setting a byte have functions of their own, so that each is one
    /// access and no call to copy memory: exchanges do both for each message.
    #[inline(never)]
    pub(super) fn get(&self, offset: usize) -> Result<u8> {
        let mut byte = [0];
        self.read_at(offset, &mut byte)?;
        Ok(byte[0])
    }

    /// Sets the byte at an offset.
    #[inline(never)]
    pub(super) fn set(&mut self, offset: usize, byte: u8) -> Result<()> {
        self.write_at(offset, &[byte])
    }

    /// The 8 bytes at an offset as a word.
    pub(super) fn load_u64(&self, offset: usize) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read_at(offset, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

/// The words of an adapter's memory that a range touches, and their start: some adapters' memory can only be
/// accessed by whole words.
fn words(dm: &Dm, offset: usize, length: usize) -> Result<(usize, Vec<u8>)> {
    const WORD: usize = 8;
    let start = offset - offset % WORD;
    let end = (offset + length).next_multiple_of(WORD);
    let mut words = vec![0; end - start];
    dm.read_at(start as u64, &mut words).map_err(failed)?;
    Ok((start, words))
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Kind::Failed, error)
}
