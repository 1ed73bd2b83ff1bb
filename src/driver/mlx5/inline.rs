//! Inline scatter: small payloads that the device puts into the completion instead of the request's memory.
//! The poller copies them there.
//!
//! The copy goes to addresses that were posted, so it is only made for queue pairs whose creator has promised
//! that these are addresses of this process
//! ([`QpBuilder::inline_scatter`](crate::qp::QpBuilder::inline_scatter)). Whatever the device reports, only
//! the memory of a request that it holds is written: one that was posted and has not completed. The request's
//! slices are read from its ring. (A device that reports an element of a shared queue to two pollers at once
//! breaks this.)

use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::entries::View;
use super::format::{
    BLOCK, Control, Cqe, Data, LONGEST_SLICE, MOST_UNITS, SrqNext, TERMINATOR, UNIT,
};
use super::format::{RECORD_RECEIVE, RECORD_SEND, cqe, opcode};
use super::ledger::{RecvLedger, SendLedger};
use super::qp::Rings;
use super::recv::RecvLayout;
use super::reporter::{Receiver, Reporter};
use super::srq::SrqRing;

/// The most bytes in a completion.
const MOST: usize = 64;

/// Where the requests of a queue pair with inline scatter lie, for the poller: `None` once the requests are
/// forgotten, when the user owns their memory again, and other requests may take their places. The poller may
/// keep this longer than the queue pair lives, but no ring. Locked from the read of a request to the end of
/// the copy.
#[derive(Debug)]
pub(super) struct Landing(Mutex<Option<Lent>>);

/// The rings whose requests have lent their memory.
#[derive(Clone, Debug)]
struct Lent {
    rings: Arc<Rings>,
    /// The first byte of each ring in `rings`.
    recv_ring: NonNull<u8>,
    send_ring: NonNull<u8>,
    recv: RecvLayout,
    blocks: u32,
    /// The ring in which receives lie, if it is a shared one.
    srq: Option<Arc<SrqRing>>,
}

// SAFETY: the rings are memory that `rings` keeps, and are only read.
unsafe impl Send for Lent {}

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landed {
    /// The data were copied.
    Whole,
    /// They have no room in the request; nothing was copied.
    TooLong,
    /// The request was forgotten; nothing was copied.
    Forgotten,
}

/// The slices of a request: units of a ring, from one of them on, and how many.
#[derive(Clone, Copy, Debug)]
struct Slices {
    ring: NonNull<u8>,
    /// Bytes of the ring, a multiple of a unit. The list may wrap at its end.
    bytes: usize,
    first: usize,
    count: usize,
}

impl Slices {
    /// The address and the length of each slice.
    ///
    /// # Safety
    ///
    /// The ring has those bytes, and nobody writes the units of the list meanwhile.
    unsafe fn iter(self) -> impl Iterator<Item = (u64, usize)> {
        (0..self.count)
            .map(move |index| {
                let at = (self.first + index * UNIT) % self.bytes;
                // SAFETY: the unit lies in the ring, since offset and size are multiples of a unit, and
                // nobody writes it; every bit pattern is a `Data`.
                unsafe { self.ring.add(at).cast::<Data>().read() }
            })
            .take_while(|data| {
                (data.byte_count, data.lkey) != (TERMINATOR.byte_count, TERMINATOR.lkey)
            })
            .map(|data| {
                let length = match data.byte_count.get() {
                    0 => LONGEST_SLICE,
                    length => length,
                };
                (data.addr.get(), length as usize)
            })
    }
}

impl Landing {
    /// For a queue pair whose receive ring is the first in `rings`, followed by its send ring.
    pub(super) fn new(
        rings: Arc<Rings>,
        recv: RecvLayout,
        blocks: u32,
        srq: Option<Arc<SrqRing>>,
    ) -> Self {
        let recv_ring = rings.base();
        Self(Mutex::new(Some(Lent {
            // SAFETY: the send ring lies in the same memory.
            send_ring: unsafe { recv_ring.add(recv.bytes()) },
            recv_ring,
            rings,
            recv,
            blocks,
            srq,
        })))
    }

    /// Stops all copying, and returns a new one for the same rings, for a queue pair that starts again. It
    /// is closed if this was.
    pub(super) fn renew(&self) -> Self {
        Self(Mutex::new(self.lock().take()))
    }

    /// Stops all copying, and lets the rings go.
    pub(super) fn close(&self) {
        let lent = self.lock().take();
        // Without the lock: buffers may go back to an allocator.
        drop(lent);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Lent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the data of a completion to its request's memory. `None` if the completion makes no sense.
    ///
    /// If the data have taken the place of fields in the entry, those are zeros afterwards.
    ///
    /// # Safety
    ///
    /// `entry` is one of `view` that the device has written and that is this side's.
    pub(super) unsafe fn land(
        &self,
        reporter: &Reporter,
        view: View,
        entry: NonNull<Cqe>,
    ) -> Option<Landed> {
        // SAFETY: by this function's contract.
        let fields = unsafe { entry.as_ref() };
        let (code, counter) = (fields.op_own >> 4, fields.wqe_counter.get());
        let length = fields.byte_cnt.get() as usize;
        let in_front = match fields.op_own & cqe::SCATTERED {
            cqe::SCATTERED_32 => false,
            cqe::SCATTERED_64 if view.entry_bytes() == 2 * BLOCK => true,
            _ => return None,
        };
        let (mut data, room) = ([0; MOST], if in_front { MOST } else { MOST / 2 });
        let bytes = entry.cast::<u8>();
        // SAFETY: as above; in an entry of two halves the other one comes before. The data are taken out. The
        // fields whose place they had are lost, so they become zeros.
        unsafe {
            if in_front {
                bytes
                    .sub(BLOCK)
                    .copy_to_nonoverlapping(NonNull::from(&mut data).cast(), room);
            } else {
                bytes.copy_to_nonoverlapping(NonNull::from(&mut data).cast(), room);
                bytes.write_bytes(0, room);
            }
        }
        // Locked from the first read of the rings on: a thread that resets the queue pair closes this before
        // requests are written again.
        let lent = self.lock();
        let Some(lent) = &*lent else {
            return Some(Landed::Forgotten);
        };
        let (slices, length) = match code {
            cqe::REQ => {
                let (slices, atomic) = lent.sent(reporter.send.as_ref()?, counter)?;
                (slices, if atomic { 8 } else { length })
            }
            cqe::RESP_SEND | cqe::RESP_SEND_IMM | cqe::RESP_SEND_INV => {
                let slices = match &reporter.recv {
                    Receiver::Own(ledger) => lent.own(ledger, counter)?,
                    Receiver::Shared(ledger) if ledger.is_posted(counter) => {
                        lent.shared(counter)?
                    }
                    _ => return None,
                };
                (slices, length)
            }
            _ => return None,
        };
        let Some(data) = data[..room].get(..length) else {
            return Some(Landed::TooLong);
        };
        // SAFETY: the list belongs to a request that the device has, so it is not written until its
        // completion is noted, which is after this. The memory that it names is lent: as the queue pair's
        // creator has promised, these are addresses of this process, of writable memory that nobody else uses
        // as long as it is lent; the lock is held.
        Some(unsafe { scatter(data, slices) })
    }
}

impl Lent {
    /// The slices of the next receive request, if the device has it and this is its index.
    fn own(&self, ledger: &RecvLedger, counter: u16) -> Option<Slices> {
        let next = ledger.next();
        let waiting = self.posted(RECORD_RECEIVE).wrapping_sub(next as u16);
        let is_posted = waiting != 0 && u32::from(waiting) <= self.recv.count;
        if self.srq.is_some() || !is_posted {
            return None;
        }
        let (count, stride) = (self.recv.count as usize, self.recv.stride as usize);
        // Whether the device counts on behind the ring's end or tells the element's index is left open;
        // nobody but it tells the two apart.
        if (usize::from(counter) ^ next as usize) & (count - 1) != 0 {
            return None;
        }
        Some(Slices {
            ring: self.recv_ring,
            bytes: count * stride,
            first: (usize::from(counter) & (count - 1)) * stride,
            count: self.recv.max_sge as usize,
        })
    }

    /// The slices of an element of the shared queue.
    fn shared(&self, counter: u16) -> Option<Slices> {
        let ring = self.srq.as_ref()?;
        let slices = ring.max_sge() as usize;
        Some(Slices {
            // SAFETY: an element has room for its slices after its link.
            ring: unsafe { ring.element(counter.into()).add(size_of::<SrqNext>()) },
            bytes: slices * UNIT,
            first: 0,
            count: slices,
        })
    }

    /// The slices of a READ or an atomic operation that begins in that block and that the device has, and
    /// whether it is an atomic operation.
    fn sent(&self, ledger: &SendLedger, counter: u16) -> Option<(Slices, bool)> {
        let ahead = self.posted(RECORD_SEND).wrapping_sub(counter);
        let is_posted = ahead != 0 && u32::from(ahead) <= self.blocks;
        if !is_posted || !ledger.is_in_flight(counter) {
            return None;
        }
        let bytes = self.blocks as usize * BLOCK;
        let at = usize::from(counter) * BLOCK % bytes;
        // SAFETY: a block lies in the ring; the request is with the device, so it is not written. Every bit
        // pattern is a `Control`.
        let control = unsafe { self.send_ring.add(at).cast::<Control>().read() };
        // Control and address, and the operands.
        let (head, atomic) = match control.opmod_idx_opcode.get() as u8 {
            opcode::RDMA_READ => (2, false),
            opcode::ATOMIC_CS | opcode::ATOMIC_FA => (3, true),
            _ => return None,
        };
        let units = control.qpn_ds.get() as usize & MOST_UNITS;
        let slices = Slices {
            ring: self.send_ring,
            bytes,
            first: at + head * UNIT,
            count: units.checked_sub(head)?,
        };
        Some((slices, atomic))
    }

    /// How many requests or blocks the device knows of.
    fn posted(&self, word: usize) -> u16 {
        use std::sync::atomic::Ordering;
        // Acquire: pairs with the barrier before the poster's store, so that the requests can be read.
        u16::from_be(self.rings.record.counter(word).load(Ordering::Acquire))
    }
}

/// Copies data into slices, if they have room for all. Slices of the region without memory have no address;
/// what is for them is dropped.
///
/// # Safety
///
/// The list is not written meanwhile, and the memory that it names may be written at those addresses.
unsafe fn scatter(data: &[u8], slices: Slices) -> Landed {
    // SAFETY: by this function's contract.
    let room: usize = unsafe { slices.iter() }.map(|(_, length)| length).sum();
    if data.len() > room {
        return Landed::TooLong;
    }
    let mut rest = data;
    // SAFETY: as above.
    for (address, length) in unsafe { slices.iter() } {
        let (now, later) = rest.split_at(length.min(rest.len()));
        if now.is_empty() {
            break;
        }
        let to = ptr::with_exposed_provenance_mut::<u8>(address as usize);
        if !to.is_null() {
            // SAFETY: by this function's contract; `now` is a copy that lies elsewhere.
            unsafe { to.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
        }
        rest = later;
    }
    Landed::Whole
}
