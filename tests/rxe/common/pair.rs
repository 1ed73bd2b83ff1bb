//! Two queue pairs on one device, connected to each other, each with a completion queue and memory.

use uverbs::{
    Access, Caps, ConnectOptions, Connected, Context, Cq, Mr, Pd, Qp, QpBuilder, StaticTransport,
    Transport, Ud,
};

use super::Result;
use super::device::open;

/// What peers may do to the memory of a pair: everything.
pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// The key of datagrams.
pub(crate) const QKEY: u32 = 0x1122_3344;

/// What a pair is to have.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) caps: Caps,
    pub(crate) options: ConnectOptions,
    /// Entries of each completion queue.
    pub(crate) cqe: u32,
    /// Bytes of each memory region.
    pub(crate) length: usize,
    pub(crate) signal_all: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            caps: Caps::default(),
            options: ConnectOptions::default(),
            cqe: 256,
            length: 8192,
            signal_all: false,
        }
    }
}

/// One of the two queue pairs. The queue pair is declared first: it goes before what it may still work on, which is
/// what makes it sound to post slices of `mr` to `qp`, whatever a failing test leaves behind.
pub(crate) struct Side<T: Transport> {
    pub(crate) qp: Qp<T>,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr<Vec<u8>>,
}

/// Two connected queue pairs in one protection domain.
pub(crate) struct Pair<T: Transport> {
    pub(crate) a: Side<T>,
    pub(crate) b: Side<T>,
    pub(crate) pd: Pd,
    pub(crate) context: Context,
}

impl<T: Transport> Side<T> {
    /// Bytes of its memory.
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.mr.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Posts one receive into a part of its memory.
    pub(crate) fn post_recv(&mut self, wr_id: u64, range: std::ops::Range<u64>) -> Result {
        let slice = self.mr.slice(range)?;
        let mut batch = self.qp.recv();
        // SAFETY: the memory outlives the queue pair, and tests look at it by copying after the completion only.
        unsafe { batch.post(wr_id, slice)? };
        batch.ring()?;
        Ok(())
    }
}

impl<T: Transport> Pair<T> {
    /// Two queue pairs in the state RESET, made by `create`.
    pub(crate) fn create(
        context: &Context,
        setup: &Setup,
        create: impl Fn(QpBuilder<'_>) -> uverbs::Result<Qp<T>>,
    ) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let side = || -> Result<Side<T>> {
            let cq = context.create_cq(setup.cqe)?;
            let builder = pd.qp(&cq).caps(setup.caps).signal_all(setup.signal_all);
            Ok(Side {
                qp: create(builder)?,
                mr: pd.register(vec![0; setup.length], ALL)?,
                cq,
            })
        };
        Ok(Self {
            a: side()?,
            b: side()?,
            pd,
            context: context.clone(),
        })
    }
}

impl<T: Connected> Pair<T> {
    /// Connects the two, from whatever state.
    pub(crate) fn connect(&mut self, options: &ConnectOptions) -> Result {
        let (a, b) = (
            self.a.qp.endpoint_with(options)?,
            self.b.qp.endpoint_with(options)?,
        );
        self.a.qp.connect_with(&b, options)?;
        self.b.qp.connect_with(&a, options)?;
        Ok(())
    }
}

impl<T: Connected + StaticTransport> Pair<T> {
    /// A connected pair on the guest's device.
    pub(crate) fn connected(setup: &Setup) -> Result<Self> {
        Self::connected_on(&open()?, setup)
    }

    /// A connected pair on a device of choice.
    pub(crate) fn connected_on(context: &Context, setup: &Setup) -> Result<Self> {
        let mut pair = Self::create(context, setup, |qp| qp.create())?;
        pair.connect(&setup.options)?;
        Ok(pair)
    }
}

impl Pair<Ud> {
    /// Two datagram queue pairs that are ready to send.
    pub(crate) fn datagram_on(context: &Context, setup: &Setup) -> Result<Self> {
        let mut pair = Self::create(context, setup, |qp| qp.create())?;
        pair.a.qp.activate(QKEY, &setup.options)?;
        pair.b.qp.activate(QKEY, &setup.options)?;
        Ok(pair)
    }
}
