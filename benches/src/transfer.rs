//! Moving data between two queue pairs of this process, and waiting for the completions.

use std::fs;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use uverbs::{CompletionChannel, Context, Cq, Notify};

use crate::pair::{DEPTH, Pair};
use crate::serve::Until;

/// Messages before those that are timed. A process that has slept is given a whole tick of the processor
/// once, even at idle priority and while the kernel has work, and long messages would show that.
const WARM_UP: usize = 4;

/// The longest message.
pub const MAX_SIZE: usize = 1 << 20;

/// What moves the data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operation {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND into a receive of the peer.
    Send,
}

impl FromStr for Operation {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "write" => Self::Write,
            "read" => Self::Read,
            "send" => Self::Send,
            _ => bail!("no operation is named {name}"),
        })
    }
}

/// How completions are awaited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wait {
    /// By polling until they are there.
    Polling,
    /// By sleeping until the completion channel has an event, then polling.
    Events,
    /// As [`Self::Events`], and only those times count at which the event was there before this thread slept.
    Awake,
}

impl FromStr for Wait {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "polling" => Self::Polling,
            "events" => Self::Events,
            "awake" => Self::Awake,
            _ => bail!("no way to wait is named {name}"),
        })
    }
}

/// A connected pair with memory.
pub struct Transfer {
    pair: Pair,
    channels: [CompletionChannel; 2],
}

impl Transfer {
    /// Connects a pair with memory for the longest message.
    ///
    /// # Errors
    /// If the device refuses one of its objects.
    pub fn new(context: &Context) -> Result<Self> {
        let channels = [context.create_channel()?, context.create_channel()?];
        let pair = Pair::with_channels(context, MAX_SIZE, &channels)?;
        Ok(Self { pair, channels })
    }

    /// Moves batches of messages, each batch with one doorbell and a completion for its last message, and
    /// gives the nanoseconds from posting to that completion. Some messages before them are not told.
    ///
    /// # Errors
    /// If a request is refused or fails.
    pub fn run(
        &mut self,
        operation: Operation,
        size: usize,
        batch: usize,
        wait: Wait,
        until: Until,
    ) -> Result<Vec<u64>> {
        ensure!((1..=MAX_SIZE).contains(&size), "cannot move {size} bytes");
        ensure!(
            (1..=DEPTH as usize).contains(&batch),
            "cannot post {batch} at a time"
        );
        if wait != Wait::Polling {
            self.pair.cq.arm(Notify::Next)?;
            self.pair.peer_cq.arm(Notify::Next)?;
        }
        for _ in 0..WARM_UP {
            self.once(operation, size, 1, wait)?;
        }
        if wait != Wait::Awake {
            return until.sample(|| self.once(operation, size, batch, wait));
        }
        let mut begun = until.begin();
        while begun.goes_on() {
            let (slept, before) = (sleeps()?, Instant::now());
            self.once(operation, size, batch, wait)?;
            let time = before.elapsed();
            if sleeps()? == slept {
                begun.note(time);
            }
        }
        Ok(begun.samples())
    }

    fn once(&mut self, operation: Operation, size: usize, count: usize, wait: Wait) -> Result<()> {
        let Pair {
            here,
            there,
            cq,
            peer_cq,
            source,
            target,
            ..
        } = &mut self.pair;
        let local = source.slice(..size)?;
        let remote = target.remote().slice(..size)?;
        if operation == Operation::Send {
            let into = target.slice(..size)?;
            let mut receives = there.recv_batch();
            for wr_id in 0..count {
                receives.post(wr_id as u64, into)?;
            }
            receives.ring();
        }
        let mut batch = here.batch();
        for wr_id in 0..count {
            let request = match wr_id == count - 1 {
                true => batch.signaled(wr_id as u64),
                false => batch.unsignaled(wr_id as u64),
            };
            match operation {
                Operation::Write => request.write(local, remote)?,
                Operation::Read => request.read(local, remote)?,
                Operation::Send => request.send(local)?,
            }
        }
        batch.ring()?;
        let [channel, peer_channel] = match wait {
            Wait::Polling => [None, None],
            Wait::Events | Wait::Awake => self.channels.each_ref().map(Some),
        };
        if operation == Operation::Send {
            take(peer_cq, count, peer_channel)?;
        }
        take(cq, 1, channel)
    }
}

/// How often this thread has given its processor up, to sleep.
fn sleeps() -> Result<u64> {
    let status = fs::read_to_string("/proc/thread-self/status")?;
    let mut lines = status.lines();
    let number = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(number
        .context("no number of switches is told")?
        .trim()
        .parse()?)
}

/// Takes so many completions. With a channel it waits for an event before it polls; the queue is armed, and
/// is so afterwards.
fn take(cq: &mut Cq, count: usize, channel: Option<&CompletionChannel>) -> Result<()> {
    let mut left = count;
    while left > 0 {
        if let Some(channel) = channel {
            channel.wait()?;
            cq.arm(Notify::Next)?;
        }
        for completion in &mut cq.poll()? {
            completion.result()?;
            left -= 1;
        }
    }
    Ok(())
}
