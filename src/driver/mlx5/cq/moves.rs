//! A completion queue's ring, when it moves: to another size, or to an agent and back.

use std::mem;

use super::Cq;
use crate::command::quiet;
use crate::driver::mlx5::entries::Entries;
use crate::driver::mlx5::format::{INDEX_MASK, cqe};
use crate::driver::mlx5::handover::Part;
use crate::driver::mlx5::memory::RECORD;

impl Cq {
    /// Entries of its ring.
    pub(in super::super) fn count(&self) -> u32 {
        self.view.count()
    }

    /// Bytes of an entry.
    pub(in super::super) fn entry_bytes(&self) -> usize {
        self.view.entry_bytes()
    }

    /// The dma-bufs in which the ring and the record lie, if both do.
    pub(in super::super) fn parts(&self) -> Option<(Part, Part)> {
        let directory = &self.core.directory;
        let bytes = Entries::bytes(self.count(), self.entry_bytes());
        let entries = Part::of(directory.lock().entries.memory().place(), bytes)?;
        Some((entries, Part::of(directory.record().place(), RECORD)?))
    }

    /// Whether its ring lies in a dma-buf.
    pub(in super::super) fn is_in_dmabuf(&self) -> bool {
        let inner = self.core.directory.lock();
        inner.entries.memory().dmabuf().is_some()
    }

    /// The device's number of the queue.
    pub(in super::super) fn cqn(&self) -> u32 {
        self.core.cqn
    }

    /// Whether this process maps what it left to an agent.
    pub(in super::super) fn can_come_back(&self) -> bool {
        self.can_come_back
    }

    /// Whether the device writes over entries that were not taken.
    pub(in super::super) fn ignores_overrun(&self) -> bool {
        self.core.ignores_overrun
    }

    /// The first entry that has not been given back.
    pub(in super::super) fn passed(&self) -> u32 {
        self.directory.passed()
    }

    /// Leaves the ring to an agent, with a queue pair whose rings this process maps or not (`reaches_rings`).
    /// Nobody polls until it has come back.
    pub(in super::super) fn leave(&mut self, reaches_rings: bool) {
        self.can_come_back = reaches_rings && self.core.is_mapped();
        self.core.directory.lock().entries.leave();
    }

    /// Takes the ring back from an agent. `produced` has the lower bits of the number of entries that the
    /// device has written in all; it writes none meanwhile. Entries that were written while the ring was away
    /// are passed over.
    pub(in super::super) fn come_back(&mut self, produced: u32) {
        let directory = &self.core.directory;
        let passed = directory.passed();
        // From where this side was: all indices that it has noted lie before.
        let next = passed.wrapping_add(produced.wrapping_sub(passed) & INDEX_MASK);
        directory.lock().entries.come_back(next);
        directory.pass(next);
    }

    /// Continues in another ring: `switch` makes the device do so. Entries that wait are copied to it.
    ///
    /// # Errors
    ///
    /// The error of `switch`; the queue is as it was.
    pub(in super::super) fn resize<E>(
        &mut self,
        new: Entries,
        switch: impl FnOnce(Entries) -> Result<Entries, E>,
    ) -> Result<(), E> {
        let directory = &self.core.directory;
        // Whatever becomes of the rings, none is freed under the lock: an allocator may get the memory back,
        // and may then call into other queues.
        let _new = new.clone();
        // Locked throughout, so that no thread looks in the old ring for entries of the new one.
        let mut inner = quiet(|| directory.lock());
        let next = directory.passed().wrapping_add(1);
        // The new ring's first entry is the one after the place that stays empty.
        new.invalidate(next);
        let new = switch(new)?;
        let (old_view, view) = (self.view, new.view());
        // The device has ended the old ring with an entry that says so. The place of that entry stays empty
        // in the new ring, so the entries that were not taken move on by one.
        let mut index = directory.passed();
        while let Some(entry) = old_view.arrived(index) {
            // SAFETY: the device has written the entry, and nobody gives it back.
            if unsafe { entry.as_ref() }.op_own >> 4 == cqe::RESIZE {
                break;
            }
            old_view.copy_to(index, view, index.wrapping_add(1));
            index = index.wrapping_add(1);
        }
        inner.shift();
        self.reporters.shift();
        let old = mem::replace(&mut inner.entries, new);
        self.view = view;
        directory.pass(next);
        drop(inner);
        drop(old);
        Ok(())
    }
}
