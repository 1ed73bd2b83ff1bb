//! Messages between two queue pairs of one device, and a look at every byte of them.

use std::time::{Duration, Instant};

use uverbs::{Access, Ah, Caps, ConnectOptions, Cq, Mr, ParentDomain, Pd, Qp, Rc, Ud, WcOpcode};

use super::Result;
use crate::device::device;

/// How long a completion may take. Under emulation everything is slow; only a hang takes this long.
const LIMIT: Duration = Duration::from_secs(20);

/// Messages that go each way; as many as rdma-core's own test of parent domains sends.
const ROUNDS: u8 = 10;

/// Bytes of a message: two packets of soft-RoCE's default path.
const SIZE: usize = 1500;

/// Bytes in front of a received datagram.
const GRH: usize = 40;

const QKEY: u32 = 0x1111_1111;

/// The queues that most tests make.
pub(crate) const CAPS: Caps = Caps {
    max_send_wr: 16,
    max_recv_wr: 16,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 64,
};

/// A completion queue whose ring is on the domain.
pub(crate) fn cq_on(domain: &ParentDomain) -> Result<Cq> {
    Ok(domain.context().cq(32).domain(domain).create()?)
}

/// Two connected queue pairs, with memory of their own.
pub(crate) struct RcPair {
    pub(crate) cq: Cq,
    pub(crate) a: Qp<Rc>,
    pub(crate) b: Qp<Rc>,
    from: Mr<Vec<u8>>,
    to: Mr<Vec<u8>>,
}

impl RcPair {
    /// Queue pairs on `pd` and memory in `memory`, which are to be interchangeable.
    pub(crate) fn new(pd: &Pd, memory: &Pd, cq: Cq) -> Result<Self> {
        let mut a = pd.create_qp::<Rc>(&cq, CAPS)?;
        let mut b = pd.create_qp::<Rc>(&cq, CAPS)?;
        let (at_a, at_b) = (a.endpoint()?, b.endpoint()?);
        a.connect(&at_b)?;
        b.connect(&at_a)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let from = memory.register(vec![0; SIZE], access)?;
        let to = memory.register(vec![0; SIZE], access)?;
        Ok(Self { cq, a, b, from, to })
    }

    /// Sends, writes and reads, and compares every byte.
    pub(crate) fn exchange(&mut self) -> Result {
        for round in 0..ROUNDS {
            self.send(round)?;
            self.write(round ^ 0x80)?;
            self.read(round ^ 0x40)?;
        }
        Ok(())
    }

    fn send(&mut self, seed: u8) -> Result {
        self.from.write_at(0, &pattern(seed))?;
        let mut batch = self.b.recv();
        // SAFETY: both regions live, and nobody touches them until the completions are here.
        unsafe { batch.post(1, self.to.slice(..)?)? };
        batch.ring()?;
        let mut batch = self.a.send();
        // SAFETY: as above.
        unsafe { batch.send(self.from.slice(..)?)? }.signaled(2);
        batch.ring()?;
        complete(&mut self.cq, 2)?;
        same(&self.to, 0, seed)
    }

    fn write(&mut self, seed: u8) -> Result {
        self.from.write_at(0, &pattern(seed))?;
        let mut batch = self.b.send();
        // SAFETY: both regions live, and nobody touches them until the completion is here.
        unsafe { batch.write(self.from.slice(..)?, self.to.remote())? }.signaled(3);
        batch.ring()?;
        complete(&mut self.cq, 1)?;
        same(&self.to, 0, seed)
    }

    fn read(&mut self, seed: u8) -> Result {
        self.to.write_at(0, &pattern(seed))?;
        let mut batch = self.a.send();
        // SAFETY: both regions live, and nobody touches them until the completion is here.
        unsafe { batch.read(self.from.slice(..)?, self.to.remote())? }.signaled(4);
        batch.ring()?;
        complete(&mut self.cq, 1)?;
        same(&self.from, 0, seed)
    }
}

/// Bytes of a datagram.
const SHORT: usize = 512;

/// A queue pair that sends datagrams along one path.
struct Sender {
    qp: Qp<Ud>,
    ah: Ah,
    from: Mr<Vec<u8>>,
}

impl Sender {
    /// A queue pair on `pd` with its address handle on `address` and its memory in `memory`.
    fn new(pd: &Pd, address: &Pd, memory: &Pd, cq: &Cq) -> Result<Self> {
        let qp = active(pd.create_qp::<Ud>(cq, CAPS)?)?;
        // All queue pairs are behind the same port.
        let path = pd
            .context()
            .path_to(&qp.endpoint()?, &ConnectOptions::default())?;
        Ok(Self {
            ah: address.create_ah(&path)?,
            from: memory.register(vec![0u8; SHORT], Access::empty())?,
            qp,
        })
    }

    fn send_to(&mut self, qpn: u32, seed: u8) -> Result {
        self.from.write_at(0, &pattern(seed)[..SHORT])?;
        let mut batch = self.qp.send();
        // SAFETY: the region lives, and nobody touches it until the completion is here.
        unsafe { batch.send_to(self.ah.to(qpn, QKEY), self.from.slice(..)?)? }.signaled(2);
        batch.ring()?;
        Ok(())
    }
}

/// The queue pair, ready for datagrams.
fn active(mut qp: Qp<Ud>) -> Result<Qp<Ud>> {
    qp.activate(QKEY, &ConnectOptions::default())?;
    Ok(qp)
}

/// Datagrams from one queue pair to another, the address handle on `address` and the memory in `memory`.
pub(crate) fn datagrams(pd: &Pd, address: &Pd, memory: &Pd, mut cq: Cq) -> Result {
    let mut a = Sender::new(pd, address, memory, &cq)?;
    let mut b = active(pd.create_qp::<Ud>(&cq, CAPS)?)?;
    let to = memory.register(vec![0u8; GRH + SHORT], Access::LOCAL_WRITE)?;
    for seed in 0..ROUNDS {
        let mut batch = b.recv();
        // SAFETY: the region lives, and nobody touches it until the completions are here.
        unsafe { batch.post(1, to.slice(..)?)? };
        batch.ring()?;
        a.send_to(b.qpn(), seed)?;
        complete(&mut cq, 2)?;
        same(&to, GRH, seed)?;
    }
    Ok(())
}

/// Datagrams to two queue pairs that receive from one shared queue, in turn.
pub(crate) fn shared_datagrams(domain: &ParentDomain) -> Result {
    let mut cq = cq_on(domain)?;
    let mut srq = domain.srq(7).create()?;
    let mut a = Sender::new(domain, domain, domain, &cq)?;
    let sharing = || active(domain.qp(&cq).srq(&srq).caps(CAPS).create::<Ud>()?);
    let receivers = [sharing()?, sharing()?];
    let to = domain.register(vec![0u8; GRH + SHORT], Access::LOCAL_WRITE)?;
    for (seed, receiver) in (0..ROUNDS).zip(receivers.iter().cycle()) {
        let mut batch = srq.recv();
        // SAFETY: the region lives, and nobody touches it until the completions are here.
        unsafe { batch.post(1, to.slice(..)?)? };
        batch.ring()?;
        a.send_to(receiver.qpn(), seed)?;
        // Of the shared queue's requests only the completion tells who took them.
        let took = complete(&mut cq, 2)?;
        if !took.contains(&(WcOpcode::RECV, receiver.qpn())) {
            return Err(format!("{:#x} was to take it, not {took:x?}", receiver.qpn()).into());
        }
        same(&to, GRH, seed)?;
    }
    Ok(())
}

/// Messages that are received from a shared queue, with the shared queue and the completion queue made larger and smaller
/// while requests wait.
pub(crate) fn shared_receives(domain: &ParentDomain) -> Result {
    let mut cq = cq_on(domain)?;
    let mut srq = domain.srq(7).create()?;
    let mut a = domain.create_qp::<Rc>(&cq, CAPS)?;
    let mut b = domain.qp(&cq).srq(&srq).caps(CAPS).create::<Rc>()?;
    let (at_a, at_b) = (a.endpoint()?, b.endpoint()?);
    a.connect(&at_b)?;
    b.connect(&at_a)?;
    let mut from = domain.register(vec![0u8; SIZE], Access::empty())?;
    let to = domain.register(vec![0u8; SIZE], Access::LOCAL_WRITE)?;
    for round in 0..ROUNDS {
        from.write_at(0, &pattern(round))?;
        let mut batch = srq.recv();
        // SAFETY: both regions live, and nobody touches them until the completions are here.
        unsafe { batch.post(1, to.slice(..)?)? };
        batch.ring()?;
        match round {
            3 if device().resizes_srqs() => srq.resize(100)?,
            4 => cq.resize(200)?,
            6 if device().resizes_srqs() => srq.resize(7)?,
            7 => cq.resize(31)?,
            _ => {}
        }
        let mut batch = a.send();
        // SAFETY: as above.
        unsafe { batch.send(from.slice(..)?)? }.signaled(2);
        batch.ring()?;
        complete(&mut cq, 2)?;
        same(&to, 0, round)?;
    }
    Ok(())
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..SIZE)
        .map(|at| (at as u8).wrapping_mul(7) ^ seed)
        .collect()
}

/// Waits for `count` completions, all of them good: what they are of, and of which queue pair.
fn complete(cq: &mut Cq, count: usize) -> Result<Vec<(WcOpcode, u32)>> {
    let until = Instant::now() + LIMIT;
    let mut seen = Vec::new();
    while seen.len() < count {
        for completion in &mut cq.poll()? {
            completion.result()?;
            seen.push((completion.opcode(), completion.qp_num()));
        }
        if Instant::now() > until {
            return Err(format!("{count} completions were to come: {seen:x?}").into());
        }
    }
    Ok(seen)
}

fn same(region: &Mr<Vec<u8>>, offset: usize, seed: u8) -> Result {
    let mut bytes = vec![0; region.len() - offset];
    region.read_at(offset, &mut bytes)?;
    if bytes != pattern(seed)[..bytes.len()] {
        return Err(format!("wrong bytes arrived in round {seed:#x}").into());
    }
    Ok(())
}
