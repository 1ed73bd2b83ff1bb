//! The plan of a measurement: the client makes it, and the server carries it out.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use uverbs::Access;
use uverbs::qp::QpType;

use super::lane::ALIGNMENT;
use super::memory::MemoryKind;
use crate::failure::{Failure, Kind, Result};

/// The goal of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Goal {
    /// One message at a time: how long a round trip takes.
    Latency,
    /// As many messages as the queues hold: how much goes through.
    Bandwidth,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Operation {
    /// A message to a posted receive
    Send,
    /// RDMA WRITE: into the peer's memory
    Write,
    /// RDMA WRITE with immediate data: the peer is told by a completion
    WriteImm,
    /// RDMA READ: from the peer's memory
    Read,
    /// Adds to a word in the peer's memory
    FetchAdd,
    /// Compares a word in the peer's memory, and replaces it
    CompareSwap,
}

impl Operation {
    /// Whether each message needs a receive of the peer.
    pub(super) fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }

    /// Whether the peer's answer brings data to this side.
    pub(super) fn fetches(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CompareSwap)
    }

    pub(super) fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// The peer's access to this side's memory.
    pub(super) fn access(self) -> Access {
        match self {
            Self::Send => Access::empty(),
            Self::Write | Self::WriteImm => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
            Self::FetchAdd | Self::CompareSwap => Access::REMOTE_ATOMIC,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
            Self::FetchAdd => "fetch-add",
            Self::CompareSwap => "compare-swap",
        })
    }
}

/// How the queue pairs are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Transport {
    /// Reliable connection
    Rc,
    /// Unreliable connection: send, write and write-imm
    Uc,
    /// Unreliable datagram: send, and a message must fit into a packet
    Ud,
    /// Reliable connection to shared receive queues (ConnectX)
    Xrc,
    /// Reliable datagrams without order (EFA)
    Srd,
}

impl Transport {
    pub(super) fn qp_type(self) -> QpType {
        match self {
            Self::Rc => QpType::RC,
            Self::Uc => QpType::UC,
            Self::Ud => QpType::UD,
            Self::Xrc => QpType::XRC_SEND,
            Self::Srd => QpType::DRIVER,
        }
    }

    /// Whether every message arrives, or a request fails.
    pub(super) fn is_reliable(self) -> bool {
        !matches!(self, Self::Uc | Self::Ud)
    }

    /// Whether messages arrive, and requests complete, in the order in which they were posted.
    pub(super) fn is_ordered(self) -> bool {
        self != Self::Srd
    }

    /// Whether each request names its destination by an address.
    pub(super) fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Srd)
    }

    /// Bytes that the device writes before a received message: the global route header, or room for it.
    pub(super) fn header(self) -> usize {
        match self {
            Self::Ud => 40,
            _ => 0,
        }
    }

    fn has(self, operation: Operation) -> bool {
        match self {
            Self::Rc | Self::Xrc => true,
            Self::Uc => !operation.fetches(),
            Self::Ud => operation == Operation::Send,
            Self::Srd => !operation.is_atomic(),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Xrc => "xrc",
            Self::Srd => "srd",
        })
    }
}

/// The end of a round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Until {
    /// After this many seconds.
    Seconds(f64),
    /// When each queue pair has sent this many messages.
    Messages(u64),
}

/// One measurement, which is repeated in rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) goal: Goal,
    pub(super) operation: Operation,
    pub(super) transport: Transport,
    /// Bytes of a message.
    pub(super) size: u32,
    pub(super) queue_pairs: u32,
    pub(super) threads: u32,
    /// Devices on each side; the threads are distributed over them in turn.
    #[serde(default = "one")]
    pub(super) devices: u32,
    /// The most messages of a queue pair in flight.
    pub(super) depth: u32,
    /// Messages for each doorbell.
    pub(super) batch: u32,
    /// Messages up to this many bytes are copied into their requests; by default as many as fit.
    pub(super) inline: Option<u32>,
    /// Waits for completion events instead of polling.
    pub(super) events: bool,
    /// A thread that polls without a completion keeps its CPU.
    #[serde(default)]
    pub(super) spin: bool,
    /// Both sides send.
    pub(super) both: bool,
    pub(super) until: Until,
    /// Seconds before the measurement.
    pub(super) warm_up: f64,
    /// Every byte is checked.
    pub(super) check: bool,
    /// What memory messages lie in, on both sides.
    #[serde(default)]
    pub(super) memory: MemoryKind,
    /// Each thread stays on a CPU, near the adapter if possible.
    pub(super) pin: bool,
    /// The queue pairs are connected by address.
    pub(super) by_address: bool,
    /// Bytes of the largest packet; by default the port's.
    pub(super) mtu: Option<u32>,
    pub(super) service_level: u8,
    /// Seconds without a completion after which the run fails.
    pub(super) timeout: f64,
}

fn one() -> u32 {
    1
}

/// Bytes of messages in flight, in each direction, that have places of their own in memory. If there are
/// more, messages share places, so their bytes cannot be checked.
const ROOM: u64 = 64 << 20;

/// The most threads, queue pairs, and messages in flight on each: the server makes whatever a client plans.
const MOST_THREADS: u32 = 1 << 10;
const MOST_QUEUE_PAIRS: u32 = 1 << 16;
const MOST_DEPTH: u32 = 1 << 20;

/// The longest `timeout`, in seconds: for as long a client that does nothing holds the server.
const MOST_TIMEOUT: f64 = 600.0;

/// The shortest message that can be checked: its first bytes are its number.
pub(super) const LEAST_CHECKED: u32 = 8;

impl Plan {
    /// Checks that the plan makes sense. The devices report what they cannot do.
    pub(super) fn validate(&self) -> Result<()> {
        let usage = |text: String| Err(Failure::new(Kind::Usage, text));
        let Self {
            operation,
            transport,
            size,
            ..
        } = *self;
        let counts = [
            self.devices,
            self.threads,
            self.queue_pairs,
            self.depth,
            self.batch,
            size,
        ];
        // First: what follows divides by them.
        if counts.contains(&0) || self.threads > self.queue_pairs || self.batch > self.depth {
            return usage(
                "there are at least as many queue pairs as threads, and as much depth as a batch"
                    .into(),
            );
        }
        if !(self.timeout > 0.0 && self.timeout <= MOST_TIMEOUT) {
            return usage(format!(
                "--timeout is more than 0 and at most {MOST_TIMEOUT} s"
            ));
        }
        if !transport.has(operation) {
            return usage(format!("{transport} has no {operation}"));
        }
        if operation.is_atomic() && size != 8 {
            return usage(format!("a word of {operation} has 8 bytes, not {size}"));
        }
        if self.check && size < LEAST_CHECKED {
            return usage(format!(
                "--check needs messages of {LEAST_CHECKED} bytes or more, which have a number"
            ));
        }
        if self.check && self.places() < self.depth {
            return usage(format!(
                "--check needs memory for all messages in flight: a --depth of at most {}",
                self.places()
            ));
        }
        let is_torn =
            transport == Transport::Uc && operation != Operation::Send && !self.is_exchange();
        if self.check && is_torn {
            return usage(
                "--check needs whole messages, and a lost packet of uc leaves a part of one".into(),
            );
        }
        if self.by_address && !matches!(transport, Transport::Rc | Transport::Uc) {
            return usage(format!("--cm is for rc and uc, not for {transport}"));
        }
        if self.devices > self.threads {
            return usage("each device has a thread of its own, or several".into());
        }
        let most = [
            (self.threads, MOST_THREADS),
            (self.queue_pairs, MOST_QUEUE_PAIRS),
            (self.depth, MOST_DEPTH),
        ];
        if most.iter().any(|(number, most)| number > most) {
            return usage(format!(
                "there are at most {MOST_THREADS} threads, {MOST_QUEUE_PAIRS} queue pairs and a depth of {MOST_DEPTH}"
            ));
        }
        if self.mtu.is_some_and(|mtu| mtu < 256) {
            return usage("the least MTU is 256 bytes".into());
        }
        if self.mtu.is_some() && transport.is_datagram() {
            return usage(format!(
                "{transport} has the MTU of the port: leave --mtu out"
            ));
        }
        if self.goal == Goal::Latency && (self.threads != self.queue_pairs || self.depth != 1) {
            return usage("latency is measured with one message in flight for each thread".into());
        }
        if self.goal == Goal::Latency && self.both {
            return usage("a round trip has both directions already".into());
        }
        if self.goal == Goal::Latency && self.events && self.operation == Operation::Write {
            return usage("a WRITE has no event at the peer: use write-imm".into());
        }
        Ok(())
    }

    /// Whether it measures the same as another: it may be as patient with the peer as it likes.
    pub(super) fn measures_as(&self, other: &Self) -> bool {
        let timeout = other.timeout;
        *other
            == Self {
                timeout,
                ..self.clone()
            }
    }

    /// The fields that differ from those of another, as text.
    pub(super) fn differences(&self, other: &Self) -> String {
        let [own, other] = [self, other].map(|plan| serde_json::to_value(plan).unwrap_or_default());
        let own = own.as_object().into_iter().flatten();
        let differ = own.filter(|(name, value)| other[name.as_str()] != **value);
        let texts = differ.map(|(name, value)| format!("{name} {value}"));
        texts.collect::<Vec<_>>().join(", ")
    }

    /// A short name of the messages.
    pub(super) fn name(&self) -> String {
        let name = format!("{} {}", self.transport, self.operation);
        match self.memory {
            MemoryKind::Ordinary => name,
            memory => format!("{name}, {memory}"),
        }
    }

    /// Whether the peer answers each message with one, so that both sides send in turn.
    pub(super) fn is_exchange(&self) -> bool {
        self.goal == Goal::Latency && !self.operation.fetches()
    }

    /// Places for messages in memory, for each queue pair and direction.
    pub(super) fn places(&self) -> u32 {
        let bytes = u64::from(self.size).next_multiple_of(ALIGNMENT as u64);
        let bytes = bytes.saturating_mul(self.queue_pairs.into());
        let places = (ROOM / bytes.max(1)).clamp(1, self.depth.into());
        places as u32
    }

    /// Receives that are kept posted.
    pub(super) fn receives(&self) -> u32 {
        // In an exchange the next message comes when the one before has been checked; its receive is posted
        // again after the answer.
        match self.check && !self.is_exchange() {
            true => self.places(),
            false => self.depth.saturating_mul(2),
        }
    }

    /// The threads of a device, by number.
    pub(super) fn threads_of(&self, device: u32) -> impl Iterator<Item = u32> + use<> {
        (device..self.threads).step_by(self.devices.max(1) as usize)
    }

    /// The queue pairs of a thread, by number.
    pub(super) fn queue_pairs_of(&self, thread: u32) -> std::ops::Range<u32> {
        let (each, more) = (
            self.queue_pairs / self.threads,
            self.queue_pairs % self.threads,
        );
        let before = |thread: u32| thread * each + thread.min(more);
        before(thread)..before(thread + 1)
    }

    /// The most batches in flight.
    pub(super) fn batches(&self) -> u32 {
        self.depth / self.batch
    }

    pub(super) fn patience(&self) -> Duration {
        seconds(self.timeout)
    }

    pub(super) fn warm_up(&self) -> Duration {
        seconds(self.warm_up)
    }

    /// How long a round lasts, if a number of messages does not limit it.
    pub(super) fn duration(&self) -> Option<Duration> {
        match self.until {
            Until::Seconds(number) => Some(seconds(number)),
            Until::Messages(_) => None,
        }
    }
}

/// A time that may come from a peer: a nonsensical one counts as zero.
fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number.min(1e9)).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn plan() -> Plan {
        Plan {
            goal: Goal::Bandwidth,
            operation: Operation::Send,
            transport: Transport::Rc,
            size: 4096,
            queue_pairs: 2,
            threads: 1,
            devices: 1,
            depth: 128,
            batch: 16,
            inline: None,
            events: false,
            spin: false,
            both: false,
            until: Until::Seconds(1.0),
            warm_up: 0.1,
            check: false,
            memory: MemoryKind::Ordinary,
            pin: false,
            by_address: false,
            mtu: None,
            service_level: 0,
            timeout: 10.0,
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        plan().validate().unwrap();
        let wrong: [fn(&mut Plan); 12] = [
            |plan| plan.transport = Transport::Ud,
            |plan| plan.operation = Operation::FetchAdd,
            |plan| (plan.size, plan.check) = (7, true),
            |plan| (plan.size, plan.check) = (1 << 20, true),
            |plan| plan.threads = 3,
            |plan| plan.batch = 129,
            |plan| plan.queue_pairs = 0,
            |plan| plan.goal = Goal::Latency,
            |plan| plan.size = 0,
            |plan| (plan.depth, plan.check) = (0, true),
            |plan| plan.timeout = 601.0,
            |plan| plan.timeout = f64::NAN,
        ];
        for (number, change) in wrong.into_iter().enumerate() {
            let mut plan = plan();
            plan.operation = Operation::Write;
            plan.validate().unwrap();
            change(&mut plan);
            assert_eq!(plan.validate().unwrap_err().kind(), Kind::Usage, "{number}");
        }
    }

    /// Catches a peer's plan with a time that overflows.
    #[test]
    fn times_of_a_peer_may_be_nonsense() {
        for number in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            let plan = Plan {
                timeout: number,
                ..plan()
            };
            assert!(plan.patience() <= Duration::from_secs(1_000_000_000));
        }
    }

    #[test]
    fn every_queue_pair_has_a_thread_and_every_thread_a_device() {
        for (queue_pairs, threads, devices) in
            [(1, 1, 1), (7, 3, 1), (8, 4, 2), (5, 5, 3), (9, 4, 4)]
        {
            let plan = Plan {
                queue_pairs,
                threads,
                devices,
                ..plan()
            };
            let shares = (0..threads).map(|thread| plan.queue_pairs_of(thread));
            assert!(shares.clone().all(|share| !share.is_empty()), "{plan:?}");
            assert!(shares.flatten().eq(0..queue_pairs), "{plan:?}");
            let of_each = (0..devices).map(|device| plan.threads_of(device));
            let mut all: Vec<u32> = of_each.flatten().collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..threads), "{plan:?}");
        }
    }

    #[test]
    fn large_messages_share_places() {
        let with = |size| Plan { size, ..plan() }.places();
        assert_eq!((with(4096), with(1 << 20), with(1 << 30)), (128, 32, 1));
    }
}
