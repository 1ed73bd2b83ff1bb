//! Pools: registered memory in blocks of a few sizes.

use std::borrow::Borrow;
use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use uverbs_uapi::flags::Access;

use super::chunk::Chunk;
use super::error::GetError;
use super::filled::Buf;
use super::free::{FreeList, Ticket};
use super::growing::Growing;
use super::home::Home;
use crate::alloc::{Allocator, Buffers, Dmabufs};
use crate::callbacks::each;
use crate::error::{Error, Result, Subject, Verb};
use crate::pd::{Pd, PdUse, User};
use crate::work::{LONGEST, PdTag};

/// What is missing if an allocator's answer to a pool is a dma-buf.
const NO_DMABUFS: &str = "a pool in a dma-buf: its regions are registered by address";

/// Buffers start at multiples of this, so that no two of them share a cache line.
const ALIGNMENT: usize = 64;

/// The largest buffers: one request moves no more.
const LARGEST: usize = LONGEST as usize;

/// Bytes that a pool grows by, unless one buffer is larger: a huge page of the usual size.
const CHUNK: usize = 2 << 20;

/// The description of a pool to make.
#[must_use = "nothing is made before `build`"]
pub struct PoolBuilder {
    pds: Vec<Pd>,
    sizes: Vec<usize>,
    limit: usize,
    access: Access,
    allocator: Option<Arc<dyn Allocator>>,
}

impl PoolBuilder {
    /// Also registers the memory on this protection domain, of the same device or another one. A buffer then
    /// has a key for each.
    pub fn and(mut self, pd: &Pd) -> Self {
        self.pds.push(pd.share());
        self
    }

    /// The sizes of buffers, in bytes, each rounded up to a multiple of 64. The default is 4 KiB, 64 KiB and
    /// 1 MiB.
    pub fn sizes(mut self, sizes: impl IntoIterator<Item = usize>) -> Self {
        self.sizes = sizes.into_iter().collect();
        self
    }

    /// The maximum memory of the pool, in bytes; 64 MiB by default. The pool grows on demand, by 2 MiB or by
    /// one large buffer, and keeps what it has. Memory of one buffer size is not reused for another.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Takes the memory from this allocator, such as huge pages or pages of a NUMA node. By default it comes
    /// from the allocator of the first protection domain, if that is a parent domain with an allocator,
    /// otherwise from the system. The request has the type
    /// [`ResourceType::POOL`](crate::alloc::ResourceType::POOL).
    ///
    /// The allocator may ask the pool for buffers. While its thread makes the pool grow by buffers of a size,
    /// it gets one of these only if one is free. It must not wait for another thread that takes a buffer.
    pub fn allocator(mut self, allocator: impl Allocator) -> Self {
        self.allocator = Some(Arc::new(allocator));
        self
    }

    /// Lets peers read the memory if they have the key of a buffer. The key covers the buffer's whole chunk.
    /// See [`Buf::remote`].
    pub fn remote_read(mut self) -> Self {
        self.access |= Access::REMOTE_READ;
        self
    }

    /// Creates the pool. It has no memory yet: a high limit costs neither time nor memory now.
    ///
    /// # Errors
    ///
    /// There is no size, or a size is 0, beyond the limit, or more than a request moves, which is 2 GiB.
    pub fn build(self) -> Result<Pool> {
        let invalid = |why: String| Error::invalid(Verb::AllocBuffer, Subject::the("pool"), why);
        let mut sizes: Vec<usize> = Vec::with_capacity(self.sizes.len());
        let most = self.limit.min(LARGEST);
        for size in self.sizes {
            let rounded = size.checked_next_multiple_of(ALIGNMENT);
            match rounded {
                Some(rounded) if size > 0 && rounded <= most => sizes.push(rounded),
                _ => {
                    let why = format!("buffers of {size} bytes with a limit of {most}");
                    return Err(invalid(why));
                }
            }
        }
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.is_empty() {
            return Err(invalid("there are no sizes of buffers".into()));
        }
        let first = &self.pds[0];
        let buffers = match self.allocator {
            Some(allocator) => Some(Buffers {
                allocator,
                live: Arc::clone(first.context().live_buffers()),
                pd: first.handle(),
                domain: 0,
                dmabufs: Dmabufs::Refused(NO_DMABUFS),
                unmapped: None,
            }),
            None => {
                let buffers = first.buffers();
                buffers.map(|buffers| buffers.without_dmabufs(NO_DMABUFS))
            }
        };
        // In a small pool the first chunk of a size must not take all memory.
        let chunk = CHUNK.min(self.limit / (4 * sizes.len()));
        let users = self.pds.iter().map(|pd| pd.user(User::Pool)).collect();
        Ok(Pool(Arc::new(Inner {
            classes: sizes
                .iter()
                .map(|size| Class::new(*size, self.limit, chunk))
                .collect(),
            limit: self.limit,
            room: Mutex::default(),
            grown: Condvar::new(),
            access: self.access,
            buffers,
            first_pd: first.tag(),
            pds: self.pds.into(),
            _users: users,
        })))
    }
}

impl fmt::Debug for PoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder")
            .field("sizes", &self.sizes)
            .field("limit", &self.limit)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// Registered memory in buffers of a few sizes. Clones share the pool; it lives as long as a clone or a
/// buffer of it.
///
/// ```no_run
/// use uverbs::buf::Pool;
/// # fn fill(pd: &uverbs::Pd) -> Result<(), Box<dyn std::error::Error>> {
/// let pool = Pool::on(pd).build()?;
/// let mut buf = pool.try_get(4096)?;          // at least that large; empty
/// buf.extend_from_slice(b"hello")?;
/// let one = buf.freeze();
/// drop(one);                                  // back in the pool with the last clone
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

/// What a pool shares with its buffers.
#[derive(Debug)]
pub(super) struct Inner {
    classes: Box<[Class]>,
    limit: usize,
    /// Not held while a chunk is made: that calls the user's allocator, and subscribers of traces, who may
    /// ask the pool for something.
    room: Mutex<Room>,
    /// A chunk that was being made is there, or could not be made.
    grown: Condvar,
    access: Access,
    buffers: Option<Buffers>,
    /// The tag of the first of `pds`.
    first_pd: PdTag,
    pds: Box<[Pd]>,
    _users: Box<[PdUse]>,
}

/// The bytes of a pool.
#[derive(Debug, Default)]
struct Room {
    /// Of all chunks.
    made: usize,
    /// Of chunks that are being made: they come back if that fails.
    pending: usize,
}

impl Room {
    fn taken(&self) -> usize {
        self.made + self.pending
    }
}

/// The buffers of one size.
#[derive(Debug)]
pub(super) struct Class {
    size: usize,
    /// Blocks of a chunk; the last chunk may have fewer.
    per_chunk: u32,
    free: FreeList,
    chunks: Growing<OnceLock<Chunk>>,
    /// A thread makes a chunk. Relaxed: read and written under the pool's lock.
    grows: AtomicBool,
    /// Blocks of all chunks. Written by the thread that makes one. Relaxed: what there is of a block goes by
    /// the list of those that are free, and the next chunk by the pool's lock.
    blocks: AtomicU32,
    /// Buffers in use. Relaxed: for statistics.
    in_use: AtomicU32,
    /// How often a task or a thread waited. Relaxed: for statistics.
    waits: AtomicU64,
}

/// The most blocks of a size: their numbers have 32 bits less one value.
fn most_blocks(size: usize, limit: usize) -> u32 {
    (limit / size).min(u32::MAX as usize - 1) as u32
}

impl Class {
    /// Buffers of a size, in chunks of about `chunk` bytes.
    fn new(size: usize, limit: usize, chunk: usize) -> Self {
        let most = most_blocks(size, limit);
        let per_chunk = (chunk / size).clamp(1, most as usize) as u32;
        Self {
            size,
            per_chunk,
            free: FreeList::new(),
            chunks: Growing::new(),
            grows: AtomicBool::new(false),
            blocks: AtomicU32::new(0),
            in_use: AtomicU32::new(0),
            waits: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The chunk of a block, and the block's index in it.
    #[inline]
    pub(super) fn chunk(&self, block: u32) -> Option<(&Chunk, u32)> {
        let chunk = self.chunks.get(block / self.per_chunk)?;
        Some((chunk.get()?, block % self.per_chunk))
    }

    fn buffers(&self) -> usize {
        self.blocks.load(Ordering::Relaxed) as usize
    }

    /// How many blocks the next chunk has if there is memory for them; 0 if none comes any more.
    fn next_chunk(&self, limit: usize) -> u32 {
        let there = self.blocks.load(Ordering::Relaxed);
        // The last chunk may have fewer blocks than others. None is added after it.
        match there.is_multiple_of(self.per_chunk) {
            true => self.per_chunk.min(most_blocks(self.size, limit) - there),
            false => 0,
        }
    }

    /// Adds a chunk of `blocks` blocks, all of which are free. One thread at a time does so.
    fn add(&self, chunk: Chunk, blocks: u32) {
        let first = self.blocks.load(Ordering::Relaxed);
        let number = first / self.per_chunk;
        self.chunks.reach(number + 1);
        if let Some(place) = self.chunks.get(number) {
            // After the last chunk, so it was not set.
            let _ = place.set(chunk);
        }
        self.free.reach(first + blocks);
        self.blocks.store(first + blocks, Ordering::Relaxed);
        // Each, even if one wakes a task whose waker panics.
        each((first..first + blocks).rev(), |block| self.free.give(block));
    }
}

thread_local! {
    /// How many chunks this thread is making: more than one if an allocator takes buffers of a pool.
    static MAKING: Cell<u32> = const { Cell::new(0) };
}

/// A chunk of a class that this thread makes.
struct Growth<'p> {
    pool: &'p Inner,
    class: &'p Class,
    /// Bytes that were set aside for it.
    bytes: usize,
    is_made: bool,
}

impl<'p> Growth<'p> {
    /// Sets memory aside for a chunk of the class.
    fn begin(pool: &'p Inner, class: &'p Class, room: &mut Room, bytes: usize) -> Self {
        room.pending += bytes;
        class.grows.store(true, Ordering::Relaxed);
        MAKING.set(MAKING.get() + 1);
        Self {
            pool,
            class,
            bytes,
            is_made: false,
        }
    }

    /// The chunk has been made.
    fn end(mut self, chunk: Chunk, blocks: u32) {
        self.is_made = true;
        self.class.add(chunk, blocks);
    }
}

/// It was made, or it was not, and may have panicked: others may try now.
impl Drop for Growth<'_> {
    fn drop(&mut self) {
        MAKING.set(MAKING.get() - 1);
        let mut room = self.pool.room();
        room.pending -= self.bytes;
        if self.is_made {
            room.made += self.bytes;
        }
        self.class.grows.store(false, Ordering::Relaxed);
        drop(room);
        self.pool.grown.notify_all();
    }
}

impl Inner {
    #[inline]
    pub(super) fn class(&self, class: u32) -> Option<&Class> {
        self.classes.get(class as usize)
    }

    /// The protection domain whose key each buffer carries itself.
    #[inline]
    pub(super) fn first_pd(&self) -> PdTag {
        self.first_pd
    }

    /// Whether peers may reach the memory.
    pub(super) fn is_remote(&self) -> bool {
        self.access.contains(Access::REMOTE_READ)
    }

    /// Takes back a block that has no handle any more.
    #[inline]
    pub(super) fn give(&self, class: u32, block: u32) {
        if let Some(class) = self.class(class) {
            class.in_use.fetch_sub(1, Ordering::Relaxed);
            class.free.give(block);
        }
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        // Nothing can panic between the changes of its numbers.
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a chunk of a size; false if there is no memory left for one, or if this thread is making a chunk
    /// already and another one is in its way: one of this size, or one that has the rest of the memory.
    #[cold]
    fn grow(&self, class: &Class) -> Result<bool> {
        let mut room = self.room();
        let blocks = loop {
            // Somebody else did meanwhile, or gave one back.
            if class.free.has_any() {
                return Ok(true);
            }
            let is_growing = class.grows.load(Ordering::Relaxed);
            let wanted = class.next_chunk(self.limit);
            let fit = (self.limit - room.taken()) / class.size;
            let blocks = (wanted as usize).min(fit) as u32;
            // What is only set aside comes back if its chunk cannot be made.
            let may_change = is_growing || blocks < wanted && room.pending > 0;
            // An allocator, or a subscriber, that takes buffers of the pool for which it is called would wait
            // for itself; or for one that waits for it.
            if may_change && MAKING.get() == 0 {
                let woken = self.grown.wait(room);
                room = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if is_growing || blocks == 0 {
                return Ok(false);
            }
            break blocks;
        };
        let growth = Growth::begin(self, class, &mut room, class.size * blocks as usize);
        drop(room);
        let chunk = Chunk::new(
            (class.size, blocks),
            &self.pds,
            self.buffers.as_ref(),
            self.access,
        )?;
        growth.end(chunk, blocks);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::ptr::NonNull;
    use std::sync::{Barrier, Weak, mpsc};

    use super::*;
    use crate::alloc::{AllocError, Allocation, BufferRequest};

    fn on_nothing() -> PoolBuilder {
        let (_, file) = rustix::pipe::pipe().unwrap();
        let context = crate::Context::over(file);
        let stand = crate::pd::Stand::Imported(None);
        Pool::on(&Pd::new(context, uverbs_uapi::handle::PdHandle(1), stand))
    }

    /// Would catch lists whose length follows the limit: this once took all memory of the machine.
    #[test]
    fn a_limit_costs_nothing() {
        let pool = on_nothing().sizes([64, 4096]).limit(usize::MAX);
        let pool = pool.build().unwrap();
        assert_eq!(pool.stats().limit, usize::MAX);
        assert_eq!(pool.stats().memory, 0);
    }

    /// What calls this as an allocator, and gives no memory.
    struct Calls<F>(F);

    // SAFETY: it gives no memory.
    unsafe impl<F: Fn() + Send + Sync + 'static> Allocator for Calls<F> {
        fn allocate(&self, _: &BufferRequest) -> std::result::Result<Allocation, AllocError> {
            (self.0)();
            Err(AllocError::new("none"))
        }

        unsafe fn free(&self, _: NonNull<[u8]>, _: &BufferRequest) {}
    }

    /// A pool of up to four buffers of 64 and of 4096 bytes, whose allocator does this.
    fn that_calls(act: impl Fn(&Pool) + Send + Sync + 'static) -> Pool {
        with_limit(16384, act)
    }

    /// A pool of buffers of 64 and of 4096 bytes, whose allocator does this.
    fn with_limit(limit: usize, act: impl Fn(&Pool) + Send + Sync + 'static) -> Pool {
        let of: Arc<OnceLock<Weak<Inner>>> = Arc::default();
        let itself = Arc::clone(&of);
        let pool = on_nothing().sizes([64, 4096]).limit(limit);
        let pool = pool.allocator(Calls(move || {
            if let Some(pool) = itself.get().and_then(Weak::upgrade) {
                act(&Pool(pool));
            }
        }));
        let pool = pool.build().unwrap();
        of.set(Arc::downgrade(&pool.0)).unwrap();
        pool
    }

    /// Would catch an allocator that is called under the pool's lock: one that looks at the pool, prints it,
    /// or takes buffers of it would wait for itself.
    #[test]
    fn an_allocator_may_use_the_pool_that_calls_it() {
        let (told, heard) = mpsc::channel();
        let pool = that_calls(move |pool| {
            // It is called for both sizes, one from within the other.
            let memory = pool.stats().memory;
            let empty = pool.try_get(64).unwrap_err();
            let _ = told.send((memory, format!("{pool:?}"), empty));
        });
        let thread = std::thread::spawn(move || {
            assert!(matches!(pool.try_get(4096), Err(GetError::Memory(_))));
            pool
        });
        let told = |_| heard.recv_timeout(Duration::from_secs(60)).unwrap();
        let (small, _, empty) = told(());
        assert_eq!(empty, GetError::Empty { size: 64 }, "it grows already");
        let (large, printed, failed) = told(());
        assert!(
            matches!(failed, GetError::Memory(_)),
            "it grows from within"
        );
        assert!(printed.contains("memory"));
        assert!(small > large && large >= 4096, "what is being made counts");
        let pool = thread.join().unwrap();
        assert_eq!(pool.stats().memory, 0, "nothing was made");
        assert_eq!(MAKING.get(), 0);
    }

    /// Would catch a thread that finds the pool empty while another one makes it grow, and one that waits for
    /// ever because the other one's allocator panics or fails.
    #[test]
    fn a_thread_waits_for_another_that_makes_the_pool_grow() {
        let (calls, called) = mpsc::channel();
        let go_on = Arc::new(Barrier::new(2));
        let pool = that_calls({
            let (go_on, calls) = (Arc::clone(&go_on), Mutex::new(calls));
            move |_| {
                calls.lock().unwrap().send(thread::current().id()).unwrap();
                go_on.wait();
            }
        });
        let get = |pool: &Pool| {
            let pool = pool.clone();
            thread::spawn(move || pool.try_get(64).unwrap_err())
        };
        let called = || called.recv_timeout(Duration::from_secs(60)).unwrap();
        let first = get(&pool);
        assert_eq!(called(), first.thread().id());
        let second = get(&pool);
        thread::sleep(Duration::from_millis(50));
        assert!(!second.is_finished(), "it does not wait");
        go_on.wait();
        // The first one found no memory, so the second one looks for some.
        assert_eq!(called(), second.thread().id());
        go_on.wait();
        for thread in [first, second] {
            assert!(matches!(thread.join().unwrap(), GetError::Memory(_)));
        }
        assert_eq!(pool.stats().memory, 0);
    }

    /// Would catch a thread that is told that there will never be a buffer while the memory is only set aside
    /// for another size, whose chunk cannot be made.
    #[test]
    fn a_thread_waits_for_memory_that_is_only_set_aside() {
        let (calls, called) = mpsc::channel();
        let go_on = Arc::new(Barrier::new(2));
        let pool = with_limit(4096, {
            let (go_on, calls) = (Arc::clone(&go_on), Mutex::new(calls));
            move |pool| {
                // Its own thread does not wait.
                let size = if pool.stats().memory == 4096 {
                    64
                } else {
                    4096
                };
                assert_eq!(pool.try_get(size).unwrap_err(), GetError::Empty { size });
                calls.lock().unwrap().send(thread::current().id()).unwrap();
                go_on.wait();
            }
        });
        let get = |size| {
            let pool = pool.clone();
            thread::spawn(move || pool.try_get(size).unwrap_err())
        };
        let called = || called.recv_timeout(Duration::from_secs(60)).unwrap();
        let large = get(4096);
        assert_eq!(called(), large.thread().id());
        let small = get(64);
        thread::sleep(Duration::from_millis(50));
        assert!(!small.is_finished(), "it does not wait");
        go_on.wait();
        assert_eq!(called(), small.thread().id());
        go_on.wait();
        for thread in [large, small] {
            assert!(matches!(thread.join().unwrap(), GetError::Memory(_)));
        }
        assert_eq!(pool.stats().memory, 0);
    }

    /// Would catch a wait that counts again each time its task is polled.
    #[test]
    fn a_wait_counts_once() {
        let pool = Pool::of_memory(64, 1);
        let waits = || pool.stats().classes[0].waits;
        let mut buf = pool.try_get(1).unwrap();
        let mut wanted = Wanted::of(&pool, 1);
        let mut cx = Context::from_waker(Waker::noop());
        for count in [1, 2] {
            for _ in 0..3 {
                assert!(wanted.poll(&mut cx).is_pending());
            }
            assert_eq!(waits(), count);
            drop(buf);
            let Poll::Ready(Ok(next)) = wanted.poll(&mut cx) else {
                panic!("it is free");
            };
            buf = next;
        }
    }

    /// Would catch blocks that nobody gets any more because of a waker that panics when a chunk is there.
    #[test]
    fn a_waker_that_panics_costs_no_block() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("a waker");
            }
        }
        let pool = on_nothing().sizes([64]).limit(64 * 64).build().unwrap();
        let class = pool.first_class();
        let waker = Waker::from(Arc::new(Panics));
        let mut cx = Context::from_waker(&waker);
        let waits = class.free.poll_take(&mut cx, &mut Ticket::default());
        assert!(waits.is_pending());
        let blocks = class.per_chunk;
        let added = catch_unwind(AssertUnwindSafe(|| {
            class.add(Chunk::of_memory((64, blocks)), blocks);
        }));
        assert!(added.is_err(), "nobody was woken");
        let there = std::iter::from_fn(|| class.free.take()).count();
        assert_eq!(there, blocks as usize);
    }

    /// Would catch wakers of futures that were dropped: they pile up while no buffer comes back.
    #[test]
    fn a_dropped_get_leaves_nothing() {
        let pool = Pool::of_memory(64, 1);
        let buf = pool.try_get(1).unwrap();
        let woken = Arc::new(Unpark(thread::current()));
        let waker = Waker::from(Arc::clone(&woken));
        for _ in 0..3 {
            let mut get = Box::pin(pool.get(1));
            assert!(
                get.as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            );
            assert_eq!(Arc::strong_count(&woken), 3);
            drop(get);
            assert_eq!(Arc::strong_count(&woken), 2);
        }
        assert!(pool.get_within(1, Duration::ZERO).is_err());
        drop(buf);
    }

    /// Would catch blocks that are lost or given twice where chunks meet, and a last chunk that is not
    /// found.
    #[test]
    fn each_block_of_each_chunk_is_there_once() {
        for blocks in [1, 4, 8, 9, 100] {
            let pool = Pool::of_memory(64, blocks);
            let all: Vec<Buf> = std::iter::from_fn(|| pool.take(0)).collect();
            let mut places: Vec<_> = all.iter().map(|buf| buf.as_ptr()).collect();
            places.sort();
            places.dedup();
            assert_eq!(places.len(), blocks as usize);
            assert_eq!(pool.stats().in_use(), blocks as usize);
            drop(all);
            assert_eq!(pool.stats().in_use(), 0);
            assert!(pool.take(0).is_some());
        }
    }
}

#[cfg(test)]
impl Pool {
    /// A pool of `blocks` buffers of one size, registered on no device.
    pub(super) fn of_memory(size: usize, blocks: u32) -> Self {
        let (_, file) = rustix::pipe::pipe().unwrap();
        let context = crate::Context::over(file);
        let stand = crate::pd::Stand::Imported(None);
        let pd = Pd::new(context, uverbs_uapi::handle::PdHandle(1), stand);
        let limit = size * blocks as usize;
        let pool = Pool::on(&pd).sizes([size]).limit(limit).build().unwrap();
        let class = &pool.0.classes[0];
        while class.buffers() < blocks as usize {
            let more = class.per_chunk.min(blocks - class.buffers() as u32);
            class.add(Chunk::of_memory((size, more)), more);
        }
        pool
    }

    /// Its smallest buffers.
    pub(super) fn first_class(&self) -> &Class {
        &self.0.classes[0]
    }
}

impl Pool {
    /// Starts the description of a pool whose memory is registered on a protection domain.
    ///
    /// The device may read and write it; peers have no access.
    pub fn on(pd: &Pd) -> PoolBuilder {
        PoolBuilder {
            pds: vec![pd.share()],
            sizes: vec![4 << 10, 64 << 10, 1 << 20],
            limit: 64 << 20,
            access: Access::LOCAL_WRITE,
            allocator: None,
        }
    }

    /// A buffer for at least `bytes` bytes, if one is free or the pool can grow.
    ///
    /// # Errors
    ///
    /// No buffer is free ([`GetError::Empty`]), none is large enough, or the pool could not grow.
    #[inline]
    pub fn try_get(&self, bytes: usize) -> Result<Buf, GetError> {
        let class = self.class_for(bytes)?;
        loop {
            if let Some(buf) = self.take(class) {
                return Ok(buf);
            }
            self.grow_or_fail(class)?;
        }
    }

    /// Like [`try_get`](Self::try_get), but waits for a buffer to be returned if all are in use and the pool
    /// cannot grow. Waiters are served in no particular order.
    ///
    /// # Errors
    ///
    /// As for `try_get`, if no buffer of the size exists that could be returned. [`GetError::Empty`] means
    /// that there will never be one: buffers of other sizes use all the memory.
    pub async fn get(&self, bytes: usize) -> Result<Buf, GetError> {
        let mut wanted = Wanted::of(self, bytes);
        poll_fn(|cx| wanted.poll(cx)).await
    }

    /// Like [`get`](Self::get), but blocks the thread for at most `limit`.
    ///
    /// # Errors
    ///
    /// As for `get`, and as for `try_get` if none was returned in time.
    pub fn get_within(&self, bytes: usize, limit: Duration) -> Result<Buf, GetError> {
        let deadline = Instant::now().checked_add(limit);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut cx = Context::from_waker(&waker);
        let mut wanted = Wanted::of(self, bytes);
        loop {
            if let Poll::Ready(got) = wanted.poll(&mut cx) {
                return got;
            }
            match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return self.try_get(bytes),
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
    }

    /// The class of the smallest buffers that hold `bytes` bytes.
    #[inline]
    fn class_for(&self, bytes: usize) -> Result<u32, GetError> {
        let classes = &self.0.classes;
        match classes.iter().position(|class| class.size >= bytes) {
            Some(class) => Ok(class as u32),
            None => Err(GetError::TooLarge {
                asked: bytes,
                largest: classes.last().map_or(0, |class| class.size),
            }),
        }
    }

    /// Whether it has buffers for `bytes` bytes.
    pub(crate) fn has_class_for(&self, bytes: usize) -> bool {
        self.class_for(bytes).is_ok()
    }

    #[inline]
    fn take(&self, class: u32) -> Option<Buf> {
        let block = self.0.class(class)?.free.take()?;
        self.buf(class, block)
    }

    #[inline]
    fn buf(&self, class: u32, block: u32) -> Option<Buf> {
        let buf = Home::new(&self.0, class, block).map(Buf::new)?;
        let of = self.0.class(class)?;
        of.in_use.fetch_add(1, Ordering::Relaxed);
        Some(buf)
    }

    #[cold]
    fn grow_or_fail(&self, class: u32) -> Result<(), GetError> {
        let class = &self.0.classes[class as usize];
        match self.0.grow(class) {
            Ok(true) => Ok(()),
            Ok(false) => Err(GetError::Empty { size: class.size }),
            Err(error) => Err(GetError::Memory(error)),
        }
    }

    /// The pool's current size and use.
    pub fn stats(&self) -> PoolStats {
        let memory = self.0.room().taken();
        let class = |class: &Class| ClassStats {
            size: class.size,
            buffers: class.buffers(),
            in_use: class.in_use.load(Ordering::Relaxed) as usize,
            waits: class.waits.load(Ordering::Relaxed),
        };
        PoolStats {
            memory,
            limit: self.0.limit,
            classes: self.0.classes.iter().map(class).collect(),
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.stats(), f)
    }
}

/// A buffer that somebody waits for. It leaves no waker behind, where perhaps no buffer ever comes back.
pub(crate) struct Wanted<P: Borrow<Pool> = Pool> {
    pool: P,
    bytes: usize,
    ticket: Ticket,
    /// It waits since an earlier poll.
    waits: bool,
}

impl<P: Borrow<Pool>> Wanted<P> {
    /// A buffer for at least `bytes` bytes.
    pub(crate) fn of(pool: P, bytes: usize) -> Self {
        Self {
            pool,
            bytes,
            ticket: Ticket::default(),
            waits: false,
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Buf, GetError>> {
        let (pool, bytes) = (self.pool.borrow(), self.bytes);
        let has_waited = std::mem::take(&mut self.waits);
        match pool.try_get(bytes) {
            Err(error @ (GetError::Empty { .. } | GetError::Memory(_))) => {
                let index = pool.class_for(bytes)?;
                let class = &pool.0.classes[index as usize];
                if class.buffers() == 0 {
                    return Poll::Ready(Err(error));
                }
                let Poll::Ready(block) = class.free.poll_take(cx, &mut self.ticket) else {
                    self.waits = true;
                    if !has_waited {
                        class.waits.fetch_add(1, Ordering::Relaxed);
                    }
                    return Poll::Pending;
                };
                Poll::Ready(pool.buf(index, block).ok_or(error))
            }
            got => Poll::Ready(got),
        }
    }
}

impl<P: Borrow<Pool>> Drop for Wanted<P> {
    fn drop(&mut self) {
        // As many bytes lead to the same class each time.
        let pool = self.pool.borrow();
        if let Ok(class) = pool.class_for(self.bytes) {
            pool.0.classes[class as usize].free.leave(&mut self.ticket);
        }
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// How much memory a pool has, and how much of it is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes that are registered.
    pub memory: usize,
    /// The most bytes that it may register.
    pub limit: usize,
    /// By size, the smallest first.
    pub classes: Vec<ClassStats>,
}

impl PoolStats {
    /// Buffers in use, of all sizes.
    pub fn in_use(&self) -> usize {
        self.classes.iter().map(|class| class.in_use).sum()
    }
}

/// The buffers of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassStats {
    /// Bytes of each.
    pub size: usize,
    /// How many there are.
    pub buffers: usize,
    /// How many of them are in use: held by the program or by a request. A block that was split counts once.
    pub in_use: usize,
    /// How often a task or a thread had to wait for one.
    pub waits: u64,
}
