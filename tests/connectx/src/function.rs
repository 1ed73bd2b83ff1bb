//! One function of the device: its port, its guest's memory, and all objects that the driver made on it.

use std::collections::BTreeMap;
use std::time::Instant;

use vfio_model::interrupt::Vectors;
use vfio_model::memory::GuestMemory;
use vfio_model::report::Report;
use vfio_model::table;

use crate::capability::Capabilities;
use crate::command::Status;
use crate::fault::Faults;
use crate::object::cq::CompletionQueue;
use crate::object::dct::Target;
use crate::object::eq::EventQueue;
use crate::object::memic::DeviceMemory;
use crate::object::mkey::MemoryKey;
use crate::object::page::FirmwarePages;
use crate::object::qp::QueuePair;
use crate::object::rq::ReceiveQueue;
use crate::object::sq::SendQueue;
use crate::object::srq::SharedReceiveQueue;
use crate::object::umem::UserMemory;
use crate::pages::ADAPTER_PAGE_SHIFT;
use crate::port::Port;
use crate::registers::Uar;
use crate::subnet::Subnet;
use crate::tap::Tap;

/// The first UAR that is given out; the initialization segment lies on those before.
pub(crate) const FIRST_UAR: u32 = 16;
/// One UAR for each 4 KiB of the registers, or fewer if the driver's pages are larger.
const UARS: u32 = (crate::pci::UARS_SIZE >> ADAPTER_PAGE_SHIFT) as u32;

/// A table whose refusals are answers to commands.
pub(crate) type Table<T> = table::Table<T, Status>;

impl table::Refusal for Status {
    const FULL: Self = Self::NoResources;
    const MISSING: Self = Self::BadResource;
}

/// A function and its objects.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) port: Port,
    pub(crate) memory: GuestMemory,
    /// The bus address of BAR 0, if the function answers there.
    pub(crate) bar0: Option<u64>,
    pub(crate) vectors: Vectors,
    pub(crate) report: Report,
    pub(crate) tap: Tap,
    /// The subnet of an InfiniBand port.
    pub(crate) subnet: Subnet,
    pub(crate) faults: Faults,
    pub(crate) started: Instant,
    pub(crate) objects: Objects,
    /// Queue pairs that a command has set going, for the engine to look at.
    pub(crate) kicked: Vec<u32>,
}

/// An entry of the table of GIDs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoceAddress {
    pub(crate) gid: [u8; 16],
    /// 0 for version 1, 2 for version 2.
    pub(crate) version: u8,
    /// All that the driver has told of it (`roce_addr_layout`).
    pub(crate) bytes: [u8; 32],
}

/// What a reset takes away.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) capabilities: Capabilities,
    pub(crate) issi: u16,
    pub(crate) pages: FirmwarePages,
    pub(crate) uars: Table<Uar>,
    pub(crate) eqs: Table<EventQueue>,
    pub(crate) cqs: Table<CompletionQueue>,
    pub(crate) memic: DeviceMemory,
    pub(crate) mkeys: Table<MemoryKey>,
    /// The key that stands for no memory.
    pub(crate) nothing: MemoryKey,
    pub(crate) pds: Table<()>,
    pub(crate) xrcds: Table<()>,
    pub(crate) transport_domains: Table<()>,
    pub(crate) contexts: Table<()>,
    pub(crate) umems: Table<UserMemory>,
    /// Numbers that no queue pair has, by the context that reserved them.
    pub(crate) reserved: Table<u32>,
    pub(crate) qps: Table<QueuePair>,
    /// DC targets. No queue pair has the number of one.
    pub(crate) dcts: Table<Target>,
    pub(crate) srqs: Table<SharedReceiveQueue>,
    /// Send queues of the netdev.
    pub(crate) sqs: Table<SendQueue>,
    /// Receive queues of the netdev.
    pub(crate) rqs: Table<ReceiveQueue>,
    /// Other objects of the netdev's receiving side.
    pub(crate) receive_side: Table<()>,
    pub(crate) counters: Table<()>,
    /// The table of GIDs of an Ethernet port.
    pub(crate) addresses: BTreeMap<u8, RoceAddress>,
    /// Multicast groups and the queue pairs attached to them.
    pub(crate) multicast: Vec<([u8; 16], u32)>,
}

impl Objects {
    fn new(port: &Port) -> Self {
        Self {
            capabilities: Capabilities::new(port),
            issi: 0,
            pages: FirmwarePages::default(),
            uars: Table::new(FIRST_UAR, UARS),
            eqs: Table::new(1, 64),
            cqs: Table::new(0x40, 1 << 16),
            memic: DeviceMemory::new(),
            mkeys: Table::new(0x10, 1 << 18),
            nothing: MemoryKey::nothing(),
            pds: Table::new(1, 1 << 15),
            xrcds: Table::new(1, 1 << 15),
            transport_domains: Table::new(1, 1 << 10),
            contexts: Table::new(1, 1 << 8),
            umems: Table::new(1, 1 << 12),
            reserved: Table::new(0, 1 << 8),
            qps: Table::new(0x80, 1 << 17),
            dcts: Table::new(0x4_0000, 0x5_0000),
            srqs: Table::new(0x20, 1 << 15),
            sqs: Table::new(0x2_0000, 0x3_0000),
            rqs: Table::new(0x1000, 0x2000),
            receive_side: Table::new(1, 1 << 20),
            counters: Table::new(1, 256),
            addresses: BTreeMap::new(),
            multicast: Vec::new(),
        }
    }
}

impl Function {
    /// A function after power-on.
    pub(crate) fn new(port: Port, subnet: Subnet, report: Report, tap: Tap) -> Self {
        let objects = Objects::new(&port);
        Self {
            port,
            memory: GuestMemory::default(),
            bar0: None,
            vectors: Vectors::default(),
            report,
            tap,
            subnet,
            faults: Faults::default(),
            started: Instant::now(),
            objects,
            kicked: Vec::new(),
        }
    }

    /// Forgets all that the driver did. Memory and interrupts are QEMU's, and stay.
    pub(crate) fn reset(&mut self) {
        self.objects = Objects::new(&self.port);
        self.kicked.clear();
        self.subnet.leave_all(&self.port);
    }

    /// The memory at a bus address, and the address in it: allocated memory of the device, if that answers
    /// there, or the guest's.
    pub(crate) fn memory_at(&self, address: u64, length: usize) -> (&GuestMemory, u64) {
        let memic = &self.objects.memic;
        let offset = self.bar0.and_then(|bar0| address.checked_sub(bar0));
        match offset {
            Some(start) if memic.has(&(start..start.saturating_add(length as u64))) => {
                (memic.bytes(), start)
            }
            _ => (&self.memory, address),
        }
    }

    /// Nanoseconds since power-on, the device's clock.
    pub(crate) fn clock(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The function's number, counted from 0.
    pub(crate) fn number(&self) -> u16 {
        self.port.lid - 1
    }

    /// Checks that there is a protection domain of that number.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn check_pd(&self, pd: u32) -> Result<(), Status> {
        self.objects.pds.get(pd).copied()
    }
}
