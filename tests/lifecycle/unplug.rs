//! The adapter's second function is taken away while it is in use, as when it is pulled out, and comes back.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use libtest_mimic::Trial;
use support::wait::until_so;
use support::{LIMIT, Result, completion, device, fail, own_path, same, skip, test};
use uverbs::{
    Access, Ah, Caps, Context, Cq, Error, Inline, Mr, Notify, ParentDomain, Pd, Qp, Rc, Srq,
    ThreadDomain, WcOpcode,
    alloc::{BufferCounts, Counting, GuardPages},
    device::PortState,
    event::{AsyncEvent, AsyncEventType, AsyncEvents, EventSource},
    mr::Memory,
    mw::{Mw, Type1, Type2},
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("unplug::users_get_errors", users_get_errors),
        test("unplug::everything_can_be_freed", everything_can_be_freed),
        test(
            "unplug::everything_can_be_dropped",
            everything_can_be_dropped,
        ),
    ]
}

const NAME: &str = "mlx5_1";
const DRIVER: &str = "/sys/bus/pci/drivers/mlx5_core";

/// The function behind a device, by its place on the bus.
struct Function(String);

impl Function {
    fn of(name: &str) -> Result<Self> {
        let directory = fs::canonicalize(format!("/sys/class/infiniband/{name}/device"))?;
        match directory.file_name().and_then(|name| name.to_str()) {
            Some(slot) => Ok(Self(slot.to_owned())),
            None => fail("the device has no place on the bus"),
        }
    }

    fn unbind(&self) -> Result {
        Ok(fs::write(Path::new(DRIVER).join("unbind"), &self.0)?)
    }

    /// Gives it back to its driver, and waits until its port can be used.
    fn bind(&self) -> Result {
        fs::write(Path::new(DRIVER).join("bind"), &self.0)?;
        // The network interface goes where `cargo vm` had it.
        let interfaces = format!("/sys/bus/pci/devices/{}/net", self.0);
        for interface in fs::read_dir(interfaces).into_iter().flatten() {
            let name = interface?.file_name().to_string_lossy().into_owned();
            ip(&["link", "set", &name, "netns", "h2"])?;
            ip(&["-n", "h2", "addr", "add", "10.9.0.2/24", "dev", &name])?;
            ip(&["-n", "h2", "link", "set", &name, "up"])?;
        }
        let mut last = String::new();
        let back = until_so(LIMIT, "the device to come back", || {
            let state = uverbs::open(NAME).and_then(|context| {
                let usable = own_path(&context).is_ok();
                Ok((context.query_port(1)?.state, usable))
            });
            last = format!("{state:?}");
            Ok(matches!(state, Ok((PortState::Active, true))))
        });
        back.map_err(|error| format!("{error}: {last}").into())
    }
}

fn ip(arguments: &[&str]) -> Result {
    let output = Command::new("ip").args(arguments).output()?;
    match output.status.success() {
        true => Ok(()),
        false => fail(String::from_utf8_lossy(&output.stderr)),
    }
}

/// Objects in use: a queue pair that is connected to itself.
struct Rig {
    qp: Qp<Rc>,
    cq: Cq,
    target: Mr<Vec<u8>>,
    pd: Pd,
}

impl Rig {
    fn new(context: &Context) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(63)?;
        let mut qp = pd.create_qp::<Rc>(&cq, Caps::default())?;
        let own = qp.endpoint()?;
        qp.connect(&own)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let target = pd.register(vec![0; 8], access)?;
        Ok(Self { qp, cq, target, pd })
    }

    fn write(&mut self) -> Result {
        let mut batch = self.qp.batch();
        batch
            .signaled(1)
            .write(Inline(b"written!"), self.target.remote())?;
        batch.ring()?;
        completion(&mut self.cq)?.is(WcOpcode::RDMA_WRITE)
    }

    /// Polls until the device is gone, and then writes, which must do no harm. While it goes nothing is
    /// posted: a doorbell for a queue pair that the kernel has just destroyed is what the model of the
    /// adapter complains of.
    fn toil(mut self, gone: &AtomicBool) -> Self {
        let mut after = 0;
        while after < 100 {
            if gone.load(Ordering::Relaxed) {
                after += 1;
                let mut batch = self.qp.batch();
                let _ = batch
                    .signaled(2)
                    .write(Inline(b"written!"), self.target.remote());
                let _ = batch.ring();
            }
            // Whatever the device leaves in the ring when it goes must not be taken for a fault of this side.
            if let Ok(mut completions) = self.cq.poll() {
                let _ = completions.iter().count();
            }
        }
        self
    }
}

/// The error of a call that needs the device, which must say that it is gone.
fn gone<T>(what: &str, result: std::result::Result<T, Error>) -> Result {
    match result {
        Ok(_) => fail(format!("{what} without a device")),
        Err(error) if error.is_device_gone() => Ok(()),
        Err(error) => fail(format!("{what}: {error}")),
    }
}

/// Reads events until the one that the device is gone; behind it there is no other.
fn ends(events: &AsyncEvents) -> Result {
    let fatal = AsyncEvent {
        kind: AsyncEventType::DEVICE_FATAL,
        source: EventSource::Device,
    };
    let mut told = Vec::new();
    while told.last() != Some(&fatal) {
        match events.wait_for(LIMIT)? {
            Some(event) => told.push(event),
            None => return fail(format!("only {told:?}")),
        }
    }
    match events.try_next() {
        Ok(None) => Ok(()),
        Ok(Some(event)) => fail(format!("{event:?} of a device that is gone")),
        other => gone("an event", other),
    }
}

/// Catches a process that dies, hangs or is told nothing when its device goes: threads post, poll and wait
/// meanwhile. And objects that hinder the device from coming back.
fn users_get_errors() -> Result {
    if device().is_rxe() {
        return skip("soft-RoCE's removal is tested by itself");
    }
    let function = Function::of(NAME)?;
    let context = uverbs::open(NAME)?;
    let events = context.async_events()?;
    let channel = context.create_channel()?;
    let mut quiet = Rig::new(&context)?;
    quiet.write()?;
    let mut armed = context.cq(7).channel(&channel).create()?;
    armed.arm(Notify::Next)?;
    let busy = Rig::new(&context)?;
    let is_gone = AtomicBool::new(false);
    let busy = thread::scope(|scope| -> Result<Rig> {
        let toils = scope.spawn(|| busy.toil(&is_gone));
        let waits = scope.spawn(|| channel.wait());
        let unbound = function.unbind();
        let told = ends(&events);
        is_gone.store(true, Ordering::Relaxed);
        let waited = waits.join();
        let busy = toils.join();
        unbound?;
        told?;
        match waited {
            Ok(result) => gone("an event of a queue", result)?,
            Err(_) => return fail("the waiting thread panicked"),
        }
        match busy {
            Ok(rig) => Ok(rig),
            Err(_) => fail("the posting thread panicked"),
        }
    })?;
    gone("a query", context.query_device())?;
    gone("a PD", context.alloc_pd())?;
    gone("a state", quiet.qp.query())?;
    let refused = quiet.pd.register(vec![7u8; 64], Access::LOCAL_WRITE).err();
    let Some(refused) = refused else {
        return fail("memory was registered without a device");
    };
    same(refused.error.is_device_gone(), true, "registering")?;
    same(refused.memory, vec![7u8; 64], "the memory")?;
    same(uverbs::open(NAME).is_err(), true, "opening")?;
    // What is destroyed or dropped now ends with the process's file; neither may fail in another way.
    let Rig {
        qp, cq, target, pd, ..
    } = quiet;
    drop((qp, cq, target, pd));
    drop((busy, armed, channel, events, context));
    function.bind()?;
    Rig::new(&uverbs::open(NAME)?)?.write()
}

/// Memory that tells when it is freed: then the last clone of the mark is the test's.
struct Marked {
    bytes: Vec<u8>,
    _mark: Arc<()>,
}

// SAFETY: as of the vector in it, which stays where it is when this is moved.
unsafe impl Memory for Marked {
    fn address(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    fn length(&self) -> usize {
        self.bytes.len()
    }
}

/// One of each kind of object, with the rings where an allocator said.
struct Everything {
    context: Context,
    pd: Pd,
    td: ThreadDomain,
    domain: ParentDomain,
    cq: Cq,
    srq: Srq,
    qp: Qp<Rc>,
    drawing: Qp<Rc>,
    mr: Mr<Marked>,
    first: Mw<Type1>,
    second: Mw<Type2>,
    ah: Ah,
}

/// What is to be left in the end: an allocator that has got everything back, and memory that has been freed.
struct Traces {
    counting: Arc<Counting<GuardPages>>,
    mark: Arc<()>,
}

impl Everything {
    fn new() -> Result<(Self, Traces)> {
        let context = uverbs::open(NAME)?;
        let counting = Arc::new(Counting::new(GuardPages::new()));
        let mark = Arc::new(());
        let pd = context.alloc_pd()?;
        let td = context.alloc_td();
        let domain = pd.parent_domain().thread_domain(&td);
        let domain = domain.allocator(Arc::clone(&counting)).create()?;
        let cq = context.cq(15).domain(&domain).create()?;
        let srq = domain.srq(15).create()?;
        let mut qp = domain.create_qp::<Rc>(&cq, Caps::default())?;
        let own = qp.endpoint()?;
        qp.connect(&own)?;
        let drawing = domain.qp(&cq).srq(&srq).create::<Rc>()?;
        let memory = Marked {
            bytes: vec![0; 4096],
            _mark: Arc::clone(&mark),
        };
        let access = Access::LOCAL_WRITE | Access::MW_BIND;
        let mr = match domain.register(memory, access) {
            Ok(mr) => mr,
            Err(refused) => return Err(refused.error.into()),
        };
        let (first, second) = (domain.alloc_mw::<Type1>()?, domain.alloc_mw::<Type2>()?);
        let ah = match own_path(&context) {
            Ok(path) => domain.create_ah(&path)?,
            Err(error) => return fail(error.to_string()),
        };
        let all = Self {
            context,
            pd,
            td,
            domain,
            cq,
            srq,
            qp,
            drawing,
            mr,
            first,
            second,
            ah,
        };
        let traces = Traces { counting, mark };
        let buffers: u64 = traces.totals().map(|count| count.granted).sum();
        // A ring and a doorbell record of the completion queue, the shared queue and each queue pair.
        same(buffers, 8, "buffers that the allocator granted")?;
        Ok((all, traces))
    }
}

impl Traces {
    fn totals(&self) -> impl Iterator<Item = BufferCounts> + use<> {
        self.counting.counts().into_values()
    }

    /// Buffers that have come back so far.
    fn freed(&self) -> u64 {
        self.totals().map(|count| count.freed).sum()
    }

    /// Fails unless each buffer has come back once, and the memory has been freed.
    fn are_gone(&self) -> Result {
        for count in self.totals() {
            same(
                (count.freed, count.live_bytes),
                (count.granted, 0),
                "what came back to the allocator",
            )?;
        }
        same(
            self.counting.inner().live(),
            0,
            "what the allocator has out",
        )?;
        same(Arc::strong_count(&self.mark), 1, "who has the memory")
    }
}

/// Runs a test with everything there is, the device gone, and looks at what is left.
fn without_device(free: impl FnOnce(Everything, &Traces) -> Result) -> Result {
    if device().is_rxe() {
        return skip(
            "the test binds and unbinds an adapter; rxe has removal::the_device_is_removed_in_use",
        );
    }
    let function = Function::of(NAME)?;
    let (all, traces) = Everything::new()?;
    let events = all.context.async_events()?;
    function.unbind()?;
    ends(&events)?;
    drop(events);
    let result = free(all, &traces).and_then(|()| traces.are_gone());
    function.bind()?;
    result?;
    // The function that came back is as good as new.
    Rig::new(&uverbs::open(NAME)?)?.write()
}

/// Catches an object that cannot be freed without its device, and buffers that come back to their allocator
/// early, late or never. The kernel has destroyed the objects by then and kept their handles, so that each
/// can be freed by its owner.
fn everything_can_be_freed() -> Result {
    without_device(|all, traces| {
        // A busy domain still names its users, without the kernel.
        let Err(busy) = all.domain.dealloc() else {
            return fail("a domain with objects on it was freed");
        };
        let said = busy.to_string();
        same(said.contains("2 QPs, 1 CQ, 1 SRQ, 2 MWs"), true, &said)?;
        let domain = busy.object;
        all.first.dealloc()?;
        all.second.dealloc()?;
        all.ah.destroy()?;
        all.mr.deregister()?;
        same(traces.freed(), 0, "buffers that came back so far")?;
        all.qp.destroy()?;
        all.drawing.destroy()?;
        same(traces.freed(), 4, "buffers of the queue pairs")?;
        all.srq.destroy()?;
        all.cq.destroy()?;
        same(traces.freed(), 8, "all buffers")?;
        domain.dealloc()?;
        all.td.dealloc()?;
        all.pd.dealloc()?;
        gone("a query", all.context.query_device())
    })
}

/// Catches the same where nobody asks for an answer, and parents go first.
fn everything_can_be_dropped() -> Result {
    without_device(|all, _| {
        drop((all.context, all.pd, all.td, all.domain));
        drop((all.cq, all.srq, all.mr));
        drop((all.qp, all.drawing));
        drop((all.first, all.second, all.ah));
        Ok(())
    })
}
