//! Two guests on one fabric: each test runs in both at a time, as the server in the first and as the client
//! in the second.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use support::peers::{listens, listens_by_address};
use support::pingpong::Pingpong;
use support::wait::until_so;
use support::{Result, device, fail, program, run_all, skip, test_on_adapter};
use uverbs::qp::QpState;

mod efa;
mod mooncake;
#[path = "../fabric/newer.rs"]
mod newer;

/// The device of each guest.
const DEVICE: &str = "mlx5_0";

/// How long anything may take. Two emulated guests share the machine; only a hang takes this long.
const LIMIT: Duration = Duration::from_secs(120);

/// How long programs exchange messages before one is killed.
const IN_THE_MIDDLE: Duration = Duration::from_secs(1);

/// The TCP port of the programs, and the one on which the guests meet.
const PORT: u16 = 18515;
const MEETING: u16 = 18600;

fn main() -> ExitCode {
    let games = [
        ("pingpong", Whose::RdmaCore),
        ("interop_with_our_server", Whose::OurServer),
        ("interop_with_our_client", Whose::OurClient),
    ];
    let tests = games.into_iter().flat_map(|(name, whose)| {
        ["rc", "uc", "ud"].map(|transport| {
            test_on_adapter(format!("{name}::{transport}"), move |_| {
                pingpong(transport, whose)
            })
        })
    });
    let by_address = ["ip", "gid"].into_iter().flat_map(|by| {
        ["rc", "uc", "ud"].map(|transport| {
            test_on_adapter(format!("by_{by}::{transport}"), move |_| {
                by_address(transport, by)
            })
        })
    });
    let tests = tests.chain(by_address);
    let tests = tests.chain([test_on_adapter("rping", |_| rping())]);
    let killed = [("killed::the_first", true), ("killed::the_second", false)];
    let tests = tests
        .chain(killed.map(|(name, first)| test_on_adapter(name, move |_| one_is_killed(first))));
    run_all([tests.collect(), efa::tests(), mooncake::tests()])
}

/// The address of the first guest.
const FIRST: &str = "10.9.0.1";

/// Whose programs play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// rdma-core's on both sides.
    RdmaCore,
    /// This project's as the server, rdma-core's as the client.
    OurServer,
    /// The other way round.
    OurClient,
}

/// Catches messages that do not find their way to a function of another guest, or do not arrive whole: by LID
/// on InfiniBand, by IPv4 GID and through the switch on RoCE. Between programs of different stacks, whatever
/// they understand differently.
fn pingpong(transport: &str, whose: Whose) -> Result {
    let context = uverbs::open(DEVICE)?;
    let gid = context.best_gid(1)?;
    drop(context);
    let game = Pingpong {
        transport,
        device: DEVICE,
        gid_index: gid.map(|(index, _)| index),
        size: 1000,
        count: 50,
        events: false,
        port: PORT,
    };
    let serves = serves()?;
    let ours = match whose {
        Whose::RdmaCore => false,
        Whose::OurServer => serves,
        Whose::OurClient => !serves,
    };
    let mut command = match whose {
        Whose::RdmaCore => game.of_rdma_core(),
        Whose::OurServer | Whose::OurClient => {
            // Sought on both sides, so that neither waits for the other.
            let program = game.ours()?;
            if ours { program } else { game.of_rdma_core() }
        }
    };
    if !serves {
        command.arg(FIRST);
    }
    play(command, || listens(PORT))
}

/// Catches connections that rdma_cm does not make between guests: the paths to the other's port, and messages
/// to its queue pair 1.
fn rping() -> Result {
    let side = if serves()? { "-s" } else { "-c" };
    let mut command = Command::new("rping");
    command.args([side, "-C", "5", "-S", "2000", "-V", "-a", FIRST]);
    play(command, listens_by_address)
}

/// Catches requests to the connection manager of another guest that it does not get, or that lead to another
/// queue pair: by the IP address of the first guest, and by the GID of its port, which takes no IP.
fn by_address(transport: &str, by: &str) -> Result {
    if by == "gid" && device().has_gids() {
        return skip("the device's port is none of InfiniBand");
    }
    let own = uverbs::open(DEVICE)?.query_gid(1, 0)?.gid;
    let gid = meet(&own.to_string())?;
    let mut command = Command::new(program::uverbs()?);
    command.args(["pingpong", transport, "-c", "-n", "50"]);
    command.arg(format!("--cm={by}"));
    if !serves()? {
        command.arg(if by == "gid" { &gid } else { FIRST });
    }
    play(command, listens_by_address)
}

/// Catches a program that waits on, or fails as if by its own fault, when the one on the other host is killed
/// while they exchange messages.
fn one_is_killed(first: bool) -> Result {
    let serves = serves()?;
    let mut command = Command::new(program::uverbs()?);
    command.args(["pingpong", "rc", "-n", "1000000000", "--cm=ip"]);
    command.stdin(Stdio::null());
    let mut child = if serves {
        let server = command.spawn()?;
        until_so(LIMIT, "the first guest's program", listens_by_address)?;
        meet("ready")?;
        server
    } else {
        meet("")?;
        command.arg(FIRST).spawn()?
    };
    until_so(LIMIT, "the connection", || {
        let qps = uverbs::device::find(DEVICE)?.resources()?.qps()?;
        let mut own = qps.iter().filter(|qp| qp.owner.pid() == Some(child.id()));
        Ok(own.any(|qp| qp.state == QpState::RTS))
    })?;
    meet("connected")?;
    if serves == first {
        std::thread::sleep(IN_THE_MIDDLE);
        let ended_early = child.try_wait()?;
        child.kill()?;
        child.wait()?;
        return match ended_early {
            None => Ok(()),
            Some(status) => fail(format!("it ended by itself with {status}")),
        };
    }
    match end(&mut child)?.code() {
        // It says that it was the peer.
        Some(5) => Ok(()),
        other => fail(format!("the other's death is told as {other:?}")),
    }
}

/// Whether this is the first guest.
fn serves() -> Result<bool> {
    Ok(std::env::var("VM_GUEST")? == "1")
}

/// Runs this guest's program to its end, that of the second guest when the first guest's is ready.
fn play(mut command: Command, is_ready: impl FnMut() -> Result<bool>) -> Result {
    command.stdin(Stdio::null());
    if serves()? {
        let mut server = command.spawn()?;
        until_so(LIMIT, "the first guest's program", is_ready)?;
        meet("ready")?;
        finish(&mut server)
    } else {
        meet("")?;
        finish(&mut command.spawn()?)
    }
}

/// Waits for the other guest, and gives what the first one says.
fn meet(says: &str) -> Result<String> {
    if serves()? {
        // Nobody listens any more when the second guest has read it: the next meeting is another.
        let (mut second, _) = TcpListener::bind((FIRST, MEETING))?.accept()?;
        second.write_all(says.as_bytes())?;
        return Ok(says.to_owned());
    }
    let mut first = None;
    until_so(LIMIT, "the first guest", || {
        first = TcpStream::connect((FIRST, MEETING)).ok();
        Ok(first.is_some())
    })?;
    let mut said = String::new();
    first.ok_or("no first guest")?.read_to_string(&mut said)?;
    Ok(said)
}

fn finish(child: &mut Child) -> Result {
    match end(child)? {
        status if status.success() => Ok(()),
        other => fail(format!("ended with {other}")),
    }
}

/// How a program ends, which has to.
fn end(child: &mut Child) -> Result<ExitStatus> {
    let mut status = None;
    let ended = until_so(LIMIT, "the program's end", || {
        status = child.try_wait()?;
        Ok(status.is_some())
    });
    if ended.is_err() {
        child.kill()?;
    }
    ended?;
    Ok(status.ok_or("it has not ended")?)
}
