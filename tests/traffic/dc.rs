//! Dynamic connections: requests that name a target each, and targets that everybody may send to who has the
//! key. On the adapter alone; elsewhere they are refused (`lacking::dynamic_connections` of the program
//! `verbs`).

use std::process::Command;

use libtest_mimic::Trial;
use support::program::example;
use support::role::finish;
use support::{
    ALL, Hca, Result, Wc, completion, completions, fail, nothing, open, same, says, test_on_adapter,
};
use uverbs::{
    Access, Ah, Caps, Cause, ConnectOptions, Context, Cq, DcPeer, DcTarget, Inline, Mr, Pd,
    PeerSrq, PostError, Qp, QpState, Rc, RemoteSlice, Request, Srq, WcOpcode, WcStatus,
    qp::{Mtu, QpAttr, QpType},
    transport::{Any, Dc, Srd},
};

use crate::slots::{self, SLOT, SLOTS};

type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 13] = [
        ("dc::has_every_operation", has_every_operation),
        ("dc::one_reaches_many", one_reaches_many),
        ("dc::many_reach_one", many_reach_one),
        ("dc::round_the_rings", round_the_rings),
        ("dc::a_wrong_key", a_wrong_key),
        (
            "dc::what_a_target_does_not_give",
            what_a_target_does_not_give,
        ),
        ("dc::a_target_goes", a_target_goes),
        ("dc::streams", streams),
        ("dc::receives_that_come_late", receives_that_come_late),
        ("dc::at_run_time", at_run_time),
        ("dc::step_by_step", step_by_step),
        ("dc::what_is_refused", what_is_refused),
        ("dc::the_example_serves", the_example_serves),
    ];
    tests
        .map(|(name, run)| test_on_adapter(name, move |_: Hca| run()))
        .into()
}

const KEY: u64 = 0x0123_4567_89ab_cdef;

/// A target with its receives, where their messages go, and the way to it.
struct Inbox {
    target: DcTarget,
    srq: Srq,
    cq: Cq,
    mr: Mr<Vec<u8>>,
    way: Ah,
}

impl Inbox {
    fn new(pd: &Pd, key: u64, options: &ConnectOptions) -> Result<Self> {
        let cq = pd.context().create_cq(SLOTS as u32)?;
        let srq = pd.srq(31).create()?;
        let target = pd.dc_target(&cq, &srq, key).options(options).create()?;
        let way = pd.context().path_to(&target.endpoint(), options)?;
        Ok(Self {
            way: pd.create_ah(&way)?,
            mr: pd.register(vec![0; SLOT * SLOTS], ALL)?,
            target,
            srq,
            cq,
        })
    }

    fn to(&self) -> DcPeer<'_> {
        self.way.to_target(self.target.number(), self.target.key())
    }

    /// Posts a receive for each of these ids, into the slot of that number.
    fn stock(&mut self, ids: std::ops::Range<u64>) -> Result {
        slots::stock(&mut self.srq, &self.mr, ids)
    }

    /// The next message must be in the slot of that id, have come from that queue pair, and have these bytes.
    #[track_caller]
    fn received(&mut self, id: u64, from: u32, bytes: &[u8]) -> Result<Wc> {
        let wc = completion(&mut self.cq)?.ok()?;
        same(
            (wc.wr_id, wc.src_qp),
            (id, from),
            "the request and the source",
        )?;
        same(wc.qp_num, self.target.number(), "the target")?;
        slots::has(wc, &self.mr, bytes)
    }
}

/// An initiator.
struct World {
    qp: Qp<Dc>,
    cq: Cq,
    mr: Mr<Vec<u8>>,
    pd: Pd,
    context: Context,
}

/// A silent peer is given up after some 100 ms.
fn options() -> ConnectOptions {
    ConnectOptions {
        timeout: 13,
        retry_cnt: 2,
        ..ConnectOptions::default()
    }
}

fn world() -> Result<World> {
    world_with(Caps {
        max_send_wr: 16,
        ..Caps::default()
    })
}

fn world_with(caps: Caps) -> Result<World> {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(256)?;
    let qp = initiator(&pd, &cq, caps)?;
    Ok(World {
        mr: pd.register(vec![0; 4096], ALL)?,
        qp,
        cq,
        pd,
        context,
    })
}

fn initiator(pd: &Pd, cq: &Cq, caps: Caps) -> Result<Qp<Dc>> {
    let mut qp = pd.create_qp::<Dc>(cq, caps)?;
    qp.activate_initiator(&options())?;
    same(qp.state(), QpState::RTS, "the state")?;
    Ok(qp)
}

impl World {
    fn inbox(&self) -> Result<Inbox> {
        Inbox::new(&self.pd, KEY, &options())
    }

    /// Posts one signaled request, and gives its completion.
    fn post<'q>(
        &'q mut self,
        to: DcPeer<'q>,
        fill: impl FnOnce(
            Request<'_, 'q, Dc, DcPeer<'q>>,
            &'q Mr<Vec<u8>>,
        ) -> std::result::Result<(), PostError>,
    ) -> Result<Wc> {
        fill(self.qp.one(7).to(to), &self.mr)?;
        completion(&mut self.cq)
    }

    /// Takes the initiator back to where it sends, after a failure.
    fn recover(&mut self) -> Result {
        self.qp.reset()?;
        Ok(self.qp.activate_initiator(&options())?)
    }
}

/// Catches a segment in the wrong place, half a key, and results elsewhere.
fn has_every_operation() -> Result {
    let mut world = world()?;
    let mut inbox = world.inbox()?;
    inbox.stock(0..4)?;
    let from = world.qp.qpn();
    world.mr.write_at(0, b"from memory")?;
    let sent = world.post(inbox.to(), |request, _| request.send(Inline(b"inline")))?;
    sent.is(WcOpcode::SEND)?;
    same(sent.wr_id, 7, "the id")?;
    inbox.received(0, from, b"inline")?;
    world
        .post(inbox.to(), |request, mr| {
            request.send_imm(
                mr.slice(0..11).map_err(|_| PostError::Destination)?,
                0x0102_0304,
            )
        })?
        .is(WcOpcode::SEND)?;
    let wc = inbox.received(1, from, b"from memory")?;
    same(wc.imm, Some(0x0102_0304), "immediate data")?;
    same(wc.has_grh, false, "a header before the data")?;

    let slots = inbox.mr.remote();
    let at = |slot: usize, length: u64| RemoteSlice {
        address: slots.address + (slot * SLOT) as u64,
        length,
        rkey: slots.rkey,
    };
    let mut batch = world.qp.batch();
    let memory = &world.mr;
    batch
        .unsignaled(0)
        .to(inbox.to())
        .write(memory.slice(5..11)?, at(10, 6))?;
    batch
        .unsignaled(0)
        .to(inbox.to())
        .write(Inline(b"now"), at(11, 3))?;
    batch
        .unsignaled(0)
        .to(inbox.to())
        .write_imm(Inline(b"told"), at(12, 4), 9)?;
    batch
        .signaled(1)
        .to(inbox.to())
        .fence()
        .read([memory.slice(100..106)?], at(10, 6))?;
    same(batch.ring()?, 4, "requests")?;
    completion(&mut world.cq)?.is(WcOpcode::RDMA_READ)?;
    let told = completion(&mut inbox.cq)?.ok()?;
    same((told.wr_id, told.imm), (2, Some(9)), "the receive")?;
    let mut came = [0; 6];
    world.mr.read_at(100, &mut came)?;
    same(&came, b"memory", "what was read")?;
    for (slot, bytes) in [(10, &b"memory"[..]), (11, b"now"), (12, b"told")] {
        let mut came = vec![0; bytes.len()];
        inbox.mr.read_at(slot * SLOT, &mut came)?;
        same(came, bytes.to_vec(), "what was written")?;
    }

    inbox.mr.write_at(20 * SLOT, &5_u64.to_ne_bytes())?;
    let mut batch = world.qp.batch();
    batch
        .signaled(2)
        .to(inbox.to())
        .fetch_add(world.mr.slice(200..208)?, at(20, 8), 4)?;
    batch
        .signaled(3)
        .to(inbox.to())
        .compare_swap(world.mr.slice(208..216)?, at(20, 8), 9, 77)?;
    batch.ring()?;
    let done = completions(&mut world.cq, 2)?;
    for (wc, opcode) in done
        .into_iter()
        .zip([WcOpcode::FETCH_ADD, WcOpcode::COMP_SWAP])
    {
        wc.is(opcode)?;
    }
    let mut numbers = [0; 16];
    world.mr.read_at(200, &mut numbers)?;
    let expected = [5_u64.to_ne_bytes(), 9_u64.to_ne_bytes()].concat();
    same(numbers.to_vec(), expected, "what was there")?;
    let mut last = [0; 8];
    inbox.mr.read_at(20 * SLOT, &mut last)?;
    same(u64::from_ne_bytes(last), 77, "what is there")
}

/// Catches a destination that goes to all requests of a batch, and a target that is remembered.
fn one_reaches_many() -> Result {
    const TARGETS: u64 = 12;
    let mut world = world()?;
    let inboxes: Result<Vec<_>> = (0..TARGETS)
        .map(|number| Inbox::new(&world.pd, KEY ^ number << 33, &options()))
        .collect();
    let mut inboxes = inboxes?;
    let from = world.qp.qpn();
    for inbox in &mut inboxes {
        inbox.stock(0..4)?;
    }
    for turn in 0..3 {
        let mut batch = world.qp.batch();
        for (number, inbox) in inboxes.iter().enumerate() {
            let text = [turn as u8, number as u8, 0x5a];
            batch
                .signaled(number as u64)
                .to(inbox.to())
                .send(Inline(&text))?;
        }
        batch.ring()?;
        for (number, wc) in completions(&mut world.cq, inboxes.len())?
            .iter()
            .enumerate()
        {
            same(wc.wr_id, number as u64, "the request")?;
            wc.ok()?;
        }
        for (number, inbox) in inboxes.iter_mut().enumerate() {
            inbox.received(turn, from, &[turn as u8, number as u8, 0x5a])?;
            nothing(&mut inbox.cq)?;
        }
    }
    Ok(())
}

/// Catches initiators whose messages are taken for another's, of other contexts too.
fn many_reach_one() -> Result {
    let world = world()?;
    let mut inbox = world.inbox()?;
    inbox.stock(0..24)?;
    let endpoint = inbox.target.endpoint();
    for round in 0..3_u64 {
        let other = open()?;
        let pd = other.alloc_pd()?;
        let mut cq = other.create_cq(16)?;
        let way = pd.create_ah(&other.path_to(&endpoint, &options())?)?;
        for number in 0..8_u64 {
            let mut qp = initiator(&pd, &cq, Caps::default())?;
            let text = [round as u8, number as u8];
            qp.one(number)
                .to(way.to_target(endpoint.qpn, KEY))
                .send(Inline(&text))?;
            completion(&mut cq)?.is(WcOpcode::SEND)?;
            inbox.received(8 * round + number, qp.qpn(), &text)?;
        }
    }
    same(inbox.srq.in_flight(), 0, "what waits")
}

/// Catches requests that are torn at the ring's end, of each size, and slots that are not free again.
fn round_the_rings() -> Result {
    for (max_inline_data, max_send_sge) in [(0, 1), (64, 2), (200, 4)] {
        let caps = Caps {
            max_send_wr: 5,
            max_send_sge,
            max_inline_data,
            ..Caps::default()
        };
        let mut world = world_with(caps)?;
        let inbox = world.inbox()?;
        let to = inbox.mr.remote();
        for turn in 0..40_u64 {
            let bytes: Vec<u8> = (0..48).map(|at| (turn * 3 + at) as u8).collect();
            world.mr.write_at(0, &bytes)?;
            let mut batch = world.qp.batch();
            match turn % 3 {
                0 if max_inline_data >= 48 => batch
                    .unsignaled(0)
                    .to(inbox.to())
                    .write(Inline(&bytes), to)?,
                _ => batch
                    .unsignaled(0)
                    .to(inbox.to())
                    .write(world.mr.slice(0..48)?, to)?,
            }
            batch.signaled(turn).to(inbox.to()).read(
                [world.mr.slice(100..148)?],
                RemoteSlice { length: 48, ..to },
            )?;
            batch.ring()?;
            let wc = completion(&mut world.cq)?;
            wc.is(WcOpcode::RDMA_READ)?;
            same(wc.wr_id, turn, "the request")?;
            let mut came = vec![0; 48];
            world.mr.read_at(100, &mut came)?;
            same(came, bytes, "what came back")?;
        }
    }
    Ok(())
}

/// Catches a key of which half is compared, a target that fails with the initiator, and an initiator that
/// does not come back.
fn a_wrong_key() -> Result {
    let mut world = world()?;
    let mut inbox = world.inbox()?;
    inbox.stock(0..8)?;
    let (number, from) = (inbox.target.number(), world.qp.qpn());
    for (id, wrong) in [KEY ^ 1, KEY ^ 1 << 63, 0].into_iter().enumerate() {
        let mut batch = world.qp.batch();
        batch
            .signaled(1)
            .to(inbox.way.to_target(number, wrong))
            .send(Inline(b"locked out"))?;
        batch.signaled(2).to(inbox.to()).send(Inline(b"behind"))?;
        batch.ring()?;
        let [first, second] = completions(&mut world.cq, 2)?[..] else {
            return fail("two completions");
        };
        first.failed(WcStatus::REM_ACCESS_ERR)?;
        second.failed(WcStatus::WR_FLUSH_ERR)?;
        same((first.wr_id, second.wr_id), (1, 2), "the requests")?;
        same(world.qp.query()?.state, QpState::ERR, "the initiator")?;
        nothing(&mut inbox.cq)?;
        world.recover()?;
        world
            .post(inbox.to(), |request, _| request.send(Inline(b"let in")))?
            .is(WcOpcode::SEND)?;
        inbox.received(id as u64, from, b"let in")?;
    }
    Ok(())
}

/// Catches rights that a target gives although it was created without.
fn what_a_target_does_not_give() -> Result {
    let mut world = world()?;
    let reads = ConnectOptions {
        access: Access::REMOTE_READ,
        ..options()
    };
    let inbox = Inbox::new(&world.pd, KEY, &reads)?;
    let to = inbox.mr.remote();
    let refused = world.post(inbox.to(), |request, _| request.write(Inline(b"no"), to))?;
    refused.failed(WcStatus::REM_ACCESS_ERR)?;
    let mut untouched = [1; 2];
    inbox.mr.read_at(0, &mut untouched)?;
    same(untouched, [0; 2], "the memory")?;
    world.recover()?;
    let into = world.mr.slice(0..2)?;
    let mut batch = world.qp.batch();
    batch
        .signaled(1)
        .to(inbox.to())
        .read([into], RemoteSlice { length: 2, ..to })?;
    batch.ring()?;
    completion(&mut world.cq)?.is(WcOpcode::RDMA_READ)
}

/// Catches a target that hangs while it goes, completions of one that is gone, and a number that is taken for
/// the one before.
fn a_target_goes() -> Result {
    let mut world = world()?;
    let mut inbox = world.inbox()?;
    inbox.stock(0..1)?;
    let from = world.qp.qpn();
    world
        .post(inbox.to(), |request, _| request.send(Inline(b"in time")))?
        .is(WcOpcode::SEND)?;
    // In flight, since there is no receive for it.
    let (number, key) = (inbox.target.number(), inbox.target.key());
    world
        .qp
        .one(1)
        .to(inbox.way.to_target(number, key))
        .send(Inline(b"too late"))?;
    nothing(&mut world.cq)?;
    inbox.received(0, from, b"in time")?;
    let Inbox {
        target, srq, way, ..
    } = inbox;
    target.destroy()?;
    completion(&mut world.cq)?.failed(WcStatus::RETRY_EXC_ERR)?;
    // Nobody draws from it any more.
    srq.destroy()?;
    world.recover()?;
    world
        .post(way.to_target(number, key), |request, _| {
            request.send(Inline(b"to nobody"))
        })?
        .failed(WcStatus::RETRY_EXC_ERR)?;
    world.recover()?;
    let mut next = world.inbox()?;
    next.stock(0..1)?;
    world
        .post(next.to(), |request, _| request.send(Inline(b"anew")))?
        .is(WcOpcode::SEND)?;
    next.received(0, from, b"anew").map(drop)
}

/// Catches a request in another stream than its own, a failure that stops other streams or does not stop its
/// own, and a stream or a queue pair that does not come back.
fn streams() -> Result {
    let mut world = world()?;
    let caps = Caps {
        max_send_wr: 16,
        ..Caps::default()
    };
    // The second stream that fails takes the queue pair with it.
    let four = world.pd.qp(&world.cq).caps(caps).dc_streams(4, 2);
    world.qp = four.create::<Dc>()?;
    world.qp.activate_initiator(&options())?;
    let from = world.qp.qpn();
    let (mut inbox, goes) = (world.inbox()?, world.inbox()?);
    inbox.stock(0..4)?;
    let gone = goes.target.number();
    goes.target.destroy()?;
    let nowhere = |stream| goes.way.to_target(gone, KEY).on_stream(stream);
    let batch = [
        (nowhere(1), Err(WcStatus::RETRY_EXC_ERR)),
        // Behind it in its stream, whatever the target.
        (inbox.to().on_stream(1), Err(WcStatus::WR_FLUSH_ERR)),
        (inbox.to(), Ok(0)),
        (inbox.to().on_stream(3), Ok(1)),
    ];
    let mut arrives = Vec::new();
    for (to, ends) in batch {
        let wc = world.post(to, |request, _| request.send(Inline(b"in a stream")))?;
        match ends {
            Ok(id) => {
                wc.is(WcOpcode::SEND)?;
                arrives.push(id);
            }
            Err(status) => wc.failed(status)?,
        }
    }
    same(world.qp.query()?.state, QpState::RTS, "the state")?;
    world.qp.reset_stream(1)?;
    world
        .post(inbox.to().on_stream(1), |request, _| {
            request.send(Inline(b"it goes on"))
        })?
        .is(WcOpcode::SEND)?;
    for id in arrives {
        inbox.received(id, from, b"in a stream")?;
    }
    inbox.received(2, from, b"it goes on")?;
    for stream in [2, 3] {
        world
            .post(nowhere(stream), |request, _| {
                request.send(Inline(b"to nobody"))
            })?
            .failed(WcStatus::RETRY_EXC_ERR)?;
    }
    same(world.qp.query()?.state, QpState::ERR, "the state")?;
    world
        .post(inbox.to(), |request, _| request.send(Inline(b"behind")))?
        .failed(WcStatus::WR_FLUSH_ERR)?;
    same(
        world.qp.reset_stream(2).is_err(),
        true,
        "a stream of a failed queue pair",
    )?;
    world.recover()?;
    world
        .post(inbox.to().on_stream(2), |request, _| {
            request.send(Inline(b"anew"))
        })?
        .is(WcOpcode::SEND)?;
    inbox.received(3, from, b"anew")?;
    let many = world.pd.qp(&world.cq).dc_streams(17, 1).create::<Dc>();
    let Err(many) = many else {
        return fail("32 streams, of 16");
    };
    says(&many, &["2^5 streams", "up to 2^4"])?;
    let connected = world.pd.qp(&world.cq).dc_streams(2, 1).create::<Rc>();
    let Err(connected) = connected else {
        return fail("streams of a connection");
    };
    same(connected.is_unsupported(), true, "what it is")?;
    says(&connected, &["no DC initiators"])
}

/// Catches a message that is lost while there is no receive.
fn receives_that_come_late() -> Result {
    let mut world = world()?;
    let mut inbox = world.inbox()?;
    let from = world.qp.qpn();
    world
        .qp
        .one(1)
        .to(inbox.way.to_target(inbox.target.number(), KEY))
        .send(Inline(b"waits"))?;
    nothing(&mut world.cq)?;
    inbox.stock(5..6)?;
    completion(&mut world.cq)?.is(WcOpcode::SEND)?;
    inbox.received(5, from, b"waits").map(drop)
}

/// Catches destinations that are not checked where the type does not tell.
fn at_run_time() -> Result {
    let world = world()?;
    let mut inbox = world.inbox()?;
    inbox.stock(0..1)?;
    let mut qp = world.qp.into_any();
    let mut cq = world.cq;
    same(qp.transport(), QpType::DCI, "the transport")?;
    let refused = [
        qp.one(1).send(Inline(b"nowhere")),
        qp.one(1).to(PeerSrq(1)).send(Inline(b"nowhere")),
        qp.one(1).to(inbox.way.to(1, 1)).send(Inline(b"nowhere")),
    ];
    for refused in refused {
        same(refused, Err(PostError::Destination), "another destination")?;
    }
    let key = inbox.mr.remote().rkey;
    let invalidates = qp.one(1).to(inbox.to()).send_inv(Inline(b"no"), key);
    let transport = QpType::DCI;
    same(
        invalidates,
        Err(PostError::NotInTransport { transport }),
        "an operation that it lacks",
    )?;
    qp.one(2).to(inbox.to()).send(Inline(b"by run time"))?;
    completion(&mut cq)?.is(WcOpcode::SEND)?;
    inbox.received(0, qp.qpn(), b"by run time").map(drop)
}

/// Catches a table of transitions that is not the kernel's.
fn step_by_step() -> Result {
    let world = world()?;
    let mut qp: Qp<Any> = world.pd.qp(&world.cq).create_any(QpType::DCI)?;
    let init = QpAttr {
        state: Some(QpState::INIT),
        port: Some(1),
        pkey_index: Some(0),
        ..QpAttr::default()
    };
    let with_rights = QpAttr {
        access: Some(Access::REMOTE_READ),
        ..init.clone()
    };
    is_invalid(qp.modify(&with_rights), "rights of an initiator")?;
    qp.modify(&init)?;
    qp.modify(&init)?;
    let receive = QpAttr {
        state: Some(QpState::RTR),
        path_mtu: Some(world.context.query_port(1)?.active_mtu),
        ..QpAttr::default()
    };
    qp.modify(&receive)?;
    let send = QpAttr {
        state: Some(QpState::RTS),
        sq_psn: Some(1),
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(1),
        min_rnr_timer: Some(12),
        ..QpAttr::default()
    };
    qp.modify(&send)?;
    same(qp.query()?.state, QpState::RTS, "what the kernel says")?;
    qp.fail()?;
    same(qp.query()?.state, QpState::ERR, "what the kernel says")?;
    Ok(qp.reset()?)
}

/// Catches what the device would do wrong or the kernel refuse without a word.
fn what_is_refused() -> Result {
    let mut world = world()?;
    let inbox = world.inbox()?;
    let mut receives = world.qp.recv_batch();
    let receive = receives.post_empty(1);
    drop(receives);
    same(
        receive.err(),
        Some(PostError::QueueFull { capacity: 0 }),
        "a receive of an initiator",
    )?;
    let with_queue = world.pd.qp(&world.cq).srq(&inbox.srq).create::<Dc>();
    is_invalid(with_queue, "an initiator with a shared queue")?;
    let other = world.context.alloc_pd()?;
    let way = other.create_ah(
        &world
            .context
            .path_to(&inbox.target.endpoint(), &options())?,
    )?;
    let foreign = world
        .qp
        .one(1)
        .to(way.to_target(inbox.target.number(), KEY))
        .send(Inline(b"no"));
    same(foreign, Err(PostError::ForeignPd), "a way of another PD")?;
    // A device's own datagrams are another's.
    let datagrams = world.pd.create_qp::<Srd>(&world.cq, Caps::default());
    same(
        datagrams.is_err_and(|error| error.is_unsupported()),
        true,
        "SRD",
    )?;
    let port = ConnectOptions {
        port: 9,
        ..ConnectOptions::default()
    };
    let nowhere = world.pd.dc_target(&inbox.cq, &inbox.srq, 1).options(&port);
    same(nowhere.create().is_err(), true, "a port that there is not")?;
    let mtu = ConnectOptions {
        path_mtu: Some(Mtu(world.context.query_port(1)?.active_mtu.0 + 1)),
        ..ConnectOptions::default()
    };
    let above = world.pd.dc_target(&inbox.cq, &inbox.srq, 1).options(&mtu);
    is_invalid(above.create(), "a target with an MTU above the port's")?;
    let mut initiator = world.pd.create_qp::<Dc>(&world.cq, Caps::default())?;
    let above = initiator.activate_initiator(&mtu);
    is_invalid(above, "an initiator with an MTU above the port's")?;
    let stranger = open()?.create_cq(8)?;
    let foreign = world.pd.dc_target(&stranger, &inbox.srq, 1).create();
    is_invalid(foreign, "a target on another context's CQ")?;
    let busy = match inbox.srq.destroy() {
        Ok(()) => return fail("a queue was destroyed from which a target receives"),
        Err(busy) => busy,
    };
    same(matches!(busy.error.cause(), Cause::Busy(_)), true, "busy")?;
    inbox.target.destroy()?;
    Ok(busy.object.destroy()?)
}

fn is_invalid<T>(result: uverbs::Result<T>, what: &str) -> Result {
    match result {
        Ok(_) => fail(format!("not refused: {what}")),
        Err(error) => same(matches!(error.cause(), Cause::Invalid(_)), true, what),
    }
}

/// Catches an example that has gone wrong.
fn the_example_serves() -> Result {
    let said = finish(Command::new(example("dc_server")?).arg("50"))?;
    says(
        &said,
        &[
            "one queue pair has welcomed 50 clients",
            "50 clients were welcomed, each at its own target",
        ],
    )
}
