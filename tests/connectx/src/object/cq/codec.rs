//! What the model writes, read by the package that the library and its agents read and write with, and the
//! reverse: two codecs that were written apart agree on every bit of random requests and completions.

use std::fs;
use std::path::Path;

use uverbs_queue::mlx5::agent::{
    Action, CompletionQueue as Taken, Entry, Kind as Told, Local, Options, Poller, Poster, Remote,
    SendQueue, Space,
};

use super::*;
use crate::engine::cqe::{Completion, Kind};
use crate::engine::syndrome::Syndrome;
use crate::engine::wqe::{self, Expected, Opcode, Segment};
use crate::object::qp::Transport;
use crate::port::PortKind;

const RECORD: u64 = 0x0;
const REGISTER: u64 = 0x100;
const RING: u64 = 0x1000;
/// Entries of the ring, and blocks of the send ring.
const ENTRIES: u32 = 8;

/// A piece of the guest's memory.
struct Piece<'a> {
    memory: &'a GuestMemory,
    start: u64,
    length: usize,
}

impl Piece<'_> {
    fn load<const BYTES: usize>(&self, at: usize) -> [u8; BYTES] {
        assert!(at.is_multiple_of(BYTES) && at + BYTES <= self.length);
        let mut bytes = [0; BYTES];
        assert_eq!(self.memory.read(self.start + at as u64, &mut bytes), Ok(()));
        bytes
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at.is_multiple_of(bytes.len()) && at + bytes.len() <= self.length);
        assert_eq!(self.memory.write(self.start + at as u64, bytes), Ok(()));
    }
}

impl Space for Piece<'_> {
    fn length(&self) -> usize {
        self.length
    }

    fn load_u8(&self, at: usize) -> u8 {
        let [byte] = self.load(at);
        byte
    }

    fn load_u64(&self, at: usize) -> [u8; 8] {
        self.load(at)
    }

    fn store_u32(&self, at: usize, bytes: [u8; 4]) {
        self.store(at, &bytes);
    }

    fn store_u64(&self, at: usize, bytes: [u8; 8]) {
        self.store(at, &bytes);
    }
}

/// Xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    fn below(&mut self, end: usize) -> usize {
        self.word() as usize % end
    }
}

const KINDS: [Kind; 7] = [
    Kind::Requester,
    Kind::WriteImmediate,
    Kind::Send,
    Kind::SendImmediate,
    Kind::SendInvalidate,
    Kind::RequesterError,
    Kind::ResponderError,
];

const SYNDROMES: [Syndrome; 11] = [
    Syndrome::LocalLength,
    Syndrome::LocalQpOperation,
    Syndrome::LocalProtection,
    Syndrome::Flushed,
    Syndrome::MwBind,
    Syndrome::RemoteInvalidRequest,
    Syndrome::RemoteAccess,
    Syndrome::RemoteOperation,
    Syndrome::RetryExceeded,
    Syndrome::RnrRetryExceeded,
    Syndrome::PageFault,
];

fn completion(kind: Kind, random: &mut Random) -> Completion {
    let failed = matches!(kind, Kind::RequesterError | Kind::ResponderError);
    Completion {
        kind,
        qpn: random.word() & 0xff_ffff,
        user_index: random.word() & 0xff_ffff,
        counter: random.word() as u16,
        opcode: random.word() as u8,
        length: random.word(),
        immediate: random.word().to_ne_bytes(),
        source: None,
        syndrome: failed.then(|| SYNDROMES[random.below(SYNDROMES.len())]),
        timestamp: random.next(),
    }
}

/// Memory whose completion ring the device has not written to, and a queue there.
fn queue(size_code: u64) -> Result<(CompletionQueue, GuestMemory), Status> {
    let memory = GuestMemory::anonymous(0, 0x2000);
    assert_eq!(memory.write(RING, &[0xff; 0x1000]), Ok(()));
    let mut context = vec![0; CONTEXT_SIZE];
    for (field, value) in [
        (cqc::LOG_CQ_SIZE, ENTRIES.ilog2().into()),
        (cqc::CQE_SZ, size_code),
        (cqc::DBR_ADDR, RECORD),
    ] {
        field.set(&mut context, value);
    }
    let queue = CompletionQueue::new(&context, &RING.to_be_bytes())?;
    Ok((queue, memory))
}

fn pieces(memory: &GuestMemory) -> [Piece<'_>; 3] {
    [(RING, 0x1000), (RECORD, 8), (REGISTER, 8)].map(|(start, length)| Piece {
        memory,
        start,
        length,
    })
}

fn agrees(entry: Entry, written: &Completion) {
    let told = match (written.kind, written.syndrome) {
        (Kind::Requester, _) => Told::Sent,
        (Kind::Send, _) => Told::Received,
        (Kind::SendImmediate | Kind::WriteImmediate, _) => Told::ReceivedImm,
        (Kind::SendInvalidate, _) => Told::ReceivedInv,
        (Kind::RequesterError | Kind::ResponderError, syndrome) => Told::Failed {
            receive: written.kind == Kind::ResponderError,
            syndrome: syndrome.map_or(0, |syndrome| syndrome as u8),
            vendor: syndrome.map_or(0, Syndrome::vendor),
        },
    };
    assert_eq!(entry.kind(), told, "{written:?}");
    assert_eq!(entry.counter(), written.counter, "{written:?}");
    assert_eq!(entry.qpn(), written.qpn, "{written:?}");
    assert_eq!(entry.0.srqn_uidx.get(), written.user_index, "{written:?}");
    if written.syndrome.is_none() {
        assert_eq!(entry.length(), written.length, "{written:?}");
        let immediate = u32::from_be_bytes(written.immediate);
        assert_eq!(entry.immediate(), immediate, "{written:?}");
    }
}

#[test]
fn completions_are_read_as_they_are_written() -> Result<(), Status> {
    let mut random = Random(0x5eed);
    for (size_code, entry_bytes) in [(0, 64), (1, 128)] {
        let (mut queue, memory) = queue(size_code)?;
        let [ring, record, _] = pieces(&memory);
        let place = Taken {
            entries: ENTRIES,
            entry_bytes,
            taken: 0,
        };
        let mut poller = Poller::new(ring, record, place).ok_or(Status::BadParameter)?;
        for _ in 0..5_000 {
            let count = random.below(ENTRIES as usize + 1);
            let written: Vec<Completion> = (0..count)
                .map(|_| completion(KINDS[random.below(KINDS.len())], &mut random))
                .collect();
            for completion in &written {
                assert_eq!(queue.push(&memory, completion.encode(), false), Ok(true));
            }
            for completion in &written {
                agrees(poller.poll().ok_or(Status::BadParameter)?, completion);
            }
            assert!(poller.poll().is_none());
            poller.pass();
        }
    }
    Ok(())
}

fn action(random: &mut Random) -> (Action, Opcode) {
    let remote = Remote {
        address: random.next(),
        rkey: random.word(),
    };
    let (value, other) = (random.next(), random.next());
    match random.below(7) {
        0 => (Action::Send, Opcode::Send),
        1 => (Action::SendImm(random.word()), Opcode::SendImmediate),
        2 => (Action::Write(remote), Opcode::Write),
        3 => (
            Action::WriteImm(remote, random.word()),
            Opcode::WriteImmediate,
        ),
        4 => (Action::Read(remote), Opcode::Read),
        5 => (Action::FetchAdd(remote, value), Opcode::FetchAdd),
        _ => (
            Action::CompareSwap {
                remote,
                compare: value,
                swap: other,
            },
            Opcode::CompareSwap,
        ),
    }
}

/// The peer's memory, the operands, and the immediate data of a request.
fn operands(action: Action) -> (Option<Remote>, Option<(u64, u64)>, u32) {
    match action {
        Action::Send => (None, None, 0),
        Action::SendImm(imm) => (None, None, imm),
        Action::Write(remote) | Action::Read(remote) => (Some(remote), None, 0),
        Action::WriteImm(remote, imm) => (Some(remote), None, imm),
        Action::FetchAdd(remote, add) => (Some(remote), Some((add, 0)), 0),
        Action::CompareSwap {
            remote,
            compare,
            swap,
        } => (Some(remote), Some((swap, compare)), 0),
    }
}

#[test]
fn requests_are_read_as_they_are_written() {
    const QPN: u32 = 0x12_3456;
    let memory = GuestMemory::anonymous(0, 0x2000);
    let [ring, record, register] = pieces(&memory);
    let mut random = Random(0xfeed);
    let queue = SendQueue {
        blocks: ENTRIES,
        qpn: QPN,
        written: 0xfff0,
    };
    let poster = Poster::new(ring, record, register, queue);
    let mut poster = poster.unwrap_or_else(|| panic!("{queue:?}"));
    for _ in 0..5_000 {
        let (action, opcode) = action(&mut random);
        let local = Local {
            address: random.next(),
            length: match opcode.is_atomic() {
                true => 8,
                false => 1 + (random.word() >> 1) % ((1 << 31) - 1),
            },
            lkey: random.word(),
        };
        let options = Options {
            signaled: random.below(2) == 0,
            solicited: random.below(2) == 0,
            fenced: random.below(2) == 0,
        };
        let place = poster.written();
        let index = poster.write(action, local, options);
        let index = index.unwrap_or_else(|refused| panic!("{action:?}: {refused:?}"));
        poster.ring();
        let mut bytes = [0; 64];
        let at = RING + place % u64::from(ENTRIES) * 64;
        assert_eq!(memory.read(at, &mut bytes), Ok(()));
        let expected = Expected {
            transport: Transport::Rc,
            port: PortKind::InfiniBand,
            qpn: QPN,
            index,
            posted: 1,
        };
        let request = wqe::decode(&bytes, expected);
        let request = request.unwrap_or_else(|malformed| panic!("{action:?}: {malformed:?}"));
        let (remote, operands, imm) = operands(action);
        assert_eq!(request.opcode, opcode);
        assert_eq!(
            request.remote,
            remote.map(|Remote { address, rkey }| (address, rkey))
        );
        assert_eq!(request.operands, operands, "{action:?}");
        let Local {
            address,
            length,
            lkey: key,
        } = local;
        let segment = Segment::Memory {
            length,
            key,
            address,
        };
        assert_eq!(request.segments, [segment], "{action:?}");
        let control = request.control;
        assert_eq!(u32::from_be_bytes(control.immediate), imm);
        assert_eq!(control.is_signaled(), options.signaled);
        assert_eq!(control.is_solicited(), options.solicited);
        assert_eq!(control.flags() & 0x80 != 0, options.fenced);
        // The doorbell is the request's beginning, the record how far the ring is filled.
        let mut doorbell = [0; 8];
        assert_eq!(memory.read(REGISTER, &mut doorbell), Ok(()));
        assert_eq!(doorbell, bytes[..8]);
        let count = memory.read_be32(RECORD + 4);
        assert_eq!(count, Ok(u32::from(index.wrapping_add(1))));
        assert!(poster.done(index));
    }
}

/// The corpus of the fuzz target `agent` has three laps that the model wrote, with each kind of completion.
#[test]
fn the_corpus_has_what_the_model_writes() -> Result<(), Status> {
    let (mut queue, memory) = queue(0)?;
    let mut random = Random(1);
    // The target's head: 8 entries of 64 bytes, and a queue that begins at 0.
    let mut corpus = vec![3, 0, 0, 0];
    for lap in 0..3 {
        for place in 0..ENTRIES as usize {
            let completion = completion(KINDS[(lap + place) % KINDS.len()], &mut random);
            assert_eq!(queue.push(&memory, completion.encode(), false), Ok(true));
        }
        let taken = (lap as u32 + 1) * ENTRIES;
        assert_eq!(memory.write(RECORD, &taken.to_be_bytes()), Ok(()));
        let mut bytes = [0; ENTRIES as usize * 64];
        assert_eq!(memory.read(RING, &mut bytes), Ok(()));
        corpus.extend(bytes);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/agent/of-the-model");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        assert!(fs::write(&path, &corpus).is_ok(), "{}", path.display());
    }
    let kept = fs::read(&path).unwrap_or_default();
    assert!(
        kept == corpus,
        "UPDATE_SNAPSHOTS=1 rewrites {}",
        path.display()
    );
    Ok(())
}
