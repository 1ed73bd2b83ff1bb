//! The protocol with brokers and joiners that share plain files: no device is needed.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg,
};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::address::Address;
use super::broker::{Broker, Limits, Parcel};
use super::counters::OfferStats;
use super::key::ShareKey;
use super::listener::Listener;
use super::message::{self, Grant, Refusal, Region, parse_reply};
use super::request::{self, Delivery, Failed};

const KEY: ShareKey = ShareKey::new(0x0123_4567_89ab_cdef);
const PATIENCE: Duration = Duration::from_secs(30);

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
        has_memory,
    };
    Grant {
        pd: 7,
        regions: vec![region("heap", 8, true), region("log", 9, false)],
    }
}

/// A file that can be told from others by its contents.
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
        request::connect(&self.address, PATIENCE).unwrap()
    }

    /// Serves what has come until now.
    fn serve(&mut self) {
        while self.broker.serve(Some(Duration::ZERO)).unwrap() {}
    }

    /// Serves, waiting where it must, until something is true.
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
        std::thread::scope(|scope| {
            let joiner = scope.spawn(|| request::ask(socket, &key, |user| user == own_user()));
            while !joiner.is_finished() {
                self.broker.serve(Some(Duration::from_millis(5))).unwrap();
            }
            joiner.join().unwrap()
        })
    }
}

/// The answer that a connection has; `None` if it has been closed without.
fn answer(client: &OwnedFd) -> Option<Result<Grant, Refusal>> {
    let mut bytes = [0; message::MAX_MESSAGE];
    match recv(client, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((0, _)) | Err(Errno::CONNRESET) => None,
        Ok((length, _)) => Some(parse_reply(&bytes[..length]).unwrap()),
        Err(errno) => panic!("neither an answer nor the end: {errno}"),
    }
}

fn is_open(client: &OwnedFd) -> bool {
    matches!(
        recv(client, &mut [0; 1][..], RecvFlags::DONTWAIT),
        Err(Errno::AGAIN)
    )
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
    drop(delivery.lease);
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
    let client = request::connect(&address, PATIENCE).unwrap();
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

/// Catches a guesser who is slowed down on one connection only: a hundred at once are no faster.
#[test]
fn wrong_keys_slow_each_other_down_over_connections() {
    let mut stall = Stall::new(limits());
    let clients: Vec<OwnedFd> = (0..8).map(|_| stall.connect()).collect();
    for (number, client) in clients.iter().enumerate() {
        say(client, &message::request(&ShareKey::new(number as u64)));
    }
    let start = Instant::now();
    stall.serve();
    assert!(
        stall.stats().wrong_keys <= 3,
        "looked at at once: {:?}",
        stall.stats()
    );
    stall.serve_until(|broker| broker.counters().snapshot().wrong_keys == 8);
    // 10 + 20 + 40 + ... up to the wait before the eighth.
    assert!(
        start.elapsed()
            >= Duration::from_millis(10 * (1 << 7) - 10).min(Duration::from_millis(1_270))
    );
    for client in &clients {
        assert_eq!(answer(client), Some(Err(Refusal::Denied)));
    }
}

/// Catches a guesser who sees by the time of the answer that a key is the right one.
#[test]
fn the_right_key_waits_as_the_wrong_ones_do() {
    let mut stall = Stall::new(limits());
    let (wrong, right) = (stall.connect(), stall.connect());
    say(&wrong, &message::request(&ShareKey::new(0)));
    stall.serve();
    say(&right, &message::request(&KEY));
    let start = Instant::now();
    stall.serve_until(|broker| broker.joined() == 1);
    assert!(start.elapsed() >= Duration::from_millis(5));
    assert!(answer(&right).unwrap().is_ok());
}

/// Catches a check of the user that comes after the key, or not at all.
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

/// Catches a joiner who tells the key to whoever has taken the name.
#[test]
fn a_stranger_is_not_told_the_key() {
    let stall = Stall::new(limits());
    let failed = request::ask(stall.connect(), &KEY, |_| false).unwrap_err();
    assert_eq!(failed, Failed::Stranger(own_user()));
    let listener =
        Listener::bind(&Address::Path(stall._directory.path().join("b")), false).unwrap();
    let address = Address::Path(stall._directory.path().join("b"));
    let client = request::connect(&address, PATIENCE).unwrap();
    let server = listener.accept().unwrap().unwrap();
    assert!(request::ask(client, &KEY, |_| false).is_err());
    assert_eq!(
        recv(&server, &mut [0; 32][..], RecvFlags::DONTWAIT)
            .unwrap()
            .0,
        0
    );
}

/// Catches a parser that takes half of a message, more than a message, or another protocol's.
#[test]
fn what_is_no_request_is_refused_and_counted() {
    let whole = message::request(&KEY);
    let mut other_version = whole;
    other_version[4] = 2;
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

/// Catches a broker that keeps file descriptors which clients push at it.
#[test]
fn files_that_come_with_a_request_are_not_kept() {
    let mut stall = Stall::new(limits());
    let client = stall.connect();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [writer.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let bytes = message::request(&KEY);
    sendmsg(
        &client,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .unwrap();
    stall.serve();
    assert!(answer(&client).unwrap().is_ok());
    drop(writer);
    // The pipe ends only when nobody has the other end.
    assert_eq!(rustix::io::read(&reader, &mut [0; 1][..]).unwrap(), 0);
}

/// Catches silent clients that are kept for ever.
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

/// Catches a deadline that starts over, or one that hits those who have joined.
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

/// Catches a client that asks twice, to be counted or served twice.
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
    drop(first);
    assert!(stall.join(KEY).is_ok(), "there is room again");
}

/// Catches a broker that a crowd stops: a thousand connect and say nothing, and one joins at once.
#[test]
fn a_thousand_silent_clients_do_not_keep_one_from_joining() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        rustix::process::Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .unwrap();
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

/// Catches an answer that is taken on trust.
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
        let client = request::connect(&address, PATIENCE).unwrap();
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
        let failed = request::ask(client, &KEY, |_| true).unwrap_err();
        assert!(matches!(failed, Failed::Malformed(_)), "{case}: {failed:?}");
    }
}

#[test]
fn a_joiner_does_not_wait_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Path(directory.path().join("deaf"));
    let _listener = Listener::bind(&address, false).unwrap();
    let socket = request::connect(&address, Duration::from_millis(20)).unwrap();
    assert_eq!(
        request::ask(socket, &KEY, |_| true).unwrap_err(),
        Failed::Os(Errno::AGAIN)
    );
    let nobody = Address::Path(directory.path().join("nobody"));
    assert_eq!(
        request::connect(&nobody, PATIENCE).unwrap_err(),
        Failed::Os(Errno::NOENT)
    );
}

/// Catches a key in what is printed when something goes wrong.
#[test]
fn the_key_is_in_no_debug_text() {
    let mut stall = Stall::new(limits());
    let client = stall.connect();
    say(&client, &message::request(&ShareKey::new(0)));
    stall.serve();
    let second = stall.connect();
    say(&second, &message::request(&KEY));
    stall.broker.serve(Some(Duration::ZERO)).unwrap();
    let text = format!(
        "{:?} {:?}",
        stall.broker,
        request::ask(stall.connect(), &KEY, |_| false)
    );
    for secret in [format!("{:x}", KEY.expose()), KEY.expose().to_string()] {
        assert!(!text.contains(&secret));
    }
    assert!(
        text.contains("ShareKey(hidden)"),
        "the key is among what is printed"
    );
}
