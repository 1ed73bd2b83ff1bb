//! What a pair of queue pairs is to do: random, and the same for the same seed.
//!
//! A plan knows nothing of time, of completions or of what went wrong, so nothing of these can change it.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use uverbs::qp::{Mtu, QpType};

/// The most requests that a side posts at a time, each with memory of its own.
pub(crate) const BURST: usize = 8;

/// Bytes of memory of a request.
pub(crate) const SLOT: u32 = 8192;

/// Bytes that a message needs so that it can be told from all others.
pub(crate) const HEADER: u32 = 16;

/// The most inline bytes of a request.
pub(crate) const INLINE: u32 = 128;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Op {
    Send,
    SendImm,
    SendInline,
    SendImmInline,
    /// Invalidates the peer's window.
    SendInv,
    Write,
    WriteInline,
    WriteImm,
    /// A write by the key of the peer's window.
    WriteWindow,
    Read,
    FetchAdd,
    CompareSwap,
    Bind,
    LocalInv,
}

impl Op {
    /// The name in a report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::Send => "SEND",
            Op::SendImm => "SEND with immediate",
            Op::SendInline => "SEND inline",
            Op::SendImmInline => "SEND with immediate, inline",
            Op::SendInv => "SEND with invalidate",
            Op::Write => "WRITE",
            Op::WriteInline => "WRITE inline",
            Op::WriteImm => "WRITE with immediate",
            Op::WriteWindow => "WRITE by a window",
            Op::Read => "READ",
            Op::FetchAdd => "FETCH AND ADD",
            Op::CompareSwap => "COMPARE AND SWAP",
            Op::Bind => "BIND of a window",
            Op::LocalInv => "LOCAL INVALIDATE",
        }
    }

    /// Whether it completes a receive of the peer.
    pub(crate) fn receives(self) -> bool {
        use Op::*;
        matches!(
            self,
            Send | SendImm | SendInline | SendImmInline | SendInv | WriteImm
        )
    }

    /// Whether the peer gets immediate data.
    pub(crate) fn has_imm(self) -> bool {
        matches!(self, Op::SendImm | Op::SendImmInline | Op::WriteImm)
    }

    /// Whether it writes a message into the peer's memory.
    pub(crate) fn writes(self) -> bool {
        use Op::*;
        matches!(self, Write | WriteInline | WriteImm | WriteWindow)
    }

    /// Whether its bytes are copied when it is posted.
    pub(crate) fn is_inline(self) -> bool {
        matches!(self, Op::SendInline | Op::SendImmInline | Op::WriteInline)
    }

    /// Whether its message is read from memory of the sender.
    pub(crate) fn reads_memory(self) -> bool {
        (self.receives() || self.writes()) && !self.is_inline()
    }

    /// Whether it brings something from the peer.
    pub(crate) fn fetches(self) -> bool {
        self == Op::Read || self.is_atomic()
    }

    /// Whether it works on the peer's word.
    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Op::FetchAdd | Op::CompareSwap)
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) op: Op,
    /// Bytes of the message.
    pub(crate) length: u32,
    /// Whether it is to complete visibly if it succeeds.
    pub(crate) signaled: bool,
    /// Where the first of two slices ends; at 0 or the length there is one.
    pub(crate) cut: u32,
    /// Immediate data, operand of an atomic, or where a READ starts.
    pub(crate) number: u32,
}

impl Request {
    /// Whether the region of its message is dropped as soon as it is posted.
    pub(crate) fn is_fleeting(&self) -> bool {
        self.op.reads_memory() && self.length > 0 && self.number.is_multiple_of(4)
    }
}

/// What both sides post at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Burst {
    /// The requests of each side. The last one of each is signaled.
    pub(crate) from: [Vec<Request>; 2],
    /// Requests for each doorbell.
    pub(crate) batch: usize,
}

/// How a pair ends that is to be made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// To the error state, this side first, and back through RESET. The other side hears of it from its
    /// requests that fail, or at once.
    Error { first: usize, at_once: bool },
    /// Destroyed while requests are under way, and created anew; with other memory too, if so said.
    Destroy { first: usize, memory: bool },
    /// Reset while requests are under way, this side first, and connected anew.
    Reset { first: usize },
}

/// The attributes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) path_mtu: Mtu,
    /// How far ahead of where it began last each side begins to count packets: further than an earlier
    /// connection can have come, and not so far that what is late of one of the last thirty seems to be
    /// ahead.
    ///
    /// A late acknowledgement of an earlier connection of the same queue pairs that is ahead counts for
    /// whatever is under way (`check_psn` in `rxe_comp.c`), which completes well and may never arrive; one
    /// that is behind is passed over. And the packets are late by as much as a processor of the guest has to
    /// wait for one of the host.
    pub(crate) ahead: [u32; 2],
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Bursts, each after all requests of the one before have completed.
    Traffic(Vec<Burst>),
    /// A change in the middle of a burst.
    Change {
        during: Burst,
        change: Change,
        next: Setup,
    },
}

/// The steps of one pair, without end.
pub(crate) struct Plan {
    random: ChaCha8Rng,
    transport: QpType,
}

impl Plan {
    /// The plan of this pair.
    pub(crate) fn new(seed: u64, pair: u16) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(pair.into());
        let transport = match pair % 4 {
            0 | 1 => QpType::RC,
            2 => QpType::UC,
            _ => QpType::UD,
        };
        Self { random, transport }
    }

    /// The transport of the pair.
    pub(crate) fn transport(&self) -> QpType {
        self.transport
    }

    /// How to connect for the first time, or after a failure that was not planned.
    pub(crate) fn setup(&mut self) -> Setup {
        let mtus = [Mtu::MTU_256, Mtu::MTU_512, Mtu::MTU_1024];
        Setup {
            path_mtu: mtus[self.random.random_range(0..mtus.len())],
            ahead: [(); 2].map(|()| self.random.random_range(1 << 16..1 << 18)),
        }
    }

    /// The next step.
    pub(crate) fn step(&mut self) -> Step {
        let side = usize::from(self.random.random_bool(0.5));
        match self.random.random_range(0..100) {
            0..82 => Step::Traffic(vec![self.burst()]),
            82..88 if self.transport == QpType::RC => Step::Traffic(self.window(side)),
            82..88 => Step::Traffic(vec![self.burst(), self.burst()]),
            88..94 => {
                let at_once = self.transport != QpType::RC || self.random.random_bool(0.8);
                let change = Change::Error {
                    first: side,
                    at_once,
                };
                self.change(change)
            }
            94..97 => self.change(Change::Reset { first: side }),
            _ => {
                let memory = self.random.random_bool(0.3);
                let change = Change::Destroy {
                    first: side,
                    memory,
                };
                self.change(change)
            }
        }
    }

    fn change(&mut self, change: Change) -> Step {
        Step::Change {
            during: self.burst(),
            change,
            next: self.setup(),
        }
    }

    /// A READ or atomic is alone on its side.
    ///
    /// In front of others or behind them, rxe loses track of it when packets are lost (`rxe_comp.c`, 6.1 to
    /// 7.2): the acknowledgement of another request, or a negative one that counts as one, completes it
    /// without data, or lets it be done twice.
    fn burst(&mut self) -> Burst {
        let mut burst = Burst {
            batch: self.random.random_range(1..=BURST),
            ..Burst::default()
        };
        for requests in &mut burst.from {
            let fetch = self.transport == QpType::RC && self.random.random_bool(0.4);
            let count = match fetch {
                true => 1,
                false => self.random.random_range(0..=BURST),
            };
            *requests = (0..count).map(|_| self.request(fetch)).collect();
            if let Some(last) = requests.last_mut() {
                last.signaled = true;
            }
        }
        burst
    }

    /// A window of one side is bound, the other writes through it, and one of the two invalidates it.
    fn window(&mut self, owner: usize) -> Vec<Burst> {
        let peer = 1 - owner;
        let by_peer = self.random.random_bool(0.5);
        let mut bursts = [self.burst(), self.burst(), self.burst()];
        let mut put = |burst: usize, side: usize, op, length| {
            let number = self.random.random();
            let requests = &mut bursts[burst].from[side];
            requests.truncate(BURST - 1);
            requests.retain(|request| !request.op.fetches());
            requests.push(Request {
                op,
                length,
                signaled: true,
                cut: 0,
                number,
            });
        };
        put(0, owner, Op::Bind, 0);
        put(1, peer, Op::WriteWindow, 1500);
        match by_peer {
            true => put(2, peer, Op::SendInv, 300),
            false => put(2, owner, Op::LocalInv, 0),
        }
        bursts.into()
    }

    fn request(&mut self, fetch: bool) -> Request {
        use Op::*;
        let random = &mut self.random;
        let all = [
            Send,
            SendImm,
            SendInline,
            SendImmInline,
            Write,
            WriteInline,
            WriteImm,
        ];
        let ops: &[Op] = match self.transport {
            _ if fetch => &[Read, FetchAdd, CompareSwap],
            QpType::UD => &all[..4],
            _ => &all,
        };
        let op = ops[random.random_range(0..ops.len())];
        let longest = match self.transport {
            _ if op.is_inline() => INLINE,
            QpType::UD => 1024,
            _ => SLOT,
        };
        // A message that may be lost must tell by itself which one it is.
        let shortest = match self.transport {
            QpType::RC => 0,
            _ => HEADER,
        };
        let class = [64, 1024, SLOT][random.random_range(0..3)];
        let length = match op.is_atomic() {
            true => 8,
            false => random.random_range(shortest..=longest.min(class)),
        };
        Request {
            op,
            length,
            signaled: random.random_bool(0.6),
            cut: random.random_range(0..=length),
            number: random.random(),
        }
    }
}
