//! What the tests stand on: the device's address, queue pairs to connect, and two that are.

use std::net::{IpAddr, SocketAddr};

use support::{LIMIT, Result, completion, open, same};
use uverbs::cm::{self, Connection, Failed, Listener, Params, Pending, Request, Resolved};
use uverbs::transport::{StaticTransport, Transport};
use uverbs::{Access, Caps, Cause, Context, Cq, Inline, Mr, Pd, Qp, Rc, WcOpcode};

/// An address of the device under test, with a port that the kernel chooses.
pub(crate) fn own_address() -> SocketAddr {
    // The guest's first function has it.
    SocketAddr::new(IpAddr::from([10, 9, 0, 1]), 0)
}

/// Objects of one side.
pub(crate) struct Side {
    pub(crate) mr: Mr<Vec<u8>>,
    pub(crate) cq: Cq,
    pub(crate) pd: Pd,
}

impl Side {
    pub(crate) fn new() -> Result<Self> {
        Self::on(&open()?)
    }

    pub(crate) fn on(context: &Context) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        Ok(Self {
            mr: pd.register(vec![0; 4096], all)?,
            cq: context.create_cq(64)?,
            pd,
        })
    }

    pub(crate) fn qp<T: StaticTransport>(&self) -> Result<Qp<T>> {
        Ok(self.pd.create_qp(&self.cq, Caps::default())?)
    }

    /// Posts a receive of 64 bytes.
    pub(crate) fn receive<T: Transport>(&self, qp: &mut Qp<T>) -> Result {
        let slice = self.mr.slice(..64)?;
        let mut batch = qp.recv_batch();
        batch.post(1, slice)?;
        batch.ring();
        Ok(())
    }

    /// Takes the completion of the receive and gives what came.
    pub(crate) fn received(&mut self) -> Result<Vec<u8>> {
        let wc = completion(&mut self.cq)?.ok()?;
        same(wc.opcode, WcOpcode::RECV, "the completion")?;
        let mut bytes = vec![0; wc.byte_len as usize];
        self.mr.read_at(0, &mut bytes)?;
        Ok(bytes)
    }
}

pub(crate) fn listener() -> Result<Listener<Rc>> {
    Ok(cm::listen::<Rc>(own_address())?.start()?)
}

/// The way to a listener.
pub(crate) fn way_to(peer: SocketAddr) -> Result<Resolved<Rc>> {
    Ok(cm::resolve::<Rc>(peer)?.start()?.within(LIMIT)?)
}

/// The next request of a listener.
pub(crate) fn request(listener: &Listener<Rc>) -> Result<Request<Rc>> {
    Ok(listener.next_within(LIMIT)?.ok_or("no request came")?)
}

/// Both ends of a connection, once both stand.
///
/// The side that asked keeps its end until then. The kernel handles messages in order on one CPU and not on
/// two. So the message that ends the connection may overtake the one that confirms it, and then accepting
/// fails (`cm_dreq_handler` in drivers/infiniband/core/cm.c).
pub(crate) fn both<A: Pending, P: Pending>(
    connecting: A,
    accepting: P,
) -> Result<(A::Output, P::Output)> {
    let active = connecting.within(LIMIT).map_err(error)?;
    let passive = accepting.within(LIMIT).map_err(error)?;
    Ok((active, passive))
}

/// The error of a step, without the queue pair: the wire goes only without users.
pub(crate) fn error<B>(failed: Failed<B>) -> uverbs::Error {
    failed.error
}

/// Fails unless a step that failed says of which connection and why, and gave its queue pair back.
pub(crate) fn failed_well(failed: &Failed<Qp<Rc>>, number: u32) -> Result {
    let words = failed.error.to_string();
    same(words.contains("on connection"), true, &words)?;
    let named = matches!(
        failed.error.cause(),
        Cause::TimedOut(_) | Cause::Refused(_) | Cause::Os(_)
    );
    same(named, true, &words)?;
    same(failed.back.qpn(), number, "the queue pair")
}

/// Two connected sides; each has a receive posted.
pub(crate) struct Two {
    pub(crate) active: Connection<Qp<Rc>>,
    pub(crate) passive: Connection<Qp<Rc>>,
    pub(crate) here: Side,
    pub(crate) there: Side,
    pub(crate) listener: Listener<Rc>,
}

impl Two {
    pub(crate) fn new() -> Result<Self> {
        Self::with(&Params::default(), &Params::default())
    }

    pub(crate) fn with(active: &Params, passive: &Params) -> Result<Self> {
        Self::at(listener()?, &open()?, active, passive)
    }

    /// On the device of a listener.
    pub(crate) fn at(
        listener: Listener<Rc>,
        context: &Context,
        active: &Params,
        passive: &Params,
    ) -> Result<Self> {
        let way = way_to(listener.local_addr())?;
        Self::by(way, listener, [context; 2], active, passive)
    }

    /// By a way to a listener, on the devices of both.
    pub(crate) fn by(
        way: Resolved<Rc>,
        listener: Listener<Rc>,
        [here, there]: [&Context; 2],
        active: &Params,
        passive: &Params,
    ) -> Result<Self> {
        let (here, there) = (Side::on(here)?, Side::on(there)?);
        let mut qp = here.qp()?;
        way.init(&mut qp)?;
        here.receive(&mut qp)?;
        let data: &[u8] = match way.local_ib() {
            // The kernel has the first byte, and the second must not look like the start of IP addresses.
            Some(_) => b"\0 request",
            None => b"request",
        };
        let connecting = way.connect(qp, active, data)?;
        let request = request(&listener)?;
        let mut qp = there.qp()?;
        request.init(&mut qp)?;
        there.receive(&mut qp)?;
        let accepting = request.accept(qp, passive, b"acceptance")?;
        let (active, passive) = both(connecting, accepting)?;
        Ok(Self {
            active,
            passive,
            here,
            there,
            listener,
        })
    }

    /// A message each way.
    pub(crate) fn talk(&mut self) -> Result {
        self.active.post(|batch| {
            batch.signaled(2).send(Inline(b"to the listener"))?;
            Ok(())
        })?;
        same(completion(&mut self.here.cq)?.wr_id, 2, "the send")?;
        same(self.there.received()?, b"to the listener".to_vec(), "there")?;
        self.passive.post(|batch| {
            batch.signaled(3).send(Inline(b"and back"))?;
            Ok(())
        })?;
        same(completion(&mut self.there.cq)?.wr_id, 3, "the send")?;
        same(self.here.received()?, b"and back".to_vec(), "here")
    }
}
