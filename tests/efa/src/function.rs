//! One function: its guest's memory, and all objects that the driver made on it.

use vfio_model::interrupt::Vectors;
use vfio_model::memory::GuestMemory;
use vfio_model::report::Report;
use vfio_model::table::{self, Refusal};
use vfio_model::tap::Tap;

use crate::admin::{Queue, Status};
use crate::cq::CompletionQueue;
use crate::event::{AsyncQueue, EventQueue};
use crate::fault::Faults;
use crate::feature::Limits;
use crate::mr::Region;
use crate::qp::QueuePair;

/// A table whose refusals are answers to commands.
pub(crate) type Table<T> = table::Table<T, Status>;

impl Refusal for Status {
    const FULL: Self = Self::NoResources;
    const MISSING: Self = Self::IllegalParameter;
}

/// How many queue pairs there may be: a power of two, so that the low bits of a number tell which it is.
pub(crate) const QUEUE_PAIRS: u32 = 256;
/// How many completion queues there may be.
pub(crate) const COMPLETION_QUEUES: u32 = 256;
/// How many event queues there may be: one for each vector but the first.
pub(crate) const EVENT_QUEUES: u32 = 15;
/// How many regions there may be.
pub(crate) const REGIONS: u32 = 1 << 16;
/// How many protection domains, UARs and address handles there may be, each.
pub(crate) const OTHERS: u32 = 1024;

/// An address as the fabric knows it.
pub(crate) type Gid = [u8; 16];

/// An address handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressHandle {
    pub(crate) gid: Gid,
    pub(crate) pd: u16,
}

/// A function and its objects.
#[derive(Debug)]
pub(crate) struct Function {
    /// Counted from 0.
    pub(crate) number: u16,
    pub(crate) limits: Limits,
    pub(crate) memory: GuestMemory,
    pub(crate) vectors: Vectors,
    pub(crate) report: Report,
    pub(crate) tap: Tap,
    pub(crate) faults: Faults,
    pub(crate) objects: Objects,
    pub(crate) stats: Stats,
}

/// What a reset takes away.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) admin: Queue,
    pub(crate) events: AsyncQueue,
    pub(crate) pds: Table<()>,
    pub(crate) uars: Table<()>,
    pub(crate) ahs: Table<AddressHandle>,
    pub(crate) regions: Table<Region>,
    pub(crate) eqs: Table<EventQueue>,
    pub(crate) cqs: Table<CompletionQueue>,
    pub(crate) qps: Table<QueuePair>,
    /// How many queue pairs were made: what makes their numbers different from those before, on a function
    /// that does not reuse them.
    pub(crate) qps_made: u16,
}

/// What GET_STATS tells.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) sent: Count,
    pub(crate) received: Count,
    pub(crate) read: Count,
    pub(crate) written: Count,
    pub(crate) read_errors: u64,
    pub(crate) write_errors: u64,
    pub(crate) read_by_peers: u64,
    pub(crate) written_by_peers: u64,
    pub(crate) drops: u64,
    pub(crate) wrong_qkeys: u64,
}

/// Requests and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
}

impl Count {
    /// Counts a request.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.requests += 1;
        self.bytes += bytes as u64;
    }
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            admin: Queue::default(),
            events: AsyncQueue::default(),
            // Numbers of different kinds differ, so that one taken for another is noticed.
            pds: Table::new(1, OTHERS + 1),
            uars: Table::new(0x2000, 0x2000 + OTHERS),
            ahs: Table::new(0x3000, 0x3000 + OTHERS),
            regions: Table::new(1, REGIONS + 1),
            eqs: Table::new(0x40, 0x40 + EVENT_QUEUES),
            cqs: Table::new(0, COMPLETION_QUEUES),
            qps: Table::new(0, QUEUE_PAIRS),
            // So that no number is 0.
            qps_made: 1,
        }
    }
}

impl Function {
    /// A function after power-on.
    pub(crate) fn new(number: u16, report: Report, tap: Tap) -> Self {
        Self {
            number,
            limits: Limits::of(number),
            memory: GuestMemory::default(),
            vectors: Vectors::default(),
            report,
            tap,
            faults: Faults::default(),
            objects: Objects::default(),
            stats: Stats::default(),
        }
    }

    /// Its address.
    pub(crate) fn gid(&self) -> Gid {
        gid_of(self.number)
    }

    /// Forgets all that the driver did. Memory and interrupts are QEMU's, and stay.
    pub(crate) fn reset(&mut self) {
        self.objects = Objects::default();
        self.faults.reset();
    }

    /// Reports that a rule was broken.
    pub(crate) fn violation(&self, text: impl std::fmt::Display) {
        self.report
            .violation(format!("function {}: {text}", self.number));
    }

    /// The function's own handle for an address of a sender, in a protection domain.
    pub(crate) fn handle_of(&self, gid: Gid, pd: u16) -> Option<u16> {
        match self.faults.knows_nobody {
            true => None,
            false => self.own_handle(gid, pd),
        }
    }

    /// The handle for an address that was created in a protection domain.
    pub(crate) fn own_handle(&self, gid: Gid, pd: u16) -> Option<u16> {
        let found = |(_, handle): &(u32, &AddressHandle)| handle.gid == gid && handle.pd == pd;
        self.objects
            .ahs
            .iter()
            .find(found)
            .map(|(number, _)| number as u16)
    }
}

/// The address of a function: link-local, with its number in it.
pub(crate) fn gid_of(number: u16) -> Gid {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..14].copy_from_slice(&[0x02, 0xef, 0xa0, 0xff, 0xfe, 0x00]);
    gid[14..].copy_from_slice(&(number + 1).to_be_bytes());
    gid
}
