//! What the tests stand on: two connected queue pairs on one completion queue, and a pool.

use std::future::Future;

use support::{Result, open, same};
use uverbs::aio::{Cq, Qp};
use uverbs::buf::{Buf, Pool};
use uverbs::transport::StaticTransport;
use uverbs::{Access, Caps, ConnectOptions, Context, Mr, Pd, Rc};

/// Queue pairs that are connected to each other.
pub(crate) struct Two {
    pub(crate) a: Qp<Rc>,
    pub(crate) b: Qp<Rc>,
    pub(crate) cq: Cq,
    pub(crate) pool: Pool,
    pub(crate) pd: Pd,
    pub(crate) context: Context,
}

/// What peers may do to regions.
pub(crate) const ALL: Access = support::ALL;

impl Two {
    pub(crate) fn new() -> Result<Self> {
        Self::with(Caps::default())
    }

    pub(crate) fn with(caps: Caps) -> Result<Self> {
        let context = open()?;
        let pd = context.alloc_pd()?;
        let entries = 2 * (caps.max_send_wr + caps.max_recv_wr);
        let cq = Cq::new(&context, entries)?;
        let pool = Pool::on(&pd).sizes([256, 4096]).limit(8 << 20).build()?;
        let mut a = cq.create_qp::<Rc>(&pd, caps)?;
        let mut b = cq.create_qp::<Rc>(&pd, caps)?;
        connect(&mut a, &mut b)?;
        Ok(Self {
            a,
            b,
            cq,
            pool,
            pd,
            context,
        })
    }

    /// Runs a future to its end on this thread, which pumps.
    pub(crate) fn run<F: Future>(&self, future: F) -> Result<F::Output> {
        Ok(self.cq.block_on(future)?)
    }

    /// A buffer that is filled with these bytes.
    pub(crate) fn buf(&self, bytes: &[u8]) -> Result<Buf> {
        filled(&self.pool, bytes)
    }

    /// Memory that peers may do everything with.
    pub(crate) fn region(&self, bytes: usize) -> Result<Mr<Vec<u8>>> {
        Ok(self.pd.register(vec![0; bytes], ALL)?)
    }

    /// Every buffer is in the pool.
    pub(crate) fn nothing_is_missing(&self) -> Result {
        same(self.pool.stats().in_use(), 0, "buffers in use")
    }
}

/// A completion queue and a pool on one PD.
pub(crate) struct Side {
    pub(crate) cq: Cq,
    pub(crate) pool: Pool,
    pub(crate) pd: Pd,
}

impl Side {
    pub(crate) fn new() -> Result<Self> {
        let context = open()?;
        let pd = context.alloc_pd()?;
        Ok(Self {
            cq: Cq::new(&context, 256)?,
            pool: Pool::on(&pd).sizes([256]).build()?,
            pd,
        })
    }

    /// A queue pair that is not connected yet.
    pub(crate) fn qp<T: StaticTransport>(&self) -> Result<Qp<T>> {
        Ok(self.cq.create_qp(&self.pd, Caps::default())?)
    }
}

/// A buffer of a pool that is filled with these bytes.
pub(crate) fn filled(pool: &Pool, bytes: &[u8]) -> Result<Buf> {
    let mut buf = pool.try_get(bytes.len())?;
    buf.extend_from_slice(bytes)?;
    Ok(buf)
}

/// Connects two queue pairs of one process.
pub(crate) fn connect(a: &mut Qp<Rc>, b: &mut Qp<Rc>) -> Result {
    let options = ConnectOptions {
        access: ALL,
        ..ConnectOptions::default()
    };
    let (here, there) = (a.endpoint_with(&options)?, b.endpoint_with(&options)?);
    a.connect_with(&there, &options)?;
    b.connect_with(&here, &options)?;
    Ok(())
}
