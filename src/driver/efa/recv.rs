//! The receive queue: a ring of descriptors in memory, and a doorbell. A receive takes a descriptor for each
//! of its slices.

use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(feature = "c-abi")]
use super::QueueMemory;
use super::format::Descriptor;
use super::order;
use super::ring::Register;
use crate::driver::contract;
use crate::driver::kit::ledger::{About, NumberedLedger};
use crate::driver::kit::map::Map;
use crate::work::{Element, PostError};

/// The layout of a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecvLayout {
    /// Descriptors of the ring, a power of two.
    pub(super) descriptors: u32,
    /// Receives that fit, each with the most slices.
    pub(super) capacity: u32,
    pub(super) max_sge: u32,
}

impl RecvLayout {
    /// Bytes of the ring.
    pub(super) fn bytes(&self) -> usize {
        self.descriptors as usize * size_of::<Descriptor>()
    }
}

/// The receive queue.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    layout: RecvLayout,
    /// Requests and descriptors that the device knows of, counted from the start, modulo 2^32.
    rung: u32,
    rung_descriptors: u32,
    /// Requests of the batch that were written, and the count of descriptors after them.
    written: u32,
    written_descriptors: u32,
    /// There is room for requests before this count, as the ledger said when it was last asked.
    room_until: u32,
    ledger: Arc<NumberedLedger>,
    ring: Arc<Map>,
    doorbell: Register,
}

impl RecvQueue {
    /// A receive queue over a ring that has the layout's bytes.
    pub(super) fn new(
        layout: RecvLayout,
        ledger: Arc<NumberedLedger>,
        ring: Arc<Map>,
        doorbell: Register,
    ) -> Self {
        assert!(layout.bytes() <= ring.length() && layout.descriptors.is_power_of_two());
        Self {
            layout,
            rung: 0,
            rung_descriptors: 0,
            written: 0,
            written_descriptors: 0,
            room_until: layout.capacity,
            ledger,
            ring,
            doorbell,
        }
    }

    /// Starts again with an empty ring and another ledger.
    pub(super) fn reset(&mut self, ledger: Arc<NumberedLedger>) {
        (self.rung, self.rung_descriptors) = (0, 0);
        (self.written, self.written_descriptors) = (0, 0);
        self.room_until = self.layout.capacity;
        self.ledger = ledger;
    }

    pub(super) fn layout(&self) -> RecvLayout {
        self.layout
    }

    /// The ring of descriptors.
    #[cfg(feature = "c-abi")]
    pub(crate) fn memory(&self) -> QueueMemory {
        QueueMemory {
            first: self.ring.base().as_ptr().cast(),
            entry_bytes: size_of::<Descriptor>() as u32,
            entries: self.layout.descriptors,
            doorbell: self.doorbell.address(),
            max_batch: self.layout.descriptors,
        }
    }

    /// Asks the ledger how far the device is; false if the queue is full at this count of posted requests.
    #[cold]
    #[inline(never)]
    fn finds_room(&mut self, count: u32) -> bool {
        self.room_until = self.ledger.room(self.room_until);
        self.room_until != count
    }

    /// Writes a descriptor to the place of a count.
    #[inline(always)]
    fn put(&self, count: u32, descriptor: Descriptor) {
        let place = (count & (self.layout.descriptors - 1)) as usize;
        let ring: NonNull<Descriptor> = self.ring.base().cast();
        // SAFETY: the masked place is below the count of descriptors, so it lies in the ring, whose map this
        // value keeps. There was room for the request, so the device no longer uses the place.
        unsafe { ring.add(place).write_volatile(descriptor) };
    }
}

impl contract::RecvQueue for RecvQueue {
    fn capacity(&self) -> u32 {
        self.layout.capacity
    }

    fn max_sge(&self) -> u32 {
        self.layout.max_sge
    }

    fn in_flight(&self) -> u32 {
        self.ledger.in_flight()
    }

    #[inline(always)]
    fn write<E: Element>(&mut self, nth: u32, wr_id: u64, slices: &[E]) -> Result<(), PostError> {
        let max = self.layout.max_sge;
        if slices.len() > max as usize {
            let given = slices.len();
            return Err(PostError::TooManySges { given, max });
        }
        let count = self.rung.wrapping_add(nth);
        if count == self.room_until && !self.finds_room(count) {
            let capacity = self.layout.capacity;
            return Err(PostError::QueueFull { capacity });
        }
        if nth == 0 {
            self.written_descriptors = self.rung_descriptors;
        }
        let about = slices.iter().map(Element::lkey);
        let about = about.fold(About::new(true), About::with);
        let number = self.ledger.note(count, wr_id, about, 0);
        let mut next = self.written_descriptors;
        // A receive without memory also takes a descriptor.
        let last = slices.len().saturating_sub(1);
        for at in 0..=last {
            let mut control = 0;
            control |= if at == 0 { Descriptor::FIRST } else { 0 };
            control |= if at == last { Descriptor::LAST } else { 0 };
            let mut descriptor = match slices.get(at) {
                None => Descriptor::default(),
                Some(slice) => Descriptor {
                    address: slice.address().into(),
                    // No message is as long.
                    length: u16::try_from(slice.length()).unwrap_or(u16::MAX).into(),
                    lkey_control: (slice.lkey() & Descriptor::LKEY).into(),
                    ..Descriptor::default()
                },
            };
            if at == 0 {
                descriptor.number = number.into();
            }
            descriptor.lkey_control |= control;
            self.put(next, descriptor);
            next = next.wrapping_add(1);
        }
        (self.written, self.written_descriptors) = (nth + 1, next);
        Ok(())
    }

    #[inline(always)]
    fn ring(&mut self, count: u32) {
        debug_assert!(count == self.written || count == 0);
        if count == 0 {
            return;
        }
        self.rung = self.rung.wrapping_add(count);
        self.rung_descriptors = self.written_descriptors;
        self.ledger.post(self.rung);
        order::after_writing();
        self.doorbell.store(u32::from(self.rung_descriptors as u16));
    }
}
