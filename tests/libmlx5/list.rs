//! The work requests that both sides post, as plain values.

use std::fmt;

use uverbs::uapi::enums::WrOpcode;
use uverbs::uapi::flags::{Access, SendFlags};

/// Bytes of the registered memory.
pub(crate) const MEMORY: usize = 65536;
/// Where what is sent lies, what peers write to, and what is received into.
const SOURCE: u64 = 0;
const TARGET: u64 = 16384;
const INBOX: u64 = 32768;

/// How much the queues hold: small rings, so that requests go on at their starts; lists and inline data of
/// several blocks.
pub(crate) const SEND_WR: u32 = 4;
pub(crate) const RECV_WR: u32 = 8;
pub(crate) const SEND_SGE: u32 = 12;
pub(crate) const RECV_SGE: u32 = 4;
pub(crate) const INLINE: u32 = 300;

/// The low bytes that the window of type 2 is bound with.
pub(crate) const TAGS: [u8; 3] = [0x5a, 0x5b, 0x5c];

/// The queue that both queue pairs receive from, where a step names a queue pair.
pub(crate) const SHARED: usize = 2;

/// A part of the memory: offset and length.
pub(crate) type Slice = (u64, u32);

/// What queue pairs are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rc,
    Uc,
    Ud,
    /// RC with a shared receive queue.
    Shared,
    /// RC, whose requests give keys parts of others.
    Keys,
}

impl Kind {
    /// The transport's name.
    pub(crate) fn transport(self) -> &'static str {
        match self {
            Self::Rc | Self::Shared => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Keys => "keys",
        }
    }
}

/// A path to the own port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) sl: u8,
    pub(crate) path_bits: u8,
    pub(crate) rate: u8,
    pub(crate) global: bool,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) class: u8,
}

/// A send request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) opcode: WrOpcode,
    pub(crate) flags: SendFlags,
    pub(crate) immediate: u32,
    /// Where the peer's memory begins.
    pub(crate) offset: u64,
    /// Operands of an atomic: what is compared with or added, and what is swapped in. Of a bind: the access,
    /// and the key's low byte.
    pub(crate) operands: (u64, u64),
    /// Which address handle it goes to.
    pub(crate) address: Option<usize>,
    pub(crate) slices: Vec<Slice>,
}

impl Request {
    fn new(opcode: WrOpcode) -> Self {
        Self {
            opcode,
            flags: SendFlags::SIGNALED,
            immediate: 0,
            offset: TARGET + 64,
            operands: (0, 0),
            address: None,
            slices: Vec::new(),
        }
    }

    /// So many slices.
    fn slices(mut self, count: u32) -> Self {
        self.slices = (0..count)
            .map(|index| (SOURCE + u64::from(index) * 100, 8 + index))
            .collect();
        self
    }

    /// So many bytes inline.
    fn inline(mut self, bytes: u32) -> Self {
        self.flags |= SendFlags::INLINE;
        self.slices = vec![(SOURCE + 3, bytes)];
        self
    }

    fn flags(mut self, flags: SendFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Whether it takes a receive request of the peer.
    fn is_received(&self) -> bool {
        matches!(
            self.opcode,
            WrOpcode::SEND
                | WrOpcode::SEND_WITH_IMM
                | WrOpcode::SEND_WITH_INV
                | WrOpcode::RDMA_WRITE_WITH_IMM
        )
    }

    /// Whether its data are in the request.
    pub(crate) fn is_inline(&self) -> bool {
        self.flags.contains(SendFlags::INLINE)
    }
}

/// As the C program reads it.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address.map_or(-1, |address| address as i64);
        write!(
            f,
            "{} {} {} {} {} {} {address} {}",
            self.opcode.0,
            self.flags.bits(),
            self.immediate,
            self.offset,
            self.operands.0,
            self.operands.1,
            Slices(&self.slices)
        )
    }
}

/// Slices as the C program reads them.
struct Slices<'a>(&'a [Slice]);

impl fmt::Display for Slices<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.len())?;
        self.0
            .iter()
            .try_for_each(|(offset, length)| write!(f, " {offset} {length}"))
    }
}

/// Something that both sides do.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Makes an address handle.
    Address(Address),
    /// Posts a receive request to a queue pair's queue or the shared one.
    Receive { queue: usize, slices: Vec<Slice> },
    /// Binds the window of type 1; without bytes, takes it away.
    Bind {
        qp: usize,
        flags: SendFlags,
        access: Access,
        window: Slice,
    },
    /// Gives the key parts of the memory, each with how many bytes further on it lies in each of so many
    /// rows, and waits for it.
    Gather {
        flags: SendFlags,
        access: Access,
        rows: u32,
        parts: Vec<(Slice, u16)>,
    },
    /// Posts a request that is given as a whole and does nothing.
    Raw,
    /// Posts requests with one doorbell, and waits for what completes.
    Post {
        qp: usize,
        requests: Vec<Request>,
        /// How many receive requests of the peer are taken.
        receives: u32,
    },
}

/// As the C program reads it.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(to) => write!(
                f,
                "address {} {} {} {} {} {} {}",
                to.sl,
                to.path_bits,
                to.rate,
                u8::from(to.global),
                to.flow_label,
                to.hop_limit,
                to.class
            ),
            Self::Receive { queue, slices } => write!(f, "receive {queue} {}", Slices(slices)),
            Self::Bind {
                qp,
                flags,
                access,
                window: (offset, length),
            } => write!(
                f,
                "bind {qp} {} {} {offset} {length}",
                flags.bits(),
                access.bits()
            ),
            Self::Gather {
                flags,
                access,
                rows,
                parts,
            } => {
                let (flags, access) = (flags.bits(), access.bits());
                write!(f, "gather {flags} {access} {rows} {}", parts.len())?;
                parts.iter().try_for_each(|((offset, length), stride)| {
                    write!(f, " {offset} {length} {stride}")
                })
            }
            Self::Raw => f.write_str("raw"),
            Self::Post {
                qp,
                requests,
                receives,
            } => {
                write!(
                    f,
                    "post {qp} {} {} {receives}",
                    requests.len(),
                    signaled(requests)
                )?;
                requests
                    .iter()
                    .try_for_each(|request| write!(f, "\n  {request}"))
            }
        }
    }
}

/// How many of the requests have completions.
pub(crate) fn signaled(requests: &[Request]) -> u32 {
    let signaled = requests
        .iter()
        .filter(|request| request.flags.contains(SendFlags::SIGNALED));
    signaled.count() as u32
}

/// The list for these queue pairs.
pub(crate) fn steps(kind: Kind, roce: bool) -> Vec<Step> {
    let mut list = List {
        kind,
        steps: Vec::new(),
        received: 0,
    };
    match kind {
        Kind::Rc => {
            list.payloads(&[
                WrOpcode::SEND,
                WrOpcode::SEND_WITH_IMM,
                WrOpcode::RDMA_WRITE,
                WrOpcode::RDMA_WRITE_WITH_IMM,
            ]);
            list.reads();
            list.flags(SendFlags::FENCE);
            list.windows();
            list.batches();
        }
        Kind::Uc => {
            list.payloads(&[
                WrOpcode::SEND,
                WrOpcode::SEND_WITH_IMM,
                WrOpcode::RDMA_WRITE,
                WrOpcode::RDMA_WRITE_WITH_IMM,
            ]);
            list.flags(SendFlags::empty());
            list.batches();
        }
        Kind::Ud => {
            list.addresses(roce);
            list.payloads(&[WrOpcode::SEND, WrOpcode::SEND_WITH_IMM]);
            list.flags(SendFlags::empty());
        }
        Kind::Shared => list.receives(),
        Kind::Keys => list.keys(),
    }
    list.steps
}

/// A list that grows.
struct List {
    kind: Kind,
    steps: Vec<Step>,
    /// Receive requests so far.
    received: usize,
}

impl List {
    /// Posts requests, with the receive requests that they need before.
    fn post(&mut self, qp: usize, requests: Vec<Request>) {
        let receives = requests
            .iter()
            .filter(|request| request.is_received())
            .count();
        for _ in 0..receives {
            self.receive(1 - qp);
        }
        self.steps.push(Step::Post {
            qp,
            requests,
            receives: receives as u32,
        });
    }

    fn one(&mut self, request: Request) {
        self.post(0, vec![request]);
    }

    /// Posts a receive request for the longest message, with one of the lists in turn.
    fn receive(&mut self, qp: usize) {
        const LISTS: [&[Slice]; 5] = [
            &[(INBOX, 1024)],
            &[(INBOX, 41), (INBOX + 100, 1024)],
            &[(INBOX, 41), (INBOX + 100, 0), (INBOX + 200, 1024)],
            &[
                (INBOX, 200),
                (INBOX + 300, 200),
                (INBOX + 600, 200),
                (INBOX + 900, 200),
            ],
            &[(INBOX, 7), (INBOX + 8, 8), (INBOX + 100, 1024)],
        ];
        let queue = match self.kind {
            Kind::Shared => SHARED,
            _ => qp,
        };
        self.steps.push(Step::Receive {
            queue,
            slices: LISTS[self.received % LISTS.len()].to_vec(),
        });
        self.received += 1;
    }

    /// A request of this queue pair's kind.
    fn request(&self, opcode: WrOpcode) -> Request {
        let mut request = Request::new(opcode);
        if matches!(
            opcode,
            WrOpcode::SEND_WITH_IMM | WrOpcode::RDMA_WRITE_WITH_IMM
        ) {
            request.immediate = 0xdead_be07;
        }
        if self.kind == Kind::Ud {
            request.address = Some(0);
        }
        request
    }

    /// Each of these with lists of slices and with inline data of many lengths: on both sides of the ends of
    /// units and of blocks, for requests with and without a segment before the data.
    fn payloads(&mut self, opcodes: &[WrOpcode]) {
        const LENGTHS: &[u32] = &[
            0, 1, 12, 13, 28, 29, 44, 45, 60, 61, 108, 109, 140, 172, 299, INLINE,
        ];
        // Immediate data change nothing behind the control segment. Of datagrams all are needed to get round
        // the ring.
        const FEW_LENGTHS: &[u32] = &[0, 1, 45, 61, INLINE];
        for &opcode in opcodes {
            let lengths = match opcode {
                WrOpcode::SEND_WITH_IMM | WrOpcode::RDMA_WRITE_WITH_IMM
                    if self.kind != Kind::Ud =>
                {
                    FEW_LENGTHS
                }
                _ => LENGTHS,
            };
            for count in [0, 1, 2, 3, SEND_SGE] {
                self.one(self.request(opcode).slices(count));
            }
            let mut with_nothing = self.request(opcode).slices(3);
            with_nothing.slices[1].1 = 0;
            self.one(with_nothing);
            for &length in lengths {
                self.one(self.request(opcode).inline(length));
            }
        }
    }

    /// What brings something back.
    fn reads(&mut self) {
        for count in [0, 1, 2, SEND_SGE] {
            self.one(self.request(WrOpcode::RDMA_READ).slices(count));
        }
        for (opcode, operands) in [
            (
                WrOpcode::ATOMIC_CMP_AND_SWP,
                (0x0102_0304_0506_0708, 0x1112_1314_1516_1718),
            ),
            (WrOpcode::ATOMIC_FETCH_AND_ADD, (0x2122_2324_2526_2728, 0)),
        ] {
            let mut request = self.request(opcode);
            request.operands = operands;
            self.one(request.slices(1));
        }
    }

    /// Each flag, and none: the first two have no completion, and are known to be done by what the peer
    /// receives.
    fn flags(&mut self, fence: SendFlags) {
        let signaled = SendFlags::SIGNALED;
        for flags in [
            SendFlags::empty(),
            signaled | SendFlags::SOLICITED,
            signaled | fence,
            signaled | SendFlags::SOLICITED | fence,
        ] {
            self.one(self.request(WrOpcode::SEND).slices(1).flags(flags));
            self.one(
                self.request(WrOpcode::SEND_WITH_IMM)
                    .inline(20)
                    .flags(flags | SendFlags::INLINE),
            );
        }
    }

    /// Windows of both types, what takes their keys away, and the fence that the next request has.
    fn windows(&mut self) {
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let signaled = SendFlags::SIGNALED;
        let bind = |list: &mut Self, access: Access, tag: u64, window: Slice| {
            let mut request = list.request(WrOpcode::BIND_MW);
            request.operands = (access.bits().into(), tag);
            request.slices = vec![window];
            list.post(1, vec![request]);
        };
        let [one, two, three] = TAGS.map(u64::from);
        bind(self, all, one, (TARGET, 4096));
        self.post(1, vec![self.request(WrOpcode::SEND).slices(1)]);
        self.one(self.request(WrOpcode::SEND_WITH_INV).slices(1));
        bind(self, Access::REMOTE_READ, two, (TARGET + 1, 1));
        self.one(self.request(WrOpcode::SEND_WITH_INV).inline(30));
        bind(self, Access::REMOTE_WRITE, three, (TARGET + 4096, 5000));
        let send = self.request(WrOpcode::SEND).slices(1);
        self.post(1, vec![send.flags(signaled | SendFlags::FENCE)]);
        // Last of that window: libmlx5 gives the key another low byte by it.
        self.post(
            1,
            vec![
                self.request(WrOpcode::LOCAL_INV),
                self.request(WrOpcode::RDMA_WRITE).inline(8),
            ],
        );
        for (access, window) in [
            (all, (TARGET, 4096)),
            (Access::REMOTE_ATOMIC, (TARGET + 8, 8)),
            (Access::empty(), (0, 0)),
            (Access::REMOTE_READ, (TARGET + 3, 333)),
        ] {
            self.steps.push(Step::Bind {
                qp: 1,
                flags: signaled,
                access,
                window,
            });
        }
    }

    /// Keys over lists of one to two blocks and over rows, with each access, and the fence that the next
    /// request has; so many that they go round the ring.
    fn keys(&mut self) {
        let signaled = SendFlags::SIGNALED;
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let part = |index: u32| (SOURCE + u64::from(index) * 1000, 100 + index);
        for (turn, count) in (1..=8).enumerate() {
            let access = match turn % 3 {
                0 => Access::LOCAL_WRITE | remote,
                1 => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
                _ => Access::REMOTE_READ,
            };
            let parts: Vec<_> = (0..count).map(part).collect();
            for (rows, stride) in [(1, 0), (3, 200 + count as u16)] {
                self.steps.push(Step::Gather {
                    flags: [
                        signaled,
                        signaled | SendFlags::FENCE,
                        signaled | SendFlags::SOLICITED,
                    ][turn % 3],
                    access,
                    rows,
                    parts: parts.iter().map(|slice| (*slice, stride)).collect(),
                });
                if turn % 2 == 0 {
                    self.one(self.request(WrOpcode::RDMA_WRITE).slices(1));
                }
            }
            self.steps.push(Step::Raw);
        }
    }

    /// Several requests with one doorbell.
    fn batches(&mut self) {
        let unsignaled = SendFlags::empty();
        for _ in 0..3 {
            let write = self.request(WrOpcode::RDMA_WRITE);
            let inlined = write.clone().inline(100).flags(SendFlags::INLINE);
            self.post(
                0,
                vec![
                    write.clone().slices(2).flags(unsignaled),
                    inlined,
                    self.request(WrOpcode::SEND).slices(SEND_SGE),
                    write.slices(1),
                ],
            );
        }
    }

    /// Address handles for datagrams, of which the first is that of all other requests.
    fn addresses(&mut self, roce: bool) {
        let plain = Address {
            sl: 0,
            path_bits: 0,
            rate: 0,
            global: roce,
            flow_label: if roce { 0x12345 } else { 0 },
            hop_limit: 64,
            class: 0,
        };
        let global = Address {
            global: true,
            flow_label: 0xabcde,
            hop_limit: 3,
            class: 0x68,
            sl: 5,
            rate: 3,
            ..plain
        };
        let unlabelled = Address {
            flow_label: 0,
            ..global
        };
        let paths = [plain, global, unlabelled];
        self.steps.extend(paths.map(Step::Address));
        for address in 1..paths.len() {
            for request in [
                self.request(WrOpcode::SEND).slices(1),
                self.request(WrOpcode::SEND_WITH_IMM).inline(5),
            ] {
                self.one(Request {
                    address: Some(address),
                    ..request
                });
            }
        }
    }

    /// Receive requests of the shared queue in both directions, more than it holds, so that its entries are
    /// used anew.
    fn receives(&mut self) {
        for turn in 0..3 * RECV_WR {
            let request = self.request(WrOpcode::SEND).slices(turn % SEND_SGE);
            self.post((turn % 2) as usize, vec![request]);
        }
        // Several that wait at once.
        for _ in 0..4 {
            self.receive(0);
        }
        for _ in 0..4 {
            let request = self.request(WrOpcode::SEND).inline(9);
            self.steps.push(Step::Post {
                qp: 0,
                requests: vec![request],
                receives: 1,
            });
        }
    }
}
