//! What messages do at their queue pair: where data go, what is refused, and what stays untouched then.

use super::*;
use crate::command::Status;
use crate::engine::cqe::{NetworkHeader, Source};
use crate::engine::packet::Travels;
use crate::fixture::{self, create, mark_entries};
use crate::layout::srqc::{rmp, xrc};
use crate::layout::{Field, cmd, cqc, dctc, eqc, mkc};
use crate::object::{dct, eq, mkey, qp, srq};

/// Where things lie in the memory.
const EVENTS: u64 = 0x1000;
const COMPLETIONS: u64 = 0x2000;
const RING: u64 = 0x3000;
const DATA: u64 = 0x4000;
const CQ_RECORD: u64 = 0x5000;
const QP_RECORD: u64 = 0x5040;

/// The region's first address, and the low byte of its key.
const START: u64 = 0x7000_0000;
const VARIANT: u32 = 0x42;

/// A function with one RC queue pair that can receive: four requests of two slices.
struct World {
    function: Function,
    qpn: u32,
    key: u32,
    posted: u32,
}

fn world() -> Result<World, Status> {
    world_with(&[qpc::RRE, qpc::RWE, qpc::RAE])
}

/// As [`world`], with a queue pair that gives its peer these rights.
fn world_with(rights: &[Field]) -> Result<World, Status> {
    let rights: Vec<_> = rights.iter().map(|right| (*right, 1)).collect();
    world_of(0, &rights)
}

/// As [`world`], with entries of that code for their size, and a queue pair with these fields besides.
fn world_of(entries: u64, besides: &[(Field, u64)]) -> Result<World, Status> {
    let mut function = fixture::function();
    let uar = function.objects.uars.insert(Default::default())?;
    let pd = function.objects.pds.insert(())?;
    let fields = [(eqc::LOG_EQ_SIZE, 4), (eqc::UAR_PAGE, uar.into())];
    let output = create(&mut function, eq::create, cmd::CONTEXT, &fields, &[EVENTS])?;
    let eqn = cmd::OBJECT_8.get(&output);
    let fields = [
        (cqc::LOG_CQ_SIZE, 4),
        (cqc::CQE_SZ, entries),
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
        (qpc::NO_SQ, 1),
        (qpc::LOG_RQ_SIZE, 2),
        // 32 bytes.
        (qpc::LOG_RQ_STRIDE, 1),
        (qpc::CQN_RCV, cqn),
        (qpc::DBR_ADDR, QP_RECORD),
    ];
    let fields: Vec<_> = fields.into_iter().chain(besides.to_vec()).collect();
    let output = create(&mut function, qp::create, cmd::QP_CONTEXT, &fields, &[RING])?;
    let qpn = cmd::OBJECT.get32(&output);
    function
        .objects
        .qps
        .get_mut(qpn)?
        .set_state(State::ReadyToReceive);
    let fields = [
        (mkc::PD, u64::from(pd)),
        (mkc::START_ADDR, START),
        (mkc::LEN, 0x1000),
        (mkc::LOG_PAGE_SIZE, 12),
        (mkc::ACCESS_MODE_1_0, 1),
        (mkc::QPN, 0xff_ffff),
        (mkc::MKEY_7_0, u64::from(VARIANT)),
        (mkc::LR, 1),
        (mkc::LW, 1),
        (mkc::RR, 1),
        (mkc::RW, 1),
        (mkc::A, 1),
    ];
    let output = create(&mut function, mkey::create, cmd::CONTEXT, &fields, &[DATA])?;
    let key = cmd::OBJECT.get32(&output) << 8 | VARIANT;
    Ok(World {
        function,
        qpn,
        key,
        posted: 0,
    })
}

impl World {
    /// A slice of the region.
    fn slice(&self, offset: u64, length: u32) -> [u8; UNIT] {
        slice(length, self.key, START + offset)
    }

    /// Posts a receive request of two slices.
    fn post(&mut self, slices: [[u8; UNIT]; 2]) {
        let at = RING + u64::from(self.posted % 4) * 32;
        self.posted += 1;
        let memory = &self.function.memory;
        let written = [
            memory.write(at, slices.as_flattened()),
            memory.write(QP_RECORD, &self.posted.to_be_bytes()),
        ];
        assert_eq!(written, [Ok(()), Ok(())]);
    }

    fn deliver(&mut self, operation: Operation) -> Answer {
        self.deliver_to(None, operation)
    }

    /// As [`Self::deliver`], to a shared receive queue by its number.
    fn deliver_to(&mut self, shared_queue: Option<u32>, operation: Operation) -> Answer {
        let message = Message {
            shared_queue,
            ..message(operation)
        };
        deliver(&mut self.function, self.qpn, &message)
    }

    /// As [`Self::deliver`], to a DC target with that key.
    fn deliver_to_target(&mut self, number: u32, key: u64, operation: Operation) -> Answer {
        let message = Message {
            access_key: Some(key),
            ..message(operation)
        };
        deliver_to_target(&mut self.function, number, &message)
    }

    fn data(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert_eq!(self.function.memory.read(DATA + offset, &mut bytes), Ok(()));
        bytes
    }

    /// How a completion went: the kind, the syndrome or 0, and the request's index.
    fn completion(&self, index: u64) -> (u8, u8, u8) {
        let mut entry = [0; 64];
        let read = self
            .function
            .memory
            .read(COMPLETIONS + index * 64, &mut entry);
        assert_eq!(read, Ok(()));
        let kind = entry[63] >> 4;
        let failed = kind == Kind::ResponderError as u8;
        (kind, if failed { entry[55] } else { 0 }, entry[61])
    }

    fn state(&self) -> Result<State, Status> {
        Ok(self.function.objects.qps.get(self.qpn)?.state())
    }
}

fn message(operation: Operation) -> Message {
    Message {
        operation,
        solicited: false,
        shared_queue: None,
        source: Source {
            qpn: 1,
            lid: 1,
            service_level: 0,
            header: NetworkHeader::None,
        },
        header: None,
        q_key: None,
        access_key: None,
        travels: None,
    }
}

fn slice(length: u32, key: u32, address: u64) -> [u8; UNIT] {
    let mut bytes = [0; UNIT];
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes[4..8].copy_from_slice(&key.to_be_bytes());
    bytes[8..].copy_from_slice(&address.to_be_bytes());
    bytes
}

fn send(data: &[u8]) -> Operation {
    Operation::Send {
        data: data.to_vec(),
        tail: Tail::Plain,
    }
}

#[test]
fn data_go_to_the_slices_in_turn_and_round_the_ring() -> Result<(), Status> {
    let mut world = world()?;
    let end = slice(0, TERMINATOR, 0);
    for turn in 0..6_u64 {
        let first = world.slice(turn * 16, 3);
        let second = if turn % 2 == 0 {
            world.slice(turn * 16 + 8, 4)
        } else {
            end
        };
        world.post([first, second]);
        let bytes: &[u8] = if turn % 2 == 0 { b"abcde" } else { b"xyz" };
        assert!(matches!(world.deliver(send(bytes)), Answer::Done(none) if none.is_empty()));
        assert_eq!(world.data(turn * 16, 3), bytes[..3]);
        let rest = world.data(turn * 16 + 8, 4);
        let expected: &[u8] = if turn % 2 == 0 { b"de\0\0" } else { &[0; 4] };
        assert_eq!(rest, expected);
        assert_eq!(world.completion(turn), (Kind::Send as u8, 0, turn as u8));
    }
    assert!(matches!(world.deliver(send(b"")), Answer::NotReady));
    assert!(world.function.report.take().is_empty());
    Ok(())
}

/// Would catch a driver that posts slices without bytes, and is wrong on hardware alone.
#[test]
fn a_slice_of_length_0_has_room_for_2_gib() -> Result<(), Status> {
    let mut world = world()?;
    let slices = [world.slice(0, 0), world.slice(64, 8)];
    world.post(slices);
    assert!(matches!(world.deliver(send(b"abcde")), Answer::Done(none) if none.is_empty()));
    assert_eq!(world.data(0, 5), *b"abcde");
    Ok(())
}

/// Where the ring of the shared queue lies, and its record.
const SHARED_RING: u64 = 0x6000;
const SHARED_RECORD: u64 = 0x5080;
/// The number by which the provider finds the shared queue.
const SHARED_INDEX: u32 = 0x77;

/// As [`world`], with a target of XRC instead, and a shared receive queue of its domain. Gives the queue's
/// number.
fn world_of_xrc() -> Result<(World, u32), Status> {
    let mut world = world()?;
    let pd = world.function.objects.qps.get(world.qpn)?.pd();
    let cqn = world.function.objects.qps.get(world.qpn)?.receive_cqn();
    let domain = world.function.objects.xrcds.insert(())?;
    let fields = [
        (xrc::XRCD, domain.into()),
        (xrc::CQN, cqn.into()),
        (xrc::USER_INDEX, SHARED_INDEX.into()),
        (xrc::PD, pd.into()),
        (xrc::LOG_XRC_SRQ_SIZE, 1),
        // 32 bytes.
        (xrc::LOG_RQ_STRIDE, 1),
        (xrc::DB_RECORD_ADDR_L, SHARED_RECORD >> 2),
    ];
    let output = create(
        &mut world.function,
        srq::create_xrc,
        cmd::CONTEXT,
        &fields,
        &[SHARED_RING],
    )?;
    let srqn = cmd::OBJECT.get32(&output);
    let others = world.function.objects.pds.insert(())?;
    let fields = [
        (qpc::ST, 3),
        (qpc::PD, others.into()),
        (qpc::NO_SQ, 1),
        (qpc::RQ_TYPE, 1),
        (qpc::SRQN_RMPN_XRQN, srqn.into()),
        (qpc::XRCD, domain.into()),
        (qpc::CQN_RCV, cqn.into()),
        (qpc::RWE, 1),
    ];
    let output = create(
        &mut world.function,
        qp::create,
        cmd::QP_CONTEXT,
        &fields,
        &[],
    )?;
    world.qpn = cmd::OBJECT.get32(&output);
    let queue_pair = world.function.objects.qps.get_mut(world.qpn)?;
    queue_pair.set_state(State::ReadyToReceive);
    Ok((world, srqn))
}

#[test]
fn a_message_of_xrc_is_received_by_the_queue_that_it_names() -> Result<(), Status> {
    let (mut world, srqn) = world_of_xrc()?;
    assert!(matches!(
        world.deliver_to(Some(srqn), send(b"")),
        Answer::NotReady
    ));
    let slice = world.slice(0, 8);
    let memory = &world.function.memory;
    let written = [
        memory.write(SHARED_RING, &[0, 0, 0, 1]),
        memory.write(SHARED_RING + 16, &slice),
        memory.write(SHARED_RECORD, &1_u32.to_be_bytes()),
    ];
    assert_eq!(written, [Ok(()); 3]);
    let answer = world.deliver_to(Some(srqn), send(b"abc"));
    assert!(matches!(answer, Answer::Done(_)));
    assert_eq!(world.data(0, 3), b"abc");
    assert_eq!(world.completion(0), (Kind::Send as u8, 0, 0));
    let mut named = [0; 4];
    let read = world.function.memory.read(COMPLETIONS + 32, &mut named);
    assert_eq!((read, named), (Ok(()), SHARED_INDEX.to_be_bytes()));
    // Memory counts as the queue's, not as the queue pair's.
    let write = Operation::Write {
        address: START,
        key: world.key,
        data: b"written".to_vec(),
        immediate: None,
    };
    assert!(matches!(
        world.deliver_to(Some(srqn), write),
        Answer::Done(_)
    ));
    assert_eq!(world.data(0, 7), b"written");
    Ok(())
}

#[test]
fn a_queue_of_another_domain_is_refused() -> Result<(), Status> {
    for named in [None, Some(0xff_ffff)] {
        let (mut world, _) = world_of_xrc()?;
        let answer = world.deliver_to(named, send(b"abc"));
        assert!(matches!(
            answer,
            Answer::Refused(Syndrome::RemoteInvalidRequest)
        ));
        assert_eq!(world.state()?, State::Error);
    }
    let (mut world, srqn) = world_of_xrc()?;
    let other = world.function.objects.xrcds.insert(())?;
    let queue_pair = world.function.objects.qps.get_mut(world.qpn)?;
    queue_pair.move_to_domain(other);
    let answer = world.deliver_to(Some(srqn), send(b"abc"));
    assert!(matches!(
        answer,
        Answer::Refused(Syndrome::RemoteInvalidRequest)
    ));
    Ok(())
}

/// As [`world`], whose queue pair receives from a pool of four entries with these fields. Gives the pool's
/// number.
fn world_of_pool(besides: &[(Field, u64)]) -> Result<(World, u32), Status> {
    let mut world = world()?;
    let own = world.function.objects.qps.get(world.qpn)?;
    let (pd, cqn) = (own.pd(), own.receive_cqn());
    let mut fields = vec![
        (rmp::STATE, 1),
        (rmp::PD, pd.into()),
        (rmp::LOG_WQ_SZ, 2),
        // 32 bytes.
        (rmp::LOG_WQ_STRIDE, 5),
        (rmp::DBR_ADDR, SHARED_RECORD),
    ];
    fields.extend(besides);
    let function = &mut world.function;
    let ring = [SHARED_RING];
    let output = create(function, srq::create_rmp, cmd::RMP_CONTEXT, &fields, &ring)?;
    let number = cmd::OBJECT.get32(&output);
    let fields = [
        (qpc::PD, pd.into()),
        (qpc::NO_SQ, 1),
        (qpc::RQ_TYPE, 1),
        (qpc::SRQN_RMPN_XRQN, number.into()),
        (qpc::CQN_RCV, cqn.into()),
    ];
    let output = create(function, qp::create, cmd::QP_CONTEXT, &fields, &[])?;
    world.qpn = cmd::OBJECT.get32(&output);
    let queue_pair = world.function.objects.qps.get_mut(world.qpn)?;
    queue_pair.set_state(State::ReadyToReceive);
    Ok((world, number))
}

/// In each entry the chain goes from the first to the third, the second, the fourth and the first: a cyclic
/// pool does not look at it. Its completions count on where the ring ends, those of a chain name the entry.
#[test]
fn a_pool_gives_its_entries_in_its_order() -> Result<(), Status> {
    const LINKS: [u8; 4] = [2, 3, 1, 0];
    let cyclic = (rmp::WQ_TYPE, 1);
    let basic = [cyclic, (rmp::BASIC_CYCLIC, 1), (rmp::LOG_WQ_STRIDE, 4)];
    for (fields, header, stride, slots, indices) in [
        (&[][..], 16, 32, [0, 2, 1, 3, 0], [0, 2, 1, 3, 0]),
        (&[cyclic], 16, 32, [0, 1, 2, 3, 0], [0, 1, 2, 3, 4]),
        (&basic, 0, 16, [0, 1, 2, 3, 0], [0, 1, 2, 3, 4]),
    ] {
        let (mut world, _) = world_of_pool(fields)?;
        let memory = &world.function.memory;
        for (slot, link) in (0..).zip(LINKS) {
            let at = SHARED_RING + slot * stride;
            let slice = world.slice(slot * 16, 8);
            assert_eq!(memory.write(at, &[0, 0, 0, link]), Ok(()));
            assert_eq!(memory.write(at + header, &slice), Ok(()));
        }
        for (turn, (slot, index)) in (0_u8..).zip(slots.into_iter().zip(indices)) {
            let posted = u32::from(turn) + 1;
            let memory = &world.function.memory;
            assert_eq!(memory.write(SHARED_RECORD, &posted.to_be_bytes()), Ok(()));
            let answer = world.deliver(send(&[turn, 0xaa]));
            assert!(matches!(answer, Answer::Done(_)), "{fields:?}: {answer:?}");
            assert_eq!(world.data(slot * 16, 2), [turn, 0xaa], "{fields:?}");
            let done = world.completion(turn.into());
            assert_eq!(done, (Kind::Send as u8, 0, index), "{fields:?}");
            assert!(matches!(world.deliver(send(b"")), Answer::NotReady));
        }
        assert!(world.function.report.take().is_empty());
    }
    Ok(())
}

#[test]
fn a_pool_has_no_more_entries_than_its_ring() -> Result<(), Status> {
    for kind in [0, 1] {
        let (mut world, _) = world_of_pool(&[(rmp::WQ_TYPE, kind)])?;
        let memory = &world.function.memory;
        assert_eq!(memory.write(SHARED_RECORD, &5_u32.to_be_bytes()), Ok(()));
        assert!(matches!(world.deliver(send(b"abc")), Answer::Silence));
        assert_eq!(world.function.report.take().len(), 1);
    }
    Ok(())
}

#[test]
fn nothing_is_taken_from_a_pool_that_failed() -> Result<(), Status> {
    let (mut world, number) = world_of_pool(&[])?;
    let slice = world.slice(0, 8);
    let memory = &world.function.memory;
    assert_eq!(memory.write(SHARED_RING + 16, &slice), Ok(()));
    assert_eq!(memory.write(SHARED_RECORD, &1_u32.to_be_bytes()), Ok(()));
    let mut input = [0; cmd::PAS];
    cmd::OBJECT.set(&mut input, number.into());
    cmd::RMP_STATE.set(&mut input, 1);
    rmp::STATE.set(&mut input[cmd::RMP_CONTEXT..], 3);
    let changed = srq::modify_rmp(&mut world.function, &input, &mut []);
    assert_eq!(changed, Ok(()));
    assert!(matches!(world.deliver(send(b"abc")), Answer::NotReady));
    assert_eq!(world.data(0, 3), [0; 3]);
    Ok(())
}

const ACCESS_KEY: u64 = 0x0102_0304_0506_0708;

/// As [`world`], with a DC target besides, and a shared receive queue that has one request. Gives the
/// target's number and the queue's.
fn world_of_dc(rights: &[Field]) -> Result<(World, u32, u32), Status> {
    let rights: Vec<_> = rights.iter().map(|right| (*right, 1)).collect();
    world_of_target(0, &rights)
}

/// As [`world_of_dc`], with entries of that code for their size, and a target with these fields besides.
fn world_of_target(entries: u64, besides: &[(Field, u64)]) -> Result<(World, u32, u32), Status> {
    let mut world = world_of(entries, &[])?;
    let pd = world.function.objects.qps.get(world.qpn)?.pd();
    let cqn = world.function.objects.qps.get(world.qpn)?.receive_cqn();
    let fields = [
        (rmp::STATE, 1),
        (rmp::PD, pd.into()),
        (rmp::LOG_WQ_SZ, 1),
        // 32 bytes.
        (rmp::LOG_WQ_STRIDE, 5),
        (rmp::DBR_ADDR, SHARED_RECORD),
    ];
    let function = &mut world.function;
    let ring = [SHARED_RING];
    let output = create(function, srq::create_rmp, cmd::RMP_CONTEXT, &fields, &ring)?;
    let srqn = cmd::OBJECT.get32(&output);
    let mut fields = vec![
        (dctc::PD, pd.into()),
        (dctc::CQN, cqn.into()),
        (dctc::SRQN, srqn.into()),
        (dctc::USER_INDEX, SHARED_INDEX.into()),
        (dctc::DC_ACCESS_KEY, ACCESS_KEY),
        (dctc::MTU, 5),
        (dctc::PORT, 1),
    ];
    fields.extend(besides);
    let output = create(function, dct::create, cmd::CONTEXT, &fields, &[])?;
    let slice = world.slice(0, 8);
    let memory = &world.function.memory;
    let written = [
        memory.write(SHARED_RING, &[0, 0, 0, 1]),
        memory.write(SHARED_RING + 16, &slice),
        memory.write(SHARED_RECORD, &1_u32.to_be_bytes()),
    ];
    assert_eq!(written, [Ok(()); 3]);
    Ok((world, cmd::OBJECT.get32(&output), srqn))
}

#[test]
fn a_dc_target_takes_messages_with_its_key() -> Result<(), Status> {
    let (mut world, target, _) = world_of_dc(&[])?;
    for wrong in [0, ACCESS_KEY ^ 1, ACCESS_KEY ^ 1 << 63] {
        let answer = world.deliver_to_target(target, wrong, send(b"abc"));
        assert!(matches!(answer, Answer::Refused(Syndrome::RemoteAccess)));
    }
    assert_eq!(world.data(0, 3), [0; 3]);
    let answer = world.deliver_to_target(target, ACCESS_KEY, send(b"abc"));
    assert!(matches!(answer, Answer::Done(_)));
    assert_eq!(world.data(0, 3), b"abc");
    assert_eq!(world.completion(0), (Kind::Send as u8, 0, 0));
    let mut named = [0; 4];
    let read = world.function.memory.read(COMPLETIONS + 32, &mut named);
    assert_eq!((read, named), (Ok(()), SHARED_INDEX.to_be_bytes()));
    let answer = world.deliver_to_target(target, ACCESS_KEY, send(b"more"));
    assert!(matches!(answer, Answer::NotReady));
    let answer = world.deliver_to_target(target + 1, ACCESS_KEY, send(b"more"));
    assert!(matches!(answer, Answer::Silence));
    Ok(())
}

/// Only what goes before the half of a completion that counts may be in it.
#[test]
fn a_dc_target_puts_payloads_into_completions_that_have_room() -> Result<(), Status> {
    for (entries, code, right) in [(1, 2, true), (0, 2, false), (1, 1, false), (1, 0x11, false)] {
        let of_target = [(dctc::CS_RES, code)];
        let made = world_of_target(entries, &of_target);
        let (mut world, target, _) = match made {
            Ok(made) if right => made,
            refused => {
                assert_eq!(refused.map(drop), Err(Status::BadParameter), "{code:#x}");
                continue;
            }
        };
        let answer = world.deliver_to_target(target, ACCESS_KEY, send(b"abc"));
        assert!(matches!(answer, Answer::Done(_)));
        assert_eq!(world.data(0, 3), [0; 3]);
        let mut entry = [0; 128];
        let memory = &world.function.memory;
        assert_eq!(memory.read(COMPLETIONS, &mut entry), Ok(()));
        assert_eq!((&entry[..3], entry[127] & 0xc), (&b"abc"[..], 0x8));
    }
    Ok(())
}

/// The target serves others: what one initiator may not do fails that one alone.
#[test]
fn a_dc_target_goes_on_after_what_it_refuses() -> Result<(), Status> {
    let key = world()?.key;
    let write = Operation::Write {
        address: START,
        key,
        data: b"data".to_vec(),
        immediate: None,
    };
    let read = Operation::Read {
        address: START,
        key,
        length: 4,
    };
    let add = Operation::FetchAdd {
        address: START,
        key,
        add: 1,
    };
    for (right, operation) in [(dctc::RWE, write), (dctc::RRE, read), (dctc::RAE, add)] {
        let (mut world, target, _) = world_of_dc(&[])?;
        let answer = world.deliver_to_target(target, ACCESS_KEY, operation.clone());
        assert!(matches!(answer, Answer::Refused(Syndrome::RemoteAccess)));
        assert_eq!(world.data(0, 8), [0; 8]);
        let answer = world.deliver_to_target(target, ACCESS_KEY, send(b"abc"));
        assert!(matches!(answer, Answer::Done(_)));
        let (mut world, target, _) = world_of_dc(&[right])?;
        let answer = world.deliver_to_target(target, ACCESS_KEY, operation);
        assert!(matches!(answer, Answer::Done(_)), "{right:?}");
    }
    Ok(())
}

#[test]
fn a_dc_target_is_drained_before_it_is_destroyed() -> Result<(), Status> {
    let (mut world, target, srqn) = world_of_dc(&[])?;
    let function = &mut world.function;
    let mut input = [0; 16];
    cmd::OBJECT.set(&mut input, target.into());
    let mut of_queue = [0; 16];
    cmd::OBJECT.set(&mut of_queue, srqn.into());
    let output = &mut [];
    let early = dct::destroy(function, &input, output);
    assert_eq!(early, Err(Status::BadResourceState));
    assert_eq!(
        srq::destroy(function, &of_queue, output),
        Err(Status::ResourceBusy)
    );
    assert_eq!(dct::drain(function, &input, output), Ok(()));
    let again = dct::drain(function, &input, output);
    assert_eq!(again, Err(Status::BadResourceState));
    let answer = world.deliver_to_target(target, ACCESS_KEY, send(b"abc"));
    assert!(matches!(answer, Answer::Silence));
    let function = &mut world.function;
    assert_eq!(dct::destroy(function, &input, output), Ok(()));
    assert_eq!(srq::destroy(function, &of_queue, output), Ok(()));
    Ok(())
}

#[test]
fn a_message_that_does_not_fit_fails_both_sides() -> Result<(), Status> {
    let mut world = world()?;
    world.post([world.slice(0, 3), slice(0, TERMINATOR, 0)]);
    let answer = world.deliver(send(b"abcd"));
    assert!(matches!(
        answer,
        Answer::Refused(Syndrome::RemoteInvalidRequest)
    ));
    let length = Syndrome::LocalLength as u8;
    assert_eq!(world.completion(0), (Kind::ResponderError as u8, length, 0));
    assert_eq!(world.state()?, State::Error);
    Ok(())
}

#[test]
fn a_slice_with_a_wrong_key_fails_both_sides() -> Result<(), Status> {
    let mut world = world()?;
    let mut stranger = world.slice(0, 8);
    stranger[7] ^= 1;
    world.post([stranger, slice(0, TERMINATOR, 0)]);
    let answer = world.deliver(send(b"abcd"));
    assert!(matches!(answer, Answer::Refused(Syndrome::RemoteOperation)));
    let protection = Syndrome::LocalProtection as u8;
    assert_eq!(
        world.completion(0),
        (Kind::ResponderError as u8, protection, 0)
    );
    assert_eq!(world.data(0, 4), [0; 4]);
    Ok(())
}

#[test]
fn a_write_with_immediate_data_writes_nothing_before_there_is_a_receive_request()
-> Result<(), Status> {
    let mut world = world()?;
    let write = Operation::Write {
        address: START,
        key: world.key,
        data: b"once".to_vec(),
        immediate: Some([1, 2, 3, 4]),
    };
    assert!(matches!(world.deliver(write.clone()), Answer::NotReady));
    assert_eq!(world.data(0, 4), [0; 4]);
    world.post([slice(0, TERMINATOR, 0); 2]);
    assert!(matches!(world.deliver(write), Answer::Done(_)));
    assert_eq!(world.data(0, 4), b"once");
    assert_eq!(world.completion(0), (Kind::WriteImmediate as u8, 0, 0));
    Ok(())
}

#[test]
fn what_a_peer_may_not_do_changes_nothing_and_fails_the_queue_pair() -> Result<(), Status> {
    let access = Syndrome::RemoteAccess;
    let invalid = Syndrome::RemoteInvalidRequest;
    let write = |address, key| Operation::Write {
        address,
        key,
        data: b"data".to_vec(),
        immediate: None,
    };
    let add = |address, key| Operation::FetchAdd {
        address,
        key,
        add: 1,
    };
    let read = |address, key, length| Operation::Read {
        address,
        key,
        length,
    };
    let key = world()?.key;
    let all: &[Field] = &[qpc::RRE, qpc::RWE, qpc::RAE];
    let (no_reads, no_writes, no_atomics) = (&all[1..], [qpc::RRE, qpc::RAE], &all[..2]);
    for (name, rights, operation, syndrome) in [
        ("behind", all, write(START + 0xffd, key), access),
        ("key", all, write(START, key ^ 1), access),
        ("no writes", &no_writes, write(START, key), access),
        ("no reads", no_reads, read(START, key, 4), access),
        ("too long", all, read(START, key, 0x1001), access),
        ("no atomics", no_atomics, add(START, key), access),
        ("odd address", all, add(START + 4, key), invalid),
        ("atomic behind", all, add(START + 0x1000, key), access),
    ] {
        let mut world = world_with(rights)?;
        let answer = world.deliver(operation);
        assert!(
            matches!(answer, Answer::Refused(told) if told == syndrome),
            "{name}: {answer:?}"
        );
        assert_eq!(world.state()?, State::Error, "{name}");
        let untouched = world.data(0, 0x1000).iter().all(|byte| *byte == 0);
        assert!(untouched, "{name}");
    }
    Ok(())
}

#[test]
fn an_atomic_gives_what_was_there() -> Result<(), Status> {
    let mut world = world()?;
    let at = (START + 8, world.key);
    let numbers = [
        (
            Operation::FetchAdd {
                address: at.0,
                key: at.1,
                add: 5,
            },
            0_u64,
            5_u64,
        ),
        (
            Operation::CompareSwap {
                address: at.0,
                key: at.1,
                swap: 9,
                compare: 4,
            },
            5,
            5,
        ),
        (
            Operation::CompareSwap {
                address: at.0,
                key: at.1,
                swap: 9,
                compare: 5,
            },
            5,
            9,
        ),
    ];
    for (operation, before, after) in numbers {
        let answer = world.deliver(operation);
        assert!(
            matches!(&answer, Answer::Done(old) if *old == before.to_le_bytes()),
            "{answer:?}"
        );
        assert_eq!(world.data(8, 8), after.to_le_bytes());
    }
    Ok(())
}

#[test]
fn a_record_that_says_more_than_the_queue_has_is_told() -> Result<(), Status> {
    let mut world = world()?;
    world.posted = 4;
    world.post([slice(0, TERMINATOR, 0); 2]);
    assert!(matches!(world.deliver(send(b"")), Answer::Silence));
    let told = world.function.report.take();
    assert!(
        told.len() == 1 && told[0].contains("5 receive requests"),
        "{told:?}"
    );
    Ok(())
}

#[test]
fn a_queue_pair_that_fails_flushes_what_waits() -> Result<(), Status> {
    let mut world = world()?;
    for _ in 0..3 {
        world.post([slice(0, TERMINATOR, 0); 2]);
    }
    set_error(&mut world.function, world.qpn);
    flush(&mut world.function, world.qpn);
    let flushed = Syndrome::Flushed as u8;
    for index in 0..3 {
        let expected = (Kind::ResponderError as u8, flushed, index as u8);
        assert_eq!(world.completion(index), expected);
    }
    assert!(matches!(world.deliver(send(b"")), Answer::Silence));
    Ok(())
}

/// Catches completions that are written to rings which their driver has given to others: it does not end its
/// queue pairs on a function that has failed, and they are there until it brings the function up anew.
#[test]
fn a_function_that_has_failed_flushes_nothing() -> Result<(), Status> {
    let mut world = world()?;
    world.post([slice(0, TERMINATOR, 0); 2]);
    let untouched = world.completion(0);
    set_error(&mut world.function, world.qpn);
    for has_failed in [true, false] {
        world.function.faults.internal_error = has_failed;
        crate::engine::tick(std::slice::from_mut(&mut world.function));
        assert_eq!(world.completion(0) == untouched, has_failed);
    }
    Ok(())
}

/// Bytes of the entry that came first, of that size.
fn entry(world: &World, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    assert_eq!(world.function.memory.read(COMPLETIONS, &mut bytes), Ok(()));
    bytes
}

#[test]
fn small_messages_lie_in_the_entry_and_not_in_the_slices() -> Result<(), Status> {
    for (entries, code, size, most, format) in [(0, 1, 64, 32, 0x4), (1, 2, 128, 64, 0x8)] {
        for length in [1, 31, 32, 33, 63, 64, 65] {
            let mut world = world_of(entries, &[(qpc::CS_RES, code)])?;
            world.post([world.slice(0, 20), world.slice(100, 60)]);
            let data: Vec<u8> = (1..=length as u8).collect();
            assert!(matches!(world.deliver(send(&data)), Answer::Done(_)));
            let entry = entry(&world, size);
            let told = u32::from_be_bytes(*entry[size - 20..].first_chunk().unwrap());
            assert_eq!(told as usize, length);
            let head = length.min(20);
            let placed = [world.data(0, head), world.data(100, length - head)].concat();
            if length <= most {
                assert_eq!(entry[..length], data);
                assert_eq!(entry[size - 1] & 0xfe, 0x20 | format);
                assert_eq!(placed, vec![0; length]);
            } else {
                assert_eq!(entry[size - 1] & 0xfe, 0x20);
                assert_eq!(placed, data);
            }
        }
    }
    Ok(())
}

/// As without inline scatter: what has no room, or may not be written, fails.
#[test]
fn the_slices_count_for_data_in_the_entry_too() -> Result<(), Status> {
    let mut world = world_of(0, &[(qpc::CS_RES, 1)])?;
    world.post([world.slice(0, 3), slice(0, TERMINATOR, 0)]);
    let answer = world.deliver(send(b"abcd"));
    assert!(matches!(
        answer,
        Answer::Refused(Syndrome::RemoteInvalidRequest)
    ));
    let mut world = world_of(0, &[(qpc::CS_RES, 1)])?;
    world.post([world.slice(0xfff, 4), slice(0, TERMINATOR, 0)]);
    let answer = world.deliver(send(b"abcd"));
    assert!(matches!(answer, Answer::Refused(Syndrome::RemoteOperation)));
    Ok(())
}

#[test]
fn inline_scatter_that_cannot_be_is_refused() {
    for (entries, field, code) in [
        (0, qpc::CS_RES, 2),
        (0, qpc::CS_RES, 3),
        (1, qpc::CS_RES, 0x11),
        (0, qpc::CS_REQ, 0x22),
        (1, qpc::CS_REQ, 2),
    ] {
        let refused = world_of(entries, &[(field, code)]);
        assert!(
            matches!(refused, Err(Status::BadParameter | Status::BadResource)),
            "{code:#x}"
        );
    }
    let datagrams = world_of(0, &[(qpc::CS_RES, 1), (qpc::ST, 2)]);
    assert!(matches!(datagrams, Err(Status::BadParameter)));
}

#[test]
fn the_ends_of_a_connection_agree() -> Result<(), Status> {
    let right = Travels {
        psn: 0xff_ffff,
        packets: 2,
        mtu: 1024,
        reads: 2,
    };
    let refused = Some(Syndrome::RemoteInvalidRequest);
    // What comes is that, and whether it is done; what refuses it, or that it is silence.
    for (travels, is_done, syndrome) in [
        (right, true, None),
        (Travels { psn: 0, ..right }, false, None),
        (
            Travels {
                psn: 0xff_fffe,
                ..right
            },
            false,
            None,
        ),
        (Travels { mtu: 512, ..right }, false, refused),
        (Travels { mtu: 2048, ..right }, false, refused),
        (
            Travels {
                mtu: 512,
                packets: 1,
                ..right
            },
            true,
            None,
        ),
        (Travels { reads: 3, ..right }, false, refused),
    ] {
        let fields = [(qpc::RRE, 1), (qpc::MTU, 3), (qpc::LOG_RRA_MAX, 1)];
        let mut world = world_of(0, &fields)?;
        world.function.objects.qps.get_mut(world.qpn)?.psn[1] = right.psn;
        let message = Message {
            travels: Some(travels),
            ..message(Operation::Read {
                address: START,
                key: world.key,
                length: 2000,
            })
        };
        let answer = deliver(&mut world.function, world.qpn, &message);
        let told = match answer {
            Answer::Done(_) => (true, None),
            Answer::Refused(syndrome) => (false, Some(syndrome)),
            Answer::Silence | Answer::NotReady => (false, None),
        };
        assert_eq!(told, (is_done, syndrome), "{travels:?}");
        let expected = if is_done { travels.end() } else { right.psn };
        let queue_pair = world.function.objects.qps.get(world.qpn)?;
        assert_eq!(queue_pair.psn[1], expected, "{travels:?}");
    }
    Ok(())
}
