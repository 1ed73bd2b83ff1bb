//! Two programs that talk to each other: a server, and a client that is started when the server is there.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_getcpu, sched_setaffinity};
use serde_json::json;
use uverbs::qp::{QpState, QpType};

use crate::control::Control;
use crate::wait::{PROCESS, until_so};
use crate::{Result, fail};

/// How often a program is looked at.
const PAUSE: Duration = Duration::from_millis(5);

/// What both have printed, on both streams.
#[derive(Debug)]
pub struct Said {
    /// The server's words.
    pub server: String,
    /// The client's words.
    pub client: String,
}

/// Runs both to their ends, which must be successes. The client is started when `ready` says that the server
/// listens.
///
/// One of them may go on sending for ever, since soft-RoCE never acknowledges its last message. It is killed,
/// which is no failure.
///
/// # Errors
/// If one fails or does not end in time; the error has what both said.
pub fn play(
    mut server: Command,
    mut client: Command,
    ready: impl Fn() -> Result<bool>,
) -> Result<Said> {
    let deadline = Instant::now() + PROCESS;
    let mut server = Process::start(&mut server)?;
    while !ready()? {
        if server.status()?.is_some() || Instant::now() > deadline {
            let said = server.end(false)?;
            return fail(format!("the server does not listen: {said}"));
        }
        std::thread::sleep(PAUSE);
    }
    let mut client = Process::start(&mut client)?;
    let mut statuses = (None, None);
    let mut farewell = Farewell::default();
    let mut in_vain = false;
    while statuses.0.is_none() || statuses.1.is_none() {
        statuses = (server.status()?, client.status()?);
        let failed = [statuses.0, statuses.1].contains(&Some(false));
        let one_is_left = statuses.0.xor(statuses.1) == Some(true);
        in_vain = one_is_left && farewell.is_in_vain()?;
        if failed || in_vain || Instant::now() > deadline {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    // If one failed, the other would wait for it in vain.
    let said = Said {
        client: client.end(statuses.1.is_some())?,
        server: server.end(statuses.0.is_some())?,
    };
    if in_vain {
        println!("one ended before soft-RoCE had acknowledged what it received from the other");
    }
    if in_vain || statuses == (Some(true), Some(true)) {
        return Ok(said);
    }
    let how = |status| match status {
        Some(true) => "succeeded",
        Some(false) => "failed",
        None => "did not end by itself",
    };
    fail(format!(
        "the server {}: {}\nthe client {}: {}",
        how(statuses.0),
        said.server.trim(),
        how(statuses.1),
        said.client.trim()
    ))
}

/// As [`play`], for perftest's programs with `-R`, on one CPU.
///
/// Their client connects a second time right behind a handshake, at which their server begins to listen
/// (`create_rdma_cm_connection` in perftest's `perftest_communication.c`). Nothing orders the two. A client
/// that is refused crashes in librdmacm: it acknowledges the event of an identifier that it has destroyed.
/// Where the two take turns the server listens long before the client has resolved the address and the route
/// and made its queue pair.
///
/// # Errors
/// As for `play`.
pub fn play_in_turns(
    server: Command,
    client: Command,
    ready: impl Fn() -> Result<bool>,
) -> Result<Said> {
    // Programs run where the thread that starts them may.
    let before = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    sched_setaffinity(None, &one)?;
    let played = play(server, client, ready);
    sched_setaffinity(None, &before)?;
    played
}

/// Notices that the program that is left will never end.
///
/// Soft-RoCE reports a message to its receiver before it acknowledges it (`rxe_responder`: `do_complete`,
/// then `acknowledge`). The receiver of the last message may end in between, and a queue pair that has ended
/// acknowledges nothing (`rxe_xmit_packet`). The sender then sends again, and for ever if `retry_cnt` is 7,
/// as most programs have it.
#[derive(Default)]
struct Farewell {
    /// How often was sent again until the first program had ended.
    before: Option<u64>,
}

impl Farewell {
    /// Whether the program that is left sends again what nobody acknowledges: the other and its queue pairs
    /// are gone. To be asked when one has ended.
    fn is_in_vain(&mut self) -> Result<bool> {
        let now = sent_again()?;
        Ok(now > *self.before.get_or_insert(now))
    }
}

/// How often soft-RoCE has sent again for want of an acknowledgement, on all devices. Others do not count it.
fn sent_again() -> Result<u64> {
    let mut sum = 0;
    for device in uverbs::devices()? {
        let counters = format!(
            "/sys/class/infiniband/{}/ports/1/hw_counters",
            device.name()
        );
        if let Ok(count) = std::fs::read_to_string(format!("{counters}/completer_retry_err")) {
            sum += count.trim().parse::<u64>()?;
        }
    }
    Ok(sum)
}

/// As [`play`], for rdma-core's ping-pong of XRC on the adapter. Its server sends without waiting until the
/// client is connected, and does not look whether that failed. So the server's function, which is the first,
/// is stalled until the client's queue pairs on the device `there` are ready.
///
/// # Errors
/// As for `play`.
pub fn play_of_xrc(
    server: Command,
    client: Command,
    ready: impl Fn() -> Result<bool>,
    there: &str,
) -> Result<Said> {
    let stall = |on: bool| -> Result {
        let fields = json!({"function": 0, "on": on});
        Control::open()?.ask("stall", fields).map(drop)
    };
    stall(true)?;
    std::thread::scope(|scope| {
        let connected = scope.spawn(|| {
            let connected = until_so(STARTS, "the client to be connected", || sends(there));
            stall(false).and(connected)
        });
        let played = play(server, client, ready);
        let connected = connected.join();
        let connected = connected.unwrap_or_else(|_| fail("the thread that waits has panicked"));
        let said = played?;
        connected.map(|()| said)
    })
}

/// How long programs may take to be connected.
const STARTS: Duration = Duration::from_secs(60);

/// Whether a device has an initiator of XRC that is ready to send: of this side's queue pairs it is made
/// ready last.
fn sends(device: &str) -> Result<bool> {
    let queue_pairs = uverbs::device::find(device)?.resources()?.qps()?;
    let mut of_xrc = queue_pairs
        .iter()
        .filter(|qp| qp.transport == QpType::XRC_SEND);
    Ok(of_xrc.any(|qp| qp.state == QpState::RTS))
}

/// A child that does not outlive its test, with a thread that reads what it says.
struct Process {
    child: Child,
    words: Option<std::thread::JoinHandle<String>>,
}

impl Process {
    fn start(command: &mut Command) -> Result<Self> {
        let (mut reader, writer) = std::io::pipe()?;
        command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        let child = command
            .spawn()
            .map_err(|error| format!("{:?}: {error}", command.get_program()))?;
        // The command holds the pipe's other end too, and would keep it open.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let words = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was read so far is what there is to show.
            let _ = reader.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Self {
            child,
            words: Some(words),
        })
    }

    /// Whether it ended well, if it has ended.
    fn status(&mut self) -> Result<Option<bool>> {
        Ok(self.child.try_wait()?.map(|status| status.success()))
    }

    /// What it said, after killing it if it has not ended.
    fn end(&mut self, ended: bool) -> Result<String> {
        if !ended {
            self.child.kill()?;
        }
        self.child.wait()?;
        let words = self.words.take().and_then(|words| words.join().ok());
        Ok(words.unwrap_or_default())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already, if all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A TCP port that nobody uses at the moment.
///
/// # Errors
/// If there is none.
pub fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}

/// Whether a program listens by rdma_cm, whichever it is.
///
/// The kernel shows an identifier as one that listens shortly before requests find it, and a listener for
/// every address one by one for each device. So the program must have come back from asking for it.
///
/// # Errors
/// If the kernel does not list identifiers.
pub fn listens_by_address() -> Result<bool> {
    for device in uverbs::devices()? {
        let shown = device.resources()?.cm_ids()?;
        let mut of_listeners = shown
            .iter()
            .filter(|shown| shown.state == LISTEN)
            .filter_map(|shown| shown.owner.pid());
        if of_listeners.any(has_asked) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The number of an identifier's state `RDMA_CM_LISTEN`.
const LISTEN: u8 = 8;

/// Whether no thread of a process is about to listen.
///
/// The kernel shows the stack of a thread that runs on another processor as empty, whatever it does
/// (`__unwind_start` in `unwind_orc.c`), and some servers never wait. So each is brought to the processor of
/// the one who looks, where it does not run meanwhile.
fn has_asked(process: u32) -> bool {
    let Ok(before) = sched_getaffinity(None) else {
        return false;
    };
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    if sched_setaffinity(None, &here).is_err() {
        return false;
    }
    // A process that is gone has asked for nothing.
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let mut threads = threads.into_iter().flatten().flatten().peekable();
    let has_asked = threads.peek().is_some()
        && threads.all(|thread| does_not_listen(&thread.path(), &here).unwrap_or(false));
    // It may run there: it did before.
    let _ = sched_setaffinity(None, &before);
    has_asked
}

/// Whether a thread, by its directory in /proc, is outside of the kernel's function for listening. To be
/// asked on the processor `here`.
fn does_not_listen(thread: &Path, here: &CpuSet) -> Result<bool> {
    let name = thread.file_name().and_then(|name| name.to_str());
    let number = name.ok_or("a thread without a number")?.parse()?;
    let number = Pid::from_raw(number);
    let before = sched_getaffinity(number)?;
    sched_setaffinity(number, here)?;
    let stack = std::fs::read_to_string(thread.join("stack"));
    sched_setaffinity(number, &before)?;
    let stack = stack?;
    Ok(!stack.is_empty() && !stack.contains("ucma_listen"))
}

/// Whether somebody listens on a TCP port. Connecting to find out would be taken for the client.
///
/// # Errors
/// None so far.
pub fn listens(port: u16) -> Result<bool> {
    has_socket(port, "0A")
}

/// Whether somebody has connected to a TCP port of this host.
///
/// # Errors
/// None so far.
pub fn is_connected(port: u16) -> Result<bool> {
    has_socket(port, "01")
}

/// Whether a TCP socket of this port is in this state (`TCP_*` of include/net/tcp_states.h).
fn has_socket(port: u16, state: &str) -> Result<bool> {
    let port = format!(":{port:04X}");
    let mut found = false;
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let sockets = std::fs::read_to_string(table).unwrap_or_default();
        found |= sockets.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            // The local address, and behind the remote one the state.
            words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some(state)
        });
    }
    Ok(found)
}
