//! A completion queue and a queue pair that commands have created, in memory of this process.

use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use support::{LIMIT, Result, fail};
use uverbs::direct::mlx5::layout::{
    Ads, Cqc, CreateCqIn, CreateCqOut, CreateQpIn, CreateQpOut, CreateRmpIn, CreateRmpOut,
    Init2rtrQpIn, Input, Qpc, Rmpc, RoceAddrLayout, Rst2initQpIn, Rtr2rtsQpIn, Structure, Wq,
};
use uverbs::direct::mlx5::{DevxObject, Direct, Uar, UarKind, Umem};
use uverbs::mr::RawMemory;
use uverbs::{Access, Endpoint, Error, Pd};
use uverbs_queue::mlx5::agent::{CompletionQueue, Entry, Mapped, Poller, Poster, SendQueue};

/// Blocks of the send ring, entries of the completion queue, as binary logarithms.
const LOG_BLOCKS: u32 = 4;
const LOG_ENTRIES: u32 = 6;
/// Where things lie in the memory, in bytes.
const RING: usize = 0;
const ENTRIES: usize = 0x1000;
const COMPLETION_RECORD: usize = 0x2000;
const RECORD: usize = 0x2040;
const POOL_RECORD: usize = 0x2080;
const POOL: usize = 0x3000;
const BYTES: usize = 0x4000;

/// The sequence number of the first packet.
const PSN: u32 = 0x1234;

pub(crate) struct Queue {
    // They go in this order: the device lets go of the memory first.
    pub(crate) qp: DevxObject,
    pub(crate) pool: Option<Pool>,
    pub(crate) cq: DevxObject,
    pub(crate) uar: Uar,
    pub(crate) umem: Umem<RawMemory>,
    pub(crate) qpn: u32,
    pub(crate) cqn: u32,
    memory: *mut u8,
    pub(crate) poster: Poster<Mapped, Mapped, Mapped>,
    pub(crate) poller: Poller<Mapped, Mapped>,
}

/// How the entries of a ring of receives lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// `Wq::WQ_TYPE`: 0 for a chain, 1 for a cyclic ring.
    pub(crate) kind: u64,
    /// Bytes in front of an entry's data segment.
    pub(crate) header: usize,
}

/// A ring of receives (RMP).
pub(crate) struct Pool {
    _object: DevxObject,
    pub(crate) number: u32,
    form: Form,
    posted: u32,
}

/// Entries of a pool, as a binary logarithm.
const LOG_POOL: u32 = 2;
/// Bytes of a data segment.
const SEGMENT: usize = 16;

impl Pool {
    /// Creates one in that memory, which stays as long as the pool.
    fn new(direct: &Direct, pd: &Pd, umem: u32, form: Form) -> Result<Self> {
        const READY: u64 = 1;
        let mut command = CreateRmpIn::new();
        let stride = form.header + SEGMENT;
        (command.inner_mut(CreateRmpIn::CTX))
            .set(Rmpc::STATE, READY)
            .set(Rmpc::BASIC_CYCLIC_RCV_WQE, (form.header == 0).into())
            .inner_mut(Rmpc::WQ)
            .set(Wq::WQ_TYPE, form.kind)
            .set(Wq::PD, direct.pdn(pd)?.into())
            .set(Wq::LOG_WQ_SZ, LOG_POOL.into())
            .set(Wq::LOG_WQ_STRIDE, stride.ilog2().into())
            .set(Wq::DBR_UMEM_ID, umem.into())
            .set(Wq::DBR_ADDR, POOL_RECORD as u64)
            .set(Wq::WQ_UMEM_ID, umem.into())
            .set(Wq::WQ_UMEM_OFFSET, POOL as u64);
        // SAFETY: the memory stays, and nobody has a reference to it; receives name regions that the tests
        // keep.
        let (object, told) = unsafe { direct.create_by(&command)? };
        Ok(Self {
            _object: object,
            number: told.get(CreateRmpOut::RMPN) as u32,
            form,
            posted: 0,
        })
    }
}

/// Memory that stays mapped until the process ends.
pub(crate) fn memory(bytes: usize) -> Result<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping touches no memory of ours.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE)? };
    Ok(NonNull::new(base.cast()).ok_or("mapped at 0")?)
}

/// Creates a completion queue in that memory, which stays as long as the queue.
pub(crate) fn completion_queue(direct: &Direct, uar: &Uar, umem: u32) -> Result<(DevxObject, u32)> {
    let mut command = CreateCqIn::new();
    command
        .set(CreateCqIn::CQ_UMEM_ID, umem.into())
        .set(CreateCqIn::CQ_UMEM_OFFSET, ENTRIES as u64);
    (command.inner_mut(CreateCqIn::CQ_CONTEXT))
        .set(Cqc::LOG_CQ_SIZE, LOG_ENTRIES.into())
        .set(Cqc::UAR_PAGE, uar.page_id().into())
        .set(Cqc::C_EQN_OR_APU_ELEMENT, direct.eqn(0)?.into())
        .set(Cqc::DBR_UMEM_ID, umem.into())
        .set(Cqc::DBR_ADDR, COMPLETION_RECORD as u64);
    // SAFETY: the memory stays, and nobody has a reference to it.
    let (cq, told) = unsafe { direct.create_by(&command)? };
    Ok((cq, told.get(CreateCqOut::CQN) as u32))
}

impl Queue {
    /// Creates both; the changes of the state are to come.
    pub(crate) fn new(direct: &Direct, pd: &Pd) -> Result<Self> {
        Self::with(direct, pd, None)
    }

    /// As [`Queue::new`], with a ring of receives from which the queue pair receives.
    pub(crate) fn over_pool(direct: &Direct, pd: &Pd, form: Form) -> Result<Self> {
        Self::with(direct, pd, Some(form))
    }

    fn with(direct: &Direct, pd: &Pd, form: Option<Form>) -> Result<Self> {
        let base = memory(BYTES)?;
        let memory = base.as_ptr();
        // SAFETY: it stays mapped, and nobody has a reference to it.
        let raw = unsafe { RawMemory::new(base, BYTES) };
        let umem = direct
            .register(raw, Access::LOCAL_WRITE)
            .map_err(Error::from)?;
        // An entry that is none: of no kind, and the device's.
        for entry in 0..1 << LOG_ENTRIES {
            // SAFETY: the place lies in the memory.
            unsafe { memory.add(ENTRIES + entry * 64 + 63).write_volatile(0xf1) };
        }
        let uar = direct.alloc_uar(UarKind::Uncached)?;
        let (cq, cqn) = completion_queue(direct, &uar, umem.id())?;
        let pool = form.map(|form| Pool::new(direct, pd, umem.id(), form));
        let pool = pool.transpose()?;
        // Of a shared ring, or none.
        let (receives, number) = pool.as_ref().map_or((3, 0), |pool| (1, pool.number));
        let mut command = CreateQpIn::new();
        command
            .set(CreateQpIn::WQ_UMEM_ID, umem.id().into())
            .set(CreateQpIn::WQ_UMEM_OFFSET, RING as u64);
        (command.inner_mut(CreateQpIn::QPC))
            .set(Qpc::PM_STATE, 3)
            .set(Qpc::PD, direct.pdn(pd)?.into())
            .set(Qpc::LOG_SQ_SIZE, LOG_BLOCKS.into())
            .set(Qpc::RQ_TYPE, receives)
            .set(Qpc::SRQN_RMPN_XRQN, number.into())
            .set(Qpc::UAR_PAGE, uar.page_id().into())
            .set(Qpc::CQN_SND, cqn.into())
            .set(Qpc::CQN_RCV, cqn.into())
            .set(Qpc::DBR_UMEM_ID, umem.id().into())
            .set(Qpc::DBR_ADDR, RECORD as u64);
        // SAFETY: as above; requests name regions that the tests keep.
        let (qp, told) = unsafe { direct.create_by(&command)? };
        let qpn = told.get(CreateQpOut::QPN) as u32;

        // SAFETY: each piece lies in the memory or in the page of registers, which stay as long as this
        // value, and nobody has a reference to it.
        let piece = |at, length| unsafe { Mapped::new(memory.add(at), length) };
        // SAFETY: as above.
        let register = unsafe { Mapped::new(uar.send_register().as_ptr(), 8) };
        let send = SendQueue {
            blocks: 1 << LOG_BLOCKS,
            qpn,
            written: 0,
        };
        let completions = CompletionQueue {
            entries: 1 << LOG_ENTRIES,
            entry_bytes: 64,
            taken: 0,
        };
        let poster = Poster::new(
            piece(RING, 64 << LOG_BLOCKS),
            piece(RECORD, 8),
            register,
            send,
        );
        let entries = piece(ENTRIES, 64 << LOG_ENTRIES);
        let poller = Poller::new(entries, piece(COMPLETION_RECORD, 8), completions);
        Ok(Self {
            qp,
            pool,
            cq,
            uar,
            umem,
            qpn,
            cqn,
            memory,
            poster: poster.ok_or("no send queue")?,
            poller: poller.ok_or("no completion queue")?,
        })
    }

    /// Where a peer on the same port finds it; `like` is another queue pair there.
    pub(crate) fn endpoint(&self, like: Endpoint) -> Endpoint {
        Endpoint {
            qpn: self.qpn,
            psn: PSN,
            ..like
        }
    }

    /// Takes it to where it sends to a peer on the same port.
    pub(crate) fn connect(&self, direct: &Direct, peer: Endpoint) -> Result {
        let mut command = Rst2initQpIn::new();
        command.set(Rst2initQpIn::QPN, self.qpn.into());
        (command.inner_mut(Rst2initQpIn::QPC))
            .set(Qpc::PM_STATE, 3)
            .set(Qpc::RWE, 1)
            .set(Qpc::RRE, 1)
            .inner_mut(Qpc::PRIMARY_ADDRESS_PATH)
            .set(Ads::VHCA_PORT_NUM, 1);
        // SAFETY: what peers may reach is what the tests register for it; the same of the next changes.
        unsafe { self.qp.modify_by(&command)? };

        let mut command = Init2rtrQpIn::new();
        command.set(Init2rtrQpIn::QPN, self.qpn.into());
        let context = command.inner_mut(Init2rtrQpIn::QPC);
        context
            .set(Qpc::MTU, 3)
            .set(Qpc::LOG_MSG_MAX, 30)
            .set(Qpc::REMOTE_QPN, peer.qpn.into())
            .set(Qpc::NEXT_RCV_PSN, peer.psn.into())
            .set(Qpc::MIN_RNR_NAK, 12);
        let path = context.inner_mut(Qpc::PRIMARY_ADDRESS_PATH);
        path.set(Ads::VHCA_PORT_NUM, 1);
        match peer.gid {
            None => path.set(Ads::RLID, peer.lid.into()),
            Some(gid) => {
                let own = |index: &u16| {
                    let entry = direct.roce_address(1, *index);
                    entry.is_ok_and(|entry| {
                        entry.bytes(RoceAddrLayout::SOURCE_L3_ADDRESS) == gid.raw()
                            && entry.get(RoceAddrLayout::ROCE_VERSION) == 2
                    })
                };
                let index = (0..32).find(own).ok_or("the port has no such GID")?;
                let entry = direct.roce_address(1, index)?;
                path.set_bytes(Ads::RGID_RIP, &gid.raw())
                    .set(Ads::SRC_ADDR_INDEX, index.into())
                    .set(Ads::HOP_LIMIT, 64)
                    .set(Ads::UDP_SPORT, 0xc000)
                    .set(Ads::RMAC_47_32, entry.get(RoceAddrLayout::SOURCE_MAC_47_32))
                    .set(Ads::RMAC_31_0, entry.get(RoceAddrLayout::SOURCE_MAC_31_0))
            }
        };
        // SAFETY: as above.
        unsafe { self.qp.modify_by(&command)? };

        let mut command = Rtr2rtsQpIn::new();
        command.set(Rtr2rtsQpIn::QPN, self.qpn.into());
        (command.inner_mut(Rtr2rtsQpIn::QPC))
            .set(Qpc::RETRY_COUNT, 7)
            .set(Qpc::RNR_RETRY, 7)
            .set(Qpc::NEXT_SEND_PSN, PSN.into())
            .inner_mut(Qpc::PRIMARY_ADDRESS_PATH)
            .set(Ads::ACK_TIMEOUT, 14);
        // SAFETY: as above.
        unsafe { self.qp.modify_by(&command)? };
        Ok(())
    }

    /// Awaits the next completion.
    pub(crate) fn completion(&mut self) -> Result<Entry> {
        let until = Instant::now() + LIMIT;
        while Instant::now() < until {
            if let Some(entry) = self.poller.poll() {
                self.poller.pass();
                return Ok(entry);
            }
            std::thread::yield_now();
        }
        fail("no completion came")
    }

    /// Posts a receive to the pool: the number of its entry, and the address, the length and the key of
    /// memory.
    pub(crate) fn receive(&mut self, slot: u16, address: u64, length: u32, lkey: u32) -> Result {
        let pool = self.pool.as_mut().ok_or("no pool")?;
        let stride = pool.form.header + SEGMENT;
        let entry = usize::from(slot) * stride;
        let mut bytes = vec![0; pool.form.header];
        bytes.extend(length.to_be_bytes());
        bytes.extend(lkey.to_be_bytes());
        bytes.extend(address.to_be_bytes());
        if pool.form.kind == 0 {
            // The chain goes backwards.
            let next = slot.wrapping_sub(1) % (1 << LOG_POOL);
            bytes[2..4].copy_from_slice(&next.to_be_bytes());
        }
        pool.posted += 1;
        for (offset, byte) in bytes.into_iter().enumerate() {
            // SAFETY: the entry lies in the memory, and the device has none of it before the record says so.
            unsafe { self.memory.add(POOL + entry + offset).write_volatile(byte) };
        }
        // The device reads the record, and then the entry.
        fence(Ordering::Release);
        // SAFETY: the record lies in the memory.
        unsafe {
            let record = self.memory.add(POOL_RECORD).cast::<u32>();
            record.write_volatile(pool.posted.to_be());
        }
        Ok(())
    }

    /// Asks for an event of the next completion.
    pub(crate) fn arm(&self) {
        // Any completion; the number of the first request for events in the bits above is 0.
        let word = self.poller.taken() & 0xff_ffff;
        let doorbell = u64::from(word) << 32 | u64::from(self.cqn);
        // SAFETY: the record lies in the memory, and the register in the page.
        unsafe {
            let record = self.memory.add(COMPLETION_RECORD + 4).cast::<u32>();
            record.write_volatile(word.to_be());
            fence(Ordering::SeqCst);
            let register = self.uar.arm_register().as_ptr().cast::<u64>();
            register.write_volatile(doorbell.to_be());
        }
    }
}
