//! The pages in which doorbell registers lie (UARs).
//!
//! A context has one uncached page, for arming completion queues and for the doorbells of queue pairs without
//! a better register; the pages of the others combine writes ([`super::register`]).

#[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::ProtFlags;
use uverbs_uapi::mlx5::UarAllocType;

use super::barrier;
use super::command::{AllocUar, UarHandle};
use super::format::ARM_DOORBELL;
use super::map::Map;
use super::turn::Turn;
use crate::command::CommandFd;
use crate::error::{Error, Result, Subject, Verb};

/// Bytes of a UAR.
pub(super) const UAR: usize = 4096;

/// A mapped UAR page. The kernel frees the UAR with the context, or with this value.
#[derive(Debug)]
pub(super) struct UarPage {
    pub(super) map: Map,
    /// Behind the mapping. It is there if the UAR is freed with this value.
    _freed: Option<Freed>,
    pub(super) length: usize,
    /// Where it begins in the command file, in bytes.
    pub(super) offset: u64,
    pub(super) page_id: u32,
    /// The CPU may combine stores to it, so a store by the next thread on this CPU may replace one that has
    /// not been flushed.
    pub(super) combines: bool,
    /// Whose turn it is to arm a queue, if it combines.
    turn: Turn,
}

/// Frees a UAR when it is dropped.
#[derive(Debug)]
struct Freed {
    fd: Arc<CommandFd>,
    handle: UarHandle,
}

impl Drop for Freed {
    fn drop(&mut self) {
        self.fd.abandon(self.handle);
    }
}

impl UarPage {
    /// Allocates and maps a UAR page that is freed with this value. It outlives what the device rings on it
    /// for. The kernel gives it to nobody else as long as anybody has it mapped, by the command file or by
    /// fork(2).
    pub(super) fn freed(fd: &Arc<CommandFd>, kind: UarAllocType) -> Result<Self> {
        let (page, handle) = Self::alloc(fd, kind)?;
        let fd = Arc::clone(fd);
        Ok(Self {
            _freed: Some(Freed { fd, handle }),
            ..page
        })
    }

    /// Allocates and maps a UAR page that is freed with the context.
    pub(super) fn new(fd: &CommandFd, kind: UarAllocType) -> Result<Self> {
        Self::alloc(fd, kind).map(|(page, _)| page)
    }

    /// Allocates and maps a UAR page, and returns the kernel's handle of the UAR as well.
    fn alloc(fd: &CommandFd, kind: UarAllocType) -> Result<(Self, UarHandle)> {
        let uar = fd.execute(&AllocUar(kind))?;
        let length = uar.length as usize;
        let map = match length < UAR {
            true => {
                let what = format!("a UAR of {length} bytes");
                Err(Error::malformed(Verb::AllocUar, Subject::the("UAR"), what))
            }
            false => Map::new(fd, "UAR", uar.offset, length, ProtFlags::WRITE),
        };
        let page = Self {
            map: map.inspect_err(|_| fd.abandon(uar.handle))?,
            _freed: None,
            length,
            offset: uar.offset,
            page_id: uar.page_id,
            combines: kind != UarAllocType::NC,
            turn: Turn::new(),
        };
        Ok((page, uar.handle))
    }

    /// A page of memory that plays the device.
    #[cfg(test)]
    pub(super) fn of_memory() -> Self {
        Self::of_uars(1)
    }

    /// A page of several UARs, likewise.
    #[cfg(test)]
    pub(super) fn of_uars(uars: usize) -> Self {
        Self {
            map: Map::of_memory(uars * UAR),
            _freed: None,
            length: uars * UAR,
            offset: 0,
            page_id: 5,
            combines: true,
            turn: Turn::new(),
        }
    }

    /// What was stored at an offset.
    #[cfg(test)]
    pub(super) fn stored<const BYTES: usize>(&self, at: usize) -> [u8; BYTES] {
        assert!(at + BYTES <= self.length);
        // SAFETY: the bytes lie in the page.
        unsafe {
            self.map
                .base()
                .add(at)
                .cast::<[u8; BYTES]>()
                .read_volatile()
        }
    }

    /// Its first byte.
    #[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
    pub(super) fn first(&self) -> NonNull<u8> {
        self.map.base()
    }

    /// How many UARs it has.
    pub(super) fn uars(&self) -> usize {
        self.length / UAR
    }

    /// The number that objects name it by.
    pub(super) fn page_id(&self) -> u32 {
        self.page_id
    }

    /// Arms a completion queue: stores the word of its record, and its number, both in the register's format.
    pub(super) fn arm(&self, word: u32, cqn: u32) {
        let doorbell = u64::from(word) << 32 | u64::from(cqn);
        let _turn = self.combines.then(|| self.turn.take());
        barrier::record_before_register();
        // SAFETY: the register lies in the page and is 8 bytes, aligned; a single store to it is whole.
        unsafe {
            self.map
                .base()
                .add(ARM_DOORBELL)
                .cast::<u64>()
                .write_volatile(doorbell.to_be());
        }
        barrier::flush_write_combining();
    }
}
