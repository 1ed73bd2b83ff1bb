//! Messages, WRITEs and READs between two queue pairs that report to one completion queue, with a look at
//! every byte: whether a protection domain works, however it was had.

use uverbs::{Access, Caps, Cq, Mr, Pd, Qp, Rc, RemoteSlice};

use crate::pair::options;
use crate::{Result, completions, pattern, same};

/// What peers may do to the memory.
pub const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ);

/// Bytes of a message: a few packets of soft-RoCE's default path.
pub const LENGTH: usize = 3000;

/// Messages that go each way; as many as rdma-core's own test of parent domains sends.
const ROUNDS: usize = 10;

/// The queues' sizes.
pub const CAPS: Caps = Caps {
    max_send_wr: 16,
    max_recv_wr: 16,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 64,
};

/// Two connected queue pairs, with memory of their own.
#[derive(Debug)]
pub struct Exchange {
    /// Sends, WRITEs and READs.
    pub a: Qp<Rc>,
    /// Receives.
    pub b: Qp<Rc>,
    /// Where everything completes.
    pub cq: Cq,
    source: Mr<Vec<u8>>,
    target: Mr<Vec<u8>>,
    /// Messages so far: each has bytes of its own.
    seed: u64,
}

impl Exchange {
    /// Queue pairs and memory on one protection domain.
    ///
    /// # Errors
    /// If something cannot be made.
    pub fn new(pd: &Pd) -> Result<Self> {
        Self::with(pd, pd, pd.context().create_cq(32)?)
    }

    /// Queue pairs on `pd` and memory in `memory`, which are to be interchangeable.
    ///
    /// # Errors
    /// If something cannot be made.
    pub fn with(pd: &Pd, memory: &Pd, cq: Cq) -> Result<Self> {
        let mut a = pd.create_qp::<Rc>(&cq, CAPS)?;
        let mut b = pd.create_qp::<Rc>(&cq, CAPS)?;
        let (at_a, at_b) = (a.endpoint()?, b.endpoint()?);
        a.connect_with(&at_b, &options())?;
        b.connect_with(&at_a, &options())?;
        Ok(Self {
            a,
            b,
            cq,
            source: memory.register(vec![0; LENGTH], OPEN)?,
            target: memory.register(vec![0; LENGTH], OPEN)?,
            seed: 0,
        })
    }

    /// Sends, writes and reads a few times, and compares every byte.
    ///
    /// # Errors
    /// If a request fails or other bytes come.
    pub fn exchange(&mut self) -> Result {
        (0..ROUNDS).try_for_each(|_| self.round())
    }

    /// One message, one WRITE and one READ.
    ///
    /// # Errors
    /// If a request fails or other bytes come.
    pub fn round(&mut self) -> Result {
        self.send()?;
        self.write_to(self.target.remote())?;
        same_bytes(&self.target, &self.sent(), "what was written")?;
        self.read_from(self.target.remote())
    }

    /// Writes new bytes to memory of anybody's.
    ///
    /// # Errors
    /// If the request fails.
    pub fn write_to(&mut self, target: RemoteSlice) -> Result {
        self.fill_source()?;
        let mut batch = self.a.batch();
        batch
            .signaled(3)
            .write(self.source.slice(..)?, target.slice(..LENGTH)?)?;
        batch.ring()?;
        self.complete(1)
    }

    /// Reads what was sent last back from anybody's memory, and looks at it.
    ///
    /// # Errors
    /// If the request fails or other bytes come.
    pub fn read_from(&mut self, from: RemoteSlice) -> Result {
        self.source.write_at(0, &[0; LENGTH])?;
        let mut batch = self.a.batch();
        batch
            .signaled(4)
            .read(self.source.slice(..)?, from.slice(..LENGTH)?)?;
        batch.ring()?;
        self.complete(1)?;
        same_bytes(&self.source, &self.sent(), "what was read")
    }

    fn send(&mut self) -> Result {
        self.fill_source()?;
        let mut batch = self.b.recv_batch();
        batch.post(1, self.target.slice(..)?)?;
        batch.ring();
        let mut batch = self.a.batch();
        batch.signaled(2).send(self.source.slice(..)?)?;
        batch.ring()?;
        self.complete(2)?;
        same_bytes(&self.target, &self.sent(), "what was received")
    }

    fn fill_source(&mut self) -> Result {
        self.seed += 1;
        Ok(self.source.write_at(0, &pattern(self.seed, LENGTH))?)
    }

    fn sent(&self) -> Vec<u8> {
        pattern(self.seed, LENGTH)
    }

    fn complete(&mut self, count: usize) -> Result {
        let all = completions(&mut self.cq, count)?;
        all.into_iter().try_for_each(|wc| wc.ok().map(drop))
    }
}

/// Fails unless a region starts with these bytes.
///
/// # Errors
/// If it does not.
#[track_caller]
pub fn same_bytes(mr: &Mr<Vec<u8>>, expected: &[u8], what: &str) -> Result {
    let mut bytes = vec![0; expected.len()];
    mr.read_at(0, &mut bytes)?;
    same(&bytes[..], expected, what)
}

/// Some rounds over a protection domain.
///
/// # Errors
/// If a request fails or other bytes come.
pub fn over(pd: &Pd) -> Result {
    Exchange::new(pd)?.exchange()
}
