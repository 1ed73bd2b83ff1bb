//! Moving data between two queue pairs of this process, and waiting for the completions.

use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use uverbs::{Context, Cq};

use crate::pair::{DEPTH, Pair};
use crate::serve::Until;

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

/// A connected pair with memory.
pub struct Transfer(Pair);

impl Transfer {
    /// Connects a pair with memory for the longest message.
    ///
    /// # Errors
    /// If the device refuses one of its objects.
    pub fn new(context: &Context) -> Result<Self> {
        Pair::new(context, MAX_SIZE).map(Self)
    }

    /// Moves batches of messages, each batch with one doorbell and a completion for its last message, and
    /// gives the nanoseconds from posting to that completion.
    ///
    /// # Errors
    /// If a request is refused or fails.
    pub fn run(
        &mut self,
        operation: Operation,
        size: usize,
        batch: usize,
        until: Until,
    ) -> Result<Vec<u64>> {
        ensure!((1..=MAX_SIZE).contains(&size), "cannot move {size} bytes");
        ensure!(
            (1..=DEPTH as usize).contains(&batch),
            "cannot post {batch} at a time"
        );
        until.sample(|| self.once(operation, size, batch))
    }

    fn once(&mut self, operation: Operation, size: usize, count: usize) -> Result<()> {
        let Pair {
            here,
            there,
            cq,
            peer_cq,
            source,
            target,
            ..
        } = &mut self.0;
        let local = source.slice(..size)?;
        let remote = target.remote().slice(..size)?;
        if operation == Operation::Send {
            let into = target.slice(..size)?;
            let mut receives = there.recv();
            for wr_id in 0..count {
                receives.post(wr_id as u64, into)?;
            }
            receives.ring()?;
        }
        let mut batch = here.send();
        for wr_id in 0..count {
            let posted = match operation {
                Operation::Write => batch.write(local, remote)?,
                Operation::Read => batch.read(local, remote)?,
                Operation::Send => batch.send(local)?,
            };
            if wr_id == count - 1 {
                posted.signaled(wr_id as u64);
            }
        }
        batch.ring()?;
        if operation == Operation::Send {
            wait(peer_cq, count)?;
        }
        wait(cq, 1)
    }
}

/// Polls until so many requests have completed.
fn wait(cq: &mut Cq, count: usize) -> Result<()> {
    let mut left = count;
    while left > 0 {
        for completion in &mut cq.poll()? {
            completion.result()?;
            left -= 1;
        }
    }
    Ok(())
}
