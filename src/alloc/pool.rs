//! Buffers cut from mappings, which are made on demand and kept until the allocator is dropped.

use std::io;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::free_list::FreeList;
use super::mapping::Mapping;
use super::{AllocError, Allocation, BufferRequest, Purpose};

/// Mappings, each with its free parts.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Vec<Chunk>>);

#[derive(Debug)]
struct Chunk {
    mapping: Mapping,
    free: FreeList,
}

impl Pool {
    /// Cuts a zeroed buffer from a mapping that has room, or from a new one. For a place it answers with the
    /// driver's default.
    ///
    /// `map` gets the number of bytes that are needed and may map more, at a multiple of `granularity`, a
    /// power of two.
    pub(super) fn allocate(
        &self,
        request: &BufferRequest,
        granularity: usize,
        map: impl FnOnce(usize) -> io::Result<Mapping>,
    ) -> Result<Allocation, AllocError> {
        match request.purpose {
            Purpose::Place => Ok(Allocation::Default),
            Purpose::Memory => self.cut(request, granularity, map).map_err(AllocError::new),
        }
    }

    fn cut(
        &self,
        request: &BufferRequest,
        granularity: usize,
        map: impl FnOnce(usize) -> io::Result<Mapping>,
    ) -> io::Result<Allocation> {
        let (size, alignment) = request.span();
        let mut chunks = self.chunks();
        let found = chunks
            .iter_mut()
            .find_map(|chunk| chunk.take(size, alignment));
        let memory = match found {
            Some(memory) => memory,
            None => {
                // So much that the mapping has an aligned buffer in it at whatever address it lies.
                let slack = if alignment > granularity {
                    alignment
                } else {
                    0
                };
                let needed = size.checked_add(slack).ok_or(io::ErrorKind::OutOfMemory)?;
                let mapping = map(needed)?;
                let free = FreeList::new(mapping.start(), mapping.end());
                let mut chunk = Chunk { mapping, free };
                let memory = chunk.take(size, alignment);
                chunks.push(chunk);
                memory.ok_or(io::ErrorKind::OutOfMemory)?
            }
        };
        // SAFETY: the buffer lies in a mapping of the pool and has just been taken, so nothing else uses it.
        unsafe { memory.write_bytes(0, size) };
        Ok(Allocation::Memory(NonNull::slice_from_raw_parts(
            memory, size,
        )))
    }

    /// Takes a buffer back.
    ///
    /// # Safety
    ///
    /// [`Self::allocate`] has returned it, it has not been given back since, and nothing uses it any more.
    pub(super) unsafe fn free(&self, memory: NonNull<[u8]>) {
        let start = memory.cast::<u8>().addr().get();
        let mut chunks = self.chunks();
        let of = |chunk: &&mut Chunk| (chunk.mapping.start()..chunk.mapping.end()).contains(&start);
        if let Some(chunk) = chunks.iter_mut().find(of) {
            chunk.free.give_back(start, start + memory.len());
        }
    }

    fn chunks(&self) -> MutexGuard<'_, Vec<Chunk>> {
        // The lists are whole after every statement, so a panic elsewhere has not spoilt them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Chunk {
    fn take(&mut self, size: usize, alignment: usize) -> Option<NonNull<u8>> {
        let at = self.free.take(size, alignment)?;
        Some(self.mapping.at(at))
    }
}
