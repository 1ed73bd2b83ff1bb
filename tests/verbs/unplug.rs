//! The adapter's second function is taken away while it is in use, as when it is pulled out, and comes back.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use uverbs::{
    Access, AsyncEvent, AsyncEventType, AsyncEvents, Caps, Context, Cq, Error, EventSource, Mr,
    Notify, Pd, PortState, Qp, Rc, WcOpcode,
};

use crate::device::{device, own_path};
use crate::support::{LIMIT, Result, fail, ignore, next, same, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("unplug::users_get_errors", users_get_errors)]
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
        let deadline = Instant::now() + LIMIT;
        loop {
            let state = uverbs::open(NAME).and_then(|context| {
                let usable = own_path(&context).is_ok();
                Ok((context.query_port(1)?.state, usable))
            });
            match state {
                Ok((PortState::Active, true)) => return Ok(()),
                other if Instant::now() > deadline => {
                    return fail(format!("the device does not come back: {other:?}"));
                }
                _ => thread::sleep(Duration::from_millis(5)),
            }
        }
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
        let mut batch = self.qp.send();
        batch
            .write_inline(b"written!", self.target.remote())?
            .signaled(1);
        batch.ring()?;
        next(&mut self.cq)?.is(WcOpcode::RDMA_WRITE)
    }

    /// Polls until the device is gone, and then writes, which must do no harm. While it goes nothing is posted: a doorbell
    /// for a queue pair that the kernel has just destroyed is what the model of the adapter complains of.
    fn toil(mut self, gone: &AtomicBool) -> Self {
        let mut after = 0;
        while after < 100 {
            if gone.load(Ordering::Relaxed) {
                after += 1;
                let mut batch = self.qp.send();
                if let Ok(request) = batch.write_inline(b"written!", self.target.remote()) {
                    request.signaled(2);
                }
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

/// Catches a process that dies, hangs or is told nothing when its device goes: threads post, poll and wait meanwhile. And
/// objects that hinder the device from coming back.
fn users_get_errors() -> Result {
    if device().is_rxe() {
        return ignore("soft-RoCE's removal is tested by itself");
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
