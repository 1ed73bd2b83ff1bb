//! Connections whose queue pairs are in a protection domain of one's choice: what reaches them by address is
//! not theirs.

use std::os::fd::AsFd;

use libtest_mimic::Trial;
use support::{LIMIT, Result, completion, open, same, test_without_leaks};
use uverbs::alloc::Arena;
use uverbs::cm::{Connection, Params, Pending};
use uverbs::qp::Membership;
use uverbs::{Access, Context, Cq, Inline, Mr, Pd, Qp, Rc, WcOpcode};

use crate::ground::{listener, request, way_to};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("domains::parents", parents),
        test_without_leaks("domains::of_threads", of_threads),
        test_without_leaks("domains::imported", imported),
        test_without_leaks("domains::shared_receives", shared_receives),
    ]
}

/// What a side has beside its protection domain.
struct Side {
    mr: Mr<Vec<u8>>,
    cq: Cq,
}

impl Side {
    fn on(pd: &Pd) -> Result<Self> {
        Ok(Self {
            mr: pd.register(vec![0; 64], Access::LOCAL_WRITE)?,
            cq: pd.context().create_cq(8)?,
        })
    }

    /// Waits for a message, which must be this.
    fn receives(&mut self, message: &[u8]) -> Result {
        let wc = completion(&mut self.cq)?.ok()?;
        same(wc.opcode, WcOpcode::RECV, "the completion")?;
        let mut bytes = vec![0; wc.byte_len as usize];
        self.mr.read_at(0, &mut bytes)?;
        same(&bytes[..], message, "what came")
    }

    /// Waits for a send to be done.
    fn has_sent(&mut self) -> Result {
        completion(&mut self.cq)?.is(WcOpcode::SEND).map(drop)
    }
}

/// Two that are connected.
type Two<M, N> = (Connection<Qp<Rc, M>>, Connection<Qp<Rc, N>>);

/// Connects two queue pairs. The active one has a receive posted, and the passive one too if it has receives
/// of its own.
fn connect<M: Membership, N: Membership>(
    (here, mut active): (&Side, Qp<Rc, M>),
    (there, mut passive): (&Side, Qp<Rc, N>),
    has_receives: bool,
) -> Result<Two<M, N>> {
    let listener = listener()?;
    let way = way_to(listener.local_addr())?;
    way.init(&mut active)?;
    receive(here, &mut active)?;
    let connecting = way.connect(active, &Params::default(), b"request")?;
    let request = request(&listener)?;
    request.init(&mut passive)?;
    if has_receives {
        receive(there, &mut passive)?;
    }
    let accepting = request.accept(passive, &Params::default(), b"acceptance")?;
    Ok((connecting.within(LIMIT)?, accepting.within(LIMIT)?))
}

fn receive<M: Membership>(side: &Side, qp: &mut Qp<Rc, M>) -> Result {
    let mut batch = qp.recv_batch();
    batch.post(1, side.mr.slice(..)?)?;
    batch.ring();
    Ok(())
}

fn send(connection: &mut Connection<Qp<Rc>>, message: &[u8]) -> Result {
    connection.post(|batch| {
        batch.signaled(2).send(Inline(message))?;
        Ok(())
    })?;
    Ok(())
}

/// Waits until what one side has sent is received by the other.
fn arrives(message: &[u8], from: &mut Side, to: &mut Side) -> Result {
    from.has_sent()?;
    to.receives(message)
}

/// A message each way between queue pairs in these protection domains.
fn over(here: &Pd, there: &Pd) -> Result {
    let (mut one, mut other) = (Side::on(here)?, Side::on(there)?);
    let active = here.qp(&one.cq).create()?;
    let passive = there.qp(&other.cq).create()?;
    let (mut active, mut passive) = connect((&one, active), (&other, passive), true)?;
    send(&mut active, b"there")?;
    arrives(b"there", &mut one, &mut other)?;
    send(&mut passive, b"and back")?;
    arrives(b"and back", &mut other, &mut one)
}

/// Catches queue pairs whose rings lie in a user's memory and that are made anew, or not found, on their way
/// to a connection.
fn parents() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let domain = pd
        .parent_domain()
        .allocator(Arena::new(vec![0u8; 4 << 20])?);
    let domain = domain.create()?;
    over(&domain, &pd)?;
    over(&pd, &domain)
}

/// Catches queue pairs that leave their thread domain when they are connected.
fn of_threads() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let mut td = context.alloc_td();
    let domain = pd.parent_domain().thread_domain(&td).create()?;
    let (mut one, mut other) = (Side::on(&domain)?, Side::on(&pd)?);
    let active = domain.qp(&one.cq).create_in_domain()?;
    let passive = pd.qp(&other.cq).create()?;
    let (mut active, mut passive) = connect((&one, active), (&other, passive), true)?;
    active.one(&mut td, 2)?.send(Inline(b"there"))?;
    arrives(b"there", &mut one, &mut other)?;
    send(&mut passive, b"and back")?;
    arrives(b"and back", &mut other, &mut one)?;
    // The other way round, by the queue pairs that the connection gives back.
    let ending = active.disconnect()?;
    let mut passive = passive.disconnect()?.within(LIMIT)?;
    let mut active = ending.within(LIMIT)?;
    active.reset()?;
    passive.reset()?;
    let (mut passive, mut active) = connect((&other, passive), (&one, active), true)?;
    active.one(&mut td, 2)?.send(Inline(b"again"))?;
    arrives(b"again", &mut one, &mut other)?;
    send(&mut passive, b"as well")?;
    arrives(b"as well", &mut other, &mut one)
}

/// Catches a protection domain that another process could have made, and that a connection does not take.
fn imported() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let duplicate = Context::import(context.as_fd().try_clone_to_owned()?)?;
    let same_pd = duplicate.import_pd(pd.handle())?;
    over(&same_pd, &pd)?;
    over(&pd, &same_pd)
}

/// Catches a request that is answered as by a queue pair with receives of its own.
fn shared_receives() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let (mut one, mut other) = (Side::on(&pd)?, Side::on(&pd)?);
    let mut srq = pd.srq(4).create()?;
    let mut batch = srq.batch();
    batch.post(1, other.mr.slice(..)?)?;
    batch.ring();
    let active = pd.qp(&one.cq).create::<Rc>()?;
    let passive = pd.qp(&other.cq).srq(&srq).create::<Rc>()?;
    let (mut active, mut passive) = connect((&one, active), (&other, passive), false)?;
    send(&mut active, b"there")?;
    arrives(b"there", &mut one, &mut other)?;
    send(&mut passive, b"and back")?;
    arrives(b"and back", &mut other, &mut one)
}
