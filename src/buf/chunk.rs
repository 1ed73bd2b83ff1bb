//! A chunk of a pool's memory: allocated at once, registered on each of the pool's protection domains, and
//! cut into blocks of one size.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use rustix::mm::MapFlags;
use rustix::param::page_size;
use uverbs_uapi::flags::Access;

use crate::alloc::{Buffers, Grant, Mapping, Purpose, ResourceType};
use crate::error::{Error, Result, Subject, Verb};
use crate::memory::Memory;
use crate::mr::Mr;
use crate::pd::Pd;
use crate::work::{LocalKey, PdTag, RemoteSlice};

/// Where a chunk's memory comes from; it goes back there when nothing uses it any more.
#[derive(Debug)]
enum Source {
    Granted(Grant),
    Mapped(Mapping),
}

/// Memory that several regions share. It is freed when the last of them has been deregistered.
#[derive(Clone)]
struct Held {
    source: Arc<Source>,
    length: usize,
}

// SAFETY: a mapping or an allocator's buffer stays where it is until it is dropped, and was zeroed. The chunk
// that made the region lends references to the memory block by block: to the holder of a block, while the
// device does not have that block, and not through this region. Any byte may be in it. The source is `Send`
// and `Sync`, so a share of it is `Send`.
unsafe impl Memory for Held {
    fn address(&mut self) -> *mut u8 {
        match &*self.source {
            Source::Granted(grant) => grant.address().as_ptr(),
            Source::Mapped(mapping) => mapping.base().as_ptr(),
        }
    }

    fn length(&self) -> usize {
        self.length
    }
}

/// The key that a chunk has on a protection domain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) pd: PdTag,
    pub(super) lkey: LocalKey,
}

/// A chunk of blocks.
#[derive(Debug)]
pub(super) struct Chunk {
    /// The first byte of the memory, which the regions hold.
    base: NonNull<u8>,
    /// By protection domain, in the pool's order.
    keys: Box<[Key]>,
    /// The first of `keys`.
    first: LocalKey,
    regions: Box<[Mr<Held>]>,
    /// How many handles there are on each block.
    pub(super) handles: Box<[AtomicU32]>,
}

// SAFETY: the pointer is to memory of the regions, which are `Send`, and only a block's holder uses the
// block.
unsafe impl Send for Chunk {}
// SAFETY: shared references only give addresses and keys.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// Allocates a chunk of `blocks` blocks of `size` bytes, and registers it on each protection domain.
    pub(super) fn new(
        (size, blocks): (usize, u32),
        pds: &[Pd],
        buffers: Option<&Buffers>,
        access: Access,
    ) -> Result<Self> {
        let length = size * blocks as usize;
        let mut memory = Held {
            source: Arc::new(allocate(length, buffers)?),
            length,
        };
        let base = NonNull::new(memory.address())
            .ok_or_else(|| Error::invalid(Verb::AllocBuffer, Subject::the("pool"), "no address"))?;
        let regions = pds.iter().map(|pd| {
            let region = pd.register(memory.clone(), access)?;
            // A region that slices were taken of waits for requests in flight when it is dropped. The slice
            // itself is not kept.
            region.slice(..1)?;
            Ok(region)
        });
        let regions: Box<[Mr<Held>]> = regions.collect::<Result<_>>()?;
        let key = |(pd, region): (&Pd, &Mr<Held>)| Key {
            pd: pd.tag(),
            lkey: region.lkey(),
        };
        let keys: Box<[Key]> = pds.iter().zip(&regions).map(key).collect();
        Ok(Self {
            base,
            first: keys[0].lkey,
            keys,
            regions,
            handles: (0..blocks).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    /// A chunk that is registered on no device.
    #[cfg(test)]
    pub(super) fn of_memory((size, blocks): (usize, u32)) -> Self {
        let memory = Mapping::shared(size * blocks as usize, MapFlags::empty()).unwrap();
        let base = memory.base();
        std::mem::forget(memory);
        Self {
            base,
            first: LocalKey(0),
            keys: Box::default(),
            regions: Box::default(),
            handles: (0..blocks).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The first byte of a block.
    #[inline]
    pub(super) fn block(&self, index: u32, size: usize) -> NonNull<u8> {
        debug_assert!((index as usize) < self.handles.len());
        // SAFETY: the block is one of those that the chunk was cut into, all of which lie in its memory.
        unsafe { self.base.add(index as usize * size) }
    }

    /// The key for it in work requests on the pool's first protection domain.
    #[inline]
    pub(super) fn first_lkey(&self) -> LocalKey {
        self.first
    }

    /// The key for it in work requests on a protection domain.
    pub(super) fn lkey(&self, pd: PdTag) -> Option<LocalKey> {
        self.keys
            .iter()
            .find(|key| key.pd == pd)
            .map(|key| key.lkey)
    }

    /// A part of the chunk, as peers address it through a protection domain.
    pub(super) fn remote(
        &self,
        pd: PdTag,
        start: NonNull<u8>,
        length: usize,
    ) -> Option<RemoteSlice> {
        let at = self.keys.iter().position(|key| key.pd == pd)?;
        let offset = start.addr().get() - self.base.addr().get();
        let whole = self.regions[at].remote();
        Some(RemoteSlice {
            address: whole.address + offset as u64,
            length: length as u64,
            rkey: whole.rkey,
        })
    }
}

fn allocate(length: usize, buffers: Option<&Buffers>) -> Result<Source> {
    if let Some(buffers) = buffers {
        let resource = ResourceType::POOL;
        let grant = buffers.allocate(length, page_size(), resource, Purpose::Memory)?;
        if let Some(grant) = grant {
            return Ok(Source::Granted(grant));
        }
    }
    let mapping = Mapping::shared(length, MapFlags::empty()).map_err(|error| {
        let errno = crate::error::Errno::from_io_error(&error);
        let errno = errno.unwrap_or(crate::error::Errno::NOMEM);
        Error::os(Verb::AllocBuffer, Subject::the("pool"), errno)
    })?;
    Ok(Source::Mapped(mapping))
}
