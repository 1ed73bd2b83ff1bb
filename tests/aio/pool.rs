//! Pools: what buffers are, where their memory comes from, and what a pool does when it is empty.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use libtest_mimic::Trial;
use support::{LIMIT, Result, fail, open, same, says, test_without_leaks};
use uverbs::alloc::{
    AllocError, Allocation, Allocator, BufferRequest, Counting, ResourceType, SharedMemfd,
};
use uverbs::buf::{GetError, Pool};
use uverbs::{Rc, Srd};

use crate::count::allocations;
use crate::ground::{Reliable, Two, over};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 10] = [
        ("pool::buffers_are_alone", buffers_are_alone),
        ("pool::parts_share_a_block", parts_share_a_block),
        ("pool::its_bound_holds", its_bound_holds),
        ("pool::waits_when_it_is_empty", waits_when_it_is_empty),
        (
            "pool::waits_where_it_cannot_grow",
            waits_where_it_cannot_grow,
        ),
        ("pool::threads_grow_it_once", threads_grow_it_once),
        ("pool::memory_of_an_allocator", memory_of_an_allocator),
        ("pool::a_key_for_each_domain", a_key_for_each_domain),
        ("pool::nothing_is_allocated", nothing_is_allocated),
        ("pool::outlived_by_its_buffers", || {
            over(
                outlived_by_its_buffers::<Rc>,
                outlived_by_its_buffers::<Srd>,
            )
        }),
    ];
    tests
        .map(|(name, run)| test_without_leaks(name, run))
        .into()
}

/// Catches blocks that overlap, and lengths beyond a block.
fn buffers_are_alone() -> Result {
    let pd = open()?.alloc_pd()?;
    let pool = Pool::on(&pd).sizes([100, 1000]).limit(1 << 20).build()?;
    let mut bufs = Vec::new();
    for fill in 0..64u8 {
        let mut buf = pool.try_get(if fill % 2 == 0 { 100 } else { 129 })?;
        same(buf.len(), 0, "nothing is filled")?;
        same(
            buf.capacity(),
            if fill % 2 == 0 { 128 } else { 1024 },
            "the size",
        )?;
        buf.whole_mut().fill(fill);
        bufs.push(buf);
    }
    for (fill, buf) in bufs.iter_mut().enumerate() {
        let whole = buf.capacity();
        buf.set_len(whole)?;
        same(
            buf.iter().all(|byte| usize::from(*byte) == fill),
            true,
            "its bytes",
        )?;
        same(buf.set_len(whole + 1).is_err(), true, "a length beyond it")?;
        same(
            buf.extend_from_slice(b"x").is_err(),
            true,
            "a byte beyond it",
        )?;
    }
    same(pool.stats().in_use(), 64, "in use")?;
    drop(bufs);
    same(pool.stats().in_use(), 0, "in use at the end")?;
    match pool.try_get(1025) {
        Err(GetError::TooLarge {
            asked: 1025,
            largest: 1024,
        }) => Ok(()),
        other => fail(format!("{other:?}")),
    }
}

/// Catches a block that goes back while a part of it is in use.
fn parts_share_a_block() -> Result {
    let pd = open()?.alloc_pd()?;
    let pool = Pool::on(&pd).sizes([4096]).build()?;
    let mut head = pool.try_get(4096)?;
    head.extend_from_slice(b"head and tail")?;
    let mut tail = head.split_off(5);
    same((head.len(), head.capacity()), (5, 5), "the head")?;
    same(
        (&*tail, tail.capacity()),
        (&b"and tail"[..], 4091),
        "the tail",
    )?;
    tail.extend_from_slice(b" end")?;
    let frozen = tail.freeze();
    let (clone, part) = (frozen.clone(), frozen.slice(4..8));
    same(&*part, &b"tail"[..], "a part")?;
    drop((head, frozen));
    same(pool.stats().in_use(), 1, "one block")?;
    let Err(clone) = clone.try_into_buf() else {
        return fail("there is a part of it");
    };
    drop(part);
    let Ok(mut buf) = clone.try_into_buf() else {
        return fail("nobody else has it");
    };
    buf[0] = b'A';
    same(&*buf, &b"And tail end"[..], "the bytes")?;
    drop(buf);
    same(pool.stats().in_use(), 0, "no block")
}

/// Catches a pool that has more memory than it may.
fn its_bound_holds() -> Result {
    let pd = open()?.alloc_pd()?;
    let pool = Pool::on(&pd).sizes([4096, 65536]).limit(3 << 20).build()?;
    same(pool.stats().memory, 0, "memory before the first buffer")?;
    let mut small = Vec::new();
    let refused = loop {
        match pool.try_get(1) {
            Ok(buf) => small.push(buf),
            Err(error) => break error,
        }
    };
    same(refused, GetError::Empty { size: 4096 }, "the refusal")?;
    same(small.len(), 768, "small buffers")?;
    same(pool.stats().memory, 3 << 20, "memory")?;
    // Nothing is left for the others, and nothing ever will be.
    let large = pool.get_within(5000, LIMIT);
    same(
        large.err(),
        Some(GetError::Empty { size: 65536 }),
        "a large one",
    )?;
    let invalid = Pool::on(&pd).sizes([4096]).limit(100).build();
    says(&invalid.err().ok_or("built")?, &["pool", "4096", "100"])?;
    // More than a request names.
    let invalid = Pool::on(&pd).sizes([3 << 30]).limit(1 << 40).build();
    says(
        &invalid.err().ok_or("built")?,
        &["pool", "3221225472", "2147483648"],
    )
}

/// Catches somebody who waits and is not woken, and a wait without an end.
fn waits_when_it_is_empty() -> Result {
    let pd = open()?.alloc_pd()?;
    let pool = Pool::on(&pd).sizes([4096]).limit(4096).build()?;
    let buf = pool.try_get(1)?;
    let short = Duration::from_millis(5);
    same(
        pool.get_within(1, short).err(),
        Some(GetError::Empty { size: 4096 }),
        "nobody gave one back",
    )?;
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| pool.get_within(1, LIMIT).map(drop)))
            .collect();
        support::until("somebody waits", || {
            Ok((pool.stats().classes[0].waits >= 4).then_some(()))
        })?;
        drop(buf);
        for thread in waiting {
            thread.join().map_err(|_| "a panic")??;
        }
        same(pool.stats().in_use(), 0, "in use")
    })
}

/// Memory of the system, so often; before each grant `wait` is asked.
pub(crate) struct Few<W> {
    left: AtomicUsize,
    wait: W,
}

impl<W> Few<W> {
    pub(crate) fn new(grants: usize, wait: W) -> Self {
        Self {
            left: AtomicUsize::new(grants),
            wait,
        }
    }
}

// SAFETY: it has no memory of its own.
unsafe impl<W: Fn() + Send + Sync + 'static> Allocator for Few<W> {
    fn allocate(&self, _: &BufferRequest) -> std::result::Result<Allocation, AllocError> {
        (self.wait)();
        let less = |left: usize| left.checked_sub(1);
        let granted = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        match granted {
            Ok(_) => Ok(Allocation::Default),
            Err(_) => Err(AllocError::new("that was the last one")),
        }
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, _: &BufferRequest) {
        panic!("{memory:?} was never granted");
    }
}

/// Catches somebody who is told that a pool cannot grow, where a buffer comes back.
fn waits_where_it_cannot_grow() -> Result {
    let pd = open()?.alloc_pd()?;
    let pool = Pool::on(&pd)
        .sizes([4096])
        .limit(1 << 20)
        .allocator(Few::new(1, || ()))
        .build()?;
    let mut all = Vec::new();
    let refused = loop {
        match pool.try_get(1) {
            Ok(buf) => all.push(buf),
            Err(error) => break error,
        }
    };
    says(&refused, &["that was the last one"])?;
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pool.get_within(1, LIMIT).map(drop));
        support::until("somebody waits", || {
            let over = waiting.is_finished() || pool.stats().classes[0].waits > 0;
            Ok(over.then_some(()))
        })?;
        drop(all.pop());
        waiting.join().map_err(|_| "a panic")??;
        Ok(())
    })
}

/// Catches threads that each grow a pool, where the first one's chunk is enough for all.
fn threads_grow_it_once() -> Result {
    const THREADS: usize = 16;
    let pd = open()?.alloc_pd()?;
    let asking = Arc::new(AtomicUsize::new(0));
    let all_ask = {
        let asking = Arc::clone(&asking);
        move || {
            while asking.load(Ordering::Relaxed) < THREADS {
                std::thread::yield_now();
            }
        }
    };
    let pool = Pool::on(&pd)
        .sizes([4096])
        .limit(64 << 20)
        .allocator(Few::new(THREADS, all_ask))
        .build()?;
    let barrier = Barrier::new(THREADS);
    let bufs = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    asking.fetch_add(1, Ordering::Relaxed);
                    pool.try_get(1)
                })
            })
            .collect();
        let bufs = threads.into_iter().map(|thread| thread.join());
        bufs.map(|buf| Ok(buf.map_err(|_| "a panic")??))
            .collect::<Result<Vec<_>>>()
    })?;
    same(bufs.len(), THREADS, "buffers")?;
    same(pool.stats().memory, 2 << 20, "memory: one chunk")
}

/// Catches memory that is not the allocator's, or that does not go back to it.
fn memory_of_an_allocator() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let counting = Arc::new(Counting::new(SharedMemfd::new(8 << 20)?));
    let pool = Pool::on(&pd)
        .sizes([65536])
        .allocator(Arc::clone(&counting))
        .build()?;
    let mut buf = pool.try_get(1)?;
    buf.extend_from_slice(b"seen through the file")?;
    let live = |counting: &Counting<SharedMemfd>| {
        counting
            .counts()
            .get(&ResourceType::POOL)
            .map_or(0, |counts| counts.live())
    };
    same(live(&counting), 1, "buffers of the allocator")?;
    let address = std::ptr::NonNull::from(&*buf);
    same(counting.inner().offset(address), Some(0), "its place")?;
    drop((buf, pool));
    same(live(&counting), 0, "buffers of the allocator at the end")?;
    // That of a domain is the default.
    let domain = pd
        .parent_domain()
        .allocator(Arc::clone(&counting))
        .create()?;
    let pool = Pool::on(&domain).sizes([65536]).build()?;
    let buf = pool.try_get(1)?;
    same(live(&counting), 1, "buffers of the domain's allocator")?;
    drop((buf, pool));
    same(
        live(&counting),
        0,
        "buffers of the domain's allocator at the end",
    )
}

/// Catches a buffer that is registered on one domain alone, and a domain that can go too early.
fn a_key_for_each_domain() -> Result {
    let (context, other) = (open()?, open()?);
    let (here, there) = (context.alloc_pd()?, other.alloc_pd()?);
    let elsewhere = context.alloc_pd()?;
    let pool = Pool::on(&here)
        .and(&there)
        .sizes([4096])
        .remote_read()
        .build()?;
    let busy = there.dealloc().err().ok_or("it is in use")?;
    says(&busy.error, &["buffer pool"])?;
    let there = busy.object;
    let mut buf = pool.try_get(1)?;
    buf.extend_from_slice(b"both")?;
    let (first, second) = (buf.remote(&here), buf.remote(&there));
    let (first, second) = (first.ok_or("not here")?, second.ok_or("not there")?);
    same(first.length, 4, "what is filled")?;
    same(first.address, second.address, "the address")?;
    same(buf.remote(&elsewhere), None, "another domain")?;
    // Without being asked for it, peers get nothing.
    let private = Pool::on(&here).sizes([4096]).build()?;
    same(
        private.try_get(1)?.remote(&here),
        None,
        "a pool without remote rights",
    )
}

/// Catches a pool that allocates, or grows, for each buffer.
fn nothing_is_allocated() -> Result {
    let pd = open()?.alloc_pd()?;
    let pool = Pool::on(&pd).sizes([4096]).build()?;
    drop(pool.try_get(1)?);
    let before = allocations();
    for _ in 0..1000 {
        let mut one = pool.try_get(4096)?;
        let other = one.split_off(2048).freeze();
        drop((one, other.clone(), other));
    }
    same(allocations() - before, 0, "allocations")
}

/// Catches memory that goes with the pool's last handle while a buffer is in use.
fn outlived_by_its_buffers<T: Reliable>() -> Result {
    let two = Two::<T>::usual()?;
    let mut buf = two.buf(b"still here")?;
    drop(two);
    buf[0] = b'S';
    same(&*buf, &b"Still here"[..], "the bytes")
}
