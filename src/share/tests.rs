//! The protocol with brokers and joiners that share plain files: no device is needed.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
    SocketFlags, SocketType, recv, send, sendmsg, shutdown, socketpair,
};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::address::Address;
use super::broker::{Broker, Limits, Parcel};
use super::connection;
use super::counters::OfferStats;
use super::key::ShareKey;
use super::listener::Listener;
use super::message::{self, Grant, Refusal, Region, parse_reply};
use super::offer;
use super::request::{self, Delivery, Failed, Time};
use crate::context::Context;

const KEY: ShareKey = ShareKey::new(0x0123_4567_89ab_cdef);
const PATIENCE: Duration = Duration::from_secs(30);
const TIME: Time = Time::Each(PATIENCE);

/// Would catch a command file that is given away although nobody can do anything with it: the sample driver,
/// like EFA's, has no contexts of others.
#[test]
fn what_nobody_can_join_is_not_offered() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("offer");
    let (_kernel, file) = rustix::pipe::pipe().unwrap();
    let pd = Context::over(file).alloc_pd().unwrap();
    let offer = pd.offer(KEY).at(&Address::Path(path.clone()));
    let error = offer.map(drop).unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    assert!(error.to_string().contains("contexts of others"), "{error}");
    assert!(!path.exists());
}

/// A broker in a directory of its own.
struct Stall {
    broker: Broker,
    address: Address,
    _directory: tempfile::TempDir,
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn limits() -> Limits {
    Limits {
        users: vec![own_user()],
        silence: PATIENCE,
        pending: 1024,
        joined: 1024,
    }
}

fn grant() -> Grant {
    let region = |name: &str, handle, has_memory| Region {
        name: name.into(),
        handle,
        lkey: handle << 8,
        length: 4096,
        has_memory,
    };
    Grant {
        pd: 7,
        regions: vec![region("heap", 8, true), region("log", 9, false)],
    }
}

/// A file that its contents identify.
fn file(text: &str) -> OwnedFd {
    use std::io::Write;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.into()
}

fn text(file: OwnedFd) -> String {
    use std::io::{Read, Seek};
    let mut file = std::fs::File::from(file);
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

impl Stall {
    fn new(limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = Address::Path(directory.path().join("socket"));
        Self::at(address, limits, directory)
    }

    fn at(address: Address, limits: Limits, directory: tempfile::TempDir) -> Self {
        let parcel = Parcel {
            message: grant().encode().unwrap(),
            files: vec![file("command"), file("memory")],
        };
        let listener = Listener::bind(&address, false).unwrap();
        Self {
            broker: Broker::new(listener, KEY, parcel, limits).unwrap(),
            address,
            _directory: directory,
        }
    }

    fn connect(&self) -> OwnedFd {
        request::connect(&self.address, TIME).unwrap()
    }

    /// Serves what has arrived until now.
    fn serve(&mut self) {
        while self.broker.serve(Some(Duration::ZERO)).unwrap() {}
    }

    /// Serves until `done` is true, and waits where it must.
    fn serve_until(&mut self, mut done: impl FnMut(&mut Broker) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(&mut self.broker) {
            assert!(Instant::now() < end, "it takes too long");
            self.broker.serve(Some(PATIENCE)).unwrap();
        }
    }

    fn stats(&self) -> OfferStats {
        self.broker.counters().snapshot()
    }

    /// Joins on another thread while this one serves.
    fn join(&mut self, key: ShareKey) -> Result<Delivery, Failed> {
        let socket = self.connect();
        self.serve_while(|| request::ask(socket, &key, |user| user == own_user(), TIME))
    }

    /// As [`Self::join`], repeated while the broker defers it.
    fn obtain(&mut self, key: ShareKey) -> Result<Delivery, Failed> {
        let address = self.address.clone();
        self.serve_while(|| request::obtain(&address, &key, |user| user == own_user(), TIME))
    }

    /// Serves while another thread does something.
    fn serve_while<T: Send>(&mut self, other: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let other = scope.spawn(other);
            while !other.is_finished() {
                self.broker.serve(Some(Duration::from_millis(5))).unwrap();
            }
            other.join().unwrap()
        })
    }
}

/// The answer on a connection; `None` if it was closed without one.
fn answer(client: &OwnedFd) -> Option<Result<Grant, Refusal>> {
    let mut bytes = [0; message::MAX_MESSAGE];
    let mut take = || recv(client, &mut bytes, RecvFlags::DONTWAIT);
    // If the other end was closed with unread data, that is reported once, before the answer.
    let taken = match take() {
        Err(Errno::CONNRESET) => take(),
        taken => taken,
    };
    match taken {
        Ok((0, _)) => None,
        Ok((length, _)) => Some(parse_reply(&bytes[..length]).unwrap()),
        Err(errno) => panic!("neither an answer nor the end: {errno}"),
    }
}

/// Raises this process's limit of descriptors to the maximum.
fn more_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let more = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, more).unwrap();
}

fn is_open(client: &OwnedFd) -> bool {
    matches!(
        recv(client, &mut [0; 1][..], RecvFlags::DONTWAIT),
        Err(Errno::AGAIN)
    )
}

/// Ends a joiner. Closing alone takes effect only once every process that other tests start has called exec.
fn leave(delivery: Delivery) {
    shutdown(&delivery.lease, Shutdown::Both).unwrap();
}

fn say(client: &OwnedFd, bytes: &[u8]) {
    send(client, bytes, SendFlags::NOSIGNAL).unwrap();
}

/// Catches a wrong order of the file descriptors, and one that is lost.
#[test]
fn the_right_key_gets_everything() {
    let mut stall = Stall::new(limits());
    let mut delivery = stall.join(KEY).unwrap();
    assert_eq!(delivery.grant, grant());
    assert_eq!(text(delivery.files.pop_front().unwrap()), "command");
    assert_eq!(text(delivery.files.pop_front().unwrap()), "memory");
    assert!(delivery.files.is_empty());
    assert_eq!(stall.broker.joined(), 1);
    leave(delivery);
    stall.serve();
    assert_eq!(stall.broker.joined(), 0);
    assert_eq!(stall.stats().joined, 1);
}

/// Catches an abstract name that is spelled in two ways.
#[test]
fn an_abstract_name_serves_as_well() {
    let name = format!(
        "@uverbs-test-{}-{:x}",
        std::process::id(),
        ShareKey::random().unwrap().expose()
    );
    let address: Address = name.parse().unwrap();
    let listener = Listener::bind(&address, false).unwrap();
    let parcel = Parcel {
        message: Grant {
            pd: 1,
            regions: vec![],
        }
        .encode()
        .unwrap(),
        files: vec![file("x")],
    };
    let mut broker = Broker::new(listener, KEY, parcel, limits()).unwrap();
    let client = request::connect(&address, TIME).unwrap();
    say(&client, &message::request(&KEY));
    while broker.serve(Some(Duration::ZERO)).unwrap() {}
    assert!(answer(&client).unwrap().is_ok());
}

#[test]
fn a_wrong_key_is_denied_counted_and_gets_no_file() {
    let mut stall = Stall::new(limits());
    let wrong = ShareKey::new(KEY.expose() ^ 1);
    assert_eq!(
        stall.join(wrong).unwrap_err(),
        Failed::Refused(Refusal::Denied)
    );
    assert_eq!(stall.broker.joined(), 0);
    assert_eq!(
        stall.stats(),
        OfferStats {
            wrong_keys: 1,
            ..OfferStats::default()
        }
    );
}

/// Catches a guesser who is slowed down on only one connection, so that many connections are faster.
#[test]
fn after_a_wrong_key_no_other_is_looked_at_for_a_while() {
    let mut stall = Stall::new(limits());
    let clients: Vec<OwnedFd> = (0..8).map(|_| stall.connect()).collect();
    for (number, client) in clients.iter().enumerate() {
        say(client, &message::request(&ShareKey::new(number as u64)));
    }
    // All are there before the first key is checked, and one turn handles them all.
    stall.serve_until(|broker| {
        let seen = broker.counters().snapshot();
        seen.wrong_keys + seen.put_off == 8
    });
    assert_eq!(stall.stats().wrong_keys, 1);
    assert_eq!(answer(&clients[0]), Some(Err(Refusal::Denied)));
    for client in &clients[1..] {
        assert_eq!(answer(client), Some(Err(Refusal::Later)));
        assert!(answer(client).is_none(), "closed afterwards");
    }
}

/// Catches an answer, or its time, from which a guesser sees that a key is right.
#[test]
fn the_right_key_is_put_off_as_the_wrong_ones_are() {
    let mut stall = Stall::new(limits());
    let (wrong, right) = (stall.connect(), stall.connect());
    say(&wrong, &message::request(&ShareKey::new(0)));
    say(&right, &message::request(&KEY));
    stall.serve();
    assert_eq!(answer(&right), Some(Err(Refusal::Later)));
    assert_eq!(stall.broker.joined(), 0);
}

/// Catches a crowd of wrong keys that keeps the right one out: because they fill all places, or use up all
/// checks of keys.
#[test]
fn wrong_keys_lock_nobody_out() {
    more_descriptors();
    let mut stall = Stall::new(limits());
    let wrong = message::request(&ShareKey::new(0));
    let crowd: Vec<OwnedFd> = (0..1100)
        .map(|_| {
            let client = stall.connect();
            say(&client, &wrong);
            client
        })
        .collect();
    let done = AtomicBool::new(false);
    let address = stall.address.clone();
    std::thread::scope(|scope| {
        // More of them arrive all the time, as fast as possible.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if let Ok(client) = request::connect(&address, TIME) {
                    let _ = request::ask(client, &ShareKey::new(1), |_| true, TIME);
                }
            }
        });
        let joined = stall.obtain(KEY);
        // The other thread ends only when it gets its answer.
        done.store(true, Ordering::Relaxed);
        stall.broker.serve(Some(Duration::from_millis(50))).unwrap();
        stall.serve();
        joined.unwrap();
    });
    drop(crowd);
}

/// Catches a check of the user after the check of the key, or none.
#[test]
fn another_user_is_denied_even_with_the_key() {
    let users = vec![own_user() + 1];
    let mut stall = Stall::new(Limits { users, ..limits() });
    assert_eq!(
        stall.join(KEY).unwrap_err(),
        Failed::Refused(Refusal::Denied)
    );
    assert_eq!(
        stall.stats(),
        OfferStats {
            refused_users: 1,
            ..OfferStats::default()
        }
    );
}

/// Catches a joiner that sends the key to a stranger who has taken the name.
#[test]
fn a_stranger_is_not_told_the_key() {
    let stall = Stall::new(limits());
    let failed = request::ask(stall.connect(), &KEY, |_| false, TIME).unwrap_err();
    assert_eq!(failed, Failed::Stranger(own_user()));
    let listener =
        Listener::bind(&Address::Path(stall._directory.path().join("b")), false).unwrap();
    let address = Address::Path(stall._directory.path().join("b"));
    let client = request::connect(&address, TIME).unwrap();
    let server = listener.accept().unwrap().unwrap();
    assert!(request::ask(client, &KEY, |_| false, TIME).is_err());
    assert_eq!(
        recv(&server, &mut [0; 32][..], RecvFlags::DONTWAIT)
            .unwrap()
            .0,
        0
    );
}

/// Catches a parser that accepts a part of a message, more than a message, or a message of another protocol.
#[test]
fn what_is_no_request_is_refused_and_counted() {
    let whole = message::request(&KEY);
    let mut other_version = whole;
    other_version[4] = 9;
    let longer = [whole.as_slice(), &[0]].concat();
    let huge = vec![0; 60_000];
    let bad: [&[u8]; 6] = [
        &whole[..15],
        &whole[..1],
        &longer,
        &other_version,
        b"GET / HTTP/1.1\r\n",
        &huge,
    ];
    for bytes in bad {
        let mut stall = Stall::new(limits());
        let client = stall.connect();
        say(&client, bytes);
        stall.serve();
        assert_eq!(
            answer(&client),
            Some(Err(Refusal::Malformed)),
            "{} bytes",
            bytes.len()
        );
        assert!(answer(&client).is_none(), "closed afterwards");
        assert_eq!(
            stall.stats(),
            OfferStats {
                malformed: 1,
                ..OfferStats::default()
            }
        );
    }
}

/// Sends a message with a file.
fn say_with(client: &OwnedFd, bytes: &[u8], file: &OwnedFd) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let parts = [IoSlice::new(bytes)];
    sendmsg(client, &parts, &mut control, SendFlags::NOSIGNAL)
}

/// The tests of files that clients send, in a process of their own: an
/// [`Undertaker`](super::connection::Undertaker) keeps the files open for a moment that other tests close.
#[test]
fn files_of_clients_do_no_harm() {
    if std::env::var_os(ROLE).is_none() {
        let status = child("files_of_clients_do_no_harm", "").status().unwrap();
        return assert!(status.success());
    }
    files_that_come_with_a_request_are_not_kept();
    files_are_refused_where_the_kernel_can();
    lingering_sockets_hold_nobody_up();
    lingering_sockets_of_a_stranger_do_not_hold_a_joiner_up();
}

/// Makes the sockets accept files, as they always do on old kernels.
fn take_files(stall: &mut Stall) {
    let taken = connection::pass_files(stall.broker.listener(), true);
    assert!(
        matches!(taken, Ok(()) | Err(Errno::NOPROTOOPT)),
        "{taken:?}"
    );
}

/// Catches a broker that keeps file descriptors that clients send it.
fn files_that_come_with_a_request_are_not_kept() {
    let mut stall = Stall::new(limits());
    take_files(&mut stall);
    let client = stall.connect();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    say_with(&client, &message::request(&KEY), &writer).unwrap();
    stall.serve();
    assert_eq!(answer(&client), Some(Err(Refusal::Malformed)));
    drop(writer);
    // The pipe ends only when its other end is closed everywhere.
    assert_eq!(rustix::io::read(&reader, &mut [0; 1][..]).unwrap(), 0);
}

/// Catches a broker that does not make the kernel refuse files, although the kernel can.
fn files_are_refused_where_the_kernel_can() {
    let stall = Stall::new(limits());
    let client = stall.connect();
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let sent = say_with(&client, &message::request(&KEY), &writer);
    let can = connection::pass_files(&client, false);
    let expected = match can {
        Ok(()) => Err(Errno::PERM),
        Err(_) => Ok(message::REQUEST),
    };
    assert_eq!(
        (sent, can.err()),
        (expected, can.err().and(Some(Errno::NOPROTOOPT)))
    );
}

/// A TCP socket that blocks its last closer for a minute, because it has data that its peer does not read.
/// The peer is returned too.
fn lingering() -> (OwnedFd, std::net::TcpStream) {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    let linger = Some(Duration::from_secs(60));
    rustix::net::sockopt::set_socket_linger(&socket, linger).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 65536]).is_ok() {}
    (socket.into(), peer)
}

/// The ways in which a client sends a lingering socket to a broker.
#[derive(Clone, Copy, Debug)]
enum Passing {
    WithRequest,
    WithNothing,
    BehindAnEmptyMessage,
    AfterRequest,
    AfterJoining,
    BehindManyMessages,
}

/// A client that leaves lingering sockets with the broker, and the peers that do not read their data.
fn pass_lingering(stall: &mut Stall, passing: Passing) -> (OwnedFd, Vec<std::net::TcpStream>) {
    let client = stall.connect();
    let wrong = message::request(&ShareKey::new(0));
    match passing {
        Passing::WithRequest | Passing::WithNothing => {}
        Passing::BehindAnEmptyMessage => say(&client, &[]),
        Passing::AfterRequest => say(&client, &wrong),
        Passing::AfterJoining => {
            say(&client, &message::request(&KEY));
            stall.serve();
        }
        Passing::BehindManyMessages => (0..100).for_each(|_| say(&client, &wrong[..1])),
    }
    let bytes: &[u8] = match passing {
        Passing::WithNothing => &[],
        _ => &wrong,
    };
    let peers = (0..2).map(|_| {
        let (socket, peer) = lingering();
        say_with(&client, bytes, &socket).unwrap();
        peer
    });
    let peers = peers.collect();
    (client, peers)
}

/// Catches a broker that is the last to close a client's file, and waits for that, on the thread that serves:
/// for each way in which a connection can end.
fn lingering_sockets_hold_nobody_up() {
    let ways = [
        Passing::WithRequest,
        Passing::WithNothing,
        Passing::BehindAnEmptyMessage,
        Passing::AfterRequest,
        Passing::AfterJoining,
        Passing::BehindManyMessages,
    ];
    let start = Instant::now();
    let mut peers = Vec::new();
    for passing in ways {
        for (stays, is_allowed, is_served) in [
            (true, true, true),
            (false, true, true),
            (true, false, true),
            (true, true, false),
        ] {
            if !is_allowed && matches!(passing, Passing::AfterJoining) {
                continue;
            }
            let users = vec![own_user() + u32::from(!is_allowed)];
            let mut stall = Stall::new(Limits { users, ..limits() });
            take_files(&mut stall);
            let (client, peer) = pass_lingering(&mut stall, passing);
            peers.push(peer);
            let client = stays.then_some(client);
            if is_served {
                stall.serve();
            }
            drop(stall);
            drop(client);
            let took = start.elapsed();
            assert!(
                took < PATIENCE,
                "{passing:?} {stays} {is_allowed} {is_served}: {took:?}"
            );
        }
    }
}

/// Catches the same at the other end: a stranger fills the connection of a joiner, which does not send it a
/// request.
fn lingering_sockets_of_a_stranger_do_not_hold_a_joiner_up() {
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Path(directory.path().join("socket"));
    let listener = Listener::bind(&address, false).unwrap();
    let client = request::connect(&address, TIME).unwrap();
    let server = listener.accept().unwrap().unwrap();
    let (socket, _peer) = lingering();
    say_with(&server, b"hello", &socket).unwrap();
    drop(socket);
    let start = Instant::now();
    let failed = request::ask(client, &KEY, |_| false, TIME).unwrap_err();
    assert_eq!(failed, Failed::Stranger(own_user()));
    assert!(start.elapsed() < PATIENCE);
}

/// Catches silent clients that are kept forever.
#[test]
fn a_client_that_says_nothing_is_closed_at_its_deadline() {
    let silence = Duration::from_millis(30);
    let mut stall = Stall::new(Limits {
        silence,
        ..limits()
    });
    let client = stall.connect();
    let start = Instant::now();
    stall.serve();
    stall.serve_until(|broker| broker.counters().snapshot().silent == 1);
    assert!(start.elapsed() >= silence);
    assert!(answer(&client).is_none());
}

/// Catches a deadline that starts over, or one that ends the connections of joined clients.
#[test]
fn who_has_joined_may_be_silent() {
    let silence = Duration::from_millis(1);
    let mut stall = Stall::new(Limits {
        silence,
        ..limits()
    });
    let client = stall.connect();
    say(&client, &message::request(&KEY));
    stall.serve();
    assert!(answer(&client).unwrap().is_ok());
    let other = stall.connect();
    stall.serve_until(|broker| broker.counters().snapshot().silent == 1);
    assert!(answer(&other).is_none());
    assert!(is_open(&client));
    assert_eq!(stall.broker.joined(), 1);
}

/// Catches a client that sends two requests, so that it is counted or served twice.
#[test]
fn a_second_request_ends_the_connection() {
    let mut stall = Stall::new(limits());
    let client = stall.connect();
    say(&client, &message::request(&KEY));
    say(&client, &message::request(&KEY));
    stall.serve();
    assert!(answer(&client).unwrap().is_ok());
    assert!(answer(&client).is_none());
    assert_eq!(stall.broker.joined(), 0);
    assert_eq!(stall.stats().joined, 1);
}

#[test]
fn no_more_join_than_are_admitted() {
    let mut stall = Stall::new(Limits {
        joined: 1,
        ..limits()
    });
    let first = stall.join(KEY).unwrap();
    assert_eq!(stall.join(KEY).unwrap_err(), Failed::Refused(Refusal::Full));
    leave(first);
    stall.serve();
    assert!(stall.join(KEY).is_ok(), "there is room again");
}

/// Catches a crowd that stops a broker: a thousand clients connect and are silent, and one joins at once.
#[test]
fn a_thousand_silent_clients_do_not_keep_one_from_joining() {
    more_descriptors();
    let mut stall = Stall::new(Limits {
        pending: 100,
        ..limits()
    });
    let mut crowd = Vec::new();
    for _ in 0..10 {
        crowd.extend((0..100).map(|_| stall.connect()));
        stall.serve();
    }
    let start = Instant::now();
    stall.join(KEY).unwrap();
    assert!(
        start.elapsed() < PATIENCE,
        "it did not wait for the deadline of the silent ones"
    );
    let open = crowd.iter().filter(|client| is_open(client)).count();
    assert!(open <= 100, "{open} are kept");
    assert_eq!(stall.stats().silent as usize, 1000 - open);
}

/// Catches an answer that is used without checks.
#[test]
fn a_joiner_refuses_an_exporter_that_answers_nonsense() {
    let directory = tempfile::tempdir().unwrap();
    let good = grant().encode().unwrap();
    let too_long = vec![0; message::MAX_MESSAGE + 1];
    let cases: [(&str, &[u8], usize); 6] = [
        ("no file at all", &good, 0),
        ("a file too few", &good, 1),
        ("a file too many", &good, 3),
        ("half a message", &good[..good.len() / 2], 2),
        ("a message too long", &too_long, 2),
        ("another protocol", b"220 mail ESMTP\r\n", 1),
    ];
    for (case, bytes, files) in cases {
        let path: PathBuf = directory.path().join(case);
        let address = Address::Path(path);
        let listener = Listener::bind(&address, false).unwrap();
        let client = request::connect(&address, TIME).unwrap();
        let server = listener.accept().unwrap().unwrap();
        let files: Vec<OwnedFd> = (0..files).map(|_| file("")).collect();
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        }
        sendmsg(
            &server,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
        .unwrap();
        let failed = request::ask(client, &KEY, |_| true, TIME).unwrap_err();
        assert!(matches!(failed, Failed::Malformed(_)), "{case}: {failed:?}");
    }
}

#[test]
fn a_joiner_does_not_wait_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Path(directory.path().join("deaf"));
    let _listener = Listener::bind(&address, false).unwrap();
    let time = Time::Each(Duration::from_millis(20));
    let socket = request::connect(&address, time).unwrap();
    assert_eq!(
        request::ask(socket, &KEY, |_| true, time).unwrap_err(),
        Failed::Os(Errno::AGAIN)
    );
    let nobody = Address::Path(directory.path().join("nobody"));
    assert_eq!(
        request::connect(&nobody, TIME).unwrap_err(),
        Failed::Os(Errno::NOENT)
    );
}

/// Catches a key in the debug text of an error or an object.
#[test]
fn the_key_is_in_no_debug_text() {
    let mut stall = Stall::new(limits());
    let client = stall.connect();
    say(&client, &message::request(&ShareKey::new(0)));
    stall.serve();
    let text = format!(
        "{:?} {:?}",
        stall.broker,
        request::ask(stall.connect(), &KEY, |_| false, TIME)
    );
    for secret in [format!("{:x}", KEY.expose()), KEY.expose().to_string()] {
        assert!(!text.contains(&secret));
    }
    assert!(
        text.contains("ShareKey(hidden)"),
        "the key is among what is printed"
    );
}

/// Catches a crowd of one user that takes the places of another user.
#[test]
fn a_user_has_a_share_of_the_places() {
    let users = vec![own_user(), own_user() + 1];
    let pending = 8;
    let mut stall = Stall::new(Limits {
        users,
        pending,
        ..limits()
    });
    let crowd: Vec<OwnedFd> = (0..20).map(|_| stall.connect()).collect();
    stall.serve();
    let (old, new) = crowd.split_at(crowd.len() - pending / 2);
    for client in old {
        assert_eq!(answer(client), Some(Err(Refusal::Later)));
    }
    assert!(new.iter().all(is_open), "the oldest give way");
}

/// Catches a crowd of one user that replaces a silent connection of another user, or that is counted as the
/// other user's.
#[test]
fn a_crowd_of_one_user_takes_no_place_of_another() {
    let (one, other) = (own_user(), own_user() + 1);
    let mut stall = Stall::new(Limits {
        users: vec![one, other],
        pending: 8,
        ..limits()
    });
    // Both connections are of this process, so the test says which user each belongs to.
    let mut seat = |user| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (client, server) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        stall.broker.seat(server, user, Instant::now());
        client
    };
    let silent = seat(one);
    let crowd: Vec<OwnedFd> = (0..20).map(|_| seat(other)).collect();
    assert!(is_open(&silent), "the oldest of all, but of another user");
    let late: Vec<OwnedFd> = (0..3).map(|_| seat(one)).collect();
    assert!(is_open(&silent), "four of eight places are this user's");
    assert!(late.iter().all(is_open));
    let open = crowd.iter().filter(|client| is_open(client)).count();
    assert_eq!(open, 4, "and four the other's");
}

/// Catches a client that joins while the offer ends: 64 silent connections are ahead of the right key.
#[test]
fn who_has_not_joined_when_it_ends_does_not_join() {
    let mut stall = Stall::new(limits());
    let crowd: Vec<OwnedFd> = (0..64).map(|_| stall.connect()).collect();
    let late = stall.connect();
    say(&late, &message::request(&KEY));
    stall.broker.reap();
    assert_eq!(stall.broker.joined(), 0);
    let address = stall.address.clone();
    drop(stall);
    assert_eq!(answer(&late), None);
    assert!(crowd.iter().all(|client| answer(client).is_none()));
    let nobody = request::connect(&address, TIME).unwrap_err();
    assert_eq!(nobody, Failed::Os(Errno::NOENT));
}

/// Catches a joiner that has left and is still counted, because the offer has not been served since.
#[test]
fn who_has_gone_is_not_counted() {
    let mut stall = Stall::new(limits());
    let (first, second) = (stall.join(KEY).unwrap(), stall.join(KEY).unwrap());
    leave(first);
    let waiting = stall.connect();
    say(&waiting, &message::request(&KEY));
    stall.broker.reap();
    assert_eq!(stall.broker.joined(), 1);
    assert!(is_open(&waiting), "it is not let in, and not sent away");
    leave(second);
    stall.broker.reap();
    assert_eq!(stall.broker.joined(), 0);
}

/// Catches an end that needs the last descriptor to be closed: a forked process has the sockets too.
#[test]
fn the_end_does_not_wait_for_copies_of_the_descriptors() {
    let mut stall = Stall::new(limits());
    let delivery = stall.join(KEY).unwrap();
    let listener = rustix::io::dup(stall.broker.listener()).unwrap();
    let copies = stall.broker.copies();
    let address = stall.address.clone();
    drop(stall);
    assert!(answer(&delivery.lease).is_none());
    drop((copies, listener, address));
}

/// Catches a joiner that does not wait for an offer, or does not notice that it was made.
#[test]
fn a_joiner_with_a_deadline_waits_for_the_offer() {
    let directory = tempfile::tempdir().unwrap();
    let stale = directory.path().join("stale");
    let _bound = Listener::bound(&Address::Path(stale.clone()), false).unwrap();
    let name = format!("uverbs-wait-{:x}", ShareKey::random().unwrap().expose());
    let addresses = [
        Address::Path(directory.path().join("socket")),
        Address::Path(directory.path().join("not/yet/there")),
        Address::Path(stale),
        Address::Abstract(name),
    ];
    for address in addresses {
        let time = Time::Until(Instant::now() + PATIENCE);
        let (asked, joiner) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                asked
                    .send(request::obtain(&address, &KEY, |_| true, time))
                    .unwrap()
            });
            // If it did not wait, it would have failed by now.
            assert!(
                joiner.recv_timeout(Duration::from_millis(100)).is_err(),
                "{address}"
            );
            if let Address::Path(path) = &address {
                let _ = std::fs::remove_file(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            }
            let mut stall = Stall::at(address.clone(), limits(), tempfile::tempdir().unwrap());
            stall.serve_until(|broker| broker.joined() == 1);
            assert_eq!(joiner.recv().unwrap().unwrap().grant, grant(), "{address}");
        });
    }
}

/// Catches a joiner that gives up because one exporter ended.
#[test]
fn a_joiner_with_a_deadline_waits_for_the_next_exporter() {
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Path(directory.path().join("socket"));
    let first = Listener::bind(&address, false).unwrap();
    let time = Time::Until(Instant::now() + PATIENCE);
    std::thread::scope(|scope| {
        let joiner = scope.spawn(|| request::obtain(&address, &KEY, |_| true, time));
        let asked = std::iter::repeat_with(|| first.accept().unwrap()).find_map(|client| client);
        drop((asked, first));
        let mut stall = Stall::at(address.clone(), limits(), tempfile::tempdir().unwrap());
        stall.serve_until(|broker| broker.joined() == 1);
        assert!(joiner.join().unwrap().is_ok());
    });
}

/// Catches a joiner of an allowed user that fails because it comes while the offer is being made, and one
/// that waits for a socket that is not for it.
#[test]
fn a_joiner_with_a_deadline_waits_for_the_mode_of_the_socket() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let address = Address::Path(path.clone());
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // Whoever may do anything joins as another user.
    let user = if own_user() == 0 { 1000 } else { own_user() };
    mode(directory.path(), 0o755);
    let listener = Listener::bind(&address, true).unwrap();
    mode(&path, 0o444);
    let join = || {
        let time = Time::Until(Instant::now() + PATIENCE);
        let join = || request::obtain(&address, &KEY, |_| true, time);
        match own_user() {
            0 => as_user(user, join),
            _ => join(),
        }
    };
    let start = Instant::now();
    assert_eq!(join().unwrap_err(), Failed::Barred);
    assert!(start.elapsed() < PATIENCE);
    let (joined, joiner) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| joined.send(join()).unwrap());
        let failed = joiner.recv_timeout(Duration::from_millis(100));
        assert!(failed.is_err(), "{failed:?}");
        mode(&path, 0o666);
        let parcel = Parcel {
            message: grant().encode().unwrap(),
            files: vec![file("command"), file("memory")],
        };
        let limits = Limits {
            users: vec![user],
            ..limits()
        };
        let mut broker = Broker::new(listener, KEY, parcel, limits).unwrap();
        while broker.joined() == 0 && start.elapsed() < PATIENCE {
            broker.serve(Some(Duration::from_millis(100))).unwrap();
        }
        assert_eq!(joiner.recv().unwrap().unwrap().grant, grant());
    });
}

/// Catches a joiner that waits beyond its deadline, or does not say what it waited for.
#[test]
fn a_deadline_passes() {
    let directory = tempfile::tempdir().unwrap();
    let deaf = Address::Path(directory.path().join("deaf"));
    let _listener = Listener::bind(&deaf, false).unwrap();
    let stale = directory.path().join("stale");
    let _bound = Listener::bound(&Address::Path(stale.clone()), false).unwrap();
    let late = |errno| Failed::Late(Box::new(Failed::Os(errno)));
    let name = format!("uverbs-late-{:x}", ShareKey::random().unwrap().expose());
    for (address, expected) in [
        (
            Address::Path(directory.path().join("nobody")),
            late(Errno::NOENT),
        ),
        (Address::Path(stale), late(Errno::CONNREFUSED)),
        (Address::Abstract(name), late(Errno::CONNREFUSED)),
        (deaf, Failed::Os(Errno::AGAIN)),
    ] {
        for wait in [Duration::ZERO, Duration::from_millis(150)] {
            let start = Instant::now();
            let time = Time::Until(start + wait);
            let failed = request::obtain(&address, &KEY, |_| true, time).unwrap_err();
            assert_eq!(failed, expected, "{address}");
            assert!((wait..PATIENCE).contains(&start.elapsed()), "{address}");
        }
    }
}

/// Catches a wait that starts again with its whole time after each signal.
#[test]
fn signals_do_not_prolong_a_wait() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler does nothing, and no other test uses the signal.
    let before = unsafe { libc::signal(libc::SIGUSR2, handler) };
    assert_ne!(before, libc::SIG_ERR);
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Path(directory.path().join("deaf"));
    let _listener = Listener::bind(&address, false).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let address = &address;
        let joiner = scope.spawn(move || {
            // SAFETY: it only returns this thread's id.
            tell.send(unsafe { libc::pthread_self() }).unwrap();
            let time = Time::Each(Duration::from_millis(200));
            request::obtain(address, &KEY, |_| true, time).unwrap_err()
        });
        let thread = told.recv().unwrap();
        while !joiner.is_finished() && start.elapsed() < PATIENCE {
            // SAFETY: the thread is not joined yet.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(joiner.join().unwrap(), Failed::Os(Errno::AGAIN));
    });
    assert!(start.elapsed() < PATIENCE);
}

/// Catches a deadline that delays errors that waiting does not cure.
#[test]
fn a_deadline_does_not_delay_other_errors() {
    let mut stall = Stall::new(limits());
    let start = Instant::now();
    let time = Time::Until(start + 10 * PATIENCE);
    let address = stall.address.clone();
    let obtain = |key, trusted| {
        let address = address.clone();
        move || request::obtain(&address, &key, |_| trusted, time).unwrap_err()
    };
    let wrong = stall.serve_while(obtain(ShareKey::new(0), true));
    assert_eq!(wrong, Failed::Refused(Refusal::Denied));
    let stranger = stall.serve_while(obtain(KEY, false));
    assert_eq!(stranger, Failed::Stranger(own_user()));
    assert!(start.elapsed() < PATIENCE);
}

/// With this variable, a child process that runs one test again knows its role.
const ROLE: &str = "UVERBS_TEST_ROLE";

/// A process that runs one test of this module.
fn child(test: &str, role: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let test = format!("share::tests::{test}");
    command
        .args([&test, "--exact", "--nocapture"])
        .env(ROLE, role);
    command
}

/// Catches an exporter that takes a stranger for its own user, and a joiner that sends a stranger the key: in
/// a user namespace without ids, where all users have the same number.
///
/// The child runs this test again. Without privileges there is no second user, and the test does nothing.
#[test]
fn in_a_namespace_without_ids_nobody_is_known() {
    if let Some(name) = std::env::var_os(ROLE) {
        return in_namespace(Address::Abstract(name.into_string().unwrap()));
    }
    if own_user() != 0 {
        return;
    }
    let name = format!(
        "uverbs-namespace-{:x}",
        ShareKey::random().unwrap().expose()
    );
    let offered_inside = Address::Abstract(name.clone());
    let offered_outside = Address::Abstract(format!("{name}-outside"));
    let listener = as_user(1000, || Listener::bind(&offered_outside, false).unwrap());
    let mut child = start_in_namespace(&name);
    // First the child is the exporter: another user has the right key.
    let time = Time::Until(Instant::now() + PATIENCE);
    let asked = as_user(1000, || {
        request::obtain(&offered_inside, &KEY, |_| true, time)
    });
    assert_eq!(asked.unwrap_err(), Failed::Refused(Refusal::Denied));
    // Then the child is the joiner: another user listens.
    let end = Instant::now() + PATIENCE;
    let client = loop {
        if let Some(client) = listener.accept().unwrap() {
            break client;
        }
        assert!(Instant::now() < end, "nobody comes");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(child.wait().unwrap().success());
    let told = recv(&client, &mut [0; 32][..], RecvFlags::DONTWAIT);
    assert!(
        matches!(told, Ok((0, _)) | Err(Errno::CONNRESET)),
        "{told:?}"
    );
}

/// The child's part: makes an offer to its "own" user, then joins an offer of that user number.
fn in_namespace(address: Address) {
    assert_eq!(own_user(), 65534, "the namespace maps nobody");
    assert!(offer::certain(&[65534]).is_err(), "nobody could join");
    assert!(offer::certain(&[0, 65534]).is_err(), "anybody could join");
    assert_eq!(offer::certain(&[65534, 1000]), Ok(vec![1000]));
    // Each user has one share of the connections.
    assert_eq!(offer::certain(&[1000, 7, 1000, 7]), Ok(vec![7, 1000]));
    let listener = Listener::bind(&address, false).unwrap();
    let message = grant().encode().unwrap();
    let files = vec![file("command"), file("memory")];
    let parcel = Parcel { message, files };
    let mut broker = Broker::new(listener, KEY, parcel, limits()).unwrap();
    let end = Instant::now() + PATIENCE;
    while broker.counters().snapshot().refused_users + broker.counters().snapshot().joined == 0 {
        assert!(Instant::now() < end, "nobody comes");
        broker.serve(Some(PATIENCE)).unwrap();
    }
    assert_eq!(broker.counters().snapshot().refused_users, 1);
    let outside: Address = format!("{address}-outside").parse().unwrap();
    let client = request::connect(&outside, TIME).unwrap();
    let failed = request::ask(client, &KEY, |user| user == own_user(), TIME).unwrap_err();
    assert_eq!(failed, Failed::Stranger(65534));
}

/// Runs this test again, in a user namespace that maps no user.
fn start_in_namespace(name: &str) -> std::process::Child {
    use std::os::unix::process::CommandExt;
    let mut command = child("in_a_namespace_without_ids_nobody_is_known", name);
    // SAFETY: between fork and exec it makes one system call, and allocates nothing.
    unsafe {
        command.pre_exec(|| match libc::unshare(libc::CLONE_NEWUSER) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    command.spawn().unwrap()
}

/// Calls `act` on a thread that belongs to another user.
fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the system call itself changes only this thread, which ends here.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
            assert_eq!(result, 0);
            act()
        });
        thread.join().unwrap()
    })
}
