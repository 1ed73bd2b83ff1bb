//! Two processes that move messages between them and wait for events, as perftest's programs do with `-e`:
//! the same work in the same order, so that the two can be compared.
//!
//! The one that measures starts the other one, and connects with it by its standard input and output. What
//! differs from `crate::transfer`: each message has a doorbell of its own, and the other side is a process.

use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use uverbs::{
    Access, Caps, CompletionChannel, ConnectOptions, Context, Cq, Endpoint, Mr, Notify, Qp, Rc,
    RemoteSlice,
};

use crate::awaited;

/// Requests that the send queue holds: perftest's `--tx-depth`.
pub const SENDS: u32 = 128;
/// The same of the receive queue: `--rx-depth`.
pub const RECEIVES: u32 = 512;

/// Of so many requests one is signaled: perftest's `--cq-mod`.
pub const SIGNALED: u64 = 32;

/// READs that are in flight: perftest's `--outs`.
pub const READS: u8 = 16;

/// What is done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Work {
    /// A message goes there and one comes back, one after the other: `ib_send_lat`.
    SendLatency,
    /// One READ after the other: `ib_read_lat`.
    ReadLatency,
    /// As many READs as the queue holds: `ib_read_bw`.
    ReadRate,
    /// The same with SENDs: `ib_send_bw`.
    SendRate,
}

impl FromStr for Work {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "send-latency" => Self::SendLatency,
            "read-latency" => Self::ReadLatency,
            "read-rate" => Self::ReadRate,
            "send-rate" => Self::SendRate,
            _ => bail!("no work is named {name}"),
        })
    }
}

/// What is told to the other process: the end of the connection, and the memory.
const TOLD: usize = 46;

/// One side: a queue pair, its queues and its memory.
struct Side {
    qp: Qp<Rc>,
    sends: Queue,
    receives: Queue,
    memory: Mr<Vec<u8>>,
}

/// A completion queue that is armed.
struct Queue {
    cq: Cq,
    channel: CompletionChannel,
}

impl Queue {
    fn new(context: &Context, size: u32) -> Result<Self> {
        let channel = context.create_channel()?;
        let mut cq = context.cq(size).channel(&channel).create()?;
        cq.arm(Notify::Next)?;
        Ok(Self { cq, channel })
    }

    /// Waits for an event, then takes the completions: how many, and the id of the last.
    fn wait(&mut self) -> Result<(u64, u64)> {
        self.channel.wait()?;
        self.cq.arm(Notify::Next)?;
        let (mut count, mut last) = (0, 0);
        for completion in &mut self.cq.poll()? {
            completion.result()?;
            count += 1;
            last = completion.wr_id();
        }
        Ok((count, last))
    }

    /// Waits until there was a completion.
    fn wait_for_one(&mut self) -> Result<()> {
        while self.wait()?.0 == 0 {}
        Ok(())
    }
}

impl Side {
    fn new(context: &Context, size: usize) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let memory = pd.register(vec![1; size], access)?;
        let sends = Queue::new(context, SENDS)?;
        let receives = Queue::new(context, RECEIVES)?;
        let caps = Caps {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            ..Caps::default()
        };
        let qp = pd.qp(&sends.cq).recv_cq(&receives.cq).caps(caps).create()?;
        Ok(Self {
            qp,
            sends,
            receives,
            memory,
        })
    }

    /// Connects with the other process, posts receives, and gives the other's memory once that is ready too.
    fn connect(
        &mut self,
        receives: usize,
        mut to: impl Write,
        mut from: impl Read,
    ) -> Result<RemoteSlice> {
        let options = ConnectOptions {
            max_rd_atomic: READS,
            max_dest_rd_atomic: READS,
            ..awaited::options(self.qp.context())?
        };
        to.write_all(&self.qp.endpoint_with(&options)?.to_bytes())?;
        to.write_all(&self.memory.remote().to_bytes())?;
        to.flush()?;
        let mut told = [0; TOLD];
        from.read_exact(&mut told).context("the other process")?;
        let (peer, memory) = told.split_first_chunk().context("an end")?;
        let peer = Endpoint::from_bytes(*peer).context("no end of a connection")?;
        self.qp.connect_with(&peer, &options)?;
        self.post_receives(receives)?;
        to.write_all(&[0])?;
        to.flush()?;
        from.read_exact(&mut [0]).context("the other process")?;
        Ok(RemoteSlice::from_bytes(memory.try_into()?))
    }

    fn post_receives(&mut self, count: usize) -> Result<()> {
        let into = self.memory.slice(..)?;
        let mut receives = self.qp.recv_batch();
        for _ in 0..count {
            receives.post(0, into)?;
        }
        receives.ring();
        Ok(())
    }

    fn post(&mut self, work: Work, remote: RemoteSlice, id: Option<u64>) -> Result<()> {
        let local = self.memory.slice(..)?;
        let mut batch = self.qp.batch();
        let request = match id {
            Some(id) => batch.signaled(id),
            None => batch.unsignaled(0),
        };
        match work {
            Work::SendLatency | Work::SendRate => request.send(local)?,
            Work::ReadLatency | Work::ReadRate => request.read(local, remote)?,
        }
        batch.ring()?;
        Ok(())
    }
}

/// Does the work and prints nanoseconds: for each message on its way, or for all messages together.
///
/// # Errors
/// If the device refuses something, or the other process fails.
pub fn run(device: &str, work: &str, size: usize, count: u64) -> Result<()> {
    let kind: Work = work.parse()?;
    let context = uverbs::open(device)?;
    let mut side = Side::new(&context, size)?;
    let (size, number) = (size.to_string(), count.to_string());
    let mut peer = Command::new(std::env::current_exe()?)
        .args(["perf-peer", device, work, &size, &number])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the other process")?;
    let mut to = peer.stdin.take().context("no input")?;
    let from = peer.stdout.take().context("no output")?;
    let remote = side.connect(1, &mut to, from)?;
    let times = match kind {
        Work::SendLatency | Work::ReadLatency => side.latency(kind, remote, count)?,
        _ => vec![side.rate(kind, remote, count)?],
    };
    drop(to);
    let status = peer.wait()?;
    ensure!(
        status.success(),
        "the other process has ended with {status}"
    );
    let words: Vec<String> = times.iter().map(u64::to_string).collect();
    println!("{}", words.join(" "));
    Ok(())
}

/// The other process.
///
/// # Errors
/// If the device refuses something.
pub fn peer(device: &str, work: &str, size: usize, count: u64) -> Result<()> {
    let kind: Work = work.parse()?;
    let context = uverbs::open(device)?;
    let mut side = Side::new(&context, size)?;
    let mut input = io::stdin().lock();
    let receives = if kind == Work::SendRate { RECEIVES } else { 1 };
    let remote = side.connect(receives as usize, io::stdout().lock(), &mut input)?;
    match kind {
        Work::SendLatency => {
            for _ in 0..count {
                side.receives.wait_for_one()?;
                side.post_receives(1)?;
                side.post(kind, remote, Some(0))?;
                side.sends.wait_for_one()?;
            }
        }
        Work::SendRate => {
            let mut received = 0;
            while received < count {
                let (more, _) = side.receives.wait()?;
                for _ in 0..more {
                    side.post_receives(1)?;
                }
                received += more;
            }
        }
        Work::ReadLatency | Work::ReadRate => {}
    }
    // Its memory stays until the input ends.
    io::copy(&mut input, &mut io::sink())?;
    Ok(())
}

impl Side {
    /// Nanoseconds that each message is on its way: half of the time there and back, or all of a READ's.
    fn latency(&mut self, work: Work, remote: RemoteSlice, count: u64) -> Result<Vec<u64>> {
        let mut times = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let started = Instant::now();
            self.post(work, remote, Some(0))?;
            self.sends.wait_for_one()?;
            let mut ways = 1;
            if work == Work::SendLatency {
                self.receives.wait_for_one()?;
                self.post_receives(1)?;
                ways = 2;
            }
            times.push(started.elapsed().as_nanos() as u64 / ways);
        }
        Ok(times)
    }

    /// Nanoseconds from the first request to the last completion.
    fn rate(&mut self, work: Work, remote: RemoteSlice, count: u64) -> Result<u64> {
        let (mut posted, mut done) = (0, 0);
        let started = Instant::now();
        while done < count {
            while posted < count && posted - done < u64::from(SENDS) {
                posted += 1;
                let is_signaled = posted % SIGNALED == 0 || posted == count;
                self.post(work, remote, is_signaled.then_some(posted))?;
            }
            let (count, last) = self.sends.wait()?;
            if count > 0 {
                done = last;
            }
        }
        Ok(started.elapsed().as_nanos() as u64)
    }
}
