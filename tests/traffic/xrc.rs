//! XRC: connections whose messages name a shared receive queue of the peer. On the adapter alone; soft-RoCE
//! has none (`lacking::xrc` of the program `verbs` sees it refused).

use std::os::fd::AsFd;

use libtest_mimic::Trial;
use serde_json::json;
use support::{
    ALL, Control, Hca, Result, Wc, completion, completions, fail, nothing, open, same,
    test_on_adapter,
};
use uverbs::{
    Access, Caps, Cause, Context, Cq, Inline, Mr, Pd, PeerSrq, PostError, Qp, QpState, Rc, Request,
    Srq, WcOpcode, WcStatus,
    error::Errno,
    qp::QpType,
    transport::{Any, Xrc},
    xrcd::{XrcTarget, Xrcd, XrcdFile},
};

use crate::slots::{self, SLOT, SLOTS};

type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 11] = [
        (
            "xrc::messages_go_to_the_queue_they_name",
            messages_go_to_the_queue_they_name,
        ),
        ("xrc::has_every_operation", has_every_operation),
        ("xrc::at_run_time", at_run_time),
        ("xrc::round_the_rings", round_the_rings),
        ("xrc::others_receive", others_receive),
        (
            "xrc::a_region_waits_for_its_receive",
            a_region_waits_for_its_receive,
        ),
        ("xrc::a_queue_that_is_not_there", a_queue_that_is_not_there),
        ("xrc::a_target_starts_anew", a_target_starts_anew),
        ("xrc::unread_receives", unread_receives),
        (
            "xrc::missing_pages_are_not_told",
            missing_pages_are_not_told,
        ),
        ("xrc::what_is_refused", what_is_refused),
    ];
    tests
        .map(|(name, run)| test_on_adapter(name, move |_: Hca| run()))
        .into()
}

/// A shared receive queue of a domain, with where its messages go and where they complete.
struct Inbox {
    srq: Srq,
    cq: Cq,
    mr: Mr<Vec<u8>>,
}

impl Inbox {
    fn new(pd: &Pd, domain: &Xrcd) -> Result<Self> {
        let cq = pd.context().create_cq(SLOTS as u32)?;
        Ok(Self {
            srq: pd.srq(31).xrc(domain, &cq).create()?,
            mr: pd.register(vec![0; SLOT * SLOTS], ALL)?,
            cq,
        })
    }

    fn number(&self) -> Result<u32> {
        self.srq.srqn().ok_or_else(|| "it has no number".into())
    }

    /// Posts a receive for each of these ids, into the slot of that number.
    fn stock(&mut self, ids: std::ops::Range<u64>) -> Result {
        slots::stock(&mut self.srq, &self.mr, ids)
    }

    /// The next message must be in the slot of that id, have come to that queue pair, and have these bytes.
    #[track_caller]
    fn received(&mut self, id: u64, at: u32, bytes: &[u8]) -> Result<Wc> {
        let wc = completion(&mut self.cq)?.ok()?;
        same((wc.wr_id, wc.qp_num), (id, at), "the request and the QP")?;
        slots::has(wc, &self.mr, bytes)
    }
}

/// An initiator that is connected to a target of a domain.
struct World {
    qp: Qp<Xrc>,
    target: XrcTarget,
    cq: Cq,
    /// Of the initiator.
    mr: Mr<Vec<u8>>,
    domain: Xrcd,
    pd: Pd,
    context: Context,
}

fn world() -> Result<World> {
    let context = open()?;
    let domain = context.open_xrcd()?;
    world_in(context, domain, Caps::default())
}

fn world_in(context: Context, domain: Xrcd, caps: Caps) -> Result<World> {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(64)?;
    let mut qp = pd.create_qp::<Xrc>(&cq, caps)?;
    let mut target = domain.create_target()?;
    qp.connect(&target.endpoint()?)?;
    target.connect(&qp.endpoint()?)?;
    Ok(World {
        mr: pd.register(vec![0; 4096], ALL)?,
        qp,
        target,
        cq,
        domain,
        pd,
        context,
    })
}

impl World {
    fn inbox(&self) -> Result<Inbox> {
        Inbox::new(&self.pd, &self.domain)
    }

    /// Posts one signaled request that names its memory, and gives its completion.
    fn post<'q>(
        &'q mut self,
        fill: impl FnOnce(Request<'_, 'q, Xrc>, &'q Mr<Vec<u8>>) -> std::result::Result<(), PostError>,
    ) -> Result<Wc> {
        fill(self.qp.one(7), &self.mr)?;
        completion(&mut self.cq)
    }

    /// Sends bytes to a queue.
    fn send(&mut self, to: u32, bytes: &[u8]) -> Result {
        self.post(|request, _| request.to(PeerSrq(to)).send(Inline(bytes)))?
            .is(WcOpcode::SEND)
    }
}

/// Catches a number that is lost or goes to all requests of a batch, a completion on another queue's
/// completion queue, and elements that are mixed up.
fn messages_go_to_the_queue_they_name() -> Result {
    let mut world = world()?;
    let (mut one, mut other) = (world.inbox()?, world.inbox()?);
    let (to_one, to_other) = (one.number()?, other.number()?);
    same(to_one != to_other, true, "that numbers differ")?;
    one.stock(0..8)?;
    other.stock(20..28)?;
    world.mr.write_at(0, b"from memory")?;
    let at = world.target.qpn();
    let mut batch = world.qp.batch();
    batch
        .unsignaled(0)
        .to(PeerSrq(to_one))
        .send(Inline(b"first"))?;
    batch
        .unsignaled(0)
        .to(PeerSrq(to_other))
        .send(world.mr.slice(0..11)?)?;
    batch
        .unsignaled(0)
        .to(PeerSrq(to_other))
        .send_imm(Inline(b"to the same"), 0x0102_0304)?;
    batch
        .signaled(1)
        .to(PeerSrq(to_one))
        .send_imm(world.mr.slice(5..11)?, 9)?;
    same(batch.ring()?, 4, "requests")?;
    completion(&mut world.cq)?.is(WcOpcode::SEND)?;
    same(one.received(0, at, b"first")?.imm, None, "immediate data")?;
    same(
        one.received(1, at, b"memory")?.imm,
        Some(9),
        "immediate data",
    )?;
    other.received(20, at, b"from memory")?;
    let wc = other.received(21, at, b"to the same")?;
    same(wc.imm, Some(0x0102_0304), "immediate data")?;
    world
        .qp
        .one(3)
        .to(PeerSrq(to_other))
        .send(Inline(b"alone"))?;
    same(completion(&mut world.cq)?.wr_id, 3, "the request alone")?;
    other.received(22, at, b"alone")?;
    nothing(&mut one.cq)?;
    nothing(&mut other.cq)?;
    same(one.srq.in_flight(), 6, "what waits in one")?;
    same(other.srq.in_flight(), 5, "what waits in the other")
}

/// Catches a missing page of on-demand memory that is told as a failure, and a request that is not posted
/// again: without it there is none for the message.
fn missing_pages_are_not_told() -> Result {
    let mut world = world()?;
    let mut inbox = world.inbox()?;
    let (to, at) = (inbox.number()?, world.target.qpn());
    inbox.stock(0..2)?;
    Control::open()?.ask("page_faults", json!({"function": 0, "count": 2}))?;
    let mut batch = world.qp.batch();
    batch.signaled(1).to(PeerSrq(to)).send(Inline(b"late"))?;
    batch.ring()?;
    inbox.received(0, at, b"late")?;
    completion(&mut world.cq)?.is(WcOpcode::SEND)?;
    same(inbox.srq.in_flight(), 1, "what waits")
}

/// Catches a segment in the wrong place, an operation without the queue's number, and results elsewhere.
fn has_every_operation() -> Result {
    let mut world = world()?;
    let mut inbox = world.inbox()?;
    let (to, at) = (inbox.number()?, world.target.qpn());
    inbox.stock(0..4)?;
    let theirs = inbox.mr.remote();
    let piece = |offset: usize, length: usize| theirs.slice(offset..offset + length);
    world.mr.write_at(0, b"written")?;
    let whole = piece(1024, 7)?;
    world
        .post(|request, mr| request.to(PeerSrq(to)).write(mr.slice(0..7)?, whole))?
        .is(WcOpcode::RDMA_WRITE)?;
    let mut bytes = [0; 7];
    inbox.mr.read_at(1024, &mut bytes)?;
    same(&bytes, b"written", "what was written")?;
    world
        .post(|request, mr| request.to(PeerSrq(to)).read(mr.slice(100..107)?, whole))?
        .is(WcOpcode::RDMA_READ)?;
    world.mr.read_at(100, &mut bytes)?;
    same(&bytes, b"written", "what was read")?;
    world
        .post(|request, _| {
            request
                .to(PeerSrq(to))
                .write_imm(Inline(b"told"), piece(1024, 4)?, 77)
        })?
        .is(WcOpcode::RDMA_WRITE)?;
    let wc = completion(&mut inbox.cq)?;
    wc.is(WcOpcode::RECV_RDMA_WITH_IMM)?;
    same(
        (wc.wr_id, wc.qp_num, wc.imm),
        (0, at, Some(77)),
        "who was told",
    )?;
    inbox.mr.read_at(1024, &mut bytes)?;
    same(&bytes, b"toldten", "what was written")?;
    inbox.mr.store_u64(2048, 5)?;
    let word = piece(2048, 8)?;
    world
        .post(|request, mr| {
            request
                .to(PeerSrq(to))
                .fetch_add(mr.slice(200..208)?, word, 4)
        })?
        .is(WcOpcode::FETCH_ADD)?;
    world
        .post(|request, mr| {
            request
                .to(PeerSrq(to))
                .compare_swap(mr.slice(208..216)?, word, 9, 30)
        })?
        .is(WcOpcode::COMP_SWAP)?;
    let words = [world.mr.load_u64(200)?, world.mr.load_u64(208)?];
    same((words, inbox.mr.load_u64(2048)?), ([5, 9], 30), "the words")?;
    world
        .qp
        .one(1)
        .to(PeerSrq(to))
        .write(Inline(b"TOLD"), piece(1024, 4)?)?;
    world
        .qp
        .one(2)
        .to(PeerSrq(to))
        .read(world.mr.slice(300..304)?, piece(1024, 4)?)?;
    for wc in completions(&mut world.cq, 2)? {
        wc.ok()?;
    }
    let mut bytes = [0; 4];
    world.mr.read_at(300, &mut bytes)?;
    same(
        &bytes,
        b"TOLD",
        "what one request has written and another has read",
    )
}

/// Catches a queue pair of a transport that is chosen at run time and sends as if it were another, or without
/// a queue.
fn at_run_time() -> Result {
    let World {
        qp: static_qp,
        mut target,
        mut cq,
        domain,
        pd,
        ..
    } = world()?;
    let mut inbox = Inbox::new(&pd, &domain)?;
    inbox.stock(0..4)?;
    let (to, at) = (inbox.number()?, target.qpn());
    let mut qp = static_qp.into_any();
    same(
        qp.post(|batch| batch.unsignaled(0).send(Inline(b"to nobody")))
            .err(),
        Some(PostError::Destination),
        "a request without a queue",
    )?;
    let alone = qp.one(1).send(Inline(b"to nobody"));
    same(alone.err(), Some(PostError::Destination), "alone")?;
    qp.post(|batch| {
        batch.signaled(1).to(PeerSrq(to)).send(Inline(b"any"))?;
        Ok(())
    })?;
    completion(&mut cq)?.is(WcOpcode::SEND)?;
    inbox.received(0, at, b"any")?;
    drop(qp);
    let mut created = pd.qp(&cq).create_any(QpType::XRC_SEND)?;
    target.modify(&to_state(QpState::RESET))?;
    created.connect(&target.endpoint()?)?;
    target.connect(&created.endpoint()?)?;
    created.one(2).to(PeerSrq(to)).send(Inline(b"again"))?;
    completion(&mut cq)?.is(WcOpcode::SEND)?;
    inbox.received(1, at, b"again")?;
    let mut reliable: Qp<Any> = pd.qp(&cq).create_any(QpType::RC)?;
    reliable.connect(&reliable.endpoint()?)?;
    let named = reliable.post(|batch| batch.unsignaled(0).to(PeerSrq(to)).send(Inline(b"no")));
    same(named.err(), Some(PostError::Destination), "a queue on RC")?;
    let named = reliable.one(1).to(PeerSrq(to)).send(Inline(b"no"));
    same(
        named.err(),
        Some(PostError::Destination),
        "a queue on RC, alone",
    )
}

fn to_state(state: QpState) -> uverbs::qp::QpAttr {
    uverbs::qp::QpAttr {
        state: Some(state),
        ..Default::default()
    }
}

/// Catches a request that is cut off at the ring's end or larger than its blocks, and an element that is
/// lost.
fn round_the_rings() -> Result {
    let context = open()?;
    let domain = context.open_xrcd()?;
    let caps = Caps {
        max_send_wr: 5,
        max_send_sge: 4,
        max_inline_data: 60,
        ..Caps::default()
    };
    let mut world = world_in(context, domain, caps)?;
    same(world.qp.caps().max_recv_wr, 0, "receives of an initiator")?;
    let mut inbox = world.inbox()?;
    let (to, at) = (inbox.number()?, world.target.qpn());
    let pattern: Vec<u8> = (0..SLOT as u8).collect();
    world.mr.write_at(0, &pattern)?;
    for round in 0..60_u64 {
        inbox.stock(round..round + 1)?;
        let length = 1 + round as usize * 7 % 60;
        let cuts = [0, length / 4, length / 2, length / 2 + 1, length];
        if round % 2 == 0 {
            world.send(to, &pattern[..length])?;
        } else {
            let wc = world.post(|request, mr| {
                let mut slices = Vec::new();
                for ends in cuts.windows(2) {
                    slices.push(mr.slice(ends[0].min(length)..ends[1])?);
                }
                request.to(PeerSrq(to)).send(slices)
            })?;
            wc.is(WcOpcode::SEND)?;
        }
        inbox.received(round, at, &pattern[..length])?;
    }
    Ok(())
}

/// Catches a domain that is not the file's, a target that others cannot open, and one that ends with the
/// first who had it open.
fn others_receive() -> Result {
    let file = tempfile::tempfile()?;
    let first = open()?;
    let second = open()?;
    let errno = |result: uverbs::Result<Xrcd>| result.err().and_then(|error| error.errno());
    let early = second.open_xrcd_of(file.as_fd(), XrcdFile::Existing);
    same(errno(early), Some(Errno::AGAIN), "before it is there")?;
    let domain = first.open_xrcd_of(file.as_fd(), XrcdFile::CreateNew)?;
    let late = second.open_xrcd_of(file.as_fd(), XrcdFile::CreateNew);
    same(errno(late), Some(Errno::INVAL), "when it is there")?;
    let theirs = second.open_xrcd_of(file.as_fd(), XrcdFile::Existing)?;
    let mut world = world_in(first, domain, Caps::default())?;
    let their_pd = second.alloc_pd()?;
    let mut inbox = Inbox::new(&their_pd, &theirs)?;
    inbox.stock(0..4)?;
    let (to, at) = (inbox.number()?, world.target.qpn());
    world.send(to, b"from the first's target")?;
    inbox.received(0, at, b"from the first's target")?;
    let stranger = theirs.open_target(at ^ 0x80_0000);
    let said = stranger.err().and_then(|error| error.errno());
    same(said, Some(Errno::INVAL), "a target that is not there")?;
    let opened = theirs.open_target(at)?;
    same(opened.state(), QpState::RTS, "the state of what was opened")?;
    let World {
        target,
        mut qp,
        mut cq,
        domain,
        pd,
        context,
        ..
    } = world;
    target.destroy()?;
    qp.one(5).to(PeerSrq(to)).send(Inline(b"still"))?;
    completion(&mut cq)?.is(WcOpcode::SEND)?;
    inbox.received(1, at, b"still")?;
    opened.destroy()?;
    qp.one(6).to(PeerSrq(to)).send(Inline(b"to nobody"))?;
    completion(&mut cq)?.failed(WcStatus::RETRY_EXC_ERR)?;
    drop((qp, cq, pd));
    domain.close()?;
    drop((inbox, context));
    Ok(theirs.close()?)
}

/// Catches a region that goes under a receive of a queue whose messages are counted by nobody.
fn a_region_waits_for_its_receive() -> Result {
    let mut world = world()?;
    let mut inbox = world.inbox()?;
    let (to, at) = (inbox.number()?, world.target.qpn());
    for round in 0..20_u64 {
        let region = world.pd.register(vec![0_u8; 64], Access::LOCAL_WRITE)?;
        let mut batch = inbox.srq.batch();
        batch.post(round, region.slice(..)?)?;
        batch.ring();
        drop(region);
        same(world.pd.reclaim(), 1, "regions that wait for a message")?;
        world.send(to, b"here it is")?;
        same(
            world.pd.reclaim(),
            1,
            "regions that wait for the completion",
        )?;
        let wc = completion(&mut inbox.cq)?.ok()?;
        same((wc.wr_id, wc.qp_num), (round, at), "who has received")?;
        same(world.pd.reclaim(), 0, "regions that wait behind it")?;
    }
    let sent = world.pd.register(vec![3_u8; 64], Access::empty())?;
    inbox.stock(0..1)?;
    let mut batch = world.qp.batch();
    batch.signaled(1).to(PeerSrq(to)).send(sent.slice(..8)?)?;
    batch.ring()?;
    drop(sent);
    completion(&mut world.cq)?.is(WcOpcode::SEND)?;
    same(world.pd.reclaim(), 0, "regions that were sent from")?;
    inbox.received(0, at, &[3; 8]).map(drop)
}

/// Catches a message that goes to another queue than it names, and a connection that does not work again.
fn a_queue_that_is_not_there() -> Result {
    let mut world = world()?;
    let mut inbox = world.inbox()?;
    let elsewhere = world.context.open_xrcd()?;
    let other = Inbox::new(&world.pd, &elsewhere)?;
    inbox.stock(0..8)?;
    let (to, at) = (inbox.number()?, world.target.qpn());
    for (id, wrong) in [to ^ 0x80_0000, other.number()?].into_iter().enumerate() {
        let wc = world.post(|request, _| request.to(PeerSrq(wrong)).send(Inline(b"astray")))?;
        wc.failed(WcStatus::REM_INV_REQ_ERR)?;
        same(world.target.query()?.state, QpState::ERR, "the target")?;
        nothing(&mut inbox.cq)?;
        world.qp.reset()?;
        world.target.modify(&to_state(QpState::RESET))?;
        world.qp.connect(&world.target.endpoint()?)?;
        world.target.connect(&world.qp.endpoint()?)?;
        world.send(to, b"again")?;
        inbox.received(id as u64, at, b"again")?;
    }
    Ok(())
}

/// Catches a target that takes packets of a connection that is over for those of the next: it has to name
/// another packet sequence number after each reset, whichever way that was asked for.
fn a_target_starts_anew() -> Result {
    let mut world = world()?;
    let mut inbox = world.inbox()?;
    inbox.stock(0..8)?;
    let (to, at) = (inbox.number()?, world.target.qpn());
    let resets: [fn(&mut XrcTarget) -> uverbs::Result<()>; 2] = [XrcTarget::reset, |target| {
        target.modify(&to_state(QpState::RESET))
    }];
    for (id, reset) in resets.into_iter().enumerate() {
        let before = world.target.endpoint()?;
        same(world.target.endpoint()?, before, "the endpoint until then")?;
        world.qp.reset()?;
        reset(&mut world.target)?;
        let behind = world.target.endpoint()?;
        same(behind.qpn, before.qpn, "the number")?;
        same(behind.psn != before.psn, true, "another PSN after a reset")?;
        world.qp.connect(&behind)?;
        world.target.connect(&world.qp.endpoint()?)?;
        world.send(to, b"anew")?;
        inbox.received(id as u64, at, b"anew")?;
    }
    Ok(())
}

/// Catches elements that do not come back of completions that nobody takes, and a queue that goes before
/// them.
fn unread_receives() -> Result {
    let mut world = world()?;
    let mut inbox = world.inbox()?;
    let to = inbox.number()?;
    inbox.stock(0..20)?;
    for _ in 0..12 {
        world.send(to, b"unread")?;
    }
    same(inbox.srq.in_flight(), 20, "requests until they are read")?;
    let Inbox { srq, mut cq, mr } = inbox;
    // The completions of a queue that is gone are still told.
    srq.destroy()?;
    for wc in completions(&mut cq, 12)? {
        wc.is(WcOpcode::RECV)?;
    }
    nothing(&mut cq)?;
    // Another queue gets the number; nothing of it has been reported.
    let mut inbox = Inbox {
        srq: world.pd.srq(31).xrc(&world.domain, &cq).create()?,
        cq,
        mr,
    };
    inbox.stock(40..50)?;
    let (to, at) = (inbox.number()?, world.target.qpn());
    world.send(to, b"anew")?;
    inbox.received(40, at, b"anew")?;
    for _ in 0..9 {
        world.send(to, b"unread")?;
    }
    let Inbox { mut srq, cq, mr } = inbox;
    drop(cq);
    same(srq.in_flight(), 0, "requests when nobody polls any more")?;
    let mut batch = srq.batch();
    for id in 0..31 {
        batch.post(id, mr.slice(0..SLOT)?)?;
    }
    same(batch.ring(), 31, "elements that are free")
}

/// Catches what is taken and cannot work.
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
    let basic = world.pd.srq(4).create()?;
    let with_queue = world.pd.qp(&world.cq).srq(&basic).create::<Xrc>();
    is_invalid(with_queue, "an initiator with a shared queue")?;
    // The kernel refuses it.
    let of_xrc = world.pd.qp(&world.cq).srq(&inbox.srq).create::<Rc>();
    same(
        of_xrc.err().and_then(|error| error.errno()),
        Some(Errno::INVAL),
        "RC with a queue of XRC",
    )?;
    let World { domain, target, .. } = world;
    let busy = match domain.close() {
        Ok(()) => return fail("a domain was closed that has a target"),
        Err(busy) => busy,
    };
    same(matches!(busy.error.cause(), Cause::Busy(_)), true, "busy")?;
    target.destroy()?;
    inbox.srq.destroy()?;
    Ok(busy.object.close()?)
}

fn is_invalid<T>(result: uverbs::Result<T>, what: &str) -> Result {
    match result {
        Ok(_) => fail(format!("{what} was created")),
        Err(error) => same(matches!(error.cause(), Cause::Invalid(_)), true, what),
    }
}
