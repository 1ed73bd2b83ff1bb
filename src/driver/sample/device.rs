//! The device: memory of this process, and a mutex instead of the bus.
//!
//! It executes what was rung in an order that a seed decides, whenever a thread looks for completions. It
//! knows requests by the driver's numbers, and completes every one of them.

use std::collections::{BTreeMap, VecDeque};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::types::Sge;

use crate::work::{Operation, Remote};

/// A send request as the device reads it.
#[derive(Debug)]
pub(super) struct Wqe {
    pub(super) number: u16,
    pub(super) operation: Operation,
    pub(super) dest_qpn: u32,
    pub(super) data: Data,
}

/// A receive request as the device reads it.
#[derive(Debug)]
pub(super) struct Rqe {
    pub(super) number: u16,
    pub(super) slices: Vec<Sge>,
}

/// The bytes that a send request carries, or where it stores what it reads.
#[derive(Clone, Debug)]
pub(super) enum Data {
    Slices(Vec<Sge>),
    Inline(Vec<u8>),
}

/// A completion as the device writes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cqe {
    pub(super) qpn: u32,
    pub(super) number: u16,
    pub(super) is_receive: bool,
    pub(super) status: WcStatus,
    pub(super) opcode: WcOpcode,
    pub(super) byte_len: u32,
    pub(super) src_qp: u32,
    /// In network byte order.
    pub(super) imm: Option<u32>,
}

#[derive(Debug)]
struct QueuePair {
    send_cq: u32,
    recv_cq: u32,
    receives: VecDeque<Rqe>,
}

#[derive(Debug, Default)]
struct State {
    random: u64,
    last_number: u32,
    /// Address and bytes, by key.
    regions: BTreeMap<u32, (u64, u64)>,
    cqs: BTreeMap<u32, VecDeque<Cqe>>,
    queue_pairs: BTreeMap<u32, QueuePair>,
    /// What was rung, with the number of its queue pair.
    in_work: Vec<(u32, Wqe)>,
}

/// The state that all users of the device share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Device(Arc<Mutex<State>>);

impl Device {
    /// A device, in which this seed decides the order of execution.
    pub(crate) fn new(seed: u64) -> Self {
        let device = Self::default();
        device.state().random = seed;
        device
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the device read and write `length` bytes from an address on; returns their key.
    pub(super) fn register(&self, address: u64, length: u64) -> u32 {
        let mut state = self.state();
        let key = state.new_number();
        state.regions.insert(key, (address, length));
        key
    }

    pub(super) fn create_cq(&self) -> u32 {
        let mut state = self.state();
        let number = state.new_number();
        state.cqs.insert(number, VecDeque::new());
        number
    }

    pub(super) fn create_qp(&self, send_cq: u32, recv_cq: u32) -> u32 {
        let mut state = self.state();
        let qpn = state.new_number();
        let queue_pair = QueuePair {
            send_cq,
            recv_cq,
            receives: VecDeque::new(),
        };
        state.queue_pairs.insert(qpn, queue_pair);
        qpn
    }

    /// Forgets everything that belongs to a queue pair, which is then as new.
    pub(super) fn reset(&self, qpn: u32) {
        let mut state = self.state();
        state.in_work.retain(|(of, _)| *of != qpn);
        for entries in state.cqs.values_mut() {
            entries.retain(|entry| entry.qpn != qpn);
        }
        if let Some(queue_pair) = state.queue_pairs.get_mut(&qpn) {
            queue_pair.receives.clear();
        }
    }

    pub(super) fn destroy_qp(&self, qpn: u32) {
        self.reset(qpn);
        self.state().queue_pairs.remove(&qpn);
    }

    pub(super) fn ring_sends(&self, qpn: u32, requests: impl Iterator<Item = Wqe>) {
        let rung = requests.map(|request| (qpn, request));
        self.state().in_work.extend(rung);
    }

    pub(super) fn ring_receives(&self, qpn: u32, requests: impl Iterator<Item = Rqe>) {
        if let Some(queue_pair) = self.state().queue_pairs.get_mut(&qpn) {
            queue_pair.receives.extend(requests);
        }
    }

    /// Executes what it can, and takes the next completion.
    pub(super) fn next(&self, cq: u32) -> Option<Cqe> {
        let mut state = self.state();
        state.work();
        state.cqs.get_mut(&cq)?.pop_front()
    }

    /// Executes what it can, and says whether no completion waits.
    pub(super) fn is_empty(&self, cq: u32) -> bool {
        let mut state = self.state();
        state.work();
        state.cqs.get(&cq).is_none_or(VecDeque::is_empty)
    }
}

impl State {
    fn new_number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    /// A number below `end`, which is not 0: xorshift.
    fn below(&mut self, end: usize) -> usize {
        let mut x = self.random | 1;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random = x;
        ((x >> 32) % end as u64) as usize
    }

    /// Executes what was rung, except messages whose receiver is not ready.
    fn work(&mut self) {
        let mut waiting = Vec::new();
        while !self.in_work.is_empty() {
            let at = self.below(self.in_work.len());
            let (qpn, request) = self.in_work.swap_remove(at);
            if !self.execute(qpn, &request) {
                waiting.push((qpn, request));
            }
        }
        self.in_work = waiting;
    }

    /// Executes one request and completes it; false if the receiver is not ready.
    fn execute(&mut self, qpn: u32, request: &Wqe) -> bool {
        let (opcode, done) = match request.operation {
            Operation::Send => (WcOpcode::SEND, self.send(qpn, request, None)),
            Operation::SendImm { imm } => (WcOpcode::SEND, self.send(qpn, request, Some(imm))),
            Operation::Write { remote } => {
                (WcOpcode::RDMA_WRITE, Some(self.write(request, remote)))
            }
            Operation::Read { remote } => (WcOpcode::RDMA_READ, Some(self.read(request, remote))),
            _ => (WcOpcode::SEND, Some(WcStatus::LOC_QP_OP_ERR)),
        };
        let Some(status) = done else {
            return false;
        };
        let send_cq = self.queue_pairs.get(&qpn).map(|it| it.send_cq);
        let completion = Cqe {
            qpn,
            number: request.number,
            is_receive: false,
            status,
            opcode,
            byte_len: 0,
            src_qp: 0,
            imm: None,
        };
        self.complete(send_cq, completion);
        true
    }

    fn complete(&mut self, cq: Option<u32>, completion: Cqe) {
        if let Some(entries) = cq.and_then(|cq| self.cqs.get_mut(&cq)) {
            entries.push_back(completion);
        }
    }

    /// None if the receiver has posted nothing.
    fn send(&mut self, qpn: u32, request: &Wqe, imm: Option<u32>) -> Option<WcStatus> {
        let Some(bytes) = self.load(&request.data) else {
            return Some(WcStatus::LOC_PROT_ERR);
        };
        let Some(to) = self.queue_pairs.get_mut(&request.dest_qpn) else {
            return Some(WcStatus::REM_INV_RD_REQ_ERR);
        };
        let (recv_cq, receive) = (to.recv_cq, to.receives.pop_front()?);
        let status = match self.store(&receive.slices, &bytes) {
            true => WcStatus::SUCCESS,
            false => WcStatus::LOC_LEN_ERR,
        };
        let completion = Cqe {
            qpn: request.dest_qpn,
            number: receive.number,
            is_receive: true,
            status,
            opcode: WcOpcode::RECV,
            byte_len: bytes.len() as u32,
            src_qp: qpn,
            imm,
        };
        self.complete(Some(recv_cq), completion);
        Some(WcStatus::SUCCESS)
    }

    fn write(&self, request: &Wqe, remote: Remote) -> WcStatus {
        let Some(bytes) = self.load(&request.data) else {
            return WcStatus::LOC_PROT_ERR;
        };
        match self.store(&[there(remote, bytes.len())], &bytes) {
            true => WcStatus::SUCCESS,
            false => WcStatus::REM_ACCESS_ERR,
        }
    }

    fn read(&self, request: &Wqe, remote: Remote) -> WcStatus {
        let Data::Slices(slices) = &request.data else {
            return WcStatus::LOC_QP_OP_ERR;
        };
        let length = slices.iter().map(|slice| slice.length as usize).sum();
        let Some(bytes) = self.load(&Data::Slices(vec![there(remote, length)])) else {
            return WcStatus::REM_ACCESS_ERR;
        };
        match self.store(slices, &bytes) {
            true => WcStatus::SUCCESS,
            false => WcStatus::LOC_PROT_ERR,
        }
    }

    fn is_registered(&self, slice: &Sge) -> bool {
        let region = self.regions.get(&slice.lkey);
        region.is_some_and(|(address, length)| {
            let offset = slice.addr.checked_sub(*address);
            offset.is_some_and(|offset| offset.saturating_add(u64::from(slice.length)) <= *length)
        })
    }

    /// The bytes that a request carries, if all of its memory is registered.
    fn load(&self, data: &Data) -> Option<Vec<u8>> {
        let slices = match data {
            Data::Inline(bytes) => return Some(bytes.clone()),
            Data::Slices(slices) => slices,
        };
        let mut bytes = Vec::new();
        for slice in slices {
            if !self.is_registered(slice) {
                return None;
            }
            let from = with_exposed_provenance::<u8>(slice.addr as usize);
            for at in 0..slice.length as usize {
                // SAFETY: registered memory stays, and nobody writes it until the request has completed.
                bytes.push(unsafe { from.add(at).read_volatile() });
            }
        }
        Some(bytes)
    }

    /// Stores bytes over slices; false if these are too short or not registered.
    fn store(&self, slices: &[Sge], bytes: &[u8]) -> bool {
        let mut rest = bytes;
        for slice in slices {
            if !self.is_registered(slice) {
                return false;
            }
            let to = with_exposed_provenance_mut::<u8>(slice.addr as usize);
            let (now, later) = rest.split_at(rest.len().min(slice.length as usize));
            for (at, byte) in now.iter().enumerate() {
                // SAFETY: registered memory stays, and nobody uses it until the request has completed.
                unsafe { to.add(at).write_volatile(*byte) };
            }
            rest = later;
        }
        rest.is_empty()
    }
}

/// A peer's memory as a slice.
fn there(remote: Remote, length: usize) -> Sge {
    Sge {
        addr: remote.address,
        length: length as u32,
        lkey: remote.rkey.0,
    }
}
