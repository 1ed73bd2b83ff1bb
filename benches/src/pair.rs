//! Two queue pairs of this process that are connected to each other over the device's loopback.

use anyhow::Result;
use uverbs::{
    Access, Caps, CompletionChannel, ConnectOptions, Context, Cq, InDomain, Mr, ParentDomain, Pd,
    Qp, Rc, Srq, ThreadDomain, alloc::Arena, cq::CqBuilder, qp::Membership, query::LinkLayer,
};

/// Index of the GID that both programs use: on a soft-RoCE device with one IPv4 address, RoCE v2.
const GID_INDEX: u8 = 1;

/// Requests that a queue of a pair holds at least.
pub const DEPTH: u32 = 256;

/// Bytes of the arena, which hold the rings of a pair.
const ARENA: usize = 4 << 20;

/// The pair, with a completion queue for each side and memory to work on.
pub struct Pair {
    pd: ParentDomain,
    /// The receiving end of what was made last beside `here`.
    passive: Option<Qp<Rc>>,
    /// The side that is measured.
    pub here: Qp<Rc>,
    /// Its peer.
    pub there: Qp<Rc>,
    /// Completions of `here`.
    pub cq: Cq,
    /// Completions of `there`.
    pub peer_cq: Cq,
    /// Memory that `here` sends from and reads into.
    pub source: Mr<Vec<u8>>,
    /// Memory that `there` receives into and has read and written.
    pub target: Mr<Vec<u8>>,
}

impl Pair {
    /// Makes and connects a pair with `length` bytes of memory on each side.
    ///
    /// # Errors
    /// If the device refuses one of its objects.
    pub fn new(context: &Context, length: usize) -> Result<Self> {
        let cq = context.cq(2 * DEPTH);
        Self::on(&context.alloc_pd()?, [cq.clone(), cq], length)
    }

    /// As [`Self::new`]; the completion queues report to these channels, that of `here` to the first.
    ///
    /// # Errors
    /// If the device refuses one of its objects.
    pub fn with_channels(
        context: &Context,
        length: usize,
        channels: &[CompletionChannel; 2],
    ) -> Result<Self> {
        let [here, there] = channels;
        let cq = context.cq(2 * DEPTH);
        let cqs = [cq.clone().channel(here), cq.channel(there)];
        Self::on(&context.alloc_pd()?, cqs, length)
    }

    /// As [`Self::new`], on a parent domain whose rings lie in an arena.
    ///
    /// # Errors
    /// If the device refuses one of its objects.
    pub fn in_arena(context: &Context, length: usize) -> Result<Self> {
        let domain = context
            .alloc_pd()?
            .parent_domain()
            .allocator(Arena::new(vec![0u8; ARENA])?)
            .create()?;
        let cq = context.cq(2 * DEPTH).domain(&domain);
        Self::on(&domain, [cq.clone(), cq], length)
    }

    fn on(pd: &Pd, [cq, peer_cq]: [CqBuilder<'_>; 2], length: usize) -> Result<Self> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let source = pd.register(vec![1u8; length], access)?;
        let target = pd.register(vec![0u8; length], access)?;
        let peer_cq = peer_cq.create()?;
        let cq = cq.create()?;
        let caps = Caps {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            ..Caps::default()
        };
        let mut here = pd.create_qp::<Rc>(&cq, caps)?;
        let mut there = pd.create_qp::<Rc>(&peer_cq, caps)?;
        connect(&mut here, &mut there)?;
        Ok(Self {
            pd: pd.parent_domain().create()?,
            passive: None,
            here,
            there,
            cq,
            peer_cq,
            source,
            target,
        })
    }

    /// A shared receive queue of so many requests, and a queue pair whose messages are received into it: they
    /// complete on `cq`, and on `peer_cq`.
    ///
    /// # Errors
    /// If the device refuses one of its objects.
    pub fn share(&mut self, requests: u32) -> Result<(Srq, Qp<Rc>)> {
        let srq = self.pd.srq(requests).create()?;
        let caps = Caps {
            max_send_wr: DEPTH,
            ..Caps::default()
        };
        let mut here = self.pd.create_qp::<Rc>(&self.cq, caps)?;
        let mut there = self.pd.qp(&self.peer_cq).srq(&srq).caps(caps).create()?;
        connect(&mut here, &mut there)?;
        self.passive = Some(there);
        Ok((srq, here))
    }

    /// A thread domain and a queue pair of it, which completes on `cq`.
    ///
    /// # Errors
    /// If the device refuses one of its objects.
    pub fn in_thread_domain(&mut self) -> Result<(ThreadDomain, Qp<Rc, InDomain>)> {
        let td = self.pd.context().alloc_td();
        let domain = self.pd.parent_domain().thread_domain(&td).create()?;
        let caps = Caps {
            max_send_wr: DEPTH,
            ..Caps::default()
        };
        let mut here = domain.qp(&self.cq).caps(caps).create_in_domain::<Rc>()?;
        let mut there = domain.create_qp::<Rc>(&self.peer_cq, caps)?;
        connect(&mut here, &mut there)?;
        self.passive = Some(there);
        Ok((td, here))
    }
}

/// Connects two queue pairs.
pub(crate) fn connect<M: Membership>(here: &mut Qp<Rc, M>, there: &mut Qp<Rc>) -> Result<()> {
    let ethernet = here.context().query_port(1)?.link_layer == LinkLayer::ETHERNET;
    let options = ConnectOptions {
        gid_index: ethernet.then_some(GID_INDEX),
        ..ConnectOptions::default()
    };
    let (a, b) = (
        here.endpoint_with(&options)?,
        there.endpoint_with(&options)?,
    );
    here.connect_with(&b, &options)?;
    there.connect_with(&a, &options)?;
    Ok(())
}
