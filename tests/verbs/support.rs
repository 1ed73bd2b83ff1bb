//! What the tests share: how a test is declared, two connected queue pairs, and completions as values.

use std::error::Error;
use std::result::Result as Either;
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Failed, Trial};
use uverbs::{
    Access, Caps, ConnectOptions, Connected, Context, Cq, DeviceCapFlags, Pd, PostError, Posted,
    Qp, RemoteKey, StaticTransport, WcOpcode, WcStatus,
};

use crate::device::device;

/// How a test ends if it does not end well.
pub(crate) enum Stop {
    Failed(String),
    /// This kernel does not have what is tested; the reason.
    Ignored(String),
}

impl<E: Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

pub(crate) type Result<T = ()> = std::result::Result<T, Stop>;

/// A test that fails.
pub(crate) fn fail<T>(why: impl Into<String>) -> Result<T> {
    Err(Stop::Failed(why.into()))
}

/// A test that this kernel cannot run.
pub(crate) fn ignore<T>(why: impl Into<String>) -> Result<T> {
    Err(Stop::Ignored(why.into()))
}

/// Fails unless the two are the same.
#[track_caller]
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(got: T, expected: T, what: &str) -> Result {
    if got == expected {
        return Ok(());
    }
    let line = std::panic::Location::caller().line();
    fail(format!(
        "line {line}: {what}: {got:?}, expected {expected:?}"
    ))
}

/// A test by its name.
pub(crate) fn test(name: &str, run: impl Fn() -> Result + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || {
        if std::env::var_os("VM_GUEST").is_none() {
            return Ok(Completion::ignored_with(
                "needs an RDMA device: run `cargo vm test`",
            ));
        }
        match run() {
            Ok(()) => Ok(Completion::Completed),
            Err(Stop::Ignored(why)) => Ok(Completion::ignored_with(why)),
            Err(Stop::Failed(why)) => Err(Failed::from(why)),
        }
    })
}

/// The guest's first device: by its name, since an adapter's function that was away and came back is the last in the list.
pub(crate) fn open() -> Result<Context> {
    Ok(uverbs::open(device().name())?)
}

/// Whether the device has all of these capabilities.
pub(crate) fn has(context: &Context, capability: DeviceCapFlags) -> Result<bool> {
    Ok(context.query_device()?.capabilities.contains(capability))
}

/// Two connected queue pairs, each with a completion queue of its own, in one protection domain.
///
/// Tests declare a pair before the regions that they post: what is declared last is dropped first, so a region whose
/// test failed halfway is deregistered while requests may still name it. Deregistering ends the device's access before
/// the memory is freed, so that is sound.
pub(crate) struct Pair<T: StaticTransport> {
    pub(crate) a: Qp<T>,
    pub(crate) b: Qp<T>,
    pub(crate) a_cq: Cq,
    pub(crate) b_cq: Cq,
    pub(crate) pd: Pd,
    pub(crate) context: Context,
}

/// What a peer may do to a pair: all that every kernel has.
pub(crate) const ALL: Access = Access::REMOTE_READ
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

/// Capacities of a pair's queue pairs: room for every request of a test whose completions are taken late, since hardware
/// has its place in the ring back only then.
pub(crate) fn caps() -> Caps {
    Caps {
        max_send_wr: 128,
        ..Caps::default()
    }
}

impl<T: StaticTransport + Connected> Pair<T> {
    pub(crate) fn new() -> Result<Self> {
        Self::with(ALL)
    }

    /// A pair whose queue pairs give peers this access.
    pub(crate) fn with(access: Access) -> Result<Self> {
        Self::on(&open()?, access)
    }

    /// A pair in this context, whose queue pairs give peers this access.
    pub(crate) fn on(context: &Context, access: Access) -> Result<Self> {
        Self::reporting_to(context.create_cq(64)?, access)
    }

    /// A pair in the context of the first one's completion queue.
    pub(crate) fn reporting_to(a_cq: Cq, access: Access) -> Result<Self> {
        let context = a_cq.context().clone();
        let pd = context.alloc_pd()?;
        let b_cq = context.create_cq(64)?;
        let mut a = pd.create_qp::<T>(&a_cq, caps())?;
        let mut b = pd.create_qp::<T>(&b_cq, caps())?;
        let options = ConnectOptions {
            access,
            ..ConnectOptions::default()
        };
        let (from, to) = (a.endpoint()?, b.endpoint()?);
        a.connect_with(&to, &options)?;
        b.connect_with(&from, &options)?;
        Ok(Self {
            a,
            b,
            a_cq,
            b_cq,
            pd,
            context,
        })
    }

    /// Posts one signaled request on the first queue pair and gives its completion.
    pub(crate) fn post(
        &mut self,
        add: impl for<'b> FnOnce(&'b mut uverbs::Batch<'_, T>) -> Either<Posted<'b>, PostError>,
    ) -> Result<Wc> {
        post(&mut self.a, &mut self.a_cq, add)
    }

    /// The same on the second.
    pub(crate) fn post_b(
        &mut self,
        add: impl for<'b> FnOnce(&'b mut uverbs::Batch<'_, T>) -> Either<Posted<'b>, PostError>,
    ) -> Result<Wc> {
        post(&mut self.b, &mut self.b_cq, add)
    }
}

fn post<T: StaticTransport>(
    qp: &mut Qp<T>,
    cq: &mut Cq,
    add: impl for<'b> FnOnce(&'b mut uverbs::Batch<'_, T>) -> Either<Posted<'b>, PostError>,
) -> Result<Wc> {
    let mut batch = qp.send();
    add(&mut batch)?.signaled(7);
    batch.ring()?;
    next(cq)
}

/// What a completion said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    pub(crate) opcode: WcOpcode,
    pub(crate) byte_len: u32,
    pub(crate) qp_num: u32,
    pub(crate) invalidated: Option<RemoteKey>,
}

impl Wc {
    /// Fails unless it is the success of this operation.
    #[track_caller]
    pub(crate) fn is(self, opcode: WcOpcode) -> Result {
        same(
            (self.status, self.opcode),
            (WcStatus::SUCCESS, opcode),
            "completion",
        )
    }

    /// Fails unless it failed with this status.
    #[track_caller]
    pub(crate) fn failed(self, status: WcStatus) -> Result {
        same(self.status, status, "status")
    }
}

/// How long a test waits for what must come.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// How long a test waits for what must not come.
pub(crate) const QUIET: Duration = Duration::from_millis(100);

/// The next completion.
pub(crate) fn next(cq: &mut Cq) -> Result<Wc> {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        if let Some(completion) = cq.poll()?.iter().next() {
            return Ok(Wc {
                wr_id: completion.wr_id(),
                status: completion.status(),
                opcode: completion.opcode(),
                byte_len: completion.byte_len(),
                qp_num: completion.qp_num(),
                invalidated: completion.invalidated_rkey(),
            });
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    fail("no completion within 20 s")
}
