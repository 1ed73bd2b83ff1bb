//! Connections by address, made and ended: phase by phase for all of them, as `cmtime` of rdma-core does it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use uverbs::cm::{self, Params, Pending};
use uverbs::{Caps, Context, Cq, Pd, Qp, Rc};

/// How long one step of one connection may take.
const LIMIT: Duration = Duration::from_secs(60);

/// What the queue pairs of a side have in common.
struct Side {
    cq: Cq,
    pd: Pd,
}

impl Side {
    fn new(context: &Context) -> Result<Self> {
        Ok(Self {
            cq: context.create_cq(64)?,
            pd: context.alloc_pd()?,
        })
    }

    fn qp(&self) -> Result<Qp<Rc>> {
        let caps = Caps {
            max_send_wr: 1,
            max_recv_wr: 1,
            ..Caps::default()
        };
        Ok(self.pd.create_qp(&self.cq, caps)?)
    }
}

/// Accepts so many connections on a device and an address, and waits until their peers end them.
///
/// # Errors
/// If one cannot be accepted.
pub fn accept(device: &str, address: SocketAddr, count: usize) -> Result<()> {
    let side = Side::new(&uverbs::open(device)?)?;
    let listener = cm::listen::<Rc>(address)?.backlog(count.try_into()?);
    let listener = listener.start()?;
    println!("listening");
    let mut accepting = Vec::with_capacity(count);
    for _ in 0..count {
        let request = listener.next_within(LIMIT)?.context("no request")?;
        accepting.push(request.accept(side.qp()?, &Params::default(), b"")?);
    }
    let mut connections = Vec::with_capacity(count);
    for accepting in accepting {
        connections.push(accepting.within(LIMIT)?);
    }
    for connection in connections {
        connection.link().event_within(LIMIT)?.context("no end")?;
        connection.disconnect()?;
    }
    Ok(())
}

/// Makes so many connections to an address, and ends them; prints the microseconds that each phase takes for
/// one.
///
/// # Errors
/// If one cannot be made.
pub fn connect(address: SocketAddr, count: usize) -> Result<()> {
    let started = Instant::now();
    let mut phases = Phases::default();
    let mut resolving = Vec::with_capacity(count);
    for _ in 0..count {
        resolving.push(cm::resolve::<Rc>(address)?.start()?);
    }
    let mut ways = Vec::with_capacity(count);
    for resolving in resolving {
        ways.push(resolving.within(LIMIT)?);
    }
    phases.end("resolve");
    let device = ways
        .first()
        .context("no connection is asked for")?
        .device()?;
    let side = Side::new(&device.open()?)?;
    let queue_pairs: Vec<_> = (0..count).map(|_| side.qp()).collect::<Result<_>>()?;
    phases.end("create QP");
    let mut connecting = Vec::with_capacity(count);
    for (way, qp) in ways.into_iter().zip(queue_pairs) {
        connecting.push(way.connect(qp, &Params::default(), b"")?);
    }
    let mut connections = Vec::with_capacity(count);
    for connecting in connecting {
        connections.push(connecting.within(LIMIT)?);
    }
    phases.end("connect");
    let mut ending = Vec::with_capacity(count);
    for connection in connections {
        ending.push(connection.disconnect()?);
    }
    let mut queue_pairs = Vec::with_capacity(count);
    for ending in ending {
        queue_pairs.push(ending.within(LIMIT)?);
    }
    phases.end("disconnect");
    drop(queue_pairs);
    phases.end("destroy");
    let each = |time: Duration| time.as_micros() as f64 / count as f64;
    for (phase, time) in phases.all {
        println!("{phase:>12} {:9.1} us", each(time));
    }
    println!("{:>12} {:9.1} us", "in all", each(started.elapsed()));
    Ok(())
}

/// Phases that are over, and how long each took.
struct Phases {
    all: Vec<(&'static str, Duration)>,
    since: Instant,
}

impl Default for Phases {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            since: Instant::now(),
        }
    }
}

impl Phases {
    fn end(&mut self, name: &'static str) {
        self.all.push((name, self.since.elapsed()));
        self.since = Instant::now();
    }
}
