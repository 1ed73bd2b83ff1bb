//! Ours and rdma-core's programs, each in both roles.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use libtest_mimic::Trial;
use serde_json::Value;
use support::doctor::{examine, is};
use support::peers::{listens_by_address, play};
use support::program::uverbs;
use support::role::{await_end, finish as finish_of};
use support::wait::{until, until_so};
use support::{
    LIMIT, Result, Wc, completion, device, fail, only_on_rxe, open, run, same, skip,
    test_without_leaks,
};
use uverbs::cm::{self, Connection, Event, Listener, Params, Pending, RejectReason, Resolved};
use uverbs::query::LinkLayer;
use uverbs::{Caps, Cause, Qp, Rc, WcOpcode, WcStatus};
use uverbs_uapi::rdma_cm::cmd;

use crate::ground::{Side, own_address, request, way_to};

/// A conversation: who begins, how many messages each sends, and of how many bytes.
#[derive(Clone, Copy)]
pub(crate) struct Talk {
    server_first: bool,
    count: usize,
    size: usize,
}

/// `rdma_client` sends its 16 bytes, `rdma_server` answers.
const RDMA_CLIENT: Talk = Talk {
    server_first: false,
    count: 1,
    size: 16,
};

/// `ucmatose`: the server sends all of its messages, the client then all of its own.
pub(crate) const UCMATOSE: Talk = Talk {
    server_first: true,
    count: 4,
    size: 100,
};

pub(crate) fn tests() -> Vec<Trial> {
    let server = |name: &'static str, command: &'static str, talk: Talk| {
        test_without_leaks(name, move || be_the_client(command, talk))
    };
    let client = |name: &'static str, command: &'static str, talk: Talk| {
        test_without_leaks(name, move || be_the_server(command, talk))
    };
    let rping = |name: &'static str, server: &'static str, client: &'static str| {
        test_without_leaks(name, move || pings(server, client))
    };
    vec![
        test_without_leaks("programs::pingpong_by_address", pingpong),
        test_without_leaks(
            "programs::a_watch_outlives_its_device",
            a_watch_outlives_its_device,
        ),
        test_without_leaks("programs::pingpong_to_nobody", pingpong_to_nobody),
        test_without_leaks("programs::perf_by_address", perf_by_address),
        test_without_leaks("programs::commands_as_librdmacm", commands_as_librdmacm),
        test_without_leaks(
            "programs::the_doctor_finds_the_way",
            the_doctor_finds_the_way,
        ),
        test_without_leaks("programs::the_doctor_pings", the_doctor_pings),
        test_without_leaks("programs::the_doctor_pings_rping", the_doctor_pings_rping),
        test_without_leaks("programs::no_path_to_a_peer", no_path_to_a_peer),
        test_without_leaks("programs::link_local_addresses", link_local_addresses),
        rping(
            "programs::rping_client",
            "uverbs rping -s -a 10.9.0.1 -S 2000 -v",
            "rping -c -a 10.9.0.1 -S 2000 -C 3 -V -v",
        ),
        rping(
            "programs::rping_server",
            "rping -s -a 10.9.0.1 -S 2000 -v",
            "uverbs rping -c -a 10.9.0.1 -S 2000 -C 3 -V -v",
        ),
        rping(
            "programs::rping_client_by_default",
            "uverbs rping -s -a 10.9.0.1 -v",
            "rping -c -a 10.9.0.1 -C 3 -V -v",
        ),
        rping(
            "programs::rping_server_by_default",
            "rping -s -a 10.9.0.1 -v",
            "uverbs rping -c -a 10.9.0.1 -C 3 -V -v",
        ),
        // The size that rping's manual page names.
        rping(
            "programs::rping_ours",
            "uverbs rping -s -a 10.9.0.1 -v",
            "uverbs rping -c -a 10.9.0.1 -S 100 -C 3 -V -v",
        ),
        test_without_leaks("programs::rping_without_a_reader", rping_without_a_reader),
        server(
            "programs::rdma_server",
            "rdma_server -s 10.9.0.1",
            RDMA_CLIENT,
        ),
        client(
            "programs::rdma_client",
            "rdma_client -s 10.9.0.1",
            RDMA_CLIENT,
        ),
        server(
            "programs::ucmatose_server",
            "ucmatose -b 10.9.0.1 -C 4 -S 100",
            UCMATOSE,
        ),
        client(
            "programs::ucmatose_client",
            "ucmatose -s 10.9.0.1 -C 4 -S 100",
            UCMATOSE,
        ),
    ]
}

/// Catches a connection of several that is not made, and bytes that are not those that were sent.
fn perf_by_address() -> Result {
    let server = own_address().ip().to_string();
    for (transport, words) in [("rc", "bandwidth write-imm"), ("uc", "latency send")] {
        let mut serve = Command::new(uverbs()?);
        serve.args(["perf", "serve", "--once", "-p", "18620"]);
        let mut client = Command::new(uverbs()?);
        client.arg("perf").args(words.split(' ')).arg(&server);
        client.args([
            "--cm", "-t", transport, "-p", "18620", "-c", "-n", "20", "-r", "2",
        ]);
        client.args([
            "--threads",
            "2",
            "-q",
            "2",
            "-s",
            "512",
            "--connect-timeout",
            "30",
        ]);
        let said = play(serve, client, || Ok(true))?;
        let checked = said.client.contains("every byte as it was sent");
        same(checked, true, &said.client)?;
    }
    Ok(())
}

/// What the doctor finds on the way to a peer: checks with verdict and words, and the exit status.
fn examined(peer: &str, port: &str) -> Result<(Vec<Value>, Option<i32>)> {
    let mut doctor = Command::new(uverbs()?);
    doctor.args(["doctor", "--json", "-d", device().name(), "-p", port, peer]);
    examine(&mut doctor)
}

/// Catches an answer that is taken for none, a peer that is said to be there and is not, and a step that is
/// blamed for another.
fn the_doctor_finds_the_way() -> Result {
    let own = own_address().ip().to_string();
    let (findings, status) = examined(&own, "18630")?;
    for (check, words) in [
        ("address", own.as_str()),
        ("route", device().name()),
        ("answer", "its connection manager answers"),
    ] {
        is(&findings, check, "good", words)?;
    }
    for check in ["datagrams", "connection"] {
        is(
            &findings,
            check,
            "unknown",
            "not tried: nobody answers pings",
        )?;
    }
    same(status, Some(0), "exit status")?;
    // On the dummy below soft-RoCE every address seems to be there, and nothing comes from it.
    let (silent, step) = match device().is_rxe() {
        true => ("UDP port 4791", "answer"),
        false => ("no neighbour answered", "address"),
    };
    for (peer, step, words) in [
        ("192.0.2.1", "address", "no route to the peer"),
        ("127.0.0.1", "address", "loopback"),
        ("fe80::1", "address", "needs its scope"),
        ("10.9.0.77", step, silent),
    ] {
        let (findings, status) = examined(peer, "18630")?;
        is(&findings, step, "broken", words)?;
        let after = findings.iter().any(|it| it["check"] == "connection");
        same((after, status), (false, Some(1)), peer)?;
    }
    Ok(())
}

/// Catches a ping that is not sent, an answer that is not looked at, and a listener of something else that is
/// taken for a server of pings.
fn the_doctor_pings() -> Result {
    let own = own_address().ip().to_string();
    let program = uverbs()?.display().to_string();
    let mut server = Program::on_any(&format!("{program} doctor --serve -p 18631"))?;
    server.says("pings at port 18631 are answered")?;
    let (findings, status) = examined(&own, "18631")?;
    for check in ["datagrams", "connection"] {
        is(&findings, check, "good", "went there and came back")?;
    }
    same(status, Some(0), "exit status")?;
    drop(server);
    // The connection manager has ports of their own for uc.
    for (transport, verdict, words) in [
        ("uc", "unknown", "not tried: nobody answers pings"),
        ("rc", "broken", "no server of pings"),
    ] {
        let server = format!("{program} pingpong {transport} --cm -p 18632");
        let server = Program::on_any(&server)?;
        until_so(LIMIT, "the server to listen", listens_by_address)?;
        let (findings, _) = examined(&own, "18632")?;
        is(&findings, "connection", verdict, words)?;
        drop(server);
    }
    Ok(())
}

/// Catches a ping that is larger than a server of rdma-core's `rping` has room for.
fn the_doctor_pings_rping() -> Result {
    let own = own_address().ip().to_string();
    let _server = Program::start(&format!("rping -s -P -a {own} -p 18637"))?;
    until_so(LIMIT, "the server to listen", listens_by_address)?;
    let (findings, status) = examined(&own, "18637")?;
    is(&findings, "connection", "good", "went there and came back")?;
    same(status, Some(0), "exit status")
}

/// The network device that has the guest's address.
fn netdev() -> Result<String> {
    let said = run(&format!("ip -o -4 addr show to {}", own_address().ip()))?;
    let name = said.split_whitespace().nth(1);
    Ok(name.ok_or("no network device has the address")?.to_owned())
}

/// Catches a route that the subnet does not have and that is taken for a missing answer: the neighbour is
/// known, and no port has its GID.
fn no_path_to_a_peer() -> Result {
    if open()?.query_port(1)?.link_layer != LinkLayer::INFINIBAND {
        return skip("on Ethernet the kernel makes the route itself");
    }
    let neighbour = format!("10.9.0.78 dev {}", netdev()?);
    let address = "80:00:00:48:fe:80:00:00:00:00:00:00:02:de:ad:00:be:ef:00:01";
    run(&format!(
        "ip neigh replace {neighbour} lladdr {address} nud permanent"
    ))?;
    let looked = examined("10.9.0.78", "18630");
    run(&format!("ip neigh del {neighbour}"))?;
    let (findings, status) = looked?;
    is(&findings, "route", "broken", "see the subnet manager")?;
    let after = findings.iter().any(|it| it["check"] == "answer");
    same((after, status), (false, Some(1)), "what is left")
}

/// Catches an address whose network device is lost on its way through a program: it leads nowhere then.
fn link_local_addresses() -> Result {
    let netdev = netdev()?;
    let said = run(&format!("ip -o -6 addr show dev {netdev} scope link"))?;
    let address = said
        .split_whitespace()
        .nth(3)
        .and_then(|it| it.split_once('/'));
    let (address, _) = address.ok_or("no link-local address")?;
    let own = format!("{address}%{netdev}");
    let program = uverbs()?.display().to_string();
    let mut server = Program::on_any(&format!("{program} doctor --serve -p 18634"))?;
    server.says("pings at port 18634 are answered")?;
    let (findings, status) = examined(&own, "18634")?;
    is(&findings, "address", "good", address)?;
    for check in ["datagrams", "connection"] {
        is(&findings, check, "good", "went there and came back")?;
    }
    same(status, Some(0), "exit status")?;
    let mut pings = Command::new(uverbs()?);
    let pings = pings.args([
        "rping", "-c", "-a", &own, "-p", "18634", "-C", "2", "-V", "-v",
    ]);
    let said = finish_of(pings)?;
    same(said.matches("ping data").count(), 2, &said)?;
    drop(server);
    pingpong_by("--cm", &own)?;
    for words in ["-n 5", "-n 5 --cm"] {
        let mut serve = Command::new(uverbs()?);
        serve.args(["perf", "serve", "--once", "-p", "18635"]);
        let mut client = Command::new(uverbs()?);
        client.args([
            "perf", "latency", "send", &own, "-c", "-r", "1", "-p", "18635",
        ]);
        client
            .args(["--connect-timeout", "30"])
            .args(words.split(' '));
        let said = play(serve, client, || Ok(true))?;
        let checked = said.client.contains("every byte as it was sent");
        same(checked, true, &said.client)?;
    }
    Ok(())
}

/// Catches another wire than that of rdma-core's `rping`.
fn pings(server: &str, client: &str) -> Result {
    only_on_rxe("the adapter's tests run `rping` between two functions")?;
    let command = |words: &str| -> Result<Command> {
        let mut words = words.split_whitespace();
        let mut command = match words.next() {
            Some("uverbs") => Command::new(uverbs()?),
            other => Command::new(other.ok_or("no program")?),
        };
        command.args(words);
        Ok(command)
    };
    let said = play(command(server)?, command(client)?, listens_by_address)?;
    for number in 0..3 {
        let words = format!("ping data: rdma-ping-{number}: ");
        same(said.client.matches(&words).count(), 1, &said.client)?;
        same(said.server.matches(&words).count(), 1, &said.server)?;
    }
    Ok(())
}

/// Catches a server that goes on although nobody can read what it prints.
fn rping_without_a_reader() -> Result {
    let own = own_address().ip().to_string();
    let words = ["rping", "-a", own.as_str(), "-p", "18636"];
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let mut server = Command::new(uverbs()?);
    let server = server.args(words).args(["-s", "-P", "-v"]);
    let mut server = Program(server.stdin(Stdio::null()).stdout(writer).spawn()?);
    until_so(LIMIT, "the server listens", || {
        let listed = finish_of(Command::new(uverbs()?).arg("cm"))?;
        Ok(listed.contains(":18636"))
    })?;
    let mut client = Command::new(uverbs()?);
    client
        .args(words)
        .args(["-c", "-C", "1", "--timeout", "60"]);
    // It has an answer, or the server has ended before that.
    client.output()?;
    await_end(&mut server.0)?;
    same(server.0.wait()?.code(), Some(141), "exit status")
}

/// The commands of a client of `rping` to the connection manager, by their numbers.
///
/// Those that only ask are left out. So is what librdmacm does to find out whether the kernel knows addresses
/// of InfiniBand, before its real identifier; and that it asks for the attributes of the transition to INIT
/// twice.
fn commands_of(client: &str) -> Result<Vec<u32>> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("trace");
    let mut server = Command::new(uverbs()?);
    server.args(["rping", "-s", "-a", "10.9.0.1"]);
    let mut traced = Command::new("strace");
    traced
        .args(["-f", "-qq", "-xx", "-s", "1", "-e", "trace=write"])
        .args(["-P", "/dev/infiniband/rdma_cm", "-o"])
        .arg(&file)
        .args(client.split_whitespace());
    play(server, traced, listens_by_address)?;
    let text = std::fs::read_to_string(&file)?;
    let number = |line: &str| {
        let (_, bytes) = line.split_once("\"\\x")?;
        u32::from_str_radix(bytes.get(..2)?, 16).ok()
    };
    let mut commands: Vec<u32> = text.lines().filter_map(number).collect();
    let made = commands
        .iter()
        .rposition(|&number| number == cmd::CREATE_ID);
    commands.drain(..made.ok_or_else(|| format!("no identifier in {text}"))?);
    let asking = [cmd::GET_EVENT, cmd::QUERY, cmd::QUERY_ROUTE];
    commands.retain(|number| !asking.contains(number));
    commands.dedup();
    Ok(commands)
}

/// Catches steps that librdmacm takes and this library does not, or the other way round.
fn commands_as_librdmacm() -> Result {
    only_on_rxe("what is asked of the kernel is the same on every device")?;
    let ours = format!("{} rping -c -a 10.9.0.1 -C 1", uverbs()?.display());
    let ours = commands_of(&ours)?;
    let expected = [
        cmd::CREATE_ID,
        cmd::RESOLVE_ADDR,
        cmd::RESOLVE_ROUTE,
        cmd::INIT_QP_ATTR,
        cmd::CONNECT,
        cmd::INIT_QP_ATTR,
        cmd::ACCEPT,
        cmd::DISCONNECT,
        cmd::DESTROY_ID,
    ];
    same(&ours[..], &expected[..], "what this library asks")?;
    same(
        commands_of("rping -c -a 10.9.0.1 -C 1")?,
        ours,
        "what librdmacm asks",
    )
}

/// Catches a ping-pong by address that is over another connection than it says, and identifiers that `uverbs
/// cm` does not show.
fn pingpong() -> Result {
    pingpong_by("--cm", &own_address().ip().to_string())?;
    let mut cm = Command::new(uverbs()?);
    let listener = cm::listen::<Rc>(own_address())?.start()?;
    let listed = finish_of(cm.arg("cm"))?;
    let own = listener.local_addr().to_string();
    same(
        listed.contains(&own) && listed.contains("LISTEN"),
        true,
        &listed,
    )?;
    let mut cm = Command::new(uverbs()?);
    let watched = finish_of(cm.args(["cm", "--watch", "--for", "0"]))?;
    same(
        watched.contains(&own) && watched.contains("LISTEN"),
        true,
        &watched,
    )
}

/// Catches a watch that fails when the device goes, and does not tell what has gone with it.
fn a_watch_outlives_its_device() -> Result {
    only_on_rxe("the guests of adapters need no module of soft-RoCE")?;
    run("ip link add cmwatch type dummy")?;
    let watched = watch_until_the_device_goes();
    run("ip link del cmwatch")?;
    let watched = watched?;
    same(watched.contains("LISTEN -> gone"), true, &watched)
}

/// What a watch of a device tells from when the device has a listener until after it has been deleted.
fn watch_until_the_device_goes() -> Result<String> {
    let program = uverbs()?.display().to_string();
    run("ip address add 10.77.0.1/24 dev cmwatch")?;
    run("ip link set cmwatch up")?;
    run(&format!("{program} link add rxewatch cmwatch"))?;
    let address: SocketAddr = "10.77.0.1:7500".parse()?;
    // The device gets the address's GID a little later.
    let _listener = until("a listener", || Ok(cm::listen::<Rc>(address)?.start().ok()))?;
    let mut watch = Command::new(&program)
        .args(["cm", "--watch", "--for", "8", "-d", "rxewatch"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = BufReader::new(watch.stdout.take().ok_or("no output")?);
    let mut lines = String::new();
    said.read_line(&mut lines)?;
    run(&format!("{program} link del rxewatch"))?;
    said.read_to_string(&mut lines)?;
    await_end(&mut watch)?;
    same(watch.wait()?.code(), Some(0), &lines)?;
    Ok(lines)
}

/// Catches a last attempt whose time is cut off and that hides why all the others failed, and a program whose
/// own objects take it the time for the first. Limits that a slow machine's first attempt does not fill.
fn pingpong_to_nobody() -> Result {
    let server = own_address().ip().to_string();
    for (transport, limit) in [("rc", "3"), ("ud", "3.37")] {
        let mut client = Command::new(uverbs()?);
        client.args(["pingpong", transport, "--cm", "-p", "18621", &server]);
        let output = client.args(["--connect-timeout", limit]).output()?;
        let said = String::from_utf8(output.stderr)?;
        let is_told = said.contains("nobody listens on that port");
        same((is_told, output.status.code()), (true, Some(5)), &said)?;
    }
    Ok(())
}

/// Our ping-pong with itself over each transport, by addresses of one kind.
pub(crate) fn pingpong_by(cm: &str, server: &str) -> Result {
    for transport in ["rc", "uc", "ud"] {
        let command = |words: &[&str]| -> Result<Command> {
            let mut command = Command::new(uverbs()?);
            command.args(["pingpong", transport, cm, "-n", "20", "-c"]);
            command.args(words);
            Ok(command)
        };
        // The client tries again while the server does not listen yet.
        let client = [server, "--connect-timeout", "20"];
        let said = play(command(&[])?, command(&client)?, || Ok(true))?;
        for said in [&said.client, &said.server] {
            let checked = "20 messages received and checked";
            same(said.contains(checked), true, said)?;
        }
    }
    Ok(())
}

/// The port of both programs.
pub(crate) const PORT: u16 = 7471;

pub(crate) fn address() -> SocketAddr {
    let mut address = own_address();
    address.set_port(PORT);
    address
}

/// A program that does not outlive its test.
pub(crate) struct Program(Child);

impl Program {
    pub(crate) fn start(command: &str) -> Result<Self> {
        only_on_rxe("the adapter's tests run these programs between two functions")?;
        Self::on_any(command)
    }

    /// Starts one whichever the device is: one of XRC, which the adapter alone has.
    pub(crate) fn on_any(command: &str) -> Result<Self> {
        let mut words = command.split_whitespace();
        let child = Command::new(words.next().ok_or("no program")?)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(Self(child))
    }

    /// Waits for its first line, which must be this one.
    fn says(&mut self, line: &str) -> Result {
        let stdout = self.0.stdout.as_mut().ok_or("no output")?;
        let mut said = String::new();
        BufReader::new(stdout).read_line(&mut said)?;
        same(said.trim_end(), line, "its first line")
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    /// Waits for its end, which must be a success.
    pub(crate) fn end(mut self) -> Result {
        // Who has asked before has taken its number away with its end.
        if !self.has_ended()? {
            await_end(&mut self.0)?;
        }
        let status = self.0.wait()?;
        if status.success() {
            return Ok(());
        }
        let mut words = String::new();
        if let Some(mut said) = self.0.stdout.take() {
            said.read_to_string(&mut words)?;
        }
        if let Some(mut complaint) = self.0.stderr.take() {
            complaint.read_to_string(&mut words)?;
        }
        fail(format!("the program ended with {status}: {words}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It has ended already, if all went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connects to a program as soon as it listens.
fn be_the_client(command: &str, talk: Talk) -> Result {
    connect_to(Program::start(command)?, || way_to(address()), talk)
}

/// Connects to a program by this way as soon as it listens.
pub(crate) fn connect_to(
    program: Program,
    way: impl Fn() -> Result<Resolved<Rc>>,
    talk: Talk,
) -> Result {
    let mut side = Side::new()?;
    let mut connection = None;
    until_so(LIMIT, "the program listens", || {
        let way = way()?;
        let mut qp = side.pd.create_qp(&side.cq, Caps::default())?;
        way.init(&mut qp)?;
        post_receives(&side, &mut qp, talk)?;
        match way.connect(qp, &Params::default(), b"")?.within(LIMIT) {
            Ok(made) => connection = Some(made),
            Err(refused) => match refused.error.cause() {
                Cause::Refused(refusal) if refusal.reason == RejectReason::NoListener => {}
                _ => return Err(refused.error.into()),
            },
        }
        Ok(connection.is_some())
    })?;
    let mut connection = connection.ok_or("no connection")?;
    let came = converse(&mut side, &mut connection, talk, !talk.server_first)?;
    program_ends(&connection)?;
    finish(connection, program, side, came, talk)
}

/// Waits for a program to connect.
fn be_the_server(command: &str, talk: Talk) -> Result {
    let listener = cm::listen::<Rc>(address())?.start()?;
    await_client(Program::start(command)?, &listener, talk)
}

/// Waits for a program to connect to a listener.
pub(crate) fn await_client(program: Program, listener: &Listener<Rc>, talk: Talk) -> Result {
    let mut side = Side::new()?;
    let request = request(listener)?;
    let mut qp = side.pd.create_qp(&side.cq, Caps::default())?;
    request.init(&mut qp)?;
    post_receives(&side, &mut qp, talk)?;
    let accepting = request.accept(qp, &Params::default(), b"")?;
    let mut connection = accepting.within(LIMIT)?;
    let came = converse(&mut side, &mut connection, talk, talk.server_first)?;
    // The client of `ucmatose` leaves it to the server, and does not wait for its sends.
    if !talk.server_first {
        program_ends(&connection)?;
    }
    finish(connection, program, side, came, talk)
}

fn post_receives(side: &Side, qp: &mut uverbs::Qp<Rc>, talk: Talk) -> Result {
    let mut batch = qp.recv_batch();
    for number in 0..talk.count as u64 {
        let at = number as usize * 256;
        batch.post(number, side.mr.slice(at..at + 256)?)?;
    }
    batch.ring();
    Ok(())
}

/// Sends and receives, whoever begins. Who sends last does not wait for it: see [`finish`].
fn converse(
    side: &mut Side,
    connection: &mut Connection<Qp<Rc>>,
    talk: Talk,
    first: bool,
) -> Result<Came> {
    let mut came = Came::default();
    for sending in [first, !first] {
        if sending {
            let slice = side.mr.slice(2048..2048 + talk.size)?;
            connection.post(|batch| {
                for number in 0..talk.count as u64 {
                    batch.signaled(number).send(slice)?;
                }
                Ok(())
            })?;
        }
        while match sending {
            true => first && came.sent < talk.count,
            false => came.received < talk.count,
        } {
            came.take(completion(&mut side.cq)?, talk.size)?;
        }
    }
    Ok(came)
}

/// Completions that have come. A send's may come after the answer to it: they have no order between each
/// other, and on soft-RoCE two tasks of the kernel write them.
#[derive(Default)]
struct Came {
    sent: usize,
    received: usize,
}

impl Came {
    fn take(&mut self, wc: Wc, size: usize) -> Result {
        let wc = wc.ok()?;
        match wc.opcode {
            WcOpcode::SEND => self.sent += 1,
            WcOpcode::RECV => {
                same(wc.byte_len as usize, size, "the message")?;
                self.received += 1;
            }
            other => return fail(format!("a completion of {other:?}")),
        }
        Ok(())
    }
}

/// Waits until the program ends the connection, which it does when its sends have completed: see [`finish`].
fn program_ends(connection: &Connection<Qp<Rc>>) -> Result {
    match connection.link().event_within(LIMIT)? {
        Some(Event::Disconnected { .. }) => Ok(()),
        other => fail(format!("{other:?} and not the end")),
    }
}

/// Ends both.
///
/// Soft-RoCE tells of a message before it acknowledges it, and a queue pair that is ended in between never
/// does. Who sends then sends it again for ever: soft-RoCE takes 7 attempts, the default of librdmacm, for no
/// limit. So the program is waited for before its peer ends the connection, and what this side sent last may
/// have been flushed. That it arrived is told by the program's success.
fn finish(
    connection: Connection<Qp<Rc>>,
    program: Program,
    mut side: Side,
    mut came: Came,
    talk: Talk,
) -> Result {
    let _qp = connection.disconnect()?.within(LIMIT)?;
    while came.sent < talk.count {
        let wc = completion(&mut side.cq)?;
        match wc.status {
            WcStatus::WR_FLUSH_ERR => came.sent += 1,
            _ => came.take(wc, talk.size)?,
        }
    }
    program.end()
}
