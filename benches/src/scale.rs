//! Many queue pairs on one completion queue, and many regions: what each of them takes.
//!
//! A queue pair is connected to itself. What is printed is a line of four numbers for each number of queue
//! pairs: nanoseconds to set one up, bytes of resident memory that it takes, nanoseconds of a post and of a
//! polled completion. For regions there are the first two. `rdma_core.c` prints the same.

use std::fs;
use std::ptr::NonNull;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use uverbs::{Access, Caps, ConnectOptions, Context, Cq, Mr, Pd, Qp, Rc, mr::RawMemory, qp::Mtu};

/// Requests between two polls. They go round the queue pairs.
const ROUND: usize = 64;

/// How often requests are posted and polled.
const ROUNDS: usize = 15;

/// Bytes of a request, and of a region that is one of many.
const LENGTH: usize = 8;
const PAGE: usize = 4096;

/// Longer than the device takes for a round's requests.
const SETTLE: Duration = Duration::from_millis(30);

/// How many are made that are not counted: they touch what all share.
const FIRST: usize = 8;

/// Makes so many of something. It is the same code for those that are counted and those that are not.
#[inline(never)]
fn several<T>(count: usize, make: impl Fn() -> Result<T>) -> Result<Vec<T>> {
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        all.push(make()?);
    }
    Ok(all)
}

/// Makes so many queue pairs, uses them, and prints the line of numbers.
///
/// # Errors
/// If the device refuses an object or a request.
pub fn queue_pairs(device: &str, count: usize) -> Result<()> {
    let context = uverbs::open(device)?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(2 * ROUND as u32)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = pd.register(vec![0; PAGE], access)?;
    // All is queried beforehand, as the C program does.
    let options = ConnectOptions {
        path_mtu: Some(Mtu::MTU_1024),
        ..ConnectOptions::default()
    };
    let options = options.queried(&context)?;
    let _first = several(FIRST, || connected(&pd, &cq, &options))?;
    let (resident, started) = (resident()?, Instant::now());
    let mut qps = several(count, || connected(&pd, &cq, &options))?;
    let set_up = started.elapsed().as_nanos() / count as u128;
    let bytes = grown(resident)? / count as u64;
    let (mut posts, mut polls) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (post, poll) = once(&mut qps, &mut cq, &mr, round * ROUND)?;
        posts.push(post);
        polls.push(poll);
    }
    println!("{set_up} {bytes} {} {}", middle(posts), middle(polls));
    Ok(())
}

fn connected(pd: &Pd, cq: &Cq, options: &ConnectOptions) -> Result<Qp<Rc>> {
    let caps = Caps {
        max_send_wr: ROUND as u32,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let mut qp = pd.create_qp::<Rc>(cq, caps)?;
    let itself = qp.endpoint_with(options)?;
    qp.connect_with(&itself, options)?;
    Ok(qp)
}

/// Posts a round from that queue pair on, then polls its completions: the nanoseconds of one of each.
fn once(qps: &mut [Qp<Rc>], cq: &mut Cq, mr: &Mr<Vec<u8>>, from: usize) -> Result<(u64, u64)> {
    let (local, remote) = (mr.slice(..LENGTH)?, mr.remote().slice(..LENGTH)?);
    let count = qps.len();
    let started = Instant::now();
    for index in from..from + ROUND {
        let mut batch = qps[index % count].batch();
        batch.signaled(index as u64).write(local, remote)?;
        batch.ring()?;
    }
    let post = started.elapsed();
    thread::sleep(SETTLE);
    let started = Instant::now();
    let mut left = ROUND;
    while left > 0 {
        for completion in &mut cq.poll()? {
            completion.result()?;
            left -= 1;
        }
    }
    let poll = started.elapsed();
    let each = |time: Duration| time.as_nanos() as u64 / ROUND as u64;
    Ok((each(post), each(poll)))
}

/// Makes so many regions of the same page, and prints the line of numbers.
///
/// # Errors
/// If the device refuses one.
pub fn regions(device: &str, count: usize) -> Result<()> {
    let context: Context = uverbs::open(device)?;
    let pd = context.alloc_pd()?;
    let mut page = vec![0u8; 2 * PAGE];
    let address = NonNull::new(page.as_mut_ptr()).context("no memory")?;
    let region = || -> Result<_> {
        // SAFETY: the page outlives the regions, and no request uses it.
        let memory = unsafe { RawMemory::new(address, PAGE) };
        let made = pd.register(memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        Ok(made.map_err(|failed| failed.error)?)
    };
    let _first = several(FIRST, region)?;
    let (resident, started) = (resident()?, Instant::now());
    let all = several(count, region)?;
    let set_up = started.elapsed().as_nanos() / count as u128;
    println!("{set_up} {}", grown(resident)? / count as u64);
    drop(all);
    drop(page);
    Ok(())
}

/// Bytes of this process that are in memory. Twice, since the first look itself touches code and data.
fn resident() -> Result<u64> {
    look()?;
    look()
}

fn look() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.context("no resident memory is told")?.parse::<u64>()? << 10)
}

fn grown(from: u64) -> Result<u64> {
    let now = resident()?;
    ensure!(now >= from, "resident memory has shrunk");
    Ok(now - from)
}

fn middle(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}
