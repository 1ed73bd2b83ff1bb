//! Operations that are given up, or whose queue pair ends, while nothing gets through: on a wire that loses
//! every packet, or with an adapter that does not look at its send queues. Each buffer is accounted for, and
//! none is given back while the device has it.

use std::future::Future;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::json;
use support::random::{Random, seed_and_steps};
use support::{Control, LIMIT, Result, Wire, device, fail, open, same, test};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use uverbs::aio::{self, Cq, Kind, Op, Post, Qp, Wait};
use uverbs::buf::{Buf, Pool};
use uverbs::cm::{self, Params, Pending};
use uverbs::{Access, Caps, Mr, Rc, RemoteSlice};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 4] = [
        ("trouble::given_up_in_time", given_up_in_time),
        ("trouble::aborted", aborted),
        ("trouble::the_queue_pair_goes", the_queue_pair_goes),
        ("trouble::cancelled_at_random", cancelled_at_random),
    ];
    tests.map(|(name, run)| test(name, run)).into()
}

/// Bytes of a buffer.
const LENGTH: usize = 1000;

/// Operations of each kind that are under way at a time.
const EACH: usize = 8;

/// What can be held up.
enum Trouble {
    Wire(Wire),
    Adapter(Control),
}

impl Trouble {
    fn new() -> Result<Self> {
        Ok(match device().is_mlx5() {
            true => Self::Adapter(Control::open()?),
            false => Self::Wire(Wire::new()?),
        })
    }

    /// Nothing gets through from here on.
    fn begin(&mut self) -> Result {
        match self {
            Self::Wire(wire) => wire.lose(100),
            Self::Adapter(control) => stall(control, true),
        }
    }

    /// All gets through again.
    fn end(&mut self) -> Result {
        match self {
            Self::Wire(wire) => wire.lose(0),
            Self::Adapter(control) => stall(control, false),
        }
    }

    /// Not all gets through from here on: one packet in ten is lost, or the adapter stands still.
    fn begin_some(&mut self) -> Result {
        match self {
            Self::Wire(wire) => wire.lose(10),
            Self::Adapter(control) => stall(control, true),
        }
    }

    /// It goes on for as long as something does; the adapter stands still again and again.
    fn some(&mut self, serving: impl Fn() -> bool) -> Result {
        match self {
            Self::Wire(_) => support::until("the tasks", || Ok((!serving()).then_some(()))),
            Self::Adapter(control) => support::until("the tasks", || {
                stall(control, false)?;
                let over = !serving();
                stall(control, !over)?;
                Ok(over.then_some(()))
            }),
        }
    }

    /// Whether a queue pair that fails is flushed meanwhile: the kernel does it on soft-RoCE, the device
    /// itself on the adapter.
    fn is_flushed_meanwhile(&self) -> bool {
        matches!(self, Self::Wire(_))
    }
}

fn stall(control: &mut Control, on: bool) -> Result {
    let stalled = control.ask("stall", json!({"function": 0, "on": on}));
    stalled.map(drop)
}

impl Drop for Trouble {
    fn drop(&mut self) {
        // Not for the next test, if this one fails.
        if let Self::Adapter(control) = self {
            let _ = stall(control, false);
        }
    }
}

/// Two connected queue pairs with what may stand between them.
struct Ground {
    runtime: Runtime,
    a: Qp<Rc>,
    b: Qp<Rc>,
    region: Mr<Vec<u8>>,
    pool: Pool,
}

impl Ground {
    /// The wire goes only without users: so the trouble is made before it, and dropped behind it.
    fn new(trouble: &Trouble) -> Result<Self> {
        let (here, there) = match trouble {
            Trouble::Wire(wire) => (wire.here.open()?, wire.there.open()?),
            Trouble::Adapter(_) => {
                let context = open()?;
                (context.clone(), context)
            }
        };
        let (near, far) = (here.alloc_pd()?, there.alloc_pd()?);
        let pool = Pool::on(&near).and(&far).sizes([LENGTH]).limit(1 << 20);
        let pool = pool.build()?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let (cq_a, cq_b) = (Cq::new(&here, 256)?, Cq::new(&there, 256)?);
        for cq in [&cq_a, &cq_b] {
            runtime.spawn(aio::tokio::serve(cq.clone(), Wait::default()));
        }
        let a = cq_a.create_qp::<Rc>(&near, Caps::default())?;
        let b = cq_b.create_qp::<Rc>(&far, Caps::default())?;
        let (a, b) = connect(a, b, trouble)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = far.register(vec![0; 2 * EACH * LENGTH], access)?;
        Ok(Self {
            runtime,
            a,
            b,
            region,
            pool,
        })
    }

    fn buf(&self, fill: u8) -> Result<Buf> {
        let mut buf = self.pool.try_get(LENGTH)?;
        buf.set_len(LENGTH)?;
        buf.fill(fill);
        Ok(buf)
    }

    /// The place of a WRITE.
    fn place(&self, number: usize) -> Result<RemoteSlice> {
        Ok(self.region.remote().slot(number, LENGTH)?)
    }

    fn is_written(&self, number: usize, fill: u8) -> Result {
        let mut bytes = [0; LENGTH];
        self.region.read_at(number * LENGTH, &mut bytes)?;
        match bytes.iter().all(|byte| *byte == fill) {
            true => Ok(()),
            false => fail(format!("place {number} has not {fill} alone")),
        }
    }

    /// WRITEs of so many numbers, and receives.
    fn post(&mut self) -> Result<Vec<Under>> {
        let mut posted = Vec::new();
        for number in 0..EACH {
            let (write, receive) = (self.buf(1 + number as u8)?, self.buf(0)?);
            let read = self.buf(0)?;
            let at = self.place(number)?;
            let hold = self.place(EACH + number)?;
            let write = self.a.write(write, at);
            let read = self.a.read(read, hold);
            let receive = self.b.recv(receive);
            posted.extend([
                Box::pin(end(write, |(result, _)| result)) as Under,
                Box::pin(end(read, |(result, _)| result)),
                Box::pin(end(receive, |(result, _)| result.map(drop))),
            ]);
        }
        Ok(posted)
    }

    /// Ends with every buffer in the pool.
    fn finish(self) -> Result {
        let Self {
            runtime,
            a,
            b,
            pool,
            region: _region,
        } = self;
        drop((runtime, a, b));
        same(pool.stats().in_use(), 0, "buffers in use")
    }
}

/// An operation under way, whatever its kind.
type Under = std::pin::Pin<Box<dyn Future<Output = std::result::Result<(), aio::OpError>> + Send>>;

async fn end<K: Kind, V>(op: Op<K>, of: impl FnOnce(K::Output) -> V) -> V {
    of(op.await)
}

/// Connects two queue pairs by address, over the wire if there is one.
fn connect(a: Qp<Rc>, b: Qp<Rc>, trouble: &Trouble) -> Result<(Qp<Rc>, Qp<Rc>)> {
    // Retries without end on soft-RoCE.
    let params = Params {
        retry_cnt: 7,
        ..Params::default()
    };
    let (listener, way) = match trouble {
        Trouble::Wire(wire) => {
            let listener = wire.listener(1)?;
            let way = wire.way(listener.local_addr())?;
            (listener, way)
        }
        Trouble::Adapter(_) => {
            let listener = cm::listen::<Rc>("10.9.0.1:0")?.start()?;
            let way = cm::resolve::<Rc>(listener.local_addr())?.start()?;
            (listener, way.within(LIMIT)?)
        }
    };
    let connecting = a
        .connect_to(way, &params, b"")
        .map_err(|failed| failed.error)?;
    let request = listener.next_within(LIMIT)?.ok_or("no request")?;
    let accepting = b
        .accept(request, &params, b"")
        .map_err(|failed| failed.error)?;
    let active = connecting.within(LIMIT).map_err(|failed| failed.error)?;
    let passive = accepting.within(LIMIT).map_err(|failed| failed.error)?;
    Ok((active.into_parts().0, passive.into_parts().0))
}

/// Catches a buffer that goes back to its pool while the device may still send it, or write to it: what is
/// given up in time is still done when the trouble is over, with the bytes that it had.
fn given_up_in_time() -> Result {
    let mut trouble = Trouble::new()?;
    let mut ground = Ground::new(&trouble)?;
    trouble.begin()?;
    let posted = ground.post()?;
    let all = posted.len();
    let late = ground.runtime.block_on(async {
        let mut late = 0;
        for op in posted {
            // Each is dropped.
            late += usize::from(timeout(Duration::from_millis(2), op).await.is_err());
        }
        late
    });
    same(late, all, "operations that are late")?;
    same(ground.pool.stats().in_use(), all, "buffers of the device")?;
    // Others do not get them: the rest of the pool is filled with something else.
    let mut others = Vec::new();
    while let Ok(mut buf) = ground.pool.try_get(LENGTH) {
        buf.whole_mut().fill(0xaa);
        others.push(buf);
    }
    trouble.end()?;
    let control = ground.a.control();
    let drained = async { timeout(LIMIT, control.drained()).await };
    ground.runtime.block_on(drained)??;
    for number in 0..EACH {
        ground.is_written(number, 1 + number as u8)?;
    }
    let spoilt = others
        .iter_mut()
        .any(|other| other.whole_mut().iter().any(|byte| *byte != 0xaa));
    same(spoilt, false, "a buffer of somebody else's")?;
    drop(others);
    same(ground.pool.stats().in_use(), EACH, "those of the receives")?;
    ground.finish()
}

/// Catches an abort that does not wait for the device, or waits for ever; and buffers that it forgets, of
/// futures that are there and of those that were dropped.
fn aborted() -> Result {
    let mut trouble = Trouble::new()?;
    let mut ground = Ground::new(&trouble)?;
    trouble.begin()?;
    let mut posted = ground.post()?;
    let all = posted.len();
    let kept = posted.split_off(all / 2);
    drop(posted);
    let control = ground.a.control();
    let under_way = control.in_flight();
    let mut abort = Box::pin(async move { control.abort().await });
    if !trouble.is_flushed_meanwhile() {
        for _ in 0..1000 {
            let mut cx = TaskContext::from_waker(Waker::noop());
            let Poll::Pending = abort.as_mut().poll(&mut cx) else {
                return fail("the adapter stands still, and has not done with all");
            };
        }
        same(ground.a.control().in_flight(), under_way, "in flight")?;
        same(ground.pool.stats().in_use(), all, "buffers of the device")?;
        trouble.end()?;
    }
    let other = ground.b.control();
    ground.runtime.block_on(async {
        timeout(LIMIT, abort).await??;
        timeout(LIMIT, other.abort()).await??;
        for op in kept {
            match timeout(LIMIT, op).await? {
                Err(error) if error.is_flushed() => {}
                other => return fail(format!("{other:?}")),
            }
        }
        Ok(())
    })?;
    same(ground.a.control().in_flight(), 0, "in flight")?;
    same(ground.pool.stats().in_use(), 0, "buffers in use")?;
    trouble.end()?;
    ground.finish()
}

/// Catches operations that are lost with their queue pair, and buffers that come back before the kernel has
/// destroyed it.
fn the_queue_pair_goes() -> Result {
    let mut trouble = Trouble::new()?;
    let mut ground = Ground::new(&trouble)?;
    trouble.begin()?;
    let mut posted = ground.post()?;
    let kept = posted.split_off(posted.len() / 2);
    drop(posted);
    let Ground {
        runtime,
        a,
        b,
        pool,
        region: _region,
    } = ground;
    drop((a, b));
    runtime.block_on(async {
        for op in kept {
            let ended = timeout(LIMIT, op).await?;
            same(ended, Err(aio::OpError::Gone), "what is left of it")?;
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })?;
    same(pool.stats().in_use(), 0, "buffers in use")?;
    trouble.end()
}

/// Catches whatever loses a buffer when tasks let go of their operations at any time, and the wire loses some
/// packets or the adapter stands still now and then.
fn cancelled_at_random() -> Result {
    let mut trouble = Trouble::new()?;
    let ground = Ground::new(&trouble)?;
    let (seed, steps) = seed_and_steps(60)?;
    let (a, pool) = (ground.a, ground.pool.clone());
    let control = a.control();
    let a = std::sync::Arc::new(std::sync::Mutex::new(a));
    let remote = ground.region.remote();
    trouble.begin_some()?;
    let tasks: Vec<_> = (0..4u64)
        .map(|task| {
            let (a, pool) = (a.clone(), pool.clone());
            let mut random = Random::new(seed ^ task);
            ground.runtime.spawn(async move {
                let mut ended = [0; 3];
                for _ in 0..steps {
                    let mut buf = pool.get(LENGTH).await?;
                    buf.set_len(LENGTH)?;
                    let at = remote.slot(random.below(2 * EACH), LENGTH)?;
                    let op: Under = {
                        let mut a = a.lock().map_err(|_| "poisoned")?;
                        match random.below(2) {
                            0 => Box::pin(end(a.write(buf, at), |(result, _)| result)),
                            _ => Box::pin(end(a.read(buf, at), |(result, _)| result)),
                        }
                    };
                    let fate = random.below(3);
                    match fate {
                        0 => drop(op),
                        1 => {
                            let micros = Duration::from_micros(random.below(3000) as u64);
                            let _ = timeout(micros, op).await;
                        }
                        _ => match timeout(LIMIT, op).await? {
                            Ok(()) | Err(aio::OpError::Post(_)) => {}
                            Err(error) => return fail(error.to_string()),
                        },
                    }
                    ended[fate] += 1;
                }
                Ok(ended)
            })
        })
        .collect();
    let going_on = || tasks.iter().any(|task| !task.is_finished());
    trouble.some(going_on)?;
    if let Trouble::Wire(wire) = &trouble {
        same(wire.lost()? > 0, true, "nothing was lost")?;
    }
    trouble.end()?;
    let ended = ground.runtime.block_on(async {
        let mut sum = [0; 3];
        for task in tasks {
            for (sum, ended) in sum.iter_mut().zip(task.await??) {
                *sum += ended;
            }
        }
        timeout(LIMIT, control.drained()).await??;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(sum)
    })?;
    same(ended.iter().sum::<u32>(), 4 * steps as u32, "operations")?;
    same(pool.stats().in_use(), 0, "buffers in use")
}
