//! The rules about rings and doorbells: what is right passes, and each way to break one is told.

use super::*;
use crate::command::Status;
use crate::engine;
use crate::fixture::{self, create, mark_entries};
use crate::layout::memic::alloc;
use crate::layout::{cmd, cqc, eqc, mkc};
use crate::object::{eq, memic, mkey, qp};

/// Where things lie in the memory.
const EVENTS: u64 = 0x1000;
const COMPLETIONS: u64 = 0x2000;
const RING: u64 = 0x3000;
const CQ_RECORD: u64 = 0x4000;
const QP_RECORD: u64 = 0x4040;
const DATA: u64 = 0x5000;

/// The send register on its UAR.
const REGISTER: u64 = 0x800;

/// A function with one queue pair that can send, with a ring of four blocks; its UAR and its number.
fn function() -> Result<(Vec<Function>, u32, u32), Status> {
    let mut function = fixture::function();
    let uar = function.objects.uars.insert(Default::default())?;
    let pd = function.objects.pds.insert(())?;
    let fields = [(eqc::LOG_EQ_SIZE, 4), (eqc::UAR_PAGE, uar.into())];
    let output = create(&mut function, eq::create, cmd::CONTEXT, &fields, &[EVENTS])?;
    let eqn = cmd::OBJECT_8.get(&output);
    let fields = [
        (cqc::LOG_CQ_SIZE, 4),
        (cqc::C_EQN, eqn),
        (cqc::UAR_PAGE, uar.into()),
        (cqc::DBR_ADDR, CQ_RECORD),
    ];
    mark_entries(&function, COMPLETIONS);
    let output = create(
        &mut function,
        cq::create,
        cmd::CONTEXT,
        &fields,
        &[COMPLETIONS],
    )?;
    let cqn = cmd::OBJECT.get(&output);
    let fields = [
        (qpc::PD, pd.into()),
        (qpc::UAR_PAGE, uar.into()),
        (qpc::LOG_SQ_SIZE, 2),
        (qpc::CQN_SND, cqn),
        (qpc::DBR_ADDR, QP_RECORD),
        // No receive queue.
        (qpc::RQ_TYPE, 3),
    ];
    let output = create(&mut function, qp::create, cmd::QP_CONTEXT, &fields, &[RING])?;
    let qpn = cmd::OBJECT.get32(&output);
    function
        .objects
        .qps
        .get_mut(qpn)?
        .set_state(State::ReadyToSend);
    Ok((vec![function], uar, qpn))
}

/// A signaled request that does nothing, of so many units.
fn nop(qpn: u32, index: u16, units: u8) -> Vec<u8> {
    let [high, low] = index.to_be_bytes();
    let [_, q2, q1, q0] = qpn.to_be_bytes();
    let mut bytes = vec![0, high, low, 0, q2, q1, q0, units, 0, 0, 0, 8, 0, 0, 0, 0];
    bytes.resize(usize::from(units) * UNIT, 0x5a);
    bytes
}

/// Writes requests to the ring, and to the record how many blocks are posted.
fn post(function: &Function, requests: &[u8], blocks: u32) {
    let memory = &function.memory;
    let written = memory
        .write(RING, requests)
        .and_then(|()| memory.write(QP_RECORD + 4, &blocks.to_be_bytes()));
    assert_eq!(written, Ok(()));
}

/// The doorbell of a request.
fn doorbell_of(request: &[u8], uar: u32) -> SendDoorbell {
    SendDoorbell {
        uar,
        within: REGISTER,
        bytes: *request.first_chunk().expect("a segment"),
    }
}

/// One way to ring.
struct Way {
    name: &'static str,
    /// What the doorbell record says.
    record: u32,
    /// What is done to the doorbell's bytes, its UAR, and the bytes that follow it.
    change: fn(&mut [u8; 8], &mut u32, &mut Vec<u8>),
    /// What must be told; nothing if it is right.
    told: Option<&'static str>,
}

#[test]
fn each_rule_about_doorbells_bites() -> Result<(), Status> {
    let right = |_: &mut [u8; 8], _: &mut u32, _: &mut Vec<u8>| {};
    let table = [
        Way {
            name: "right",
            record: 2,
            change: right,
            told: None,
        },
        Way {
            name: "a doorbell that is not the request's beginning",
            record: 2,
            change: |doorbell, _, _| doorbell[7] ^= 1,
            told: Some("the request of that index begins with"),
        },
        Way {
            name: "another's register",
            record: 2,
            change: |_, uar, _| *uar += 1,
            told: Some("its doorbell came on"),
        },
        Way {
            name: "a copy that differs",
            record: 2,
            change: |_, _, copy| copy[60] ^= 1,
            told: Some("the BlueFlame copy has"),
        },
        Way {
            name: "a copy that goes on",
            record: 2,
            change: |_, _, copy| copy.extend([0; 8]),
            told: Some("beyond the request"),
        },
        Way {
            name: "more than the ring holds",
            record: 5,
            change: right,
            told: Some("are all there are"),
        },
        Way {
            name: "less than the request has",
            record: 1,
            change: right,
            told: Some("blocks are posted, the request has"),
        },
    ];
    for way in table {
        let (mut functions, uar, qpn) = function()?;
        let request = nop(qpn, 0, 8);
        post(&functions[0], &request, way.record);
        let mut doorbell = doorbell_of(&request, uar);
        let mut copy = request[8..].to_vec();
        (way.change)(&mut doorbell.bytes, &mut doorbell.uar, &mut copy);
        engine::doorbell(&mut functions, 0, doorbell);
        for (number, piece) in copy.chunks(8).enumerate() {
            engine::blue_flame(&mut functions[0], doorbell, 8 + 8 * number, piece);
        }
        let told = functions[0].report.take();
        let as_wanted = match way.told {
            None => told.is_empty(),
            Some(part) => told.len() == 1 && told[0].contains(part),
        };
        assert!(as_wanted, "{}: {told:?}", way.name);
    }
    Ok(())
}

/// Would catch a request that sends what device memory had before the stores in front of its doorbell.
#[test]
fn requests_run_ahead_of_their_doorbells_unless_there_is_device_memory() -> Result<(), Status> {
    for (is_used, done) in [(false, [2, 2]), (true, [1, 2])] {
        let (mut functions, uar, qpn) = function()?;
        if is_used {
            let mut input = [0; 0x20];
            alloc::MEMIC_SIZE.set(&mut input, 64);
            alloc::RANGE_START_ADDR.set(&mut input, memic::START);
            alloc::RANGE_SIZE.set(&mut input, 0x1000);
            memic::alloc(&mut functions[0], &input, &mut [0; 0x10])?;
        }
        let requests = [nop(qpn, 0, 4), nop(qpn, 1, 4)];
        post(&functions[0], &requests.concat(), 2);
        let consumed = requests.map(|request| {
            engine::doorbell(&mut functions, 0, doorbell_of(&request, uar));
            let queue_pair = functions[0].objects.qps.get(qpn);
            queue_pair.map_or(0, |queue_pair| queue_pair.send_consumer)
        });
        assert_eq!(consumed, done, "device memory: {is_used}");
        assert!(functions[0].report.take().is_empty());
    }
    Ok(())
}

#[test]
fn a_signal_in_the_copy_of_a_nop_counts() -> Result<(), Status> {
    let (mut functions, uar, qpn) = function()?;
    let mut request = nop(qpn, 0, 1);
    request[wqe::FLAGS_AT] = 0;
    post(&functions[0], &request, 1);
    let doorbell = doorbell_of(&request, uar);
    let entries = |functions: &[Function]| {
        let mut owner = [0; 1];
        let read = functions[0].memory.read(COMPLETIONS + 60, &mut [0; 2]);
        assert_eq!(read, Ok(()));
        let read = functions[0].memory.read(COMPLETIONS + 59, &mut owner);
        assert_eq!(read, Ok(()));
        // The queue pair's number is in an entry that was written.
        owner[0] != 0
    };
    engine::doorbell(&mut functions, 0, doorbell);
    assert!(!entries(&functions), "unsignaled in the ring");
    engine::blue_flame(&mut functions[0], doorbell, 8, &[0, 0, 0, 8, 0, 0, 0, 0]);
    assert!(entries(&functions), "signaled in the copy");
    assert!(functions[0].report.take().is_empty());
    Ok(())
}

/// A signaled request with these flags besides, and 8 bytes of the region of that key.
fn transfer(qpn: u32, index: u16, opcode: Opcode, flags: u8, key: u32) -> Vec<u8> {
    let mut bytes = nop(qpn, index, 3);
    bytes[3] = opcode as u8;
    bytes[11] |= flags;
    bytes[16..].fill(0);
    bytes[35] = 8;
    bytes[36..40].copy_from_slice(&key.to_be_bytes());
    bytes.resize(BLOCK as usize, 0);
    bytes
}

/// What a WRITE sends behind another request, with this fence, if that one changes its memory after the data
/// were read ahead: old bytes, or new ones.
fn behind(opcode: Opcode, fence: u8, seed: Option<u64>) -> Result<u8, Status> {
    let (mut functions, _, qpn) = function()?;
    let function = &mut functions[0];
    let pd = function.objects.qps.get(qpn)?.pd();
    let fields = [
        (mkc::PD, u64::from(pd)),
        (mkc::LEN, 0x1000),
        (mkc::LOG_PAGE_SIZE, 12),
        (mkc::ACCESS_MODE_1_0, 1),
        (mkc::QPN, 0xff_ffff),
        (mkc::LR, 1),
        (mkc::LW, 1),
    ];
    let output = create(function, mkey::create, cmd::CONTEXT, &fields, &[DATA])?;
    let key = cmd::OBJECT.get32(&output) << 8;
    let first = transfer(qpn, 0, opcode, 0, key);
    let second = transfer(qpn, 1, Opcode::Write, fence << 5, key);
    let memory = &function.memory;
    let written = [
        memory.write(RING, &[first.clone(), second.clone()].concat()),
        memory.write(QP_RECORD + 4, &2_u32.to_be_bytes()),
        memory.write(DATA, b"oooooooo"),
    ];
    assert_eq!(written, [Ok(()); 3]);
    function.faults.ahead.set(seed);
    let control = |bytes: &[u8]| Control::read(bytes.first_chunk().expect("a segment"));
    read_ahead(function, qpn, control(&first), opcode);
    assert_eq!(function.memory.write(DATA, b"nnnnnnnn"), Ok(()));
    let expected = Expected {
        transport: Transport::Rc,
        port: function.port.kind,
        qpn,
        index: 1,
        posted: 1,
    };
    let request = wqe::decode(&second, expected).expect("well formed");
    let queue_pair = function.objects.qps.get(qpn)?;
    let message = message(function, qpn, queue_pair, &request).expect("the key is there");
    let Operation::Write { data, .. } = message.operation else {
        panic!("{message:?}");
    };
    finish(function, qpn, control(&first), Ok(0));
    assert_eq!(
        function.objects.qps.get(qpn)?.ahead.is_some(),
        data[0] == b'o'
    );
    finish(function, qpn, control(&second), Ok(0));
    assert!(function.objects.qps.get(qpn)?.ahead.is_none());
    Ok(data[0])
}

#[test]
fn a_fence_that_is_missing_shows() -> Result<(), Status> {
    let reads = Opcode::Read;
    let changes = Opcode::ChangeKey;
    for (opcode, fence, is_held) in [
        (reads, 0, false),
        (reads, 1, false),
        (reads, 2, true),
        (reads, 3, true),
        (reads, 4, true),
        (Opcode::FetchAdd, 1, false),
        (Opcode::FetchAdd, 2, true),
        (changes, 0, false),
        (changes, 1, true),
        (changes, 2, false),
        (changes, 3, true),
        (changes, 4, true),
        // Nothing comes back.
        (Opcode::Write, 0, true),
    ] {
        let mut early = 0;
        for seed in 0..20 {
            early += u32::from(behind(opcode, fence, Some(seed))? == b'o');
        }
        match is_held {
            true => assert_eq!(early, 0, "{opcode:?} and fence {fence}"),
            false => assert!((1..20).contains(&early), "{opcode:?}, {fence}: {early}"),
        }
    }
    assert_eq!(behind(reads, 0, None)?, b'n', "without a seed");
    Ok(())
}

#[test]
fn reads_in_flight_are_those_that_nothing_holds_back() -> Result<(), Status> {
    let read = |index, flags| (index, Opcode::Read, flags);
    for (most, requests, expected) in [
        (2, vec![read(0, 0)], 1),
        (
            2,
            vec![read(0, 0), read(1, 0), (2, Opcode::Write, 0), read(3, 0)],
            3,
        ),
        (1, vec![read(0, 0), read(1, 0), read(2, 0)], 2),
        (2, vec![read(0, 0), read(1, 2), read(2, 0)], 1),
    ] {
        let (mut functions, _, qpn) = function()?;
        let function = &mut functions[0];
        let ring: Vec<u8> = requests
            .iter()
            .flat_map(|(index, opcode, fence)| transfer(qpn, *index, *opcode, fence << 5, 0x100))
            .collect();
        let posted = requests.len() as u32;
        let written = [
            function.memory.write(RING, &ring),
            function.memory.write(QP_RECORD + 4, &posted.to_be_bytes()),
        ];
        assert_eq!(written, [Ok(()); 2]);
        function
            .objects
            .qps
            .get_mut(qpn)?
            .set_field(qpc::LOG_SRA_MAX, most);
        let first = Control::read(ring.first_chunk().expect("a segment"));
        let queue_pair = function.objects.qps.get(qpn)?;
        let found = reads_in_flight(function, qpn, queue_pair, first);
        assert_eq!(found, expected, "{requests:?}");
    }
    Ok(())
}
