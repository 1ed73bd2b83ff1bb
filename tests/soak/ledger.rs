//! The accounts of one queue pair: what was posted on it, what was sent to it, and what has become of each.
//!
//! It knows of no device, so its own rules can be tried anywhere. It fails on a completion that nobody waits
//! for, that comes twice, or that comes before one that had to come earlier.

use std::collections::{BTreeMap, VecDeque};

use super::message::Key;
use super::plan::Request;

/// A send request that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) serial: u32,
    pub(crate) request: Request,
    /// Its place in its burst, and so its memory.
    pub(crate) slot: usize,
}

/// A message that the peer has sent to this queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) key: Key,
    pub(crate) request: Request,
    pub(crate) slot: usize,
}

/// What has become of a message that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    First,
    /// It was there before: the network doubles packets, and unreliable transports do not notice.
    Again,
}

/// The accounts of one queue pair.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    sends: VecDeque<Sent>,
    receives: VecDeque<u32>,
    /// Messages of a reliable peer, in the order in which they must arrive.
    expected: VecDeque<Message>,
    /// The last of these that has arrived.
    last: Option<Message>,
    /// Messages of an unreliable peer that have not arrived.
    missing: BTreeMap<u32, Message>,
    /// Messages of an unreliable peer that have arrived, as long as they may arrive once more.
    arrived: BTreeMap<u32, Message>,
}

/// How many messages that have arrived are remembered.
const REMEMBERED: usize = 512;

impl Ledger {
    /// A send request is about to be posted.
    pub(crate) fn sends(&mut self, sent: Sent) {
        self.sends.push_back(sent);
    }

    /// A receive is about to be posted.
    pub(crate) fn receives(&mut self, serial: u32) {
        self.receives.push_back(serial);
    }

    /// The peer is about to send a message that must arrive.
    pub(crate) fn expects(&mut self, message: Message) {
        self.expected.push_back(message);
    }

    /// The peer is about to send a message that may arrive.
    pub(crate) fn may_get(&mut self, message: Message) {
        self.missing.insert(message.key.serial, message);
    }

    /// A send request has completed, well or not. Gives those before it that were to complete in silence and
    /// so have succeeded, and itself.
    pub(crate) fn sent(&mut self, serial: u32) -> Result<(Vec<Sent>, Sent), String> {
        let mut silent = Vec::new();
        while let Some(sent) = self.sends.pop_front() {
            if sent.serial == serial {
                return Ok((silent, sent));
            }
            if sent.request.signaled {
                return Err(format!(
                    "request {serial} completed, and {sent:?} before it did not"
                ));
            }
            silent.push(sent);
        }
        Err(format!(
            "request {serial} completed, which was not under way"
        ))
    }

    /// A receive has completed, well or not.
    pub(crate) fn received(&mut self, serial: u32) -> Result<(), String> {
        match self.receives.pop_front() {
            Some(first) if first == serial => Ok(()),
            other => Err(format!("receive {serial} completed, and {other:?} was due")),
        }
    }

    /// The message that a reliable peer's next one must be.
    pub(crate) fn next_expected(&mut self) -> Option<Message> {
        self.last = self.expected.pop_front();
        self.last
    }

    /// The reliable peer's message that came last, and the one that must come next.
    pub(crate) fn last_and_next(&self) -> (Option<Message>, Option<Message>) {
        (self.last, self.expected.front().copied())
    }

    /// A message of an unreliable peer has come.
    pub(crate) fn arrives(&mut self, serial: u32) -> Result<(Message, Arrival), String> {
        if let Some(message) = self.missing.remove(&serial) {
            self.arrived.insert(serial, message);
            if self.arrived.len() > REMEMBERED {
                self.arrived.pop_first();
            }
            return Ok((message, Arrival::First));
        }
        match self.arrived.get(&serial) {
            Some(message) => Ok((*message, Arrival::Again)),
            None => Err(format!(
                "message {serial} arrived, which was not sent lately"
            )),
        }
    }

    /// Messages that are older than these have not arrived and never will: gives how many.
    pub(crate) fn gives_up_before(&mut self, serial: u32) -> u64 {
        let kept = self.missing.split_off(&serial);
        let lost = std::mem::replace(&mut self.missing, kept);
        lost.len() as u64
    }

    /// Whether a message with this key was sent by a reliable peer and has not arrived.
    pub(crate) fn awaits(&self, serial: u32) -> bool {
        self.expected
            .iter()
            .any(|message| message.key.serial == serial)
    }

    /// Requests that have not completed.
    pub(crate) fn outstanding(&self) -> (usize, usize) {
        (self.sends.len(), self.receives.len())
    }

    /// Messages of a reliable peer that have not arrived.
    pub(crate) fn underway(&self) -> usize {
        self.expected.len()
    }

    /// The queue pair is gone, or reset: nothing more comes. Gives the sends and receives that have not
    /// completed.
    pub(crate) fn close(&mut self) -> (Vec<Sent>, usize) {
        self.expected.clear();
        self.last = None;
        let receives = self.receives.len();
        self.receives.clear();
        (self.sends.drain(..).collect(), receives)
    }
}
