//! Peers that mean harm: private data of every length and content, and messages that the other side's program
//! does not expect. Nobody may take them for more than bytes.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use libtest_mimic::Trial;
use support::peers::listens_by_address;
use support::program::uverbs;
use support::role::{await_end, finish};
use support::wait::until_so;
use support::{
    LIMIT, Result, completion, fail, is_full, only_on_rxe, pattern, same, says, test_without_leaks,
    until,
};
use uverbs::cm::{Connection, Listener, Params, Pending, RejectReason};
use uverbs::{Cause, Qp, Rc, WcOpcode};

use crate::ground::{Side, listener, own_address, request, way_to};
use crate::listen::reason_of;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("hostile::private_data_of_every_length", every_length),
        test_without_leaks("hostile::clients_of_rping", clients_of_rping),
        test_without_leaks("hostile::servers_of_rping", || servers(RPING_CLIENT)),
        test_without_leaks("hostile::clients_of_pingpong", clients_of_pingpong),
        test_without_leaks("hostile::servers_of_pingpong", || servers(PINGPONG_CLIENT)),
    ]
}

/// Bytes of private data at the most: of a request, an acceptance, a refusal.
const REQUEST: usize = 56;
const ACCEPTANCE: usize = 196;
const REFUSAL: usize = 148;

/// Lengths up to the longest: all of them in a full run, else those at the ends and some between.
fn lengths(longest: usize) -> impl Iterator<Item = usize> {
    let step = if is_full() { 1 } else { 13 };
    let some = (0..longest).step_by(step);
    some.chain([1, longest - 1, longest])
}

/// So many bytes, with another content for each length: zeros, ones, what looks like the messages of this
/// project's programs, and anything.
fn data(length: usize) -> Vec<u8> {
    match length % 4 {
        0 => pattern(length as u64, length),
        1 => vec![0xff; length],
        2 => vec![0; length],
        _ => b"\x01\x01\xff\xff\0\0\0\0done\0"
            .iter()
            .copied()
            .cycle()
            .take(length)
            .collect(),
    }
}

/// The field of a message with these data.
fn field(data: &[u8], length: usize) -> Vec<u8> {
    let mut field = data.to_vec();
    field.resize(length, 0);
    field
}

/// Connects with data of the request and data of the acceptance.
fn connect(
    listener: &Listener<Rc>,
    side: &Side,
    asked: &[u8],
    answered: &[u8],
) -> Result<[Connection<Qp<Rc>>; 2]> {
    let params = Params::default();
    let connecting = way_to(listener.local_addr())?.connect(side.qp()?, &params, asked)?;
    let accepting = request(listener)?.accept(side.qp()?, &params, answered)?;
    Ok([connecting.within(LIMIT)?, accepting.within(LIMIT)?])
}

/// Catches data that are cut, mixed with those of another message, or read as something else.
fn every_length() -> Result {
    let listener = listener()?;
    let side = Side::new()?;
    for length in lengths(ACCEPTANCE) {
        let (asked, answered) = (data(length.min(REQUEST)), data(length));
        let [active, passive] = connect(&listener, &side, &asked, &answered)?;
        same(
            passive.private_data(),
            &field(&asked, REQUEST)[..],
            "the request's data",
        )?;
        same(
            active.private_data(),
            &field(&answered, ACCEPTANCE)[..],
            "the acceptance's data",
        )?;
    }
    for length in lengths(REFUSAL) {
        let connecting =
            way_to(listener.local_addr())?.connect(side.qp()?, &Params::default(), b"")?;
        request(&listener)?.reject(&data(length))?;
        let Err(refused) = connecting.within(LIMIT) else {
            return fail("nobody accepted");
        };
        let Cause::Refused(refusal) = refused.error.cause() else {
            return fail(format!("no refusal: {}", refused.error));
        };
        same(
            &refusal.private_data,
            &field(&data(length), REFUSAL),
            "the refusal's data",
        )?;
    }
    Ok(())
}

/// A message to a program, and the words with which it complains of the sender.
type Message = (Vec<u8>, &'static [&'static str]);

/// A program that complains line by line, and does not outlive its test.
struct Complainer {
    child: Child,
    lines: Receiver<String>,
    /// Peers that went as soon as they were connected.
    gone_at_once: Vec<SocketAddr>,
}

impl Complainer {
    fn start(words: &str) -> Result<Self> {
        let mut command = Command::new(uverbs()?);
        command.args(words.split_whitespace());
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(child.stderr.take().ok_or("no standard error")?);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in said.lines().map_while(std::result::Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            child,
            lines,
            gone_at_once: Vec::new(),
        })
    }

    /// The next complaint, which must be about this peer.
    fn complains(&self, of: SocketAddr, words: &[&str]) -> Result {
        let line = loop {
            let line = self.lines.recv_timeout(LIMIT);
            let line = line.map_err(|_| format!("no complaint with {words:?}"))?;
            if !self.may_be_of_who_went(&line) {
                break line;
            }
        };
        says(&line, &[&[&*of.to_string()], words].concat())
    }

    /// Whether it is about a peer that went at once: its end may have overtaken its confirmation, see
    /// `ground::both`. If it has not, there was nothing to complain of.
    fn may_be_of_who_went(&self, line: &str) -> bool {
        let quit = "the peer quit while the connection was made";
        let mut gone = self.gone_at_once.iter();
        line.contains(quit) && gone.any(|peer| line.contains(&format!("{peer}:")))
    }

    /// Waits for its end, and gives the exit code and the last complaint.
    fn ends(mut self) -> Result<(Option<i32>, String)> {
        await_end(&mut self.child)?;
        let code = self.child.wait()?.code();
        Ok((code, self.lines.iter().last().unwrap_or_default()))
    }
}

impl Drop for Complainer {
    fn drop(&mut self) {
        // It has ended already, if it was to end by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a message of any length from the side's memory.
fn send(side: &mut Side, connection: &mut Connection<Qp<Rc>>, message: &[u8]) -> Result {
    side.mr.write_at(1024, message)?;
    let slice = side.mr.slice(1024..1024 + message.len())?;
    connection.post(|batch| {
        batch.signaled(2).send(slice)?;
        Ok(())
    })?;
    Ok(())
}

/// Ends a connection that the peer may have ended.
fn end(connection: Connection<Qp<Rc>>) -> Result {
    connection.disconnect()?.within(LIMIT)?;
    Ok(())
}

/// What rping's messages say: an address, a key and a length.
fn told(address: u64, key: u32, length: u32) -> Vec<u8> {
    let parts = [
        &address.to_be_bytes()[..],
        &key.to_be_bytes(),
        &length.to_be_bytes(),
    ];
    parts.concat()
}

/// The port of rping.
const RPING: u16 = 7174;

/// Catches a server that a client's private data, messages or silence stop, and complaints that do not say
/// who it was: the server serves the next client each time.
fn clients_of_rping() -> Result {
    only_on_rxe("the program is the same on every device")?;
    let mut server = Complainer::start("rping -s -P -a 10.9.0.1 --timeout 5")?;
    until_so(LIMIT, "rping listens", listens_by_address)?;
    let mut address = own_address();
    address.set_port(RPING);
    let mut side = Side::new()?;
    let ask = |side: &Side, data: &[u8]| -> Result<_> {
        let connecting = way_to(address)?.connect(side.qp()?, &Params::default(), data)?;
        Ok(connecting.within(LIMIT)?)
    };
    for length in lengths(REQUEST) {
        let connection = ask(&side, &data(length))?;
        server.gone_at_once.push(connection.local_addr());
        end(connection)?;
    }
    // A request whose sender has gone.
    let way = way_to(address)?;
    let gone = way.local_addr();
    drop(
        way.connect(side.qp()?, &Params::default(), &data(7))?
            .cancel(),
    );
    server.complains(gone, &[])?;
    let messages: [Message; 7] = [
        (
            vec![],
            &["the peer sent 0 bytes", "rping's messages have 16"],
        ),
        (vec![1; 15], &["the peer sent 15 bytes"]),
        (vec![1; 17], &["work request 1 of QP"]),
        (
            told(0, 0, 101),
            &["the peer's ping has 101 bytes", "room for 100 (-S)"],
        ),
        (vec![0xff; 16], &["the peer's ping has 4294967295 bytes"]),
        (told(1 << 40, 0xdead_beef, 100), &["REM_ACCESS_ERR"]),
        (told(u64::MAX, 0, 100), &["REM_ACCESS_ERR"]),
    ];
    for (message, words) in messages {
        let mut connection = ask(&side, b"")?;
        send(&mut side, &mut connection, &message)?;
        server.complains(connection.local_addr(), words)?;
        end(connection)?;
    }
    // Nothing to read is not wrong, but nobody goes in the middle of a ping.
    let mut side = Side::new()?;
    let mut connection = ask(&side, b"")?;
    send(&mut side, &mut connection, &told(0, 0, 0))?;
    completion(&mut side.cq)?.is(WcOpcode::SEND)?;
    let gone = connection.local_addr();
    end(connection)?;
    server.complains(gone, &["the peer has ended the connection"])?;
    let silent = ask(&side, b"")?;
    server.complains(
        silent.local_addr(),
        &["nothing has come from the peer for 5s"],
    )?;
    end(silent)?;
    let mut client = Command::new(uverbs()?);
    let said = finish(client.args("rping -c -a 10.9.0.1 -C 3 -V -v".split(' ')))?;
    same(said.matches("rdma-ping-").count(), 3, &said)
}

/// A client under test: its command without the port, messages with which it is answered, and the exit codes
/// that it gives for them.
struct Client {
    command: &'static str,
    messages: fn() -> Vec<(Message, i32)>,
}

/// The exit codes of the programs.
const PEER: i32 = 5;
const CHECK: i32 = 6;

const RPING_CLIENT: Client = Client {
    command: "rping -c -a 10.9.0.1 -C 1 -p",
    messages: || {
        vec![
            ((vec![], &["the peer sent 0 bytes"]), PEER),
            ((vec![7; 15], &["the peer sent 15 bytes"]), PEER),
            ((vec![7; 17], &["work request 1 of QP"]), PEER),
        ]
    },
};

const PINGPONG_CLIENT: Client = Client {
    command: "pingpong rc 10.9.0.1 --cm -s 64 -n 2 -c --json -p",
    messages: || {
        vec![
            ((vec![], &["a message of 0 bytes instead of 64"]), PEER),
            (
                (vec![7; 63], &["a message of 63 bytes instead of 64"]),
                PEER,
            ),
            ((vec![7; 65], &["work request 1 of QP"]), PEER),
            ((vec![7; 64], &["message 1: byte 0"]), CHECK),
        ]
    },
};

/// Catches a client that a server's private data, refusal or messages make panic or wait, and complaints that
/// do not say who it was.
fn servers(client: Client) -> Result {
    only_on_rxe("the program is the same on every device")?;
    let listener = listener()?;
    let address = listener.local_addr();
    let start = || Complainer::start(&format!("{} {}", client.command, address.port()));
    let ends = |client: Complainer, code: i32, words: &[&str]| -> Result {
        let (ended, complaint) = client.ends()?;
        same(ended, Some(code), &complaint)?;
        says(&complaint, &[&[&*address.to_string()], words].concat())
    };
    for length in [0, 1, REFUSAL - 1, REFUSAL] {
        let client = start()?;
        request(&listener)?.reject(&data(length))?;
        ends(client, PEER, &["the program refused"])?;
    }
    let messages = (client.messages)();
    for (((message, words), code), length) in messages.into_iter().zip([ACCEPTANCE, 0, 57, 195]) {
        let client = start()?;
        let mut side = Side::new()?;
        let request = request(&listener)?;
        let mut qp = side.qp()?;
        request.init(&mut qp)?;
        side.receive(&mut qp)?;
        let accepting = request.accept(qp, &Params::default(), &data(length))?;
        let mut connection = accepting.within(LIMIT)?;
        // Its first message.
        side.received()?;
        send(&mut side, &mut connection, &message)?;
        ends(client, code, words)?;
        end(connection)?;
    }
    Ok(())
}

/// The port of the ping-pong.
const PINGPONG: u16 = 18515;

/// Catches a server that a client's private data, messages or silence make panic or wait, and complaints that
/// do not say who it was. A server has one client.
fn clients_of_pingpong() -> Result {
    only_on_rxe("the program is the same on every device")?;
    let mut address = own_address();
    address.set_port(PINGPONG);
    let messages: [(Option<Vec<u8>>, &[&str]); 4] = [
        (Some(vec![]), &["a message of 0 bytes instead of 64"]),
        (Some(vec![7; 63]), &["a message of 63 bytes instead of 64"]),
        (Some(vec![7; 65]), &["work request 1 of QP"]),
        (None, &["nothing has come from the peer for 5 s"]),
    ];
    for ((message, words), length) in messages.into_iter().zip([0, 1, REQUEST - 1, REQUEST]) {
        let server = Complainer::start("pingpong rc --cm -s 64 -n 2 -c --json --timeout 5")?;
        let mut side = Side::new()?;
        let mut connection = as_soon_as_it_listens(address, &side, &data(length))?;
        if let Some(message) = message {
            send(&mut side, &mut connection, &message)?;
        }
        let (code, complaint) = server.ends()?;
        same(code, Some(PEER), &complaint)?;
        says(
            &complaint,
            &[&[&*connection.local_addr().to_string()], words].concat(),
        )?;
        end(connection)?;
    }
    Ok(())
}

/// Connects to a program as soon as it listens.
fn as_soon_as_it_listens(
    address: SocketAddr,
    side: &Side,
    data: &[u8],
) -> Result<Connection<Qp<Rc>>> {
    until("the program listens", || {
        let connecting = way_to(address)?.connect(side.qp()?, &Params::default(), data)?;
        match connecting.within(LIMIT) {
            Ok(connection) => Ok(Some(connection)),
            Err(refused) if reason_of(&refused.error)? == RejectReason::NoListener => Ok(None),
            Err(refused) => Err(refused.error.into()),
        }
    })
}
