//! Faults on demand: what programs and the kernel see when a function fails as it was asked to.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::{Value, json};
use support::doctor::{examine, is};
use support::peers::{free_port, listens, play};
use support::program::uverbs;
use support::wait::until_so;
use support::{Control, Hca, Result, run, same, skip, test_on_adapter};

/// How long anything that must happen may take: the driver looks at a function's health every few seconds,
/// and sets one up anew that has failed or was removed.
const LIMIT: Duration = Duration::from_secs(100);

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_on_adapter("faults::port_down_and_up", port_down_and_up),
        test_on_adapter("faults::lost_messages_exhaust_retries", lost_messages),
        test_on_adapter("faults::without_receives_a_sender_waits", without_receives),
        test_on_adapter("faults::a_stalled_function_goes_on", stalled),
        test_on_adapter("faults::a_completion_queue_overflows", overflow),
        test_on_adapter("faults::a_command_fails", command_fails),
        test_on_adapter(
            "faults::an_internal_error_is_recovered_from",
            internal_error,
        ),
        test_on_adapter("faults::a_port_without_a_netdev", without_netdev),
        test_on_adapter("faults::a_function_is_removed", removal),
    ]
}

/// Catches a port whose loss is not seen by the driver, or not told to programs, and one that is back but not
/// in its groups.
fn port_down_and_up(hca: Hca) -> Result {
    let mut control = Control::open()?;
    let watch = Watch::start("mlx5_0")?;
    let mut set = |up: bool| control.ask("port", json!({"function": 0, "up": up}));
    set(false)?;
    until_so(LIMIT, "the port to go down", || {
        Ok(port_state()?.contains("PORT_DOWN"))
    })?;
    set(true)?;
    until_so(LIMIT, "the port to come up", || {
        Ok(port_state()?.contains("PORT_ACTIVE"))
    })?;
    if hca.roce {
        // Whether the kernel tells of a netdev's link depends on its version.
        return Ok(());
    }
    watch.sees("IBV_EVENT_PORT_ERR")?;
    watch.sees("IBV_EVENT_PORT_ACTIVE")?;
    if hca.functions < 2 {
        return Ok(());
    }
    // The port is in no group of the subnet any more, until it joins again.
    until_so(LIMIT, "an answer over IP", || {
        Ok(run("ping -c 1 -W 1 10.9.0.2").is_ok())
    })
}

/// Catches requests that complete although nobody answered, or never.
fn lost_messages(hca: Hca) -> Result {
    let mut control = Control::open()?;
    control.ask("lose", json!({"function": 0, "on": true}))?;
    let played = pingpong(hca, || Ok(()));
    control.ask("lose", json!({"function": 0, "on": false}))?;
    let said = played.err().map(|error| error.to_string());
    match said {
        Some(said) if said.contains("transport retry counter exceeded") => Ok(()),
        other => Err(format!("no retries were exhausted: {other:?}").into()),
    }
}

/// Catches a sender that gives up at once, or a message that is lost, while its peer has no receive request.
fn without_receives(hca: Hca) -> Result {
    holds(hca, "not_ready", &[0, 1], "send", "receive")
}

/// Catches requests that are lost, or carried out nevertheless, while the device does not look at its queues.
fn stalled(hca: Hca) -> Result {
    holds(hca, "stall", &[0, 1], "doorbell", "send")
}

/// Plays with a fault at some functions that is taken away when the first record of one kind is there, at
/// which time there must be none of the other kind.
fn holds(hca: Hca, fault: &str, at: &[u16], first: &str, none: &str) -> Result {
    let mut control = Control::open()?;
    let functions = || at.iter().filter(|number| **number < hca.functions);
    for function in functions() {
        control.ask(fault, json!({"function": function, "on": true}))?;
    }
    control.ask("tap_start", json!({}))?;
    let mut seen: Vec<Value> = Vec::new();
    let played = pingpong(hca, || {
        // The kernel loads page lists by requests of its own, of this opcode, which no fault holds.
        let loads = |record: &Value| {
            let bytes = record["bytes"].as_str();
            bytes.is_some_and(|bytes| bytes.get(6..8) == Some("25"))
        };
        let is = |record: &Value, kind: &str| {
            record["kind"] == kind && (kind == "receive" || !loads(record))
        };
        until_so(LIMIT, "the first request", || {
            let records = control.ask("tap_next", json!({}))?;
            seen.extend(records.as_array().into_iter().flatten().cloned());
            Ok(seen.iter().any(|record| is(record, first)))
        })?;
        for function in functions() {
            control.ask(fault, json!({"function": function, "on": false}))?;
        }
        match seen.iter().find(|record| is(record, none)) {
            Some(early) => Err(format!("{fault} did not hold this: {early}").into()),
            None => Ok(()),
        }
    });
    for function in functions() {
        control.ask(fault, json!({"function": function, "on": false}))?;
    }
    control.ask("tap_take", json!({}))?;
    played
}

/// Catches an overflow that the driver does not notice.
fn overflow(hca: Hca) -> Result {
    let mut control = Control::open()?;
    // Senders that wait for receives, so that the game does not end before a queue pair of it has been found.
    let not_ready = |control: &mut Control, on: bool| -> Result {
        for function in 0..hca.functions.min(2) {
            control.ask("not_ready", json!({"function": function, "on": on}))?;
        }
        Ok(())
    };
    not_ready(&mut control, true)?;
    control.ask("tap_start", json!({}))?;
    let before = run("dmesg")?.matches("CQ error").count();
    let played = pingpong(hca, || {
        until_so(LIMIT, "a queue pair whose queue can overflow", || {
            let records = control.ask("tap_next", json!({}))?;
            let mut records = records.as_array().into_iter().flatten().rev();
            let found =
                records.find(|record| record["kind"] == "send" && record["transport"] == "Rc");
            // The newest may have gone since it was seen.
            Ok(found.is_some_and(|record| {
                let named = json!({"function": record["function"], "qpn": record["qpn"]});
                control.ask("overflow", named).is_ok()
            }))
        })?;
        let told = until_so(LIMIT, "the kernel to tell of it", || {
            Ok(run("dmesg")?.matches("CQ error").count() > before)
        });
        not_ready(&mut control, false)?;
        told?;
        Err("enough".into())
    });
    not_ready(&mut control, false)?;
    control.ask("tap_take", json!({}))?;
    match played {
        Err(error) if error.to_string() == "enough" => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

/// Catches a refusal that the driver takes for a success, and one that lasts.
fn command_fails(hca: Hca) -> Result {
    let mut control = Control::open()?;
    let refuse = json!({"function": 0, "command": "CREATE_CQ", "count": 1});
    control.ask("fail_command", refuse)?;
    let output = Command::new("ibv_rc_pingpong")
        .args(["-d", "mlx5_0"])
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !said.contains("Couldn't create CQ") {
        return Err(format!("it was to fail at its CQ: {output:?}").into());
    }
    pingpong(hca, || Ok(()))
}

/// Catches a failure that the driver does not see in the registers, does not tell to programs, or cannot
/// recover from.
fn internal_error(hca: Hca) -> Result {
    if hca.roce {
        return skip("the netdev would lose its address, which later tests need");
    }
    let mut control = Control::open()?;
    let watch = Watch::start("mlx5_0")?;
    control.ask("internal_error", json!({"function": 0}))?;
    watch.sees("IBV_EVENT_DEVICE_FATAL")?;
    drop(watch);
    until_so(LIMIT, "the function to come back", || {
        Ok(port_state().is_ok_and(|state| state.contains("PORT_ACTIVE")))
    })
}

/// Catches objects that keep a removed function, programs that are not told, and a function that does not
/// come back.
fn removal(hca: Hca) -> Result {
    if hca.roce {
        return skip("the netdev would lose its address, which later tests need");
    }
    let watch = Watch::start("mlx5_0")?;
    std::fs::write("/sys/class/infiniband/mlx5_0/device/remove", "1")?;
    watch.sees("IBV_EVENT_DEVICE_FATAL")?;
    drop(watch);
    until_so(LIMIT, "the device to go", || Ok(port_state().is_err()))?;
    std::fs::write("/sys/bus/pci/rescan", "1")?;
    until_so(LIMIT, "the function to come back", || {
        Ok(port_state().is_ok_and(|state| state.contains("PORT_ACTIVE")))
    })
}

/// Catches a port without GIDs that is taken for another fault: its network device goes when the adapter's
/// driver for that is unbound, and GIDs go with it.
fn without_netdev(hca: Hca) -> Result {
    if !hca.roce {
        return skip("a port of InfiniBand has a GID without a network device");
    }
    let entries = std::fs::read_dir("/sys/class/infiniband/mlx5_0/device")?.flatten();
    let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let function = names.find(|name| name.starts_with("mlx5_core.eth."));
    let function = function.ok_or("no function for Ethernet")?;
    let ports = uverbs::device::find("mlx5_0")?.ports()?;
    let netdev = ports.first().and_then(|port| port.netdev.as_ref());
    let netdev = &netdev.ok_or("no netdev")?.name;
    let driver = "/sys/bus/auxiliary/drivers/mlx5_core.eth";
    let context = uverbs::open("mlx5_0")?;
    let before = context.best_gid(1)?;
    std::fs::write(format!("{driver}/unbind"), &function)?;
    let seen = until_so(LIMIT, "the GIDs to go", || {
        Ok(context.gid_table()?.is_empty())
    })
    .and_then(|()| examine(Command::new(uverbs()?).args(["doctor", "--json", "-d", "mlx5_0"])));
    std::fs::write(format!("{driver}/bind"), &function)?;
    run(&format!("ip addr add 10.9.0.1/24 dev {netdev}"))?;
    run(&format!("ip link set {netdev} up"))?;
    until_so(LIMIT, "the GIDs to come back", || {
        Ok(context.best_gid(1).is_ok_and(|best| best == before))
    })?;
    let (findings, status) = seen?;
    same(status, Some(1), "exit status")?;
    is(&findings, "port", "broken", "DOWN")?;
    is(&findings, "gid", "broken", "nor a network device")?;
    is(&findings, "gid", "broken", "bind the device")
}

fn port_state() -> Result<String> {
    run("ibv_devinfo -d mlx5_0")
}

/// A ping-pong of some length between two functions; `meanwhile` is done when it has been started.
fn pingpong(hca: Hca, meanwhile: impl FnOnce() -> Result) -> Result {
    let port = free_port()?;
    let side = |device: &str| -> Result<Command> {
        let mut command = Command::new("ibv_rc_pingpong");
        command.args(["-d", device, "-p", &port.to_string(), "-n", "100"]);
        if let Some(index) = hca.gid_index(device)? {
            command.args(["-g", &index.to_string()]);
        }
        Ok(command)
    };
    let (here, there) = hca.ends();
    let (server, mut client) = (side(&here)?, side(&there)?);
    client.arg("127.0.0.1");
    std::thread::scope(|scope| {
        let played = scope.spawn(move || play(server, client, || listens(port)));
        let done = meanwhile();
        let played = played.join().map_err(|_| "the players panicked")?;
        done.and(played.map(drop))
    })
}

/// rdma-core's program that prints a device's asynchronous events.
struct Watch {
    child: Child,
    words: Arc<Mutex<String>>,
}

impl Watch {
    fn start(device: &str) -> Result<Self> {
        // To a pipe it would write only when it ends, which it does not.
        let mut child = Command::new("stdbuf")
            .args(["-oL", "ibv_asyncwatch", "-d", device])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = child.stdout.take().ok_or("no pipe")?;
        let words: Arc<Mutex<String>> = Arc::default();
        let heard = Arc::clone(&words);
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                heard
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        let watch = Self { child, words };
        watch.sees("async event FD")?;
        Ok(watch)
    }

    /// Waits until it has printed that.
    fn sees(&self, text: &str) -> Result {
        let said = || {
            let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
            words.clone()
        };
        until_so(LIMIT, text, || Ok(said().contains(text)))
            .map_err(|error| format!("{error}; events: {}", said()).into())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It has ended already if its device is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
