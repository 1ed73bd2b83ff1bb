//! The rules, each broken by one field; and what happens if none is broken.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use vfio_model::memory::GuestMemory;
use vfio_model::report::Report;
use vfio_model::tap::Tap;

use crate::admin::crc16;
use crate::engine::{self, status};
use crate::fabric::{Fabric, State};
use crate::fields::put;
use crate::function::gid_of;
use crate::qp::{LLQ_ROOM, LLQ_START, RECEIVE_DOORBELL, SEND_DOORBELL};
use crate::registers::{self, Registers};
use crate::server::{FIRST_OF_CQS, PAGE, doorbell};
use crate::{Config, cq, event, mr, qp};

/// Where things are in the guests' memories.
const COMMANDS: u64 = 0x1000;
const ANSWERS: u64 = 0x3000;
const EVENTS: u64 = 0x5000;
const COMPLETIONS: u64 = 0x6000;
const RECEIVES: u64 = 0x8000;
const DATA: u64 = 0x1_0000;
/// Bytes of the data.
const DATA_SIZE: usize = 0x4000;
/// The upper half of the data is for receives.
const INTO: u64 = DATA + 0x2000;

const DEPTH: u16 = 32;
const QKEY: u32 = 0x1111;
const SRD: u8 = 2;
const UD: u8 = 1;

type Fields<'a> = &'a [(usize, &'a [u8])];

/// Bytes with some fields.
fn bytes<const N: usize>(fields: Fields<'_>) -> [u8; N] {
    let mut bytes = [0; N];
    for (at, value) in fields {
        put(&mut bytes, *at, value);
    }
    bytes
}

/// What a driver has made on a function.
#[derive(Clone, Copy, Debug, Default)]
struct Made {
    pd: u16,
    uar: u16,
    eqn: u16,
    cqn: u16,
    lkey: u32,
    rkey: u32,
    /// Handles for the addresses of functions 0 and 1.
    ahs: [u16; 2],
    handle: u32,
    qpn: u16,
    /// Commands and requests so far.
    commands: u16,
    posted: u16,
    received: u16,
}

/// Two functions, each with a queue pair that is ready to send.
struct World {
    fabric: Fabric,
    report: Report,
    made: [Made; 2],
    registers: [Registers; 2],
}

impl World {
    fn new(kind: u8) -> Self {
        Self::seeded(kind, 1)
    }

    fn seeded(kind: u8, seed: u64) -> Self {
        let report = Report::new("efa", false);
        let config = Config {
            functions: 2,
            seed,
            trace: false,
            tap: None,
        };
        let mut world = Self {
            fabric: Fabric::new(&config, &report, &Tap::default()),
            report,
            made: Default::default(),
            registers: Default::default(),
        };
        for index in 0..2 {
            world.set_up(index, kind);
        }
        assert_eq!(world.report.take(), Vec::<String>::new());
        world
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.fabric.lock()
    }

    fn register(&mut self, index: usize, offset: u64, value: u32) {
        let mut state = self.fabric.lock();
        let function = &mut state.functions[index];
        registers::store(&mut self.registers[index], function, offset, value);
    }

    fn set_up(&mut self, index: usize, kind: u8) {
        self.state().functions[index].memory = GuestMemory::anonymous(0, 0x2_0000);
        self.register(index, 0x10, COMMANDS as u32);
        self.register(index, 0x18, 32 | 64 << 16);
        self.register(index, 0x20, ANSWERS as u32);
        self.register(index, 0x28, 32 | 64 << 16);
        self.made[index].pd = self.make(index, 14, &[]);
        self.made[index].uar = self.make(index, 16, &[]);
        let base = (EVENTS as u32).to_le_bytes();
        self.made[index].eqn =
            self.make(index, 18, &[(4, &[64]), (7, &[4]), (8, &base), (16, &[1])]);
        let made = self.made[index];
        let (pd, uar, eqn) = (
            &made.pd.to_le_bytes(),
            &made.uar.to_le_bytes(),
            &made.eqn.to_le_bytes(),
        );
        let rings = self.state().functions[index].limits.sub_cqs;
        let base = (COMPLETIONS as u32).to_le_bytes();
        self.made[index].cqn = self.make(
            index,
            9,
            &[
                (4, &[1 << 5]),
                (5, &[8]),
                (6, &[DEPTH as u8]),
                (8, eqn),
                (12, &base),
                (24, &[rings as u8]),
                (26, uar),
            ],
        );
        let pages: [u64; 4] = std::array::from_fn(|page| DATA + 0x1000 * page as u64);
        let pages: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
        let (length, iova) = ((DATA_SIZE as u64).to_le_bytes(), DATA.to_le_bytes());
        let (status, answer) = self.command(
            index,
            7,
            &[
                (4, pd),
                (8, &pages),
                (40, &length),
                (48, &[12]),
                (49, &[7]),
                (56, &iova),
            ],
        );
        assert_eq!(status, 0);
        self.made[index].lkey = word(&answer, 8);
        self.made[index].rkey = word(&answer, 12);
        for number in 0..2 {
            let gid = gid_of(number);
            self.made[index].ahs[usize::from(number)] = self.make(index, 5, &[(4, &gid), (20, pd)]);
        }
        let (cqn, base) = (
            u32::from(self.made[index].cqn).to_le_bytes(),
            RECEIVES.to_le_bytes(),
        );
        let (status, answer) = self.command(
            index,
            1,
            &[
                (4, pd),
                (6, &[kind]),
                (16, &base),
                (24, &cqn),
                (28, &cqn),
                (40, &(u32::from(DEPTH) * 64).to_le_bytes()),
                (44, &[DEPTH as u8]),
                (48, &(u32::from(DEPTH) * 16).to_le_bytes()),
                (52, &[DEPTH as u8]),
                (56, uar),
            ],
        );
        assert_eq!(status, 0);
        self.made[index].handle = word(&answer, 8);
        self.made[index].qpn = word(&answer, 12) as u16;
        for state in 1..=3 {
            self.modify(index, state);
        }
    }

    /// Sets a state and the Q_Key.
    fn modify(&mut self, index: usize, state: u8) {
        let handle = self.made[index].handle.to_le_bytes();
        let qkey = QKEY.to_le_bytes();
        let fields: Fields<'_> = &[(4, &[0b101]), (8, &handle), (12, &[state]), (20, &qkey)];
        assert_eq!(self.command(index, 2, fields).0, 0);
    }

    /// Executes a command that gives a number of 16 bits.
    fn make(&mut self, index: usize, opcode: u8, fields: Fields<'_>) -> u16 {
        let (status, answer) = self.command(index, opcode, fields);
        assert_eq!(status, 0, "command {opcode}: {:?}", self.report.take());
        word(&answer, 8) as u16
    }

    /// Executes a command with these fields; gives its status and the answer.
    fn command(&mut self, index: usize, opcode: u8, fields: Fields<'_>) -> (u8, [u8; 64]) {
        let count = self.made[index].commands;
        self.made[index].commands += 1;
        let mut entry: [u8; 64] = bytes(&[(0, &(count % 32).to_le_bytes()), (2, &[opcode])]);
        entry[3] = u8::from((count / 32).is_multiple_of(2));
        for (at, value) in fields {
            // A field before a command's own part changes bits.
            if *at < 4 {
                entry[*at] ^= value[0];
            } else {
                put(&mut entry, *at, value);
            }
        }
        let slot = u64::from(count % 32) * 64;
        let _ = self.state().functions[index]
            .memory
            .write(COMMANDS + slot, &entry);
        self.register(index, 0x2c, u32::from(count) + 1);
        let mut answer = [0; 64];
        let _ = self.state().functions[index]
            .memory
            .read(ANSWERS + slot, &mut answer);
        let mut zeroed = answer;
        zeroed[4..6].fill(0);
        assert_eq!(
            word(&answer, 4) as u16,
            crc16(&zeroed),
            "the checksum of an answer"
        );
        (answer[2], answer)
    }

    /// A SEND of 64 bytes from function 0 to function 1, with other fields.
    fn send(&self, fields: Fields<'_>) -> [u8; 64] {
        self.request(
            0,
            &[
                (6, &[1]),
                (32, &64_u32.to_le_bytes()),
                (36, &self.made[0].lkey.to_le_bytes()),
                (40, &DATA.to_le_bytes()),
            ],
            fields,
        )
    }

    /// A READ or WRITE of 64 bytes, with other fields.
    fn rdma(&self, operation: u8, fields: Fields<'_>) -> [u8; 64] {
        let length = 64_u32.to_le_bytes();
        let (lkey, rkey) = (
            self.made[0].lkey.to_le_bytes(),
            self.made[1].rkey.to_le_bytes(),
        );
        let common: Fields<'_> = &[
            (6, &[1]),
            (32, &length),
            (36, &rkey),
            (40, &INTO.to_le_bytes()),
            (48, &length),
            (52, &lkey),
            (56, &DATA.to_le_bytes()),
        ];
        self.request(operation, common, fields)
    }

    /// A request to function 1: fields from byte 4 on are set, those before change bits.
    fn request(&self, operation: u8, common: Fields<'_>, fields: Fields<'_>) -> [u8; 64] {
        let (made, peer) = (&self.made[0], &self.made[1]);
        let mut entry: [u8; 64] = bytes(&[
            (0, &made.posted.to_le_bytes()),
            (2, &[1 << 7 | operation]),
            (3, &[0b1_1100]),
            (4, &peer.qpn.to_le_bytes()),
            (12, &made.ahs[1].to_le_bytes()),
            (16, &QKEY.to_le_bytes()),
        ]);
        entry[3] |= (made.posted / DEPTH % 2) as u8;
        for (at, value) in common {
            put(&mut entry, *at, value);
        }
        for (at, value) in fields {
            if *at < 4 {
                entry[*at] ^= value[0];
            } else {
                put(&mut entry, *at, value);
            }
        }
        entry
    }

    /// Stores a request of function 0 in the next slot.
    fn store(&mut self, request: &[u8]) {
        let slot = u64::from(self.made[0].posted % DEPTH) * 64;
        self.made[0].posted += 1;
        qp::store(&mut self.state().functions[0], self.ring() + slot, request);
    }

    /// Where the send ring of function 0 is.
    fn ring(&self) -> u64 {
        u64::from(self.made[0].qpn % 256) * LLQ_ROOM + LLQ_START
    }

    /// Rings a doorbell of the queue pair of a function.
    fn ring_queue(&mut self, index: usize, place: u64, value: u32) {
        let page = u64::from(self.made[index].qpn % 256) * PAGE;
        doorbell(&mut self.state(), index, page + place, value);
    }

    fn post(&mut self, request: &[u8]) {
        self.store(request);
        self.ring_queue(0, SEND_DOORBELL, self.made[0].posted.into());
    }

    /// Posts a receive request of 128 bytes of function 1, with other fields, and rings.
    fn receive(&mut self, fields: Fields<'_>) {
        let made = self.made[1];
        let slot = made.received % DEPTH;
        let control = (made.lkey | 3 << 30).to_le_bytes();
        let address = (INTO + 128 * u64::from(slot)).to_le_bytes();
        let mut entry: [u8; 16] = bytes(&[
            (0, &address),
            (8, &made.received.to_le_bytes()),
            (10, &[128]),
            (12, &control),
        ]);
        for (at, value) in fields {
            put(&mut entry, *at, value);
        }
        let place = RECEIVES + 16 * u64::from(slot);
        let _ = self.state().functions[1].memory.write(place, &entry);
        self.made[1].received += 1;
        self.ring_queue(1, RECEIVE_DOORBELL, u32::from(made.received) + 1);
    }

    fn tick(&mut self) {
        for _ in 0..4 {
            engine::tick(&mut self.state());
        }
    }

    /// The next completions of a function, in the order of its rings.
    fn completions(&mut self, index: usize) -> Vec<[u8; 32]> {
        let state = self.fabric.lock();
        let function = &state.functions[index];
        let rings = function
            .objects
            .cqs
            .values()
            .next()
            .map(|queue| queue.written.clone());
        let mut all = Vec::new();
        for (ring, count) in rings.unwrap_or_default().into_iter().enumerate() {
            for entry in 0..count {
                let mut bytes = [0; 32];
                let place = (ring as u32 * u32::from(DEPTH) + entry) * 32;
                let read = function
                    .memory
                    .read(COMPLETIONS + u64::from(place), &mut bytes);
                assert!(read.is_ok());
                all.push(bytes);
            }
        }
        all
    }

    /// The status of the first completion of function 0.
    fn status(&mut self) -> Option<u8> {
        self.tick();
        self.completions(0).first().map(|entry| entry[2])
    }

    fn ring_cq(&mut self, index: usize, value: u32) {
        let page = FIRST_OF_CQS + u64::from(self.made[index].cqn) * PAGE;
        doorbell(&mut self.state(), index, page + cq::DOORBELL, value);
    }

    /// Checks that there was one violation, which says this.
    #[track_caller]
    fn assert_broken(&mut self, rule: &str) {
        let said = self.report.take();
        assert!(
            said.len() == 1 && said[0].contains(rule),
            "wanted `{rule}`: {said:#?}"
        );
    }

    #[track_caller]
    fn assert_clean(&mut self) {
        assert_eq!(self.report.take(), Vec::<String>::new());
    }

    fn read(&self, index: usize, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let read = self.state().functions[index].memory.read(at, &mut bytes);
        assert!(read.is_ok());
        bytes
    }

    fn fill(&self, index: usize, at: u64, byte: u8, length: usize) {
        let written = self.state().functions[index]
            .memory
            .write(at, &vec![byte; length]);
        assert!(written.is_ok());
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

#[test]
fn a_send_arrives_and_both_sides_learn_of_it() {
    for kind in [SRD, UD] {
        let mut world = World::new(kind);
        world.fill(0, DATA, 7, 64);
        world.receive(&[]);
        let request = world.send(&[(2, &[1 << 4]), (8, &[1, 2, 3, 4])]);
        world.post(&request);
        assert_eq!(world.status(), Some(status::OK));
        // Before a datagram there are 40 bytes of anything.
        let header = if kind == UD { 40 } else { 0 };
        let data = world.read(1, INTO + header, 65);
        assert_eq!(data, [vec![7; 64], vec![0]].concat());
        let arrived = world.completions(1)[0];
        let sender = world.made[1].ahs[0].to_le_bytes();
        assert_eq!(arrived[3] & 0xfe, 2 << 1 | 1 << 3);
        assert_eq!(arrived[6..8], [64 + header as u8, 0]);
        assert_eq!(arrived[8..10], sender);
        assert_eq!(arrived[10..12], world.made[0].qpn.to_le_bytes());
        assert_eq!(arrived[12..16], [1, 2, 3, 4]);
        world.assert_clean();
    }
}

#[test]
fn reads_and_writes_reach_the_peers_memory() {
    let mut world = World::new(SRD);
    world.fill(0, DATA, 9, 64);
    let write = world.rdma(2, &[]);
    world.post(&write);
    assert_eq!(world.status(), Some(status::OK));
    assert_eq!(world.read(1, INTO, 64), [9; 64]);
    world.fill(1, INTO, 5, 64);
    let read = world.rdma(1, &[]);
    world.post(&read);
    world.tick();
    assert_eq!(world.read(0, DATA, 64), [5; 64]);
    assert_eq!(world.completions(0)[1][3] >> 4 & 7, 1);
    assert!(world.completions(1).is_empty());
    world.assert_clean();
}

/// What an application gets wrong is answered by completions, and no violation.
#[test]
fn mistakes_of_an_application_are_statuses() {
    let key = |world: &World, index: usize| world.made[index].lkey.to_le_bytes();
    type Request = fn(&World) -> [u8; 64];
    let cases: [(u8, Request); 7] = [
        (status::BAD_HANDLE, |world| world.send(&[(12, &[0, 0])])),
        (status::BAD_LKEY, |world| {
            world.send(&[(36, &[0xf5, 0, 0, 0])])
        }),
        (status::BAD_LENGTH, |world| {
            world.send(&[(32, &0x2300_u32.to_le_bytes())])
        }),
        (status::PEER_BAD_QPN, |world| {
            world.send(&[(4, &[0x77, 0x77])])
        }),
        (status::PEER_BAD_QPN, |world| {
            world.send(&[(16, &[0, 0, 0, 1])])
        }),
        (status::PEER_NOT_READY, |world| world.send(&[])),
        (status::PEER_BAD_ADDRESS, |world| {
            world.rdma(2, &[(40, &(DATA + DATA_SIZE as u64).to_le_bytes())])
        }),
    ];
    for (status, request) in cases {
        let mut world = World::new(SRD);
        let handle = world.made[0].handle.to_le_bytes();
        // One retry when nobody is ready.
        world.command(0, 2, &[(4, &[1 << 5]), (8, &handle), (29, &[1])]);
        let request = request(&world);
        world.post(&request);
        assert_eq!(world.status(), Some(status));
        world.assert_clean();
    }
    // A key for local use is none for peers.
    let mut world = World::new(SRD);
    let request = world.rdma(2, &[(36, &key(&world, 1))]);
    world.post(&request);
    assert_eq!(world.status(), Some(status::PEER_BAD_ADDRESS));
}

#[test]
fn each_rule_of_a_request_is_checked() {
    let no_immediate: Fields<'_> = &[(8, &[1])];
    let cases: [(&str, u8, Fields<'_>); 17] = [
        ("there is no operation 3", 0, &[(2, &[3])]),
        ("bit 7 of byte 2 must be set", 0, &[(2, &[1 << 7])]),
        ("byte 2 has 0x40 where zero", 0, &[(2, &[1 << 6])]),
        ("its phase is wrong", 0, &[(3, &[1])]),
        ("byte 3 has 0x2 where zero", 0, &[(3, &[1 << 1])]),
        ("bit 2 of byte 3 must be set", 0, &[(3, &[1 << 2])]),
        ("bit 3 of byte 3 must be set", 0, &[(3, &[1 << 3])]),
        ("bit 4 of byte 3 must be set", 0, &[(3, &[1 << 4])]),
        ("byte 8 has 0x1 where zero", 0, no_immediate),
        ("byte 14 has 0x4 where zero", 0, &[(14, &[4])]),
        ("byte 15 has 0x1 where zero", 0, &[(15, &[1])]),
        ("byte 20 has 0x1 where zero", 0, &[(20, &[1])]),
        ("byte 26 has 0x1 where zero", 0, &[(26, &[1])]),
        ("it has 3 slices, of 2", 0, &[(6, &[3])]),
        ("byte 39 has 0x1 where zero", 0, &[(39, &[1])]),
        ("byte 56 has 0x1 where zero", 0, &[(56, &[1])]),
        (
            "33 bytes are inline, of 32",
            0,
            &[(2, &[1 << 5]), (6, &[33])],
        ),
    ];
    for (rule, operation, fields) in cases {
        let mut world = World::new(SRD);
        assert_eq!(operation, 0);
        let request = world.send(fields);
        world.post(&request);
        world.assert_broken(rule);
        assert_eq!(world.status(), Some(status::UNSUPPORTED), "{rule}");
    }
    let cases: [(&str, u8, Fields<'_>); 5] = [
        ("a READ has immediate data", 1, &[(2, &[1 << 4])]),
        ("a READ has inline data", 1, &[(2, &[1 << 5])]),
        ("a WRITE of 64 bytes has inline data", 2, &[(2, &[1 << 5])]),
        ("it has 2 slices, of 1", 2, &[(6, &[2])]),
        ("65 bytes of the peer's memory for 64", 2, &[(32, &[65])]),
    ];
    for (rule, operation, fields) in cases {
        let mut world = World::new(SRD);
        let request = world.rdma(operation, fields);
        world.post(&request);
        world.assert_broken(rule);
    }
}

#[test]
fn each_rule_of_a_send_ring_is_checked() {
    let mut world = World::new(SRD);
    let request = world.send(&[]);
    let ring = world.ring();
    let store = |world: &mut World, at: u64, bytes: &[u8]| {
        qp::store(&mut world.state().functions[0], at, bytes);
    };
    store(&mut world, ring - 8, &[0; 8]);
    world.assert_broken("8 bytes are stored at");
    store(&mut world, ring, &[0; 4]);
    world.assert_broken("4 bytes are stored at");
    world.ring_queue(0, SEND_DOORBELL, 33);
    world.assert_broken("33 requests beside 0 in a ring of 32");
    world.ring_queue(0, SEND_DOORBELL, 0x1_0000);
    world.assert_broken("it has 0x10000");
    world.ring_queue(0, SEND_DOORBELL + 4, 0);
    world.assert_broken("there is no doorbell at");
    // Half of the request is as it was.
    store(&mut world, ring, &request[..32]);
    world.ring_queue(0, SEND_DOORBELL, 1);
    let said = world.report.take();
    assert!(
        said.iter()
            .any(|text| text.contains("was not stored whole")),
        "{said:?}"
    );

    // One more is stored than is told of.
    let mut world = World::new(SRD);
    for _ in 0..2 {
        let request = world.send(&[]);
        world.store(&request);
    }
    world.ring_queue(0, SEND_DOORBELL, 1);
    world.assert_broken("the doorbell does not tell of what was stored at 0x40");

    let mut world = World::new(SRD);
    world.state().functions[0].faults.stalled = true;
    for _ in 0..2 {
        let request = world.send(&[(0, &[world.made[0].posted as u8])]);
        world.post(&request);
    }
    world.assert_broken("the id 0x0 is that of a request in flight");

    let mut world = World::new(SRD);
    world.modify(0, 0);
    world.post(&request);
    world.assert_broken("it is rung in state Reset");
}

#[test]
fn a_batch_has_a_limit_and_a_ring_is_never_filled_at_once() {
    let mut world = World::new(SRD);
    world.state().functions[0].limits.batch = 4;
    for count in [4, 5] {
        for _ in 0..count {
            let request = world.send(&[]);
            world.store(&request);
        }
        if count == 4 {
            world.ring_queue(0, SEND_DOORBELL, 4);
            world.assert_clean();
        }
    }
    world.ring_queue(0, SEND_DOORBELL, 9);
    world.assert_broken("5 blocks were stored before it, of 4");
    let mut world = World::new(SRD);
    world.state().functions[0].limits.min_send_depth = 32;
    for _ in 0..32 {
        let request = world.send(&[]);
        world.store(&request);
    }
    world.ring_queue(0, SEND_DOORBELL, 32);
    world.assert_broken("32 requests at once in a ring of 32");
}

#[test]
fn each_rule_of_a_receive_ring_is_checked() {
    let cases: [(&str, Fields<'_>); 4] = [
        ("byte 15 has 0x1 where zero", &[(15, &[0xc1])]),
        ("is in the wrong place of a request", &[(15, &[0x80])]),
        ("it is rung before the last descriptor", &[(15, &[0x40])]),
        ("it is not in memory", &[]),
    ];
    for (rule, fields) in cases {
        let mut world = World::new(SRD);
        if fields.is_empty() {
            world.state().functions[1].memory = GuestMemory::default();
        }
        world.receive(fields);
        world.assert_broken(rule);
    }
    let mut world = World::new(SRD);
    world.receive(&[]);
    world.receive(&[(8, &[0])]);
    world.assert_broken("the id 0x0 is that of a request in flight");
    world.ring_queue(1, RECEIVE_DOORBELL, 35);
    world.assert_broken("33 descriptors beside 2 in a ring of 32");
    world.ring_queue(1, RECEIVE_DOORBELL, 0x8000_0000);
    world.assert_broken("its doorbell has 0x80000000");
}

#[test]
fn each_rule_of_a_completion_queue_is_checked() {
    let mut world = World::new(SRD);
    world.ring_cq(0, 1 << 16);
    world.assert_broken("has 0x10000 after 0 completions");
    world.ring_cq(0, 1);
    world.assert_broken("has 0x1 after 0 completions");
    world.ring_cq(0, 1 << 31 | 2 << 29);
    world.assert_broken("is armed after 2 events of 0");
    for number in 0..33 {
        assert!(world.report.take().is_empty(), "after {number}");
        let request = world.rdma(2, &[]);
        world.post(&request);
        world.tick();
    }
    world.assert_broken("has no room: 32 are not taken");
}

#[test]
fn an_armed_queue_tells_once_and_a_lost_event_is_lost() {
    let mut world = World::new(SRD);
    let events = |world: &World| {
        let mut eqs = world.fabric.lock();
        let eqs = &mut eqs.functions[0].objects.eqs;
        eqs.values().map(|queue| queue.events).sum::<u32>()
    };
    let write = |world: &mut World| {
        let request = world.rdma(2, &[]);
        world.post(&request);
        world.tick();
    };
    write(&mut world);
    assert_eq!(events(&world), 0);
    // One is there already.
    world.ring_cq(0, 1 << 31);
    assert_eq!(events(&world), 1);
    write(&mut world);
    assert_eq!(events(&world), 1);
    world.state().functions[0].faults.lost_events = 1;
    world.ring_cq(0, 1 << 31 | 1 << 29);
    assert_eq!(events(&world), 1);
    world.assert_clean();
    let eqn = u32::from(world.made[0].eqn);
    event::arm(&mut world.state().functions[0], eqn);
    world.assert_broken("the doorbell of event queues has");
}

/// Between the driver's last look at its event queue and the register that arms it, an event may come.
#[test]
fn an_event_before_the_driver_arms_again_is_told() {
    let mut world = World::new(SRD);
    let (mut reader, writer) = UnixStream::pair().unwrap();
    reader.set_nonblocking(true).unwrap();
    let eqn = u32::from(world.made[0].eqn);
    let arm = |world: &World| event::arm(&mut world.state().functions[0], eqn | 1 << 31);
    let mut interrupts = || {
        let mut counts = [0; 64];
        reader.read(&mut counts).map_or(0, |bytes| bytes / 8)
    };
    {
        let mut state = world.state();
        let vectors = &mut state.functions[0].vectors;
        vectors.set(0, 1, vec![File::from(OwnedFd::from(writer))]);
    }
    let complete = |world: &mut World, seen: u32| {
        world.ring_cq(0, 1 << 31 | (seen & 3) << 29);
        let request = world.rdma(2, &[]);
        world.post(&request);
        world.tick();
    };
    arm(&world);
    assert_eq!(interrupts(), 0);
    complete(&mut world, 0);
    assert_eq!(interrupts(), 1);
    // Not armed: it is told with the next arming, once.
    complete(&mut world, 1);
    assert_eq!(interrupts(), 0);
    arm(&world);
    assert_eq!(interrupts(), 1);
    arm(&world);
    assert_eq!(interrupts(), 0);
}

#[test]
fn each_rule_of_a_command_is_checked() {
    let cases: [(&str, u8, Fields<'_>); 8] = [
        ("ALLOC_PD: its phase is wrong", 14, &[(3, &[1])]),
        ("ALLOC_PD: its id is 0x", 14, &[(1, &[0x10])]),
        ("ALLOC_PD: byte 3 has 0x2", 14, &[(3, &[2])]),
        ("ALLOC_PD: byte 0 has 0x1", 14, &[(4, &[1])]),
        ("CREATE_AH: byte 18 has 0x1", 5, &[(20, &[1]), (22, &[1])]),
        ("there is no command 20", 20, &[]),
        ("feature 9 cannot be set", 12, &[(17, &[9])]),
        (
            "there are no groups of events 0x20",
            12,
            &[(17, &[2]), (24, &[0x20])],
        ),
    ];
    for (rule, opcode, fields) in cases {
        let mut world = World::new(SRD);
        world.command(0, opcode, fields);
        world.assert_broken(rule);
    }
    let mut world = World::new(SRD);
    world.register(0, 0x2c, 0x100);
    world.assert_broken("the admin doorbell has 0x100");
}

#[test]
fn the_long_form_of_a_command_has_a_checksum() {
    let mut world = World::new(SRD);
    world.register(0, 0x18, 32 | 128 << 16);
    for (number, wrong) in [0, 1].into_iter().enumerate() {
        let mut entry = [0; 128];
        put(&mut entry, 0, &[number as u8, 0, 14, 1]);
        let checksum = crc16(&entry) ^ wrong;
        put(&mut entry, 4, &checksum.to_le_bytes());
        let place = COMMANDS + 128 * number as u64;
        let _ = world.state().functions[0].memory.write(place, &entry);
        world.register(0, 0x2c, number as u32 + 1);
        match wrong {
            0 => world.assert_clean(),
            _ => world.assert_broken("ALLOC_PD: its checksum is"),
        }
    }
}

#[test]
fn objects_in_use_stay() {
    let mut world = World::new(SRD);
    let made = world.made[0];
    let busy = 7;
    assert_eq!(world.command(0, 15, &[(4, &made.pd.to_le_bytes())]).0, busy);
    assert_eq!(
        world.command(0, 10, &[(4, &made.cqn.to_le_bytes())]).0,
        busy
    );
    assert_eq!(
        world.command(0, 17, &[(4, &made.uar.to_le_bytes())]).0,
        busy
    );
    assert_eq!(
        world.command(0, 19, &[(4, &made.eqn.to_le_bytes())]).0,
        busy
    );
    world.assert_clean();
    world.command(0, 8, &[(4, &made.rkey.to_le_bytes())]);
    world.assert_broken("is no key for local use");
}

#[test]
fn an_address_has_one_handle_which_goes_for_all() {
    let mut world = World::new(SRD);
    let made = world.made[0];
    let (pd, number) = (made.pd.to_le_bytes(), made.ahs[1]);
    let again = world.make(0, 5, &[(4, &gid_of(1)), (20, &pd)]);
    assert_eq!(again, number);
    let fields: Fields<'_> = &[(4, &number.to_le_bytes()), (6, &pd)];
    assert_eq!(world.command(0, 6, fields).0, 0);
    let request = world.send(&[]);
    world.post(&request);
    assert_eq!(world.status(), Some(status::BAD_HANDLE));
    assert_ne!(world.command(0, 6, fields).0, 0);
    world.assert_clean();
}

#[test]
fn what_is_in_flight_ends_with_its_queue_pair() {
    let mut world = World::new(SRD);
    world.receive(&[]);
    world.state().functions[0].faults.stalled = true;
    let request = world.send(&[]);
    world.post(&request);
    for index in 0..2 {
        assert_eq!(world.completions(index).len(), 0);
        let handle = world.made[index].handle.to_le_bytes();
        assert_eq!(world.command(index, 4, &[(4, &handle)]).0, 0);
        let statuses: Vec<u8> = world.completions(index).iter().map(|it| it[2]).collect();
        assert_eq!(statuses, [status::FLUSHED]);
    }
    world.assert_clean();
}

#[test]
fn faults_show_where_they_were_asked_for() {
    let mut world = World::new(SRD);
    world.state().functions[0].faults.failing.set(14, 1);
    assert_eq!(world.command(0, 14, &[]).0, 1);
    assert_eq!(world.command(0, 14, &[]).0, 0);
    world.state().functions[1].faults.knows_nobody = true;
    let request = world.rdma(2, &[]);
    world.post(&request);
    assert_eq!(world.status(), Some(status::PEER_KNOWS_US_NOT));
    world.state().functions[1].faults.silent = true;
    let request = world.rdma(2, &[]);
    world.post(&request);
    world.tick();
    assert_eq!(world.completions(0)[1][2], status::PEER_SILENT);
    assert!(event::notify(&mut world.state().functions[0], 4).is_err());
    world.assert_clean();
}

/// SRD keeps no order, but loses and repeats nothing; the order follows from the seed. UD keeps it.
#[test]
fn srd_has_no_order_and_a_seed_has_one() {
    let order = |kind, seed| {
        let mut world = World::seeded(kind, seed);
        for _ in 0..16 {
            world.receive(&[]);
        }
        for _ in 0..16 {
            let request = world.send(&[]);
            world.store(&request);
        }
        world.ring_queue(0, SEND_DOORBELL, 16);
        world.tick();
        world.assert_clean();
        let ids = |index| -> Vec<u8> {
            let entries = world.completions(index);
            entries.iter().map(|entry| entry[0]).collect()
        };
        let mut ids = [0, 1].map(ids);
        let found = ids.clone();
        ids.iter_mut().for_each(|ids| ids.sort_unstable());
        assert_eq!(ids, [(); 2].map(|()| (0..16).collect::<Vec<u8>>()));
        found
    };
    let in_order = (0..16).collect::<Vec<u8>>();
    assert!(order(SRD, 1).iter().all(|ids| *ids != in_order));
    assert_eq!(order(SRD, 1), order(SRD, 1));
    assert_ne!(order(SRD, 1), order(SRD, 2));
    assert!(order(UD, 1).iter().all(|ids| *ids == in_order));
}

/// A list of pages in chunks, whose pages do not follow one another.
#[test]
fn lists_of_pages_may_be_in_chunks() {
    const PAGES: u64 = 600;
    const CHUNK: u64 = 0xa000;
    let mut world = World::new(SRD);
    {
        let state = world.state();
        let memory = &state.functions[0].memory;
        for (index, place) in [0xc000_u64, 0xb000].into_iter().enumerate() {
            let _ = memory.write(CHUNK + 8 * index as u64, &place.to_le_bytes());
            for page in 0..512 {
                let address: u64 = (512 * index as u64 + page) << 12;
                let _ = memory.write(place + 8 * page, &address.to_le_bytes());
            }
        }
    }
    let (length, list) = ((PAGES << 12).to_le_bytes(), (CHUNK as u32).to_le_bytes());
    let pd = world.made[0].pd.to_le_bytes();
    let bytes = 28_u32.to_le_bytes();
    let fields: Fields<'_> = &[
        (3, &[6]),
        (4, &pd),
        (8, &bytes),
        (12, &list),
        (40, &length),
        (48, &[12]),
    ];
    let (status, answer) = world.command(0, 7, fields);
    assert_eq!(status, 0, "{:?}", world.report.take());
    let state = world.state();
    let key = word(&answer, 8);
    let pd = world.made[0].pd;
    let region = mr::find(&state.functions[0], key, mr::lkey, pd, mr::Right::LocalRead);
    let pieces = region.and_then(|region| region.pieces(511 << 12 | 4000, 200));
    assert_eq!(pieces, Some(vec![(511 << 12 | 4000, 96), (512 << 12, 104)]));
}
