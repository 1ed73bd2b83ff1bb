//! XRC by address: initiators that ask for targets, ours with ours and with rdma-core's programs. On the
//! adapter alone; soft-RoCE has none (`lacking::xrc` of the program `verbs` sees it refused).

use libtest_mimic::Trial;
use support::wait::until_so;
use support::{
    ALL, Hca, LIMIT, Result, completion, device, fail, nothing, open, same, says, skip,
    test_without_leaks,
};
use uverbs::cm::{
    self, Connection, Event, Failed, Listener, Params, Pending, RejectReason, Request, Resolved,
};
use uverbs::error::Errno;
use uverbs::qp::QpState;
use uverbs::transport::Xrc;
use uverbs::xrcd::{XrcTarget, Xrcd};
use uverbs::{Access, Cause, Context, Cq, Inline, Mr, Pd, PeerSrq, Qp, Srq, Uc, WcOpcode};

use crate::ground::{Side, both, own_address};
use crate::listen::reason_of;
use crate::programs::{Program, address};

type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 9] = [
        ("xrc::and_talk", and_talk),
        ("xrc::attributes_are_agreed_on", attributes_are_agreed_on),
        ("xrc::disconnect", disconnect),
        ("xrc::again", again),
        ("xrc::refusals_give_back", refusals_give_back),
        ("xrc::targets_come_back", targets_come_back),
        ("xrc::of_its_kind_alone", of_its_kind_alone),
        ("xrc::rdma_xserver", rdma_xserver),
        ("xrc::rdma_xclient", rdma_xclient),
    ];
    tests
        .map(|(name, run)| {
            test_without_leaks(name, move || match device().is_rxe() {
                true => skip("soft-RoCE has no XRC"),
                false => run(),
            })
        })
        .into()
}

/// Bytes of a message.
const SLOT: usize = 64;

/// A shared receive queue with where its messages go and where they complete.
struct Inbox {
    srq: Srq,
    cq: Cq,
    mr: Mr<Vec<u8>>,
}

impl Inbox {
    /// One with receives of the numbers 0 to 7 posted, each into the slot of its number. No slot is as a
    /// message would leave it.
    fn new(pd: &Pd, domain: &Xrcd) -> Result<Self> {
        let cq = pd.context().create_cq(16)?;
        let mut srq = pd.srq(15).xrc(domain, &cq).create()?;
        let mr = pd.register(vec![0xff; SLOT * 8], ALL)?;
        let mut batch = srq.batch();
        for id in 0..8 {
            let start = id as usize * SLOT;
            batch.post(id, mr.slice(start..start + SLOT)?)?;
        }
        batch.ring();
        Ok(Self { srq, cq, mr })
    }

    fn number(&self) -> Result<u32> {
        self.srq.srqn().ok_or_else(|| "it has no number".into())
    }

    /// The next message must have come to that target, be in the slot of that id, and have these bytes.
    #[track_caller]
    fn received(&mut self, id: u64, at: u32, bytes: &[u8]) -> Result {
        let wc = completion(&mut self.cq)?.ok()?;
        same(wc.opcode, WcOpcode::RECV, "the completion")?;
        same((wc.wr_id, wc.qp_num), (id, at), "the request and the QP")?;
        same(wc.byte_len, bytes.len() as u32, "bytes received")?;
        let mut came = vec![0; bytes.len()];
        self.mr.read_at(id as usize * SLOT, &mut came)?;
        same(came, bytes.to_vec(), "the message")
    }
}

/// Who receives: two queues in one domain.
struct There {
    one: Inbox,
    other: Inbox,
    domain: Xrcd,
}

impl There {
    fn new() -> Result<Self> {
        Self::on(&open()?)
    }

    fn on(context: &Context) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let domain = context.open_xrcd()?;
        Ok(Self {
            one: Inbox::new(&pd, &domain)?,
            other: Inbox::new(&pd, &domain)?,
            domain,
        })
    }

    fn target(&self) -> Result<XrcTarget> {
        Ok(self.domain.create_target()?)
    }
}

fn listener() -> Result<Listener<XrcTarget>> {
    Ok(cm::listen::<XrcTarget>(own_address())?.start()?)
}

/// The way to a listener.
fn way_to(listener: &Listener<XrcTarget>) -> Result<Resolved<Xrc>> {
    let resolve = cm::resolve::<Xrc>(listener.local_addr())?;
    Ok(resolve.start()?.within(LIMIT)?)
}

fn request(listener: &Listener<XrcTarget>) -> Result<Request<XrcTarget>> {
    Ok(listener.next_within(LIMIT)?.ok_or("no request came")?)
}

/// An initiator and a target that are connected.
struct Two {
    active: Connection<Qp<Xrc>>,
    passive: Connection<XrcTarget>,
    here: Side,
    there: There,
    listener: Listener<XrcTarget>,
}

impl Two {
    fn new() -> Result<Self> {
        Self::with(&Params::default(), &Params::default())
    }

    fn with(active: &Params, passive: &Params) -> Result<Self> {
        let (listener, here, there) = (listener()?, Side::new()?, There::new()?);
        let (qp, target) = (here.qp::<Xrc>()?, there.target()?);
        let connecting = way_to(&listener)?.connect(qp, active, b"request")?;
        let number = there.one.number()?.to_be_bytes();
        let accepting = request(&listener)?.accept(target, passive, &number)?;
        Ok(Self {
            active: connecting.within(LIMIT)?,
            passive: accepting.within(LIMIT)?,
            here,
            there,
            listener,
        })
    }

    /// A message to each queue, of which the first is the one whose number has come with the acceptance.
    fn talk(&mut self, id: u64) -> Result {
        let number = self.active.private_data().first_chunk();
        let to_one = u32::from_be_bytes(*number.ok_or("no number came")?);
        same(to_one, self.there.one.number()?, "the number that came")?;
        let to_other = self.there.other.number()?;
        self.here.mr.write_at(0, b"from memory")?;
        let memory = self.here.mr.slice(0..11)?;
        self.active.post(|batch| {
            batch
                .unsignaled(0)
                .to(PeerSrq(to_one))
                .send(Inline(b"to the one"))?;
            batch.signaled(2).to(PeerSrq(to_other)).send(memory)?;
            Ok(())
        })?;
        let sent = completion(&mut self.here.cq)?.ok()?;
        same((sent.wr_id, sent.opcode), (2, WcOpcode::SEND), "the sends")?;
        let at = self.passive.qpn();
        self.there.one.received(id, at, b"to the one")?;
        self.there.other.received(id, at, b"from memory")?;
        nothing(&mut self.there.one.cq)?;
        nothing(&mut self.there.other.cq)
    }
}

/// Catches ends that are connected to others, data that do not come, messages that go to another queue, and
/// READs that the target does not serve.
fn and_talk() -> Result {
    let mut two = Two::new()?;
    same(two.active.state(), QpState::RTS, "the initiator")?;
    same(two.passive.state(), QpState::RTS, "the target")?;
    let states = (two.active.query()?.state, two.passive.query()?.state);
    same(states, (QpState::RTS, QpState::RTS), "as the kernel says")?;
    let listens = two.listener.local_addr();
    same(two.active.peer_addr(), listens, "the initiator's peer")?;
    let address = two.active.local_addr();
    same(two.passive.peer_addr(), address, "the target's peer")?;
    let data = two.passive.private_data();
    same((data.len(), &data[..7]), (56, &b"request"[..]), "the data")?;
    same(two.active.private_data().len(), 196, "the answer's field")?;
    two.talk(0)?;
    let to = two.there.one.number()?;
    let there = two.there.one.mr.remote().slice(0..10)?;
    let here = two.here.mr.slice(100..110)?;
    two.active.post(|batch| {
        batch.signaled(3).to(PeerSrq(to)).read(here, there)?;
        Ok(())
    })?;
    completion(&mut two.here.cq)?.is(WcOpcode::RDMA_READ)?;
    let mut read = [0; 10];
    two.here.mr.read_at(100, &mut read)?;
    same(&read, b"to the one", "what was read")
}

/// Catches what the kernel proposes being taken where the caller has a say, and depths that the other end
/// does not have.
fn attributes_are_agreed_on() -> Result {
    let asks = Params {
        initiator_depth: Some(2),
        retry_cnt: 5,
        ..Params::default()
    };
    let serves = Params {
        access: Access::REMOTE_READ,
        responder_resources: Some(4),
        rnr_retry: 3,
        min_rnr_timer: 9,
        ..Params::default()
    };
    for (active, passive, depth) in [
        (&asks, &serves, 2),
        (&Params::default(), &serves, 4),
        (&asks, &Params::default(), 2),
    ] {
        let mut two = Two::with(active, passive)?;
        let (a, p) = (two.active.query()?, two.passive.query()?);
        same(a.max_rd_atomic, depth, "READs under way")?;
        same(p.max_dest_rd_atomic, depth, "READs that are served")?;
        same(a.retry_cnt, active.retry_cnt, "the retries")?;
        same(a.rnr_retry, passive.rnr_retry, "the RNR retries")?;
        same(p.min_rnr_timer, passive.min_rnr_timer, "the RNR timer")?;
        let access = p.access & !Access::LOCAL_WRITE;
        same(access, passive.access, "the peer's access")?;
        same(a.dest_qpn, two.passive.qpn(), "the initiator's peer")?;
        same(p.dest_qpn, two.active.qpn(), "the target's peer")?;
        two.talk(0)?;
    }
    Ok(())
}

/// Catches an end that the other side does not learn of, and queue pairs that do not come back, whoever ends.
fn disconnect() -> Result {
    let over = || Some(Event::Disconnected { timed_out: false });
    let two = Two::new()?;
    let (number, target) = (two.active.qpn(), two.passive.qpn());
    let disconnecting = two.active.disconnect()?;
    let told = two.passive.link().event_within(LIMIT)?;
    same(told, over(), "the target's link")?;
    let back = two.passive.disconnect()?.within(LIMIT)?;
    same((back.qpn(), back.state()), (target, QpState::ERR), "target")?;
    let qp = disconnecting.within(LIMIT)?;
    same((qp.qpn(), qp.state()), (number, QpState::ERR), "initiator")?;

    let two = Two::new()?;
    let disconnecting = two.passive.disconnect()?;
    let told = two.active.link().event_within(LIMIT)?;
    same(told, over(), "the initiator's link")?;
    two.active.disconnect()?.within(LIMIT)?;
    let mut back = disconnecting.within(LIMIT)?;
    same(back.query()?.state, QpState::ERR, "as the kernel says")
}

/// Catches ends that cannot be connected a second time, and one that goes without telling the other.
fn again() -> Result {
    let mut two = Two::new()?;
    two.talk(0)?;
    for round in 1..4u8 {
        let Two {
            active,
            passive,
            here,
            there,
            listener,
        } = two;
        let (mut qp, link) = active.into_parts();
        drop(link);
        let told = passive.link().event_within(LIMIT)?;
        same(
            told,
            Some(Event::Disconnected { timed_out: false }),
            "the end",
        )?;
        let (mut target, link) = passive.into_parts();
        drop(link);
        qp.reset()?;
        target.reset()?;
        let connecting = way_to(&listener)?.connect(qp, &Params::default(), &[round])?;
        let request = request(&listener)?;
        same(request.private_data()[0], round, "the request")?;
        request.init(&mut target)?;
        let number = there.one.number()?.to_be_bytes();
        let accepting = request.accept(target, &Params::default(), &number)?;
        let (qp, link) = connecting.within(LIMIT)?.into_parts();
        let (target, target_link) = accepting.within(LIMIT)?.into_parts();
        two = Two {
            active: Connection::from_parts(qp, link),
            passive: Connection::from_parts(target, target_link),
            here,
            there,
            listener,
        };
        two.talk(round.into())?;
    }
    Ok(())
}

/// Fails unless an attempt was refused for this reason and gave its queue pair back as it was.
#[track_caller]
fn refused(failed: Failed<Qp<Xrc>>, reason: RejectReason, number: u32) -> Result<Qp<Xrc>> {
    same(reason_of(&failed.error)?, reason, "the reason")?;
    let back = failed.back;
    same((back.qpn(), back.state()), (number, QpState::INIT), "back")?;
    Ok(back)
}

/// Catches an initiator that a refusal costs, and one that does not connect afterwards.
fn refusals_give_back() -> Result {
    let (here, there) = (Side::new()?, There::new()?);
    let gone = listener()?;
    let way = way_to(&gone)?;
    drop(gone);
    let qp = here.qp::<Xrc>()?;
    let number = qp.qpn();
    let Err(failed) = way.connect(qp, &Params::default(), b"")?.within(LIMIT) else {
        return fail("nobody listens");
    };
    let qp = refused(failed, RejectReason::NoListener, number)?;

    let listener = listener()?;
    let connecting = way_to(&listener)?.connect(qp, &Params::default(), b"")?;
    request(&listener)?.reject(b"no")?;
    let Err(failed) = connecting.within(LIMIT) else {
        return fail("nobody accepted");
    };
    let Cause::Refused(refusal) = failed.error.cause() else {
        return fail(format!("no refusal: {}", failed.error));
    };
    same(&refusal.private_data[..3], b"no\0", "the data")?;
    let qp = refused(failed, RejectReason::Consumer, number)?;

    let Err(failed) = way_to(&listener)?.connect(qp, &Params::default(), &[0; 57]) else {
        return fail("57 bytes of private data");
    };
    says(&failed, &["57 bytes of private data"])?;
    let (way, qp) = failed.back;
    let connecting = way.connect(qp, &Params::default(), b"")?;
    let accepting = request(&listener)?.accept(there.target()?, &Params::default(), b"")?;
    let (active, _passive) = both(connecting, accepting)?;
    same(active.qpn(), number, "the initiator")
}

/// Catches a target, or the request for it, that a failure costs.
fn targets_come_back() -> Result {
    let (here, there, listener) = (Side::new()?, There::new()?, listener()?);
    let connecting = way_to(&listener)?.connect(here.qp()?, &Params::default(), b"")?;
    let mut asked = request(&listener)?;
    let mut target = there.target()?;
    let number = target.qpn();
    if Hca::of_guest().is_some_and(|hca| hca.functions > 1) {
        let elsewhere = uverbs::open("mlx5_1")?.open_xrcd()?.create_target()?;
        let Err(failed) = asked.accept(elsewhere, &Params::default(), b"") else {
            return fail("a target of another device");
        };
        says(&failed, &["mlx5_1", "mlx5_0"])?;
        asked = failed.back.0;
    }
    let Err(failed) = asked.accept(target, &Params::default(), &[0; 197]) else {
        return fail("197 bytes of private data");
    };
    says(&failed, &["197 bytes of private data"])?;
    (asked, target) = failed.back;
    same(target.state(), QpState::RESET, "before it was touched")?;
    asked.init(&mut target)?;
    target.fail()?;
    let Err(failed) = asked.accept(target, &Params::default(), b"") else {
        return fail("a target in the state ERR");
    };
    says(&failed, &["IBV_QPS_ERR"])?;
    (asked, target) = failed.back;
    target.reset()?;
    let accepting = asked.accept(target, &Params::default(), b"")?;
    let (_, passive) = both(connecting, accepting)?;
    let (mut target, _) = passive.into_parts();
    same(target.qpn(), number, "the target that was accepted with")?;

    target.reset()?;
    let connecting = way_to(&listener)?.connect(here.qp()?, &Params::default(), b"")?;
    let asked = request(&listener)?;
    drop(connecting.cancel());
    let back = match asked.accept(target, &Params::default(), b"") {
        Err(failed) => failed.back.1,
        // Its word had not come yet.
        Ok(accepting) => match accepting.within(LIMIT) {
            Err(failed) => failed.back,
            Ok(_) => return fail("the peer is gone"),
        },
    };
    same(back.qpn(), number, "the target of a request that is over")
}

/// Catches a connection of two kinds: they share a space of ports.
fn of_its_kind_alone() -> Result {
    let (here, listener) = (Side::new()?, listener()?);
    let resolve = cm::resolve::<Uc>(listener.local_addr())?;
    let way = resolve.start()?.within(LIMIT)?;
    let connecting = way.connect(here.qp::<Uc>()?, &Params::default(), b"")?;
    let Err(failed) = connecting.within(LIMIT) else {
        return fail("a target took an unreliable connection");
    };
    same(reason_of(&failed.error)?, RejectReason::Consumer, "UC")?;
    says(&failed, &["of another kind"])?;
    same(listener.try_next()?.is_none(), true, "no request")?;
    let Err(taken) = cm::listen::<Uc>(listener.local_addr())?.start() else {
        return fail("two listeners on one port");
    };
    same(taken.errno(), Some(Errno::ADDRINUSE), "a port in use")?;
    let unreliable = cm::listen::<Uc>(own_address())?.start()?;
    let resolve = cm::resolve::<Xrc>(unreliable.local_addr())?;
    let way = resolve.start()?.within(LIMIT)?;
    let qp = here.qp::<Xrc>()?;
    let number = qp.qpn();
    let Err(failed) = way.connect(qp, &Params::default(), b"")?.within(LIMIT) else {
        return fail("a listener for unreliable connections took an initiator");
    };
    refused(failed, RejectReason::Consumer, number).map(drop)
}

/// Catches another wire than that of rdma-core's server, which tells the number of its queue in network byte
/// order, takes a message of 16 bytes, and ends the connection.
fn rdma_xserver() -> Result {
    let program = Program::on_any("rdma_xserver -c x")?;
    let mut side = Side::new()?;
    let mut connection = None;
    until_so(LIMIT, "the program listens", || {
        let way = cm::resolve::<Xrc>(address())?.start()?.within(LIMIT)?;
        match way
            .connect(side.qp()?, &Params::default(), b"")?
            .within(LIMIT)
        {
            Ok(made) => connection = Some(made),
            Err(failed) => same(reason_of(&failed.error)?, RejectReason::NoListener, "why")?,
        }
        Ok(connection.is_some())
    })?;
    let mut connection = connection.ok_or("no connection")?;
    let number = connection.private_data().first_chunk();
    let to = u32::from_be_bytes(*number.ok_or("no number came")?);
    connection.post(|batch| {
        batch.signaled(1).to(PeerSrq(to)).send(Inline(&[7; 16]))?;
        Ok(())
    })?;
    completion(&mut side.cq)?.is(WcOpcode::SEND)?;
    match connection.link().event_within(LIMIT)? {
        Some(Event::Disconnected { .. }) => {}
        other => return fail(format!("{other:?} and not the end")),
    }
    connection.disconnect()?.within(LIMIT)?;
    program.end()
}

/// Catches another wire than that of rdma-core's client, which sends 16 zeros to the queue that it is told,
/// and ends the connection.
fn rdma_xclient() -> Result {
    let mut there = There::new()?;
    let listener = cm::listen::<XrcTarget>(address())?.start()?;
    let program = Program::on_any("rdma_xclient -c x -s 10.9.0.1")?;
    let target = there.target()?;
    let at = target.qpn();
    let number = there.other.number()?.to_be_bytes();
    let accepting = request(&listener)?.accept(target, &Params::default(), &number)?;
    let stands = accepting.within(LIMIT);
    there.other.received(0, at, &[0; 16])?;
    match stands {
        Ok(connection) => {
            match connection.link().event_within(LIMIT)? {
                Some(Event::Disconnected { .. }) => {}
                other => return fail(format!("{other:?} and not the end")),
            }
            connection.disconnect()?.within(LIMIT)?;
        }
        // It does not wait for this side, so its end may overtake its confirmation: see `ground::both`.
        Err(failed) => same(failed.error.errno(), Some(Errno::CONNRESET), "the end")?,
    }
    program.end()
}
