//! What goes over the wire: the structs and numbers of the NVM Express specifications (base 1.4, fabrics 1.1,
//! and the RDMA transport) that this program uses. All numbers are little-endian.

use uverbs::RemoteSlice;
use uverbs::mr::RemoteKey;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a name of a host or a subsystem (NQN), padded with zeros.
pub(crate) const NAME: usize = 256;
/// Bytes of what Identify gives.
pub(crate) const PAGE: usize = 4096;

/// Private data of a request for a connection, which becomes one queue.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CmRequest {
    /// The format of this struct: 0.
    pub(crate) format: U16,
    /// 0 is the queue of administration, others are for reads and writes.
    pub(crate) queue: U16,
    /// Replies that the host has receives for.
    pub(crate) replies: U16,
    /// Commands that the host has under way at most, less one.
    pub(crate) commands: U16,
    /// The controller that the queue is for. Old hosts leave it 0, and Connect says it again.
    pub(crate) controller: U16,
    pub(crate) reserved: [u8; 22],
}

/// Private data of an acceptance.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CmReply {
    /// The format of this struct: 0.
    pub(crate) format: U16,
    /// Commands that the controller has receives for.
    pub(crate) commands: U16,
    pub(crate) reserved: [u8; 28],
}

/// Private data of a refusal.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CmReject {
    /// The format of this struct: 0.
    pub(crate) format: U16,
    /// Why: see [`refused`].
    pub(crate) why: U16,
}

/// Why a queue is refused.
pub(crate) mod refused {
    pub(crate) const LENGTH: u16 = 1;
    pub(crate) const FORMAT: u16 = 2;
    pub(crate) const COMMANDS: u16 = 4;
    pub(crate) const NO_RESOURCES: u16 = 6;
}

/// A command, as it stands at the start of a capsule. Data may follow in the capsule.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Command {
    /// See [`admin`] and [`io`]; [`FABRICS`] on both kinds of queues.
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    /// The host's number for it, which the reply repeats.
    pub(crate) id: U16,
    /// The namespace; of a fabrics command, its kind: see [`fabrics`].
    pub(crate) namespace: U32,
    pub(crate) reserved: U64,
    pub(crate) metadata: U64,
    pub(crate) data: Sgl,
    /// The words 10 to 15, whose meaning is the command's own.
    pub(crate) words: [U32; 6],
}

/// The flag of commands that describe their data by an [`Sgl`], as all over fabrics do.
pub(crate) const BY_SGL: u8 = 0x40;

/// The opcode of commands that only fabrics have.
pub(crate) const FABRICS: u8 = 0x7f;

/// Kinds of fabrics commands.
pub(crate) mod fabrics {
    pub(crate) const SET_PROPERTY: u8 = 0x00;
    pub(crate) const CONNECT: u8 = 0x01;
    pub(crate) const GET_PROPERTY: u8 = 0x04;
}

/// Opcodes on the queue of administration.
pub(crate) mod admin {
    pub(crate) const GET_LOG_PAGE: u8 = 0x02;
    pub(crate) const IDENTIFY: u8 = 0x06;
    pub(crate) const ABORT: u8 = 0x08;
    pub(crate) const SET_FEATURES: u8 = 0x09;
    pub(crate) const GET_FEATURES: u8 = 0x0a;
    pub(crate) const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    pub(crate) const KEEP_ALIVE: u8 = 0x18;
}

/// Opcodes on the other queues.
pub(crate) mod io {
    pub(crate) const FLUSH: u8 = 0x00;
    pub(crate) const WRITE: u8 = 0x01;
    pub(crate) const READ: u8 = 0x02;
    pub(crate) const WRITE_ZEROES: u8 = 0x08;
    /// In word 12 of a write: it is on stable storage before it is answered.
    pub(crate) const FORCE_UNIT_ACCESS: u32 = 1 << 30;
}

/// What Identify asks for.
pub(crate) mod identify {
    pub(crate) const NAMESPACE: u8 = 0x00;
    pub(crate) const CONTROLLER: u8 = 0x01;
    pub(crate) const ACTIVE_NAMESPACES: u8 = 0x02;
    pub(crate) const DESCRIPTORS: u8 = 0x03;
}

/// Features to set and get.
pub(crate) mod feature {
    pub(crate) const VOLATILE_WRITE_CACHE: u8 = 0x06;
    pub(crate) const NUMBER_OF_QUEUES: u8 = 0x07;
    pub(crate) const ASYNC_EVENTS: u8 = 0x0b;
    pub(crate) const KEEP_ALIVE_TIMER: u8 = 0x0f;
}

/// Log pages.
pub(crate) mod log {
    pub(crate) const ERRORS: u8 = 0x01;
    pub(crate) const HEALTH: u8 = 0x02;
    pub(crate) const FIRMWARE: u8 = 0x03;
}

/// A controller's properties, by offset, and bits of them.
pub(crate) mod property {
    pub(crate) const CAPABILITIES: u32 = 0x00;
    pub(crate) const VERSION: u32 = 0x08;
    pub(crate) const CONFIGURATION: u32 = 0x14;
    pub(crate) const STATUS: u32 = 0x1c;

    /// Of the configuration: the controller is to run.
    pub(crate) const ENABLE: u32 = 1;
    /// Of the configuration: it is to prepare for its end.
    pub(crate) const SHUTDOWN: u32 = 0b11 << 14;
    /// Of the configuration: entries of queues have 2^6 and 2^4 bytes.
    pub(crate) const ENTRIES: u32 = 6 << 16 | 4 << 20;
    /// Of the status: it runs.
    pub(crate) const READY: u32 = 1;
    /// Of the status: it is prepared for its end.
    pub(crate) const SHUT_DOWN: u32 = 0b10 << 2;
}

/// Where a command's data are.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Sgl {
    address: U64,
    /// 3 bytes of length and 4 of a key, or 4 bytes of length.
    length_and_key: [u8; 7],
    kind: u8,
}

/// An [`Sgl`], read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data {
    /// In the capsule, so many bytes behind the command.
    InCapsule { offset: u64, length: usize },
    /// In the host's memory, which the controller reads or writes.
    AtHost(RemoteSlice),
}

impl Sgl {
    const IN_CAPSULE: u8 = 0x01;
    const KEYED: u8 = 0x40;
    /// As before, and the host would like its key to be invalidated with the reply.
    const KEYED_TO_INVALIDATE: u8 = 0x4f;

    /// What it says; nothing if it is of a kind that Identify does not offer.
    pub(crate) fn read(&self) -> Option<Data> {
        let [a, b, c, key @ ..] = self.length_and_key;
        match self.kind {
            Self::IN_CAPSULE => Some(Data::InCapsule {
                offset: self.address.get(),
                length: u32::from_le_bytes([a, b, c, key[0]]) as usize,
            }),
            Self::KEYED | Self::KEYED_TO_INVALIDATE => Some(Data::AtHost(RemoteSlice {
                address: self.address.get(),
                length: u32::from_le_bytes([a, b, c, 0]).into(),
                rkey: RemoteKey(u32::from_le_bytes(key)),
            })),
            _ => None,
        }
    }

    /// No data: Linux refuses commands without that.
    const NOTHING: Self = Self {
        address: U64::ZERO,
        length_and_key: [0; 7],
        kind: Self::KEYED,
    };

    /// A slice of memory that the controller is to read or write: less than 16 MiB.
    pub(crate) fn keyed(memory: RemoteSlice) -> Self {
        let [a, b, c, ..] = memory.length.to_le_bytes();
        let [d, e, f, g] = memory.rkey.0.to_le_bytes();
        Self {
            address: memory.address.into(),
            length_and_key: [a, b, c, d, e, f, g],
            kind: Self::KEYED,
        }
    }
}

/// The reply to a command: a capsule of its own.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Reply {
    pub(crate) result: U64,
    /// How far the controller has come in the queue.
    pub(crate) head: U16,
    pub(crate) queue: U16,
    pub(crate) id: U16,
    /// A [`Status`], shifted by one.
    pub(crate) status: U16,
}

/// How a command ended: kind, code, and whether to try again is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u16);

impl Status {
    /// The bit that says: the same again would fail the same way.
    const DO_NOT_RETRY: u16 = 0x4000;

    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const INVALID_OPCODE: Self = Self(Self::DO_NOT_RETRY | 0x01);
    pub(crate) const INVALID_FIELD: Self = Self(Self::DO_NOT_RETRY | 0x02);
    /// The file behind the namespace failed.
    pub(crate) const INTERNAL: Self = Self(0x06);
    pub(crate) const INVALID_NAMESPACE: Self = Self(Self::DO_NOT_RETRY | 0x0b);
    pub(crate) const OUT_OF_SEQUENCE: Self = Self(Self::DO_NOT_RETRY | 0x0c);
    pub(crate) const INVALID_DATA_LENGTH: Self = Self(Self::DO_NOT_RETRY | 0x0f);
    pub(crate) const INVALID_SGL_KIND: Self = Self(Self::DO_NOT_RETRY | 0x11);
    pub(crate) const INVALID_SGL_OFFSET: Self = Self(Self::DO_NOT_RETRY | 0x16);
    pub(crate) const OUT_OF_RANGE: Self = Self(Self::DO_NOT_RETRY | 0x80);
    pub(crate) const TOO_MANY_EVENT_REQUESTS: Self = Self(Self::DO_NOT_RETRY | 0x105);
    pub(crate) const INVALID_LOG_PAGE: Self = Self(Self::DO_NOT_RETRY | 0x109);
    pub(crate) const CONNECT_FORMAT: Self = Self(Self::DO_NOT_RETRY | 0x180);
    pub(crate) const CONNECT_PARAMETERS: Self = Self(Self::DO_NOT_RETRY | 0x182);
}

/// The data of the command Connect.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ConnectData {
    pub(crate) host_id: [u8; 16],
    /// The controller, or [`ANY_CONTROLLER`] to be given one.
    pub(crate) controller: U16,
    pub(crate) reserved: [u8; 238],
    pub(crate) subsystem: [u8; NAME],
    pub(crate) host: [u8; NAME],
    pub(crate) reserved_too: [u8; 256],
}

pub(crate) const ANY_CONTROLLER: u16 = 0xffff;

/// What Identify says of a controller.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Controller {
    pub(crate) pci_vendor: U16,
    pub(crate) pci_subsystem_vendor: U16,
    /// Padded with blanks, as the next two are.
    pub(crate) serial: [u8; 20],
    pub(crate) model: [u8; 40],
    pub(crate) firmware: [u8; 8],
    pub(crate) burst: u8,
    pub(crate) ieee: [u8; 3],
    pub(crate) multipath: u8,
    /// Bytes of a transfer at most, as a power of two of pages; 0 for no limit.
    pub(crate) most_data: u8,
    pub(crate) id: U16,
    pub(crate) version: U32,
    pub(crate) reserved_84: [u8; 27],
    /// 1: it is for reading and writing.
    pub(crate) kind: u8,
    pub(crate) reserved_112: [u8; 147],
    /// Requests for asynchronous events that it holds, less one.
    pub(crate) event_requests: u8,
    pub(crate) reserved_260: [u8; 60],
    /// In which steps the keep-alive timer runs, by 100 ms.
    pub(crate) keep_alive: U16,
    pub(crate) reserved_322: [u8; 190],
    /// Bytes of an entry of a queue, as powers of two: the least, and four bits above it the most.
    pub(crate) command_bytes: u8,
    pub(crate) reply_bytes: u8,
    /// Commands in a queue at most.
    pub(crate) commands: U16,
    pub(crate) namespaces: U32,
    /// Optional commands: see [`WRITE_ZEROES`](Self::WRITE_ZEROES).
    pub(crate) optional: U16,
    pub(crate) reserved_522: [u8; 3],
    /// 1: it has a cache that Flush writes back.
    pub(crate) volatile_cache: u8,
    pub(crate) reserved_526: [u8; 10],
    /// Kinds of [`Sgl`].
    pub(crate) sgls: U32,
    pub(crate) reserved_540: [u8; 228],
    pub(crate) subsystem: [u8; NAME],
    pub(crate) reserved_1024: [u8; 768],
    /// Bytes of a capsule with a command, by 16.
    pub(crate) command_capsule: U32,
    pub(crate) reply_capsule: U32,
    /// Where data in a capsule begin, behind the command, by 16.
    pub(crate) data_offset: U16,
    pub(crate) fabric_attributes: u8,
    /// Descriptors of data in a command at most.
    pub(crate) descriptors: u8,
    pub(crate) reserved_1804: [u8; 2292],
}

impl Controller {
    /// Of optional commands.
    pub(crate) const WRITE_ZEROES: u16 = 1 << 3;
    /// Of kinds of SGLs: any, keyed ones, and offsets into the capsule.
    pub(crate) const SGLS: u32 = 1;
    pub(crate) const KEYED_SGLS: u32 = 1 << 2;
    pub(crate) const SGL_OFFSETS: u32 = 1 << 20;
}

/// What Identify says of a namespace.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Namespace {
    /// In blocks, as the next two are.
    pub(crate) size: U64,
    pub(crate) capacity: U64,
    pub(crate) used: U64,
    pub(crate) features: u8,
    /// Formats that there are, less one.
    pub(crate) formats: u8,
    /// The one that it has.
    pub(crate) format: u8,
    pub(crate) reserved_27: [u8; 77],
    /// Its name in the whole world.
    pub(crate) guid: [u8; 16],
    pub(crate) reserved_120: [u8; 8],
    pub(crate) block: [BlockFormat; 64],
    pub(crate) reserved_384: [u8; 3712],
}

/// A format of blocks.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct BlockFormat {
    pub(crate) metadata: U16,
    /// Bytes, as a power of two.
    pub(crate) bytes: u8,
    pub(crate) performance: u8,
}

/// The head of one of a namespace's names, in a list of them.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Descriptor {
    pub(crate) kind: u8,
    pub(crate) length: u8,
    pub(crate) reserved: [u8; 2],
}

impl Descriptor {
    /// A GUID of 16 bytes.
    pub(crate) const GUID: u8 = 2;
}

/// The log page about health: counters of what hosts have done.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Health {
    pub(crate) warning: u8,
    pub(crate) temperature: U16,
    /// Spare blocks left, in percent, as the next two are.
    pub(crate) spare: u8,
    pub(crate) spare_threshold: u8,
    pub(crate) used: u8,
    pub(crate) reserved_6: [u8; 26],
    /// Thousands of 512 bytes; each counter has 16 bytes.
    pub(crate) data_read: [U64; 2],
    pub(crate) data_written: [U64; 2],
    pub(crate) reads: [U64; 2],
    pub(crate) writes: [U64; 2],
    pub(crate) reserved_96: [u8; 416],
}

const _: () = {
    assert!(size_of::<CmRequest>() == 32);
    assert!(size_of::<CmReply>() == 32);
    assert!(size_of::<Command>() == 64);
    assert!(size_of::<Reply>() == 16);
    assert!(size_of::<ConnectData>() == 1024);
    assert!(size_of::<Controller>() == PAGE);
    assert!(size_of::<Namespace>() == PAGE);
    assert!(size_of::<Health>() == 512);
};

/// A text in a field of bytes, and so much of it as fits; the rest of the field has `padding`.
pub(crate) fn padded<const N: usize>(text: &str, padding: u8) -> [u8; N] {
    let mut field = [padding; N];
    let length = text.len().min(N);
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
    field
}

/// The text in a field that is padded with zeros.
pub(crate) fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&field[..end.unwrap_or(field.len())]).into_owned()
}

impl Command {
    /// A command without data.
    pub(crate) fn new(opcode: u8) -> Self {
        Self {
            opcode,
            flags: BY_SGL,
            data: Sgl::NOTHING,
            ..Self::new_zeroed()
        }
    }

    /// A fabrics command of this kind.
    pub(crate) fn fabrics(kind: u8) -> Self {
        Self {
            namespace: u32::from(kind).into(),
            ..Self::new(FABRICS)
        }
    }

    /// The kind of a fabrics command.
    pub(crate) fn fabrics_kind(&self) -> u8 {
        self.namespace.to_bytes()[0]
    }

    /// Word 10 to 15.
    pub(crate) fn word(&self, number: usize) -> u32 {
        self.words[number - 10].get()
    }

    pub(crate) fn set_word(&mut self, number: usize, value: u32) {
        self.words[number - 10] = value.into();
    }

    /// The first block of a read or a write.
    pub(crate) fn first_block(&self) -> u64 {
        u64::from(self.word(10)) | u64::from(self.word(11)) << 32
    }

    /// How many blocks it is about.
    pub(crate) fn blocks(&self) -> u64 {
        u64::from(self.word(12) & 0xffff) + 1
    }

    /// A read or a write of so many blocks of the namespace 1: at most 65,536, and at least one.
    pub(crate) fn of_blocks(opcode: u8, first: u64, blocks: u32) -> Self {
        let mut command = Self {
            namespace: 1.into(),
            ..Self::new(opcode)
        };
        command.set_word(10, first as u32);
        command.set_word(11, (first >> 32) as u32);
        command.set_word(12, blocks - 1);
        command
    }
}
