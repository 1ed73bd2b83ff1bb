//! `uverbs perf`: both sides on this host, over the device under test.

use std::fs;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::peers::{is_connected, play};
use support::program::uverbs;
use support::role::finish;
use support::wait::{PROCESS, until, until_so};
use support::{Device, Result, device, fail, open, same, says, skip, test};
use uverbs::alloc::Udmabuf;
use uverbs::resource::{QpResource, ResourceOwner};
use uverbs::{Access, QpState};

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = vec![
        test("perf::every_operation_of_rc", || {
            every_operation("rc", 18601)
        }),
        test("perf::every_operation_of_uc", || {
            every_operation("uc", 18602)
        }),
        test("perf::every_operation_of_ud", || {
            every_operation("ud", 18603)
        }),
        test("perf::every_operation_of_xrc", || {
            every_operation("xrc", 18604)
        }),
        test(
            "perf::many_queue_pairs_and_both_directions",
            both_directions,
        ),
        test("perf::each_kind_of_memory", each_kind_of_memory),
        test("perf::two_devices_at_once", two_devices),
        test("perf::percentiles_of_the_samples", percentiles),
        test("perf::a_stall_shows", a_stall_shows),
        test("perf::results_are_compared", compared),
        test("perf::a_peer_that_is_killed", a_peer_that_is_killed),
        test("perf::a_client_that_stops", a_client_that_stops),
        test("perf::a_server_that_stops", a_server_that_stops),
        test(
            "perf::a_result_that_cannot_be_saved",
            a_result_that_cannot_be_saved,
        ),
        test("perf::what_is_refused", what_is_refused),
        test(
            "perf::what_was_measured_before_a_failure",
            what_was_measured_before_a_failure,
        ),
    ];
    tests.push(test("perf::every_operation_of_srd", || {
        every_operation("srd", 18605)
    }));
    tests
}

/// The transport that the device is good at.
fn transport() -> &'static str {
    match device() {
        Device::Efa => "srd",
        _ => "rc",
    }
}

fn perf(words: &str, port: u16) -> Result<Command> {
    let mut command = Command::new(uverbs()?);
    command.arg("perf").args(words.split_whitespace());
    if !words.contains("--device") {
        command.args(["--device", device().name()]);
    }
    command.args(["--port", &port.to_string()]);
    command.stdin(Stdio::null());
    Ok(command)
}

/// Runs a client against a server of its own, and gives its result.
fn measured(words: &str, port: u16) -> Result<Value> {
    measured_by("serve --once", words, port)
}

/// As [`measured`], with this server.
fn measured_by(server: &str, words: &str, port: u16) -> Result<Value> {
    let words = format!("{words} 127.0.0.1 --json --connect-timeout 30 --timeout 60");
    let said = play(perf(server, port)?, perf(&words, port)?, || Ok(true))?;
    serde_json::from_str(&said.client).map_err(|error| format!("{error}: {}", said.client).into())
}

/// Goes to a field by its path.
fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    value.pointer(path).unwrap_or(&Value::Null)
}

fn number(value: &Value, path: &str) -> Result<u64> {
    let number = at(value, path).as_u64();
    number.ok_or_else(|| format!("no number {path} in {value}").into())
}

/// Catches bytes that are not those that were sent, and messages that are not counted or counted twice.
fn every_operation(transport: &str, port: u16) -> Result {
    let has = match (transport, device()) {
        ("srd", Device::Efa) => &["send"][..],
        ("srd", _) | (_, Device::Efa) => return skip("the device does not have the transport"),
        ("xrc", Device::Rxe) => return skip("soft-RoCE has no XRC"),
        ("uc", _) => &["send", "write", "write-imm"],
        ("ud", _) => &["send"],
        _ => &[
            "send",
            "write",
            "write-imm",
            "read",
            "fetch-add",
            "compare-swap",
        ],
    };
    for operation in has {
        let is_atomic = operation.contains("add") || operation.contains("swap");
        let size = if is_atomic { "8" } else { "8,1000" };
        for goal in ["latency", "bandwidth"] {
            // A lost packet leaves a part of a message, which the command refuses to check.
            let is_torn = transport == "uc" && goal == "bandwidth" && *operation != "send";
            let check = if is_torn { "" } else { "-c" };
            // Without flow control a longer queue may lose some.
            let few = if ["uc", "ud"].contains(&transport) {
                "-n 8"
            } else {
                "-n 40"
            };
            let words = format!("{goal} {operation} -t {transport} -s {size} {few} -r 2 {check}");
            let found = measured(&words, port)?;
            // Nothing tells how many WRITEs over uc have arrived.
            let lost = match is_torn && *operation == "write" {
                true => Value::Null,
                false => 0.into(),
            };
            looks_right(&found, &words, !is_torn, &lost)?;
        }
    }
    Ok(())
}

/// Whether the sums are right.
fn looks_right(found: &Value, words: &str, is_checked: bool, lost: &Value) -> Result {
    same(
        at(found, "/client/device").as_str(),
        Some(device().name()),
        "device",
    )?;
    let runs = at(found, "/runs").as_array().ok_or("no runs")?;
    let sizes = if words.contains("1000") { 2 } else { 1 };
    same(runs.len(), sizes, words)?;
    for run in runs {
        let rounds = at(run, "/rounds").as_array().ok_or("no rounds")?;
        same(rounds.len(), 2, words)?;
        for round in rounds {
            let messages = number(round, "/client/messages")?;
            let each = number(run, "/plan/until/messages")?;
            same(messages, each * number(run, "/plan/queue_pairs")?, words)?;
            let counts = at(round, "/client/rates/counts")
                .as_array()
                .ok_or("no rates")?;
            let sum: u64 = counts.iter().filter_map(Value::as_u64).sum();
            same(sum, messages, &format!("{words}: messages in intervals"))?;
            let checked = number(round, "/client/checked")? + number(round, "/server/checked")?;
            same(
                checked > 0,
                is_checked,
                &format!("{words}: {checked} checked"),
            )?;
        }
        same(at(run, "/summary/lost"), lost, &format!("{words}: lost"))?;
    }
    Ok(())
}

/// Catches threads that mix up their queue pairs, and a side that ends before the other has finished.
fn both_directions() -> Result {
    let transport = transport();
    let words = format!(
        "bandwidth send -t {transport} -s 256 -q 5 --threads 2 --both -n 64 -r 2 -c --depth 16 -b 4 -e --pin"
    );
    let found = measured(&words, 18606)?;
    for round in 0..2 {
        let side = |side: &str| format!("/runs/0/rounds/{round}/{side}");
        for (own, peer) in [("client", "server"), ("server", "client")] {
            let sent = number(&found, &(side(own) + "/sent"))?;
            same(sent, 5 * 64, "sent")?;
            same(
                number(&found, &(side(peer) + "/received"))?,
                sent,
                "received",
            )?;
            same(number(&found, &(side(peer) + "/checked"))?, sent, "checked")?;
        }
    }
    Ok(())
}

/// Catches bytes that go elsewhere than into the memory that was asked for, and a kind that is not refused
/// where it is not there.
fn each_kind_of_memory() -> Result {
    let transport = transport();
    let pd = open()?.alloc_pd()?;
    let access = Access::LOCAL_WRITE | Access::ON_DEMAND;
    let has_huge_pages = fs::write("/proc/sys/vm/nr_hugepages", "8").is_ok();
    let has_dmabufs = || -> Result<bool> {
        let Ok(memory) = Udmabuf::new(4096) else {
            return Ok(false);
        };
        // SAFETY: no object has a buffer in it.
        let file = unsafe { memory.dmabuf().file() }.try_clone_to_owned()?;
        let mr = pd.register_dmabuf(file, 0..4096, 0, Access::LOCAL_WRITE);
        Ok(mr.is_ok())
    };
    for (port, (kind, has)) in (18620..).zip([
        ("huge", has_huge_pages),
        ("on-demand", pd.register(vec![0; 4096], access).is_ok()),
        ("dmabuf", has_dmabufs()?),
        ("device", pd.context().alloc_dm(4096, 6).is_ok()),
    ]) {
        if kind == "on-demand" && device().is_rxe() {
            // `__rxe_odp_mr_copy`, Linux 6.15 to 7.3: from and to the start of the page, wherever in it the
            // message lies. With -c the command says so.
            println!("{kind}: soft-RoCE loses where in its page a message lies");
            continue;
        }
        let words = format!(
            "bandwidth send -t {transport} -s 1001 -n 40 -r 1 -c --depth 8 --memory {kind}"
        );
        let found = measured(&words, port);
        match (has, found) {
            (true, found) => {
                let found = found.map_err(|error| format!("{kind}: {error}"))?;
                same(number(&found, "/runs/0/summary/checked")?, 40, kind)?;
                let told = at(&found, "/runs/0/plan/memory").as_str();
                same(told, Some(kind), "the memory")?;
            }
            (false, Ok(_)) => return fail(format!("{kind}: it worked")),
            (false, Err(error)) => println!("{kind}: {error}"),
        }
    }
    Ok(())
}

/// Catches queue pairs that are all on one device, and conditions that tell of one alone.
fn two_devices() -> Result {
    let devices = uverbs::devices()?;
    let like_this = |other: &&uverbs::Device| other.driver().is_some() && other.has_node();
    let names: Vec<&str> = devices
        .iter()
        .filter(like_this)
        .map(|of| of.name())
        .collect();
    let [one, other, ..] = names[..] else {
        return skip("there is one device");
    };
    // The kernel's list of queue pairs has no states of a device's own type, and tells nothing on an EFA.
    let expected = match device() == Device::Efa {
        true => (0, 0),
        false => (4, 2),
    };
    let transport = transport();
    let both = format!("--device {one},{other}");
    let words = format!("bandwidth send -t {transport} -s 256 -q 3 -T 2 -r 1 {both}");
    let found = std::thread::scope(|scope| -> Result<Value> {
        let run = scope.spawn(|| {
            let found = measured_by(&format!("serve --once {both}"), &words, 18630);
            found.map_err(|error| error.to_string())
        });
        // Two queue pairs on the first device, and one on the other, with their peers.
        let counts = until("queue pairs on both devices", || {
            let counts = (sending(one)?, sending(other)?);
            Ok((counts == expected || run.is_finished()).then_some(counts))
        })?;
        let found = run.join().map_err(|_| "a panic")??;
        same(counts, expected, "queue pairs")?;
        Ok(found)
    })?;
    same(number(&found, "/runs/0/plan/threads")?, 2, "threads")?;
    let told = at(&found, "/client/device").as_str();
    same(told, Some(format!("{one}, {other}").as_str()), "devices")?;
    let sent = number(&found, "/runs/0/rounds/0/client/sent")?;
    let received = number(&found, "/runs/0/rounds/0/server/received")?;
    same(received, sent, "received")?;
    // A server that names one device cannot do that.
    let server = format!("serve --once --device {one}");
    let refused = measured_by(&server, &words, 18631).unwrap_err();
    says(&refused, &["the client has 2 devices, and this side 1"])
}

/// Queue pairs of a device that can send, without those of the kernel.
fn sending(device: &str) -> Result<usize> {
    let qps = uverbs::device::find(device)?.resources()?.qps()?;
    let sends = |qp: &&QpResource| {
        qp.state == QpState::RTS && matches!(qp.owner, ResourceOwner::Process(_))
    };
    Ok(qps.iter().filter(sends).count())
}

/// Catches percentiles that are not those of the times.
fn percentiles() -> Result {
    let transport = transport();
    let found = measured(
        &format!("latency send -t {transport} -n 500 -r 1 --samples"),
        18607,
    )?;
    let samples = at(&found, "/runs/0/rounds/0/client/samples");
    let mut samples: Vec<u64> = serde_json::from_value(samples.clone())?;
    samples.sort_unstable();
    same(samples.len(), 500, "samples")?;
    for (name, share) in [
        ("median", 0.5),
        ("p99", 0.99),
        ("p999", 0.999),
        ("max", 1.0),
    ] {
        let place = (share * samples.len() as f64).ceil() as usize - 1;
        let exact = samples[place] as f64 / 1e3;
        let path = format!("/runs/0/summary/{name}");
        let told = at(&found, &path).as_f64().ok_or("no percentile")?;
        // The histogram has three digits.
        let is_right = (told / exact - 1.0).abs() < 2e-3;
        same(is_right, true, &format!("{name}: {told} of {exact}"))?;
    }
    Ok(())
}

/// A process that does not outlive its test.
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) -> Result {
        let pid = Pid::from_raw(self.0.id() as i32).ok_or("no pid")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already, if all went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Catches a pause that disappears in averages: the server is stopped for 50 ms now and then.
fn a_stall_shows() -> Result {
    const STALL: Duration = Duration::from_millis(50);
    let transport = transport();
    let port = 18608;
    let server = Process(perf("serve --once", port)?.spawn()?);
    let words = format!(
        "latency send 127.0.0.1 -t {transport} -T 3 -r 1 --json --connect-timeout 30 --timeout 60"
    );
    let mut client = perf(&words, port)?;
    // A file: nobody reads a pipe before the client has ended, and it may say more than a pipe holds.
    let mut said = tempfile::tempfile()?;
    let mut client = Process(client.stdout(said.try_clone()?).spawn()?);
    while client.0.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(300));
        server.signal(Signal::STOP)?;
        std::thread::sleep(STALL);
        server.signal(Signal::CONT)?;
    }
    said.rewind()?;
    let found: Value = serde_json::from_reader(said)?;
    let longest = at(&found, "/runs/0/summary/max")
        .as_f64()
        .ok_or("no maximum")?;
    same(
        longest >= STALL.as_secs_f64() * 1e6,
        true,
        &format!("{longest} µs"),
    )?;
    let counts = at(&found, "/runs/0/rounds/0/client/rates/counts");
    let counts: Vec<u64> = serde_json::from_value(counts.clone())?;
    let interval = at(&found, "/runs/0/rounds/0/client/rates/interval");
    let interval = interval.as_f64().ok_or("no interval")?;
    let empty = counts.split(|count| *count > 0).map(<[u64]>::len).max();
    // The first and the last interval of the stall are seldom empty as a whole.
    let least = (STALL.as_secs_f64() / interval) as usize - 1;
    same(empty >= Some(least), true, &format!("{counts:?}"))?;
    same(
        at(&found, "/runs/0/summary/least_interval").as_f64(),
        Some(0.0),
        "the least interval",
    )
}

/// The rounds of a result's first run.
fn rounds_of(result: &mut Value) -> Result<&mut Vec<Value>> {
    let rounds = result.pointer_mut("/runs/0/rounds");
    Ok(rounds.and_then(Value::as_array_mut).ok_or("no rounds")?)
}

/// Catches a comparison that sees differences where there are none, or none where there is one.
fn compared() -> Result {
    let transport = transport();
    let directory = tempfile::tempdir()?;
    let file = |name: &str| directory.path().join(name);
    let words = format!("latency send -t {transport} -n 100 -r 5");
    let found = measured(&words, 18609)?;
    fs::write(file("a"), found.to_string())?;
    let verdicts = |before: &Path, after: &Path| -> Result<Vec<String>> {
        let mut compare = Command::new(uverbs()?);
        compare.args(["perf", "compare", "--json", "--confidence", "0.999"]);
        let said = finish(compare.args([before, after]))?;
        let compared: Value = serde_json::from_str(&said)?;
        let verdicts = compared["compared"]
            .as_array()
            .ok_or("no comparison")?
            .iter()
            .map(|it| at(it, "/verdict").as_str().unwrap_or(""));
        Ok(verdicts.map(str::to_owned).collect())
    };
    // The same rounds in another order. Another run would not do: a machine may be slower for all of it, and
    // then the two do differ.
    let mut turned = found.clone();
    rounds_of(&mut turned)?.reverse();
    fs::write(file("turned"), turned.to_string())?;
    let same_rounds = verdicts(&file("a"), &file("turned"))?;
    same(
        same_rounds,
        vec!["no difference shown".to_owned(); 2],
        "the same rounds",
    )?;
    // A thousand times as long: no machine varies so much.
    let mut slow = found;
    for round in rounds_of(&mut slow)? {
        let counts = round
            .pointer_mut("/client/times/counts")
            .and_then(Value::as_array_mut);
        for count in counts.ok_or("no times")? {
            count[0] = (count[0].as_u64().ok_or("no time")? * 1000).into();
        }
    }
    fs::write(file("slow"), slow.to_string())?;
    let changed = verdicts(&file("a"), &file("slow"))?;
    same(changed, vec!["worse".to_owned(); 2], "a slower run")?;
    // What was saved is shown again.
    let plots = file("plots.svg");
    let mut show = Command::new(uverbs()?);
    show.args(["perf", "show", "--plot", "--svg"])
        .arg(&plots)
        .arg(file("a"));
    let said = finish(&mut show)?;
    for words in ["ROUND TRIP", "messages/s over seconds", device().name()] {
        same(said.contains(words), true, &said)?;
    }
    same(fs::read_to_string(plots)?.starts_with("<svg"), true, "SVG")
}

/// How long a run lasts before its peer is killed.
const IN_THE_MIDDLE: Duration = Duration::from_secs(2);

/// Catches a client that waits for a peer which has gone.
fn a_peer_that_is_killed() -> Result {
    let transport = transport();
    let port = 18610;
    let server = Process(perf("serve --once", port)?.spawn()?);
    let words =
        format!("bandwidth send 127.0.0.1 -t {transport} -s 4K -T 60 -r 1 --connect-timeout 30");
    let mut client = perf(&words, port)?;
    let mut client = Process(client.stderr(Stdio::piped()).spawn()?);
    until_so(PROCESS, "the connection", || is_connected(port))?;
    std::thread::sleep(IN_THE_MIDDLE);
    drop(server);
    let status = support::role::await_end(&mut client.0).and_then(|()| Ok(client.0.wait()?))?;
    let mut said = String::new();
    let mut complained = client.0.stderr.take().ok_or("no stderr")?;
    complained.read_to_string(&mut said)?;
    same(status.code(), Some(5), &said)?;
    // Not that it could not connect.
    let words = ["the peer has closed the connection", "the peer has gone"];
    same(words.iter().any(|words| said.contains(words)), true, &said)
}

/// Waits until both sides can send, and the round has begun.
fn await_round() -> Result {
    // The kernel's list of queue pairs does not tell their states on an EFA.
    if device() != Device::Efa {
        until("queue pairs that send", || {
            Ok((sending(device().name())? > 1).then_some(()))
        })?;
    }
    // Nothing tells from outside when the sides are ready.
    std::thread::sleep(Duration::from_secs(2));
    Ok(())
}

/// Catches a server that is held by a client whose program has stopped. The kernel keeps its connection.
fn a_client_that_stops() -> Result {
    let transport = transport();
    let port = 18613;
    let mut server = Process(perf("serve --once", port)?.stderr(Stdio::piped()).spawn()?);
    let words = format!(
        "bandwidth send 127.0.0.1 -t {transport} -s 4K -T 60 -r 1 --connect-timeout 30 --timeout 5"
    );
    let client = Process(perf(&words, port)?.spawn()?);
    await_round()?;
    client.signal(Signal::STOP)?;
    support::role::await_end(&mut server.0)?;
    same(server.0.wait()?.code(), Some(5), "exit code")
}

/// Catches a client that has sent everything and waits for a server whose program has stopped.
fn a_server_that_stops() -> Result {
    let transport = transport();
    let port = 18614;
    let server = Process(perf("serve --once", port)?.spawn()?);
    // WRITEs go on, whatever the server's program does.
    let operation = if device() == Device::Efa {
        "send"
    } else {
        "write"
    };
    let words = format!(
        "bandwidth {operation} 127.0.0.1 -t {transport} -s 4K -T 8 --warm-up 0 -r 1 --both --connect-timeout 30 \
         --timeout 5"
    );
    let mut client = Process(perf(&words, port)?.stderr(Stdio::piped()).spawn()?);
    await_round()?;
    server.signal(Signal::STOP)?;
    support::role::await_end(&mut client.0)?;
    same(client.0.wait()?.code(), Some(5), "exit code")
}

/// Catches a result that is lost because its file cannot be written.
fn a_result_that_cannot_be_saved() -> Result {
    let transport = transport();
    let port = 18615;
    let _server = Process(perf("serve --once", port)?.spawn()?);
    let words = format!(
        "latency send 127.0.0.1 -t {transport} -n 5 -r 1 --save /dev/full --connect-timeout 30 --timeout 60"
    );
    let output = perf(&words, port)?.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    same(output.status.code(), Some(1), "exit code")?;
    same(said.contains("ROUND TRIP"), true, &said)
}

/// Catches a size that fails and takes with it what the sizes before have measured.
fn what_was_measured_before_a_failure() -> Result {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("a.json");
    let port = 18612;
    let _server = Process(perf("serve --once", port)?.spawn()?);
    // The second does not fit into a packet.
    let words =
        "latency send 127.0.0.1 -t ud -s 64,64K -n 5 -r 1 --connect-timeout 30 --timeout 60";
    let output = perf(words, port)?.arg("--save").arg(&file).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    same(output.status.code(), Some(2), "exit code")?;
    same(said.contains("ud send"), true, &said)?;
    let saved: Value = serde_json::from_slice(&fs::read(&file)?)?;
    same(saved["runs"].as_array().map(Vec::len), Some(1), "runs")
}

fn what_is_refused() -> Result {
    let ends = |words: &str, code: i32| -> Result {
        let output = perf(words, 18611)?.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() == Some(code) {
            true => Ok(()),
            false => fail(format!("{words}: {}: {said}", output.status)),
        }
    };
    ends("latency read 127.0.0.1 -t ud", 2)?;
    ends("latency fetch-add 127.0.0.1 -s 16", 2)?;
    ends("bandwidth send 127.0.0.1 -s 2 -c", 2)?;
    ends("latency send 127.0.0.1 -e --threads 2 -q 3", 2)?;
    ends("latency send 127.0.0.1 --connect-timeout 0.1", 5)?;
    // A server says so before a client comes, and a client before it measures.
    ends("serve --ib-port 9", 3)?;
    ends("serve --gid-index 250", 3)?;
    ends("serve --device no_such_device", 3)?;
    ends("latency send 127.0.0.1 --save /no/such/file", 1)?;
    ends("latency send 127.0.0.1 --svg /no/such/file", 1)
}
