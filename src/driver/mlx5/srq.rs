//! Shared receive queues: creation, and the ring.
//!
//! The kernel derives the ring's size from the requested one (`mlx5_ib_create_srq` in
//! `drivers/infiniband/hw/mlx5/srq.c`), so the same arithmetic is done here.

use std::ptr::NonNull;
use std::sync::Arc;

use uverbs_uapi::attr;
use uverbs_uapi::handle::SrqHandle;
use uverbs_uapi::mlx5 as abi;

use super::cq::CqCore;
use super::directory::{Directory, Registration};
use super::format::{Be16, Data, NUMBER, SrqNext};
use super::ledger::SrqLedger;
use super::memory::{Memory, Record};
#[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
use super::place::{RingPlace, SrqPlace};
use super::recv::{Drawn, SharedRecvQueue};
use super::reporter::{Receiver, Reporter};
use super::{Device, Limits, without_dmabufs};
use crate::alloc::{Buffers, ResourceType};
use crate::command::{Command, CommandFd, CreateSrq, CreateSrqReply, DriverData, SrqKind};
#[cfg(feature = "c-abi")]
use crate::driver::answer;
use crate::driver::contract::{self, Driver as _};
use crate::error::{Errno, Error, Result, Verb};
use crate::memory::has_word;
use crate::work::{LocalKey, Progress};

/// The smallest element.
const SMALLEST: u64 = 32;

/// The ring of a shared receive queue, with its record.
#[derive(Debug)]
pub(crate) struct SrqRing {
    memory: Memory,
    record: Record,
    /// Elements, and bytes of one; both powers of two.
    count: u32,
    stride: u32,
    max_sge: u32,
}

impl SrqRing {
    /// A ring of `count` elements of `stride` bytes, both powers of two, in memory that has room for them.
    pub(super) fn new(memory: Memory, record: Record, count: u32, stride: u32) -> Self {
        let slices = (stride as usize - size_of::<SrqNext>()) / size_of::<Data>();
        Self {
            memory,
            record,
            count,
            stride,
            max_sge: slices as u32,
        }
    }

    #[inline(always)]
    pub(super) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Bytes of an element.
    pub(super) fn stride(&self) -> usize {
        self.stride as usize
    }

    #[inline(always)]
    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    /// An element; the index is taken modulo the ring.
    #[inline(always)]
    pub(super) fn element(&self, index: u32) -> NonNull<u8> {
        let index = index & (self.count - 1);
        // SAFETY: the masked index is below the count of elements.
        unsafe {
            self.memory
                .base()
                .add(index as usize * self.stride as usize)
        }
    }

    /// The contents of an element that has been written.
    pub(super) fn copy_of(&self, index: u32) -> Vec<u8> {
        let stride = self.stride as usize;
        // SAFETY: the element has `stride` bytes, and they are not written: the poster does not have the
        // element.
        unsafe { std::slice::from_raw_parts(self.element(index).as_ptr(), stride) }.to_vec()
    }

    /// Writes the contents of an element to another one, which neither the device nor another thread has.
    pub(super) fn write(&self, index: u32, copy: &[u8]) {
        let bytes = copy.len().min(self.stride as usize);
        // SAFETY: the element has that many bytes, and they do not overlap with the copy.
        unsafe {
            self.element(index)
                .copy_from_nonoverlapping(NonNull::from(copy).cast(), bytes);
        }
    }

    /// Links an element, which neither the device nor another thread has, to another one.
    pub(super) fn lead_to(&self, index: u32, next: u32) {
        // SAFETY: the element lies in the ring and has room for a link, which needs no alignment.
        unsafe {
            self.element(index)
                .cast::<SrqNext>()
                .write(SrqNext::to(next));
        }
    }

    /// The link of an element that has been written.
    pub(super) fn link(&self, index: u32) -> u32 {
        // SAFETY: the element lies in the ring and starts with a link; every bit pattern is valid.
        let link = unsafe { self.element(index).cast::<SrqNext>().read() };
        u32::from(Be16::get(link.next_wqe_index)) & (self.count - 1)
    }
}

/// What must stay until the kernel has released a shared receive queue, and what it can be asked.
#[derive(Clone, Debug)]
pub(crate) struct SrqCore {
    ring: Arc<SrqRing>,
    ledger: Arc<SrqLedger>,
    /// For a queue of XRC, which reports to a completion queue itself.
    #[cfg_attr(
        not(feature = "c-abi"),
        expect(dead_code, reason = "held until the queue goes")
    )]
    registration: Option<Arc<Registration>>,
    /// The number by which the device and peers name it.
    #[cfg(feature = "c-abi")]
    number: u32,
}

impl SrqCore {
    /// Where it lies, for a program that posts by itself.
    #[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
    pub(crate) fn place(&self) -> SrqPlace {
        let ring = &*self.ring;
        SrqPlace {
            ring: RingPlace {
                first: ring.memory.base(),
                entries: ring.count,
                entry_bytes: ring.stride,
            },
            record: ring.record.first(),
            head: self.ledger.posting.told_head(),
            number: self.number,
        }
    }

    /// For the completion queues that report its messages.
    pub(super) fn drawn(&self) -> Drawn {
        Drawn::new(&self.ring, &self.ledger)
    }
}

impl contract::SrqBacking for SrqCore {
    fn progress(&self) -> Progress {
        let _kept = self.ledger.gate.keep();
        let (posted, finished) = self.ledger.progress();
        Progress::new(posted, finished, u32::MAX)
    }

    fn names(&self, _: Progress, LocalKey(key): LocalKey) -> bool {
        let SrqRing { count, stride, .. } = *self.ring;
        let _kept = self.ledger.gate.keep();
        (0..count).any(|index| {
            // SAFETY: each element has `stride` bytes and is aligned to more than 4.
            let has =
                || unsafe { has_word(self.ring.element(index), stride as usize, key.to_be()) };
            self.ledger.is_posted(index as u16) && has()
        })
    }

    #[cfg(feature = "c-abi")]
    fn forget_received(&self) {
        if let Some(registration) = &self.registration {
            registration.forget();
        }
    }

    #[cfg(feature = "c-abi")]
    fn number(&self) -> Option<u32> {
        Some(self.number)
    }
}

/// Creates a shared receive queue, whose messages the queue pairs report.
pub(crate) fn create_srq(
    device: &Device,
    fd: &CommandFd,
    command: CreateSrq,
    buffers: Option<&Buffers>,
) -> Result<(SrqHandle, SharedRecvQueue, SrqCore)> {
    let (reply, queue, core) = create(device, fd, command, None, buffers)?;
    Ok((reply.handle, queue, core))
}

/// Creates a shared receive queue of an XRC domain, which reports its messages itself.
pub(crate) fn create_xsrq(
    device: &Device,
    fd: &CommandFd,
    command: CreateSrq,
    cq: Option<&Arc<CqCore>>,
    buffers: Option<&Buffers>,
) -> Result<(SrqHandle, SharedRecvQueue, SrqCore, u32)> {
    if !matches!(command.kind, SrqKind::Xrc { .. }) {
        let what = "shared receive queues that match tags";
        return Err(Device::lacks(Verb::CreateSrq, what));
    }
    let subject = command.subject();
    let Some(cq) = cq else {
        let why = "its completion queue belongs to a device of another driver";
        return Err(Error::invalid(Verb::CreateSrq, subject, why));
    };
    let (reply, queue, core) = create(device, fd, command, Some(&cq.directory), buffers)?;
    let CreateSrqReply { handle, srqn, .. } = reply;
    if srqn > NUMBER {
        fd.abandon_with(handle, core);
        let what = format!("a shared receive queue's number of {srqn:#x}");
        return Err(Error::malformed(Verb::CreateSrq, subject, what));
    }
    Ok((handle, queue, core, srqn))
}

/// Creates a shared receive queue that reports to this completion queue, or to none.
fn create(
    device: &Device,
    fd: &CommandFd,
    mut command: CreateSrq,
    reports_to: Option<&Arc<Directory>>,
    buffers: Option<&Buffers>,
) -> Result<(CreateSrqReply, SharedRecvQueue, SrqCore)> {
    let refuse = || Error::os(Verb::CreateSrq, command.subject(), Errno::INVAL);
    let (asked, slices) = (command.max_wr, command.max_sge);
    let (count, stride) = layout(asked, slices, &device.limits).ok_or_else(refuse)?;
    // The kernel and the device also have `count` elements, of which one is always free.
    command.max_wr = count - 1;
    let bytes = count as usize * stride as usize;
    let page = rustix::param::page_size();
    let memory = Memory::new(bytes, page, ResourceType::MLX5_SRQ, buffers)?;
    let record = Record::new(&device.records, buffers)?;
    let (buf_addr, db_addr) = (memory.address(), record.address());
    let (ring_dmabuf, record_dmabuf) = (memory.dmabuf(), record.dmabuf());
    let ring = Arc::new(SrqRing::new(memory, record, count, stride));
    let ledger = Arc::new(SrqLedger::new(count));
    let queue = SharedRecvQueue::new(Arc::clone(&ring), Arc::clone(&ledger));
    let registration = match reports_to {
        Some(directory) => Some(register(directory, queue.drawn(), &command)?),
        None => None,
    };
    let driver = abi::CreateSrq {
        buf_addr,
        db_addr,
        uidx: registration.as_ref().map_or(0, Registration::number),
        ..Default::default()
    };
    command.driver = DriverData::exchange::<_, abi::CreateSrqResp>(&driver)
        .with_struct(attr::create_srq::BUF_UMEM, ring_dmabuf)
        .with_struct(abi::attr::create_srq::DBR_BUF_UMEM, record_dmabuf);
    let core = SrqCore {
        ring,
        ledger,
        registration: registration.map(Arc::new),
        #[cfg(feature = "c-abi")]
        number: 0,
    };
    let (reply, core) = match fd.execute_with(&command, core) {
        Err(error) if ring_dmabuf.or(record_dmabuf).is_some() => {
            return Err(without_dmabufs(error, "7.3"));
        }
        reply => reply?,
    };
    #[cfg(feature = "c-abi")]
    let core = match answer(Verb::CreateSrq, || command.subject(), &reply.driver) {
        Ok(abi::CreateSrqResp { srqn, .. }) => SrqCore {
            number: srqn,
            ..core
        },
        Err(error) => {
            fd.abandon_with(reply.handle, core);
            return Err(error);
        }
    };
    Ok((reply, queue, core))
}

/// Finds a number by which completions can name the queue.
fn register(directory: &Arc<Directory>, drawn: Drawn, command: &CreateSrq) -> Result<Registration> {
    let reporter = Reporter {
        recv: Receiver::Shared(drawn.ledger),
        shared_ring: drawn.ring,
        ..Reporter::default()
    };
    Registration::new(directory, directory, reporter).ok_or_else(|| {
        let missing = "another of the 16,777,216 numbers that a CQ has for its queues";
        Error::unsupported(Verb::CreateSrq, command.subject(), missing)
    })
}

/// The number of elements and the bytes of each, or `None` if the device has no such queue. A link to an
/// element has 16 bits.
pub(super) fn layout(max_wr: u32, max_sge: u32, limits: &Limits) -> Option<(u32, u32)> {
    if max_wr >= limits.max_srq_recv_wr.min(1 << 16) {
        return None;
    }
    let count = (max_wr + 1).next_power_of_two().max(2);
    let bytes = size_of::<SrqNext>() as u64 + u64::from(max_sge) * size_of::<Data>() as u64;
    let stride = bytes.next_power_of_two().max(SMALLEST);
    (stride <= limits.max_rq_desc_sz.into()).then_some((count, stride as u32))
}
