//! The pages in which doorbell registers lie (UARs).
//!
//! A context has one uncached page, for arming completion queues and for the doorbells of queue pairs without
//! a better register. Each queue pair for an agent has one as well. The pages of the others combine writes
//! ([`super::register`]).

#[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

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

/// A mapped UAR page. It outlives what the device rings on it for.
#[derive(Debug)]
pub(super) struct UarPage {
    pub(super) map: Map,
    /// Behind the mapping.
    _freed: Freed,
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

/// Frees a UAR when it is dropped: other holders of the file may keep it open for long, and the UARs of the
/// function are few. The kernel gives the UAR to nobody else as long as anybody has it mapped, by the command
/// file or by fork(2).
#[derive(Debug)]
struct Freed {
    /// Weak: the page of a queue that the kernel refuses to destroy stays for ever. If it kept the file open,
    /// so would the queue.
    fd: Weak<CommandFd>,
    handle: UarHandle,
}

impl Drop for Freed {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.upgrade() {
            fd.abandon(self.handle);
        }
    }
}

impl UarPage {
    /// Allocates and maps a UAR page.
    pub(super) fn new(fd: &Arc<CommandFd>, kind: UarAllocType) -> Result<Self> {
        let uar = fd.execute(&AllocUar(kind))?;
        // From here on it is freed if something fails.
        let freed = Freed {
            fd: Arc::downgrade(fd),
            handle: uar.handle,
        };
        let length = uar.length as usize;
        if length < UAR {
            let what = format!("a UAR of {length} bytes");
            return Err(Error::malformed(Verb::AllocUar, Subject::the("UAR"), what));
        }
        Ok(Self {
            map: Map::new(fd, "UAR", uar.offset, length, ProtFlags::WRITE)?,
            _freed: freed,
            length,
            offset: uar.offset,
            page_id: uar.page_id,
            combines: kind != UarAllocType::NC,
            turn: Turn::new(),
        })
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
            _freed: Freed {
                fd: Weak::new(),
                handle: UarHandle(0),
            },
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
