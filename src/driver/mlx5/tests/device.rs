//! The device's side: completion queues that it writes to, queue pairs whose rings it reads.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};

use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::SendFlags;
use uverbs_uapi::handle::{CqHandle, PdHandle};
use uverbs_uapi::types::QpCap;
use zerocopy::FromZeros;

use super::super::completion::Completion;
use super::super::cq::{Cq, CqCore};
use super::super::entries::{Entries, View};
use super::super::format::{
    Be16, Be32, Cqe, INDEX_MASK, OP_OWN, RECORD_CONSUMER, RECORD_RECEIVE, RECORD_SEND,
};
use super::super::ledger::SrqLedger;
use super::super::memory::{Memory, Record, Records};
use super::super::page::UarPage;
use super::super::qp::{Draft, QpCore};
use super::super::recv::{RecvQueue, SharedRecvQueue};
use super::super::send::SendQueue;
use super::super::srq::SrqRing;
use super::super::uar::Lease;
use super::super::{Limits, Parts, entries};
use crate::alloc::{Buffers, ResourceType};
use crate::command::QpSpec;
use crate::driver::contract::sending;
use crate::work::{Operation, Payload, PostError};

/// The limits of a ConnectX.
pub(super) const LIMITS: Limits = Limits {
    max_sq_desc_sz: 1024,
    max_rq_desc_sz: 512,
    max_send_wqebb: 1 << 15,
    max_recv_wr: 1 << 15,
    max_srq_recv_wr: (1 << 15) - 1,
};

/// The number on the wire of all queue pairs here.
pub(super) const QPN: u32 = 0x12_3456;
/// Bytes of a register, of which half is written at a time.
pub(super) const REGISTER: usize = 512;

/// A completion queue for at least `cqe` completions.
pub(super) fn cq(cqe: u32, size: usize) -> (Cq, Producer) {
    let count = entries(cqe, u32::MAX).unwrap();
    let bytes = Entries::bytes(count, size);
    let memory = Memory::new(bytes, 4096, ResourceType::MLX5_CQ, None).unwrap();
    let ring = Entries::new(memory, count, size);
    ring.invalidate(0);
    let view = ring.view();
    let record = Record::new(&Records::new(ResourceType::MLX5_DBR), None).unwrap();
    let page = Arc::new(UarPage::of_memory());
    let core = Arc::new(CqCore::new(ring, record, 0x77, page));
    let cq = Cq::new(Arc::clone(&core));
    (
        cq,
        Producer {
            view,
            next: 0,
            core,
        },
    )
}

/// The next completion.
pub(super) fn take(cq: &mut Cq) -> Option<Completion> {
    cq.begin().next()
}

/// The device's end of a completion queue.
pub(super) struct Producer {
    pub(super) view: View,
    pub(super) next: u32,
    core: Arc<CqCore>,
}

// SAFETY: the view is of memory that the core keeps.
unsafe impl Send for Producer {}

impl Producer {
    /// How many entries have been written and not given back, as the device sees it.
    pub(super) fn waiting(&self) -> u32 {
        // Acquire: pairs with the release with which the poller gives entries back.
        let word = self.core.directory.record().word(RECORD_CONSUMER);
        let word = word.load(Ordering::Acquire);
        self.next.wrapping_sub(u32::from_be(word)) & INDEX_MASK
    }

    /// Writes the half before the fields of the next entry, which has 128 bytes.
    pub(super) fn write_before(&mut self, data: &[u8]) {
        assert!(self.view.entry_bytes() == 128 && data.len() <= 64);
        // SAFETY: the other half of an entry comes before, and the poller does not read it yet.
        unsafe {
            let at = self.view.entry(self.next).cast::<u8>().sub(64);
            at.as_ptr().copy_from(data.as_ptr(), data.len());
        }
    }

    /// Writes a completion whose owner bit is set here, last.
    pub(super) fn write(&mut self, entry: Cqe) {
        let lap = u8::from(self.next & self.view.count() != 0);
        let op_own = entry.op_own & !1 | lap;
        let at = self.view.entry(self.next);
        // SAFETY: the entry lies in the ring; the poller does not read it before its owner bit has turned.
        unsafe {
            let bytes = (&raw const entry).cast::<u8>();
            at.as_ptr().cast::<u8>().copy_from(bytes, OP_OWN);
            at.cast::<AtomicU8>()
                .add(OP_OWN)
                .as_ref()
                .store(op_own, Ordering::Release);
        }
        self.next = self.next.wrapping_add(1);
    }
}

/// A completion of a kind, of the queue with that number, of the request with that index.
pub(super) fn completion(kind: u8, number: u32, counter: u16) -> Cqe {
    let mut entry = Cqe::new_zeroed();
    entry.op_own = kind << 4;
    entry.srqn_uidx = Be32::new(number);
    entry.wqe_counter = Be16::new(counter);
    entry.sop_drop_qpn = Be32::new(QPN);
    entry
}

/// A shared receive queue of `elements` elements, one of which always stays free.
pub(super) fn shared(elements: u32) -> SharedRecvQueue {
    let bytes = elements as usize * 32;
    let memory = Memory::new(bytes, 4096, ResourceType::MLX5_SRQ, None).unwrap();
    let record = Record::new(&Records::new(ResourceType::MLX5_DBR), None).unwrap();
    let ring = Arc::new(SrqRing::new(memory, record, elements, 32));
    SharedRecvQueue::new(ring, Arc::new(SrqLedger::new(elements)))
}

/// A queue pair, and where its rings lie.
pub(super) struct Pair {
    pub(super) send: SendQueue,
    pub(super) recv: Option<RecvQueue>,
    pub(super) core: Arc<QpCore>,
    pub(super) number: u32,
    pub(super) page: Arc<UarPage>,
    pub(super) blocks: u32,
    send_ring: u64,
    recv_ring: u64,
    record: u64,
    stride: u32,
}

/// Capacities.
pub(super) fn cap(wr: u32, sge: u32, inline: u32) -> QpCap {
    QpCap {
        max_send_wr: wr,
        max_recv_wr: wr,
        max_send_sge: sge,
        max_recv_sge: sge,
        max_inline_data: inline,
    }
}

impl Pair {
    /// A queue pair that reports to these two.
    pub(super) fn new(qp_type: QpType, cap: QpCap, send: &Cq, recv: &Cq) -> Self {
        Self::with(qp_type, cap, send, recv, None)
    }

    pub(super) fn with(
        qp_type: QpType,
        cap: QpCap,
        send: &Cq,
        recv: &Cq,
        srq: Option<&SharedRecvQueue>,
    ) -> Self {
        Self::made(qp_type, cap, send, recv, (srq, None), (false, false, false))
    }

    /// One that reports to this queue, whose receives finish in any order.
    pub(super) fn loose(qp_type: QpType, cap: QpCap, cq: &Cq) -> Self {
        Self::made(qp_type, cap, cq, cq, (None, None), (false, true, false))
    }

    /// One that reports to this queue, on a CPU that can store a block at once.
    pub(super) fn at_once(qp_type: QpType, cap: QpCap, cq: &Cq) -> Self {
        Self::made(qp_type, cap, cq, cq, (None, None), (false, false, true))
    }

    /// One that reports to this queue, whose payloads may come in completions.
    pub(super) fn inline(qp_type: QpType, cap: QpCap, cq: &Cq) -> Self {
        Self::made(qp_type, cap, cq, cq, (None, None), (true, false, false))
    }

    /// As [`Self::inline`], with its rings where an allocator says.
    pub(super) fn inline_in(qp_type: QpType, cap: QpCap, cq: &Cq, buffers: &Buffers) -> Self {
        Self::made(
            qp_type,
            cap,
            cq,
            cq,
            (None, Some(buffers)),
            (true, false, false),
        )
    }

    fn made(
        qp_type: QpType,
        cap: QpCap,
        send: &Cq,
        recv: &Cq,
        (srq, buffers): (Option<&SharedRecvQueue>, Option<&Buffers>),
        (inline_scatter, out_of_order, at_once): (bool, bool, bool),
    ) -> Self {
        let spec = QpSpec {
            pd: PdHandle(1),
            send_cq: CqHandle(2),
            recv_cq: CqHandle(3),
            srq: None,
            qp_type,
            cap,
            sq_sig_all: false,
            flags: uverbs_uapi::flags::QpCreateFlags::empty(),
            user_handle: 0,
            event_fd: None,
        };
        let srq = srq.map(SharedRecvQueue::drawn);
        let parts = Parts {
            send_cq: send.core(),
            recv_cq: recv.core(),
            srq: srq.as_ref(),
            buffers,
            thread_domain: None,
            inline_scatter,
            out_of_order,
            unsolicited_writes: false,
            streams: None,
            for_agent: false,
            service_level: None,
            follows_requests: true,
        };
        let page = Arc::new(UarPage::of_memory());
        let lease = Arc::new(Lease::alone(&page, REGISTER, at_once));
        let draft = Draft::new(
            &spec,
            &LIMITS,
            &Records::new(ResourceType::MLX5_DBR),
            lease,
            &parts,
        );
        let draft = draft.unwrap();
        let told = draft.driver_data();
        let (send, recv, core) = draft.finish(QPN, false, None);
        let recv_bytes = u64::from(told.rq_wqe_count) << told.rq_wqe_shift;
        Self {
            send,
            recv,
            core,
            number: told.uidx,
            page,
            blocks: told.sq_wqe_count,
            send_ring: told.buf_addr + recv_bytes,
            recv_ring: told.buf_addr,
            record: told.db_addr,
            stride: 1 << told.rq_wqe_shift,
        }
    }

    /// Posts a single request, with this id and these flags.
    pub(super) fn post(
        &mut self,
        operation: Operation,
        payload: Payload<'_>,
        (id, flags): (u64, SendFlags),
    ) -> Result<(), PostError> {
        let mut batch = sending(&mut self.send);
        batch.write(id, flags, operation, None, payload)?;
        batch.ring().unwrap();
        Ok(())
    }

    /// Posts a SEND of nothing with this id.
    pub(super) fn send_nothing(&mut self, id: u64) -> Result<(), PostError> {
        let options = (id, SendFlags::empty());
        self.post(Operation::Send, Payload::Gather(&[]), options)
    }

    /// The `bytes` bytes of a send request from the start of a block on, going round the ring.
    pub(super) fn sent(&self, block: u32, bytes: usize) -> Vec<u8> {
        let size = self.blocks as usize * 64;
        let first = (block & (self.blocks - 1)) as usize * 64;
        (0..bytes)
            .map(|at| byte_at(self.send_ring + ((first + at) % size) as u64))
            .collect()
    }

    /// The bytes of an element of the receive ring.
    pub(super) fn element(&self, index: u32) -> Vec<u8> {
        let first = self.recv_ring + u64::from(index * self.stride);
        (0..u64::from(self.stride))
            .map(|at| byte_at(first + at))
            .collect()
    }

    /// Up to where sends were rung, modulo 2^16, as the device sees it.
    pub(super) fn sends(&self) -> impl Fn() -> u16 + Send + use<> {
        let (record, core) = (self.record, Arc::clone(&self.core));
        move || {
            let _keeps_the_record = &core;
            // The half that the poster stores.
            let at = record as usize + 4 * RECORD_SEND + 2;
            let at = ptr::with_exposed_provenance::<AtomicU16>(at);
            // SAFETY: the record is there as long as the core.
            u16::from_be(unsafe { &*at }.load(Ordering::Acquire))
        }
    }

    /// What the doorbell record says of receives and sends.
    pub(super) fn record(&self) -> (u32, u32) {
        (
            word(self.record, RECORD_RECEIVE),
            word(self.record, RECORD_SEND),
        )
    }
}

/// A word of a doorbell record, which is alive as long as its core. Nobody stores to it meanwhile.
fn word(record: u64, index: usize) -> u32 {
    let at = ptr::with_exposed_provenance::<AtomicU32>(record as usize + 4 * index);
    // SAFETY: the caller has the core.
    u32::from_be(unsafe { &*at }.load(Ordering::Acquire))
}

fn byte_at(address: u64) -> u8 {
    let at = ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: addresses are of rings that the queue pair keeps, and nobody writes them meanwhile.
    unsafe { at.read_volatile() }
}
