//! Two guests on one fabric: each test runs in both at a time, as the server in the first and as the client in the second.

#[path = "../hca/mod.rs"]
#[allow(dead_code, reason = "nothing is asked of the adapter here")]
mod hca;
#[path = "../peers/mod.rs"]
#[allow(dead_code, reason = "each side has its partner in the other guest")]
mod peers;

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Trial};

use hca::Hca;

/// The result of anything here.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The TCP port of the programs, and the one on which the first guest says that its program listens.
const PORT: u16 = 18515;
const READY: u16 = 18600;

fn main() -> ExitCode {
    let tests = ["rc", "uc", "ud"]
        .map(|transport| test(format!("pingpong::{transport}"), transport))
        .into();
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn test(name: String, transport: &'static str) -> Trial {
    Trial::ignorable_test(name, move || match Hca::of_guest() {
        None => Ok(Completion::ignored_with(
            "no adapter here: run `cargo vm test`",
        )),
        Some(hca) => match pingpong(hca, transport) {
            Ok(()) => Ok(Completion::Completed),
            Err(error) => Err(error.into()),
        },
    })
}

/// Catches messages that do not find their way to a function of another guest, or do not arrive whole: by LID on InfiniBand, by
/// IPv4 GID and through the switch on RoCE.
fn pingpong(hca: Hca, transport: &str) -> Result {
    let mut command = Command::new(format!("ibv_{transport}_pingpong"));
    command.args(["-d", "mlx5_0", "-n", "50", "-c", "-s", "1000", "-p"]);
    command.arg(PORT.to_string()).stdin(Stdio::null());
    if hca.roce {
        // That of the IPv4 address, of RoCE 2.
        command.args(["-g", "3"]);
    }
    let first = if hca.roce { "10.9.0.1" } else { "10.8.0.1" };
    match std::env::var("VM_GUEST")?.as_str() {
        "1" => {
            let mut server = command.spawn()?;
            until(|| peers::listens(PORT))?;
            // Closed when the second guest has seen it.
            TcpListener::bind((first, READY))?.accept()?;
            finish(&mut server)
        }
        _ => {
            until(|| Ok(TcpStream::connect((first, READY)).is_ok()))?;
            finish(&mut command.arg(first).spawn()?)
        }
    }
}

fn finish(child: &mut Child) -> Result {
    let mut status = None;
    let ended = until(|| {
        status = child.try_wait()?;
        Ok(status.is_some())
    });
    if ended.is_err() {
        child.kill()?;
    }
    ended?;
    match status {
        Some(status) if status.success() => Ok(()),
        other => Err(format!("ended with {other:?}").into()),
    }
}

/// Asks until it is so, at most [`LIMIT`].
fn until(mut is_so: impl FnMut() -> Result<bool>) -> Result {
    let deadline = Instant::now() + LIMIT;
    while !is_so()? {
        if Instant::now() > deadline {
            return Err(format!("not within {LIMIT:?}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
