//! What the tests stand on: two queue pairs that reach each other on one completion queue, and a pool.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake};

use support::{Device, QKEY, Result, device, kernel, only_on_rxe, open, own_path, same, skip};
use uverbs::aio::{Cq, Op, Payload, Post, Qp, Read, Readable, Sent, Wait};
use uverbs::buf::{Buf, Pool};
use uverbs::transport::StaticTransport;
use uverbs::{Access, Ah, Caps, ConnectOptions, Context, Mr, Pd, Rc, RemoteSlice, Srd};

/// A transport over which messages come whole, and once.
pub(crate) trait Reliable: StaticTransport + Sized {
    /// The most inline bytes that every device has for it.
    const INLINE: u32;

    /// Messages come in the order in which they were sent.
    const IS_ORDERED: bool;

    /// What peers may do to regions.
    const OPEN: Access;

    /// What a request is told of the way to its peer.
    type Way: Send + Sync + 'static;

    /// A test that WRITEs is skipped where the kernel's driver has none.
    fn needs_writes() -> Result;

    /// Makes two queue pairs ready to talk to each other.
    fn meet(pd: &Pd, a: &mut Qp<Self>, b: &mut Qp<Self>) -> Result<Self::Way>;

    /// Sends to the queue pair of this number, which `from` has met; with immediate data if there are any.
    fn send<B: Payload>(
        from: &mut impl Post<Self>,
        way: &Self::Way,
        to: u32,
        bytes: B,
        imm: Option<u32>,
    ) -> Op<Sent<B>>;

    /// Writes to memory behind the queue pair of this number; with immediate data if there are any.
    fn write<B: Payload>(
        from: &mut Qp<Self>,
        way: &Self::Way,
        to: u32,
        bytes: B,
        there: RemoteSlice,
        imm: Option<u32>,
    ) -> Op<Sent<B>>;

    /// Reads memory behind the queue pair of this number.
    fn read(
        from: &mut Qp<Self>,
        way: &Self::Way,
        of: u32,
        into: Buf,
        there: RemoteSlice,
    ) -> Op<Read>;
}

impl Reliable for Rc {
    const INLINE: u32 = 64;

    const IS_ORDERED: bool = true;

    const OPEN: Access = ALL;

    type Way = ();

    fn needs_writes() -> Result {
        Ok(())
    }

    fn meet(_: &Pd, a: &mut Qp<Self>, b: &mut Qp<Self>) -> Result {
        connect(a, b)
    }

    fn send<B: Payload>(
        from: &mut impl Post<Self>,
        (): &(),
        _: u32,
        bytes: B,
        imm: Option<u32>,
    ) -> Op<Sent<B>> {
        match imm {
            None => from.send(bytes),
            Some(imm) => from.send_imm(bytes, imm),
        }
    }

    fn write<B: Payload>(
        from: &mut Qp<Self>,
        (): &(),
        _: u32,
        bytes: B,
        there: RemoteSlice,
        imm: Option<u32>,
    ) -> Op<Sent<B>> {
        match imm {
            None => from.write(bytes, there),
            Some(imm) => from.write_imm(bytes, there, imm),
        }
    }

    fn read(from: &mut Qp<Self>, (): &(), _: u32, into: Buf, there: RemoteSlice) -> Op<Read> {
        from.read(into, there)
    }
}

impl Reliable for Srd {
    const INLINE: u32 = 32;

    const IS_ORDERED: bool = false;

    const OPEN: Access = Access::LOCAL_WRITE
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_WRITE);

    type Way = Ah;

    fn needs_writes() -> Result {
        match kernel() < (6, 12) {
            true => skip("the driver of Linux 6.1 has no WRITE"),
            false => Ok(()),
        }
    }

    fn meet(pd: &Pd, a: &mut Qp<Self>, b: &mut Qp<Self>) -> Result<Ah> {
        for qp in [a, b] {
            qp.activate(QKEY, &ConnectOptions::default())?;
        }
        Ok(pd.create_ah(&own_path(pd.context())?)?)
    }

    fn send<B: Payload>(
        from: &mut impl Post<Self>,
        way: &Ah,
        to: u32,
        bytes: B,
        imm: Option<u32>,
    ) -> Op<Sent<B>> {
        let to = way.to(to, QKEY);
        match imm {
            None => from.to(to).send(bytes),
            Some(imm) => from.to(to).send_imm(bytes, imm),
        }
    }

    fn write<B: Payload>(
        from: &mut Qp<Self>,
        way: &Ah,
        to: u32,
        bytes: B,
        there: RemoteSlice,
        imm: Option<u32>,
    ) -> Op<Sent<B>> {
        let to = way.to(to, QKEY);
        match imm {
            None => from.to(to).write(bytes, there),
            Some(imm) => from.to(to).write_imm(bytes, there, imm),
        }
    }

    fn read(from: &mut Qp<Self>, way: &Ah, of: u32, into: Buf, there: RemoteSlice) -> Op<Read> {
        from.to(way.to(of, QKEY)).read(into, there)
    }
}

/// A test over connections, or where there are none over reliable datagrams.
pub(crate) fn over(connections: fn() -> Result, datagrams: fn() -> Result) -> Result {
    match device() {
        Device::Efa => datagrams(),
        Device::Rxe | Device::Mlx5 { .. } => connections(),
    }
}

/// Ends a test of a device that is removed while it is in use, where none can be.
pub(crate) fn only_where_devices_go() -> Result {
    only_on_rxe("here soft-RoCE's device goes")?;
    match kernel() < (7, 3) {
        true => skip("before Linux 7.3 soft-RoCE's device stays until its last user has gone"),
        false => Ok(()),
    }
}

/// Queue pairs that talk to each other.
pub(crate) struct Two<T: Reliable = Rc> {
    pub(crate) a: Qp<T>,
    pub(crate) b: Qp<T>,
    pub(crate) way: T::Way,
    pub(crate) cq: Cq,
    pub(crate) pool: Pool,
    pub(crate) pd: Pd,
    pub(crate) context: Context,
}

/// What peers may do to regions.
pub(crate) const ALL: Access = support::ALL;

/// With connections.
impl Two {
    pub(crate) fn new() -> Result<Self> {
        Self::usual()
    }

    pub(crate) fn with(caps: Caps) -> Result<Self> {
        Self::sized(caps)
    }
}

impl<T: Reliable> Two<T> {
    /// With the transport's own limits.
    pub(crate) fn usual() -> Result<Self> {
        Self::sized(Caps {
            max_inline_data: T::INLINE,
            ..Caps::default()
        })
    }

    pub(crate) fn sized(caps: Caps) -> Result<Self> {
        let context = open()?;
        let pd = context.alloc_pd()?;
        let entries = 2 * (caps.max_send_wr + caps.max_recv_wr);
        let cq = Cq::new(&context, entries)?;
        let pool = Pool::on(&pd).sizes([256, 4096]).limit(8 << 20).build()?;
        let mut a = cq.create_qp::<T>(&pd, caps)?;
        let mut b = cq.create_qp::<T>(&pd, caps)?;
        let way = T::meet(&pd, &mut a, &mut b)?;
        Ok(Self {
            a,
            b,
            way,
            cq,
            pool,
            pd,
            context,
        })
    }

    /// Memory that peers may do everything with.
    pub(crate) fn region(&self, bytes: usize) -> Result<Mr<Vec<u8>>> {
        Ok(self.pd.register(vec![0; bytes], T::OPEN)?)
    }

    /// Sends from `a` to `b`.
    pub(crate) fn send<B: Payload>(&mut self, bytes: B) -> Op<Sent<B>> {
        let to = self.b.qpn();
        T::send(&mut self.a, &self.way, to, bytes, None)
    }

    /// Writes from `a` to memory behind `b`.
    pub(crate) fn write<B: Payload>(&mut self, bytes: B, there: RemoteSlice) -> Op<Sent<B>> {
        let to = self.b.qpn();
        T::write(&mut self.a, &self.way, to, bytes, there, None)
    }

    /// Reads memory behind `b` to `a`.
    pub(crate) fn read(&mut self, into: Buf, there: RemoteSlice) -> Op<Read> {
        let of = self.b.qpn();
        T::read(&mut self.a, &self.way, of, into, there)
    }

    /// Runs a future to its end on this thread, which pumps.
    pub(crate) fn run<F: Future>(&self, future: F) -> Result<F::Output> {
        Ok(self.cq.block_on(future)?)
    }

    /// Has a message go from `a` to `b` at the end of a pause, in which whoever takes completions falls
    /// asleep.
    pub(crate) async fn message_after(&mut self, pause: impl Future) -> Result {
        let received = self.b.recv(self.pool.try_get(256)?);
        pause.await;
        let bytes = self.buf(b"here")?;
        self.send(bytes).await.0?;
        received.await.0?;
        Ok(())
    }

    /// A buffer that is filled with these bytes.
    pub(crate) fn buf(&self, bytes: &[u8]) -> Result<Buf> {
        filled(&self.pool, bytes)
    }

    /// Every buffer is in the pool.
    pub(crate) fn nothing_is_missing(&self) -> Result {
        same(self.pool.stats().in_use(), 0, "buffers in use")
    }
}

/// A completion queue and a pool on one PD.
pub(crate) struct Side {
    pub(crate) cq: Cq,
    pub(crate) pool: Pool,
    pub(crate) pd: Pd,
}

impl Side {
    pub(crate) fn new() -> Result<Self> {
        let context = open()?;
        let pd = context.alloc_pd()?;
        Ok(Self {
            cq: Cq::new(&context, 256)?,
            pool: Pool::on(&pd).sizes([256]).build()?,
            pd,
        })
    }

    /// A queue pair that is not connected yet.
    pub(crate) fn qp<T: StaticTransport>(&self) -> Result<Qp<T>> {
        Ok(self.cq.create_qp(&self.pd, Caps::default())?)
    }
}

/// Runs a future while completions are taken by what is lent for it, and drops both when it has its result.
pub(crate) async fn served<F: Future>(cq: &Cq, by: impl Readable, work: F) -> Result<F::Output> {
    let (mut work, mut serving) = (pin!(work), pin!(cq.serve(by, Wait::Park)));
    poll_fn(|cx| {
        if let Poll::Ready(output) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        serving.as_mut().poll(cx).map(|error| Err(error.into()))
    })
    .await
}

/// Notes that a task is to be polled.
#[derive(Default)]
pub(crate) struct Woken(AtomicBool);

impl Woken {
    /// Whether it is to be polled since this was asked last.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A buffer of a pool that is filled with these bytes.
pub(crate) fn filled(pool: &Pool, bytes: &[u8]) -> Result<Buf> {
    let mut buf = pool.try_get(bytes.len())?;
    buf.extend_from_slice(bytes)?;
    Ok(buf)
}

/// Connects two queue pairs of one process.
pub(crate) fn connect(a: &mut Qp<Rc>, b: &mut Qp<Rc>) -> Result {
    let options = ConnectOptions {
        access: ALL,
        ..ConnectOptions::default()
    };
    let (here, there) = (a.endpoint_with(&options)?, b.endpoint_with(&options)?);
    a.connect_with(&there, &options)?;
    b.connect_with(&here, &options)?;
    Ok(())
}
