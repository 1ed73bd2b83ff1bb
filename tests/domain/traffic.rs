//! Messages between two queue pairs of one device, and a look at every byte of them.

use support::exchange::{CAPS, LENGTH};
use support::{Exchange, QKEY, Result, Wc, completions, device, pattern, same};
use uverbs::{Access, Ah, ConnectOptions, Cq, Mr, ParentDomain, Pd, Qp, Rc, Ud, WcOpcode};

/// Messages that go each way; as many as rdma-core's own test of parent domains sends.
const ROUNDS: u64 = 10;

/// Bytes in front of a received datagram.
const GRH: usize = 40;

/// A completion queue whose ring is on the domain.
pub(crate) fn cq_on(domain: &ParentDomain) -> Result<Cq> {
    Ok(domain.context().cq(32).domain(domain).create()?)
}

/// Queue pairs, memory and a completion queue on one domain.
pub(crate) fn on_domain(domain: &ParentDomain) -> Result<Exchange> {
    Exchange::with(domain, domain, cq_on(domain)?)
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

    fn send_to(&mut self, qpn: u32, seed: u64) -> Result {
        self.from.write_at(0, &pattern(seed, SHORT))?;
        let mut batch = self.qp.batch();
        batch
            .signaled(2)
            .to(self.ah.to(qpn, QKEY))
            .send(self.from.slice(..)?)?;
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
        let mut batch = b.recv_batch();
        batch.post(1, to.slice(..)?)?;
        batch.ring();
        a.send_to(b.qpn(), seed)?;
        complete(&mut cq, 2)?;
        came(&to, GRH, seed)?;
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
        let mut batch = srq.batch();
        batch.post(1, to.slice(..)?)?;
        batch.ring();
        a.send_to(receiver.qpn(), seed)?;
        // Of the shared queue's requests only the completion tells who took them.
        let took = complete(&mut cq, 2)?;
        let by_receiver = |wc: &Wc| (wc.opcode, wc.qp_num) == (WcOpcode::RECV, receiver.qpn());
        if !took.iter().any(by_receiver) {
            return Err(format!("{:#x} was to take it, not {took:x?}", receiver.qpn()).into());
        }
        came(&to, GRH, seed)?;
    }
    Ok(())
}

/// Messages that are received from a shared queue, with the shared queue and the completion queue made larger
/// and smaller while requests wait.
pub(crate) fn shared_receives(domain: &ParentDomain) -> Result {
    let mut cq = cq_on(domain)?;
    let mut srq = domain.srq(7).create()?;
    let mut a = domain.create_qp::<Rc>(&cq, CAPS)?;
    let mut b = domain.qp(&cq).srq(&srq).caps(CAPS).create::<Rc>()?;
    let (at_a, at_b) = (a.endpoint()?, b.endpoint()?);
    a.connect(&at_b)?;
    b.connect(&at_a)?;
    let mut from = domain.register(vec![0u8; LENGTH], Access::empty())?;
    let to = domain.register(vec![0u8; LENGTH], Access::LOCAL_WRITE)?;
    for round in 0..ROUNDS {
        from.write_at(0, &pattern(round, LENGTH))?;
        let mut batch = srq.batch();
        batch.post(1, to.slice(..)?)?;
        batch.ring();
        match round {
            3 if device().resizes_srqs() => srq.resize(100)?,
            4 => cq.resize(200)?,
            6 if device().resizes_srqs() => srq.resize(7)?,
            7 => cq.resize(31)?,
            _ => {}
        }
        let mut batch = a.batch();
        batch.signaled(2).send(from.slice(..)?)?;
        batch.ring()?;
        complete(&mut cq, 2)?;
        came(&to, 0, round)?;
    }
    Ok(())
}

/// Waits for so many completions, all of them good.
fn complete(cq: &mut Cq, count: usize) -> Result<Vec<Wc>> {
    completions(cq, count)?.into_iter().map(Wc::ok).collect()
}

/// Fails unless the bytes of a seed have come behind `offset`.
fn came(region: &Mr<Vec<u8>>, offset: usize, seed: u64) -> Result {
    let mut bytes = vec![0; region.len() - offset];
    region.read_at(offset, &mut bytes)?;
    same(&bytes, &pattern(seed, bytes.len()), "what came")
}
