//! Two queue pairs on one device, connected to each other, each with a completion queue and memory.

use std::ops::Range;
use std::result::Result as Either;

use uverbs::{
    Access, Caps, ConnectOptions, Context, Cq, Mr, Pd, PostError, Qp, QpState, Request, Ud,
    qp::QpBuilder,
    transport::{Connected, StaticTransport, Transport},
};

use crate::{Device, Result, Wc, completion, device, kernel, open, until};

/// What peers may do to the memory of a pair: all that every kernel has.
pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// [`ALL`], as far as the device has it: an EFA has no atomics, and on Linux 6.1 no WRITE.
pub fn all_there_is() -> Access {
    match device() {
        Device::Efa if kernel() < (6, 12) => ALL
            .difference(Access::REMOTE_ATOMIC)
            .difference(Access::REMOTE_WRITE),
        Device::Efa => ALL.difference(Access::REMOTE_ATOMIC),
        Device::Rxe | Device::Mlx5 { .. } => ALL,
    }
}

/// The key of datagrams.
pub const QKEY: u32 = 0x1122_3344;

/// How tests connect queue pairs whose peers answer: the usual way, but what is not acknowledged is sent
/// again after a second.
///
/// Nothing is lost between queue pairs of one device. A packet is sent again only if the host did not run the
/// guest for that long. Soft-RoCE then has faults of its own (docs/soak.md): a READ in front of other
/// requests may complete without its data. A peer that is gone is given up after 8 seconds, within
/// [`crate::LIMIT`].
pub fn options() -> ConnectOptions {
    ConnectOptions {
        timeout: 18,
        ..ConnectOptions::default()
    }
}

/// What a pair is to have.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Of each queue pair. Usually there is room for every request of a test whose completions are taken
    /// late, since hardware has its place in the ring back only then.
    pub caps: Caps,
    /// With what the two are connected or activated.
    pub options: ConnectOptions,
    /// Entries of each completion queue.
    pub cqe: u32,
    /// Bytes of each memory region.
    pub length: usize,
    /// Whether every send completes.
    pub signal_all: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            caps: Caps {
                max_send_wr: 128,
                max_inline_data: device().inline(),
                ..Caps::default()
            },
            options: options(),
            cqe: 256,
            length: 8192,
            signal_all: false,
        }
    }
}

impl Setup {
    /// The usual pair, with queue pairs of other capacities.
    pub fn with_caps(caps: Caps) -> Self {
        Self {
            caps,
            ..Self::default()
        }
    }

    /// The usual pair, whose queue pairs give their peers this access.
    pub fn with_access(access: Access) -> Self {
        Self {
            options: ConnectOptions {
                access,
                ..options()
            },
            ..Self::default()
        }
    }
}

/// One of the two queue pairs. The queue pair is declared first: it goes before what it may still work on,
/// which is what makes it sound to post slices of `mr` to `qp`, whatever a failing test leaves behind.
#[derive(Debug)]
pub struct Side<T: Transport> {
    /// The queue pair.
    pub qp: Qp<T>,
    /// Where its requests complete.
    pub cq: Cq,
    /// Memory that its peer may do everything with.
    pub mr: Mr<Vec<u8>>,
}

/// Two connected queue pairs in one protection domain.
///
/// Tests declare a pair before regions of their own that they post: what is declared last is dropped first,
/// so a region whose test failed halfway is deregistered while requests may still name it. Deregistering ends
/// the device's access before the memory is freed, so that is sound.
#[derive(Debug)]
#[expect(
    missing_docs,
    reason = "the sides are alike, and the others are their types"
)]
pub struct Pair<T: Transport> {
    pub a: Side<T>,
    pub b: Side<T>,
    pub pd: Pd,
    pub context: Context,
}

impl<T: Transport> Side<T> {
    /// A queue pair made by `create`, in the state RESET, that reports to a completion queue of choice.
    ///
    /// # Errors
    /// If something cannot be made.
    pub fn new(
        pd: &Pd,
        cq: Cq,
        setup: &Setup,
        create: impl FnOnce(QpBuilder<'_>) -> uverbs::Result<Qp<T>>,
    ) -> Result<Self> {
        let builder = pd.qp(&cq).caps(setup.caps).signal_all(setup.signal_all);
        Ok(Self {
            qp: create(builder)?,
            mr: pd.register(vec![0; setup.length], all_there_is())?,
            cq,
        })
    }

    /// Bytes of its memory.
    ///
    /// # Errors
    /// If it has fewer.
    pub fn bytes(&self, offset: usize, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.mr.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Waits until its queue pair is in this state. A failure that has been told need not have had its effect
    /// yet: soft-RoCE completes the request and changes the state of the queue pair after that
    /// (`COMPST_ERROR` in `rxe_completer`).
    ///
    /// # Errors
    /// If it does not come to that.
    pub fn await_state(&self, state: QpState) -> Result {
        let mut last = None;
        let reached = until(&format!("{state:?}"), || {
            last = Some(self.qp.query()?.state);
            Ok((last == Some(state)).then_some(()))
        });
        reached.map_err(|error| format!("{error}, but {last:?}").into())
    }

    /// Posts one receive into a part of its memory.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn post_recv(&mut self, wr_id: u64, range: Range<usize>) -> Result {
        let slice = self.mr.slice(range)?;
        let mut batch = self.qp.recv_batch();
        batch.post(wr_id, slice)?;
        batch.ring();
        Ok(())
    }

    /// Posts one signaled request and gives its completion.
    ///
    /// # Errors
    /// If it cannot be posted, or does not complete.
    pub fn post<'q>(
        &'q mut self,
        fill: impl FnOnce(Request<'_, 'q, T>) -> Either<(), PostError>,
    ) -> Result<Wc> {
        self.post_own(|request, _| fill(request))
    }

    /// As [`post`](Self::post), for a request that names its memory.
    ///
    /// # Errors
    /// As for `post`.
    pub fn post_own<'q>(
        &'q mut self,
        fill: impl FnOnce(Request<'_, 'q, T>, &'q Mr<Vec<u8>>) -> Either<(), PostError>,
    ) -> Result<Wc> {
        let mut batch = self.qp.batch();
        fill(batch.signaled(7), &self.mr)?;
        batch.ring()?;
        completion(&mut self.cq)
    }
}

impl<T: Transport> Pair<T> {
    /// Two queue pairs in the state RESET, made by `create`.
    ///
    /// # Errors
    /// If something cannot be made.
    pub fn create(
        context: &Context,
        setup: &Setup,
        create: impl Fn(QpBuilder<'_>) -> uverbs::Result<Qp<T>>,
    ) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let side = || Side::new(&pd, context.create_cq(setup.cqe)?, setup, &create);
        Ok(Self {
            a: side()?,
            b: side()?,
            pd,
            context: context.clone(),
        })
    }
}

impl<T: StaticTransport> Pair<T> {
    /// Two queue pairs in the state RESET.
    ///
    /// # Errors
    /// If something cannot be made.
    pub fn unconnected(context: &Context, setup: &Setup) -> Result<Self> {
        Self::create(context, setup, |qp| qp.create())
    }
}

impl<T: Connected> Pair<T> {
    /// Connects the two, from whatever state.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn connect(&mut self, options: &ConnectOptions) -> Result {
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
    /// The usual connected pair on the device under test.
    ///
    /// # Errors
    /// If something cannot be made.
    pub fn new() -> Result<Self> {
        Self::with(&Setup::default())
    }

    /// A connected pair on the device under test.
    ///
    /// # Errors
    /// If something cannot be made.
    pub fn with(setup: &Setup) -> Result<Self> {
        Self::on(&open()?, setup)
    }

    /// A connected pair in this context.
    ///
    /// # Errors
    /// If something cannot be made.
    pub fn on(context: &Context, setup: &Setup) -> Result<Self> {
        let mut pair = Self::unconnected(context, setup)?;
        pair.connect(&setup.options)?;
        Ok(pair)
    }

    /// A connected pair whose sides report to these completion queues, in their context.
    ///
    /// # Errors
    /// If something cannot be made.
    pub fn reporting_to(a: Cq, b: Cq, setup: &Setup) -> Result<Self> {
        let context = a.context().clone();
        let pd = context.alloc_pd()?;
        let mut pair = Self {
            a: Side::new(&pd, a, setup, |qp| qp.create())?,
            b: Side::new(&pd, b, setup, |qp| qp.create())?,
            pd,
            context,
        };
        pair.connect(&setup.options)?;
        Ok(pair)
    }
}

impl Pair<Ud> {
    /// Two datagram queue pairs that are ready to send.
    ///
    /// # Errors
    /// If something cannot be made.
    pub fn datagram_on(context: &Context, setup: &Setup) -> Result<Self> {
        let mut pair = Self::unconnected(context, setup)?;
        pair.a.qp.activate(QKEY, &setup.options)?;
        pair.b.qp.activate(QKEY, &setup.options)?;
        Ok(pair)
    }
}
