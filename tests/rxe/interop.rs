//! Our ping-pong against rdma-core's, with each as the server once: messages of all sizes, checked by both sides.

use std::process::{Child, Command, Stdio};

use libtest_mimic::Trial;

use crate::common::{Result, Skip, only_on_rxe, role, test, until};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("interop::rc_with_our_server", || plays("rc", true)),
        test("interop::rc_with_our_client", || plays("rc", false)),
        test("interop::uc_with_our_server", || plays("uc", true)),
        test("interop::uc_with_our_client", || plays("uc", false)),
        test("interop::ud_with_our_server", || plays("ud", true)),
        test("interop::ud_with_our_client", || plays("ud", false)),
    ]
}

/// Exchanges in each game.
const ITERATIONS: &str = "20";

/// Lengths of messages: within a packet and of many. A datagram is one packet.
fn sizes(transport: &str) -> &'static [&'static str] {
    match transport {
        "ud" => &["1", "64", "1024"],
        _ => &["1", "64", "4096", "65536"],
    }
}

/// Catches whatever the two stacks understand differently: the exchange of addresses, PSNs, the headers, immediate data,
/// the order of completions, events.
fn plays(transport: &str, ours_serves: bool) -> Result {
    for size in sizes(transport) {
        for events in [false, true] {
            let what = format!("{transport}, {size} bytes, events: {events}");
            play(transport, size, events, ours_serves).map_err(|error| {
                match error.is::<Skip>() {
                    true => error,
                    false => format!("{what}: {error}").into(),
                }
            })?;
        }
    }
    Ok(())
}

/// One game.
fn play(transport: &str, size: &str, events: bool, ours_serves: bool) -> Result {
    only_on_rxe("the adapter has tests of its own with rdma-core's programs")?;
    let port = free_port()?;
    let mut arguments = vec![
        "-d", "rxe0", "-g", "1", "-s", size, "-n", ITERATIONS, "-c", "-p", &port,
    ];
    if events {
        arguments.push("-e");
    }
    let Some(program) = option_env!("CARGO_BIN_EXE_uverbs") else {
        return Err(Skip("built without the command line (feature `cli`)".to_owned()).into());
    };
    let mut ours = Command::new(program);
    ours.args(["pingpong", transport]).args(&arguments);
    let mut theirs = Command::new(format!("ibv_{transport}_pingpong"));
    theirs.args(&arguments);
    let (mut server, mut client) = match ours_serves {
        true => (ours, theirs),
        false => (theirs, ours),
    };
    let mut serving = Guard(
        server
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?,
    );
    until("the server to listen", || match serving.0.try_wait()? {
        Some(status) => {
            Err(format!("the server ended with {status}: {}", said(&mut serving.0)).into())
        }
        None => Ok(listens(&port)?.then_some(())),
    })?;
    let played = role::finish(client.arg("127.0.0.1"));
    if played.is_ok() {
        role::await_end(&mut serving.0)?;
    } else {
        serving.0.kill()?;
    }
    let status = serving.0.wait()?;
    let server_said = said(&mut serving.0);
    match played {
        Ok(_) if status.success() => Ok(()),
        Ok(_) => Err(format!("the server ended with {status}: {server_said}").into()),
        Err(error) => Err(format!("{error}; the server said: {server_said}").into()),
    }
}

/// A child that does not outlive its test.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It has ended already, if all went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What an ended child has printed.
fn said(child: &mut Child) -> String {
    use std::io::Read;
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        let _ = out.read_to_string(&mut text);
    }
    if let Some(mut err) = child.stderr.take() {
        let _ = err.read_to_string(&mut text);
    }
    text
}

/// A TCP port that nobody uses at the moment.
fn free_port() -> Result<String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port().to_string())
}

/// Whether somebody listens on a TCP port. Connecting to find out would be taken for the client.
fn listens(port: &str) -> Result<bool> {
    let port = format!(":{:04X}", port.parse::<u16>()?);
    let mut found = false;
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let sockets = std::fs::read_to_string(table).unwrap_or_default();
        found |= sockets.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            // The local address, and the state LISTEN.
            words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some("0A")
        });
    }
    Ok(found)
}
