//! Send work requests as the driver writes them (`struct mlx5_wqe_ctrl_seg` and what follows), checked and
//! decoded.
//!
//! Only what can be told from the request itself is checked here; keys and states come later.

use std::fmt;

use crate::engine::syndrome::Syndrome;
use crate::layout::mkc;
use crate::object::mkey::{Part, Strides, Translation, parts};
use crate::object::qp::Transport;
use crate::port::PortKind;

/// Bytes of the unit in which requests and their segments are counted.
pub(crate) const UNIT: usize = 16;
/// Units of the blocks in which a key's translation is counted.
const TRANSLATION_UNITS: usize = 4;
/// Most bytes of inline data that a request may carry.
const MOST_INLINE: usize = 1008;
/// Of the fields that a change of a key takes over, where its addresses begin. A window has it, and parts of
/// other keys never: their addresses go on from where they were.
const STARTS: u64 = 1 << 6;

/// Where the flags lie in the control segment.
pub(crate) const FLAGS_AT: usize = 11;

/// Bits of `fm_ce_se`.
mod flag {
    pub(super) const SOLICITED: u8 = 0x02;
    pub(super) const CQ_UPDATE: u8 = 0x08;
    /// Always zero.
    pub(super) const RESERVED: u8 = 0x15;
}

/// The mode of a request's fence, in the upper three bits of the flags (`MLX5_FENCE_MODE_*`).
mod fence {
    /// For changes of keys.
    pub(super) const SMALL: u8 = 1;
    /// For READs and atomic operations.
    pub(super) const READS: u8 = 2;
    /// For all.
    pub(super) const STRONG: u8 = 3;
    /// For both of the first.
    pub(super) const BOTH: u8 = 4;
}

/// What a request does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Opcode {
    /// Nothing.
    Nop = 0x00,
    /// Sends, and takes a key of the peer away.
    SendInvalidate = 0x01,
    /// Writes to the peer's memory.
    Write = 0x08,
    /// Writes, and completes a receive request of the peer.
    WriteImmediate = 0x09,
    /// Sends.
    Send = 0x0a,
    /// Sends with 4 bytes in the completion.
    SendImmediate = 0x0b,
    /// Reads the peer's memory.
    Read = 0x10,
    /// Compares and swaps 8 bytes of the peer's memory.
    CompareSwap = 0x11,
    /// Adds to 8 bytes of the peer's memory.
    FetchAdd = 0x12,
    /// Changes a memory key: binds a window, invalidates, gives other rights.
    ChangeKey = 0x25,
}

impl Opcode {
    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Nop,
            0x01 => Self::SendInvalidate,
            0x08 => Self::Write,
            0x09 => Self::WriteImmediate,
            0x0a => Self::Send,
            0x0b => Self::SendImmediate,
            0x10 => Self::Read,
            0x11 => Self::CompareSwap,
            0x12 => Self::FetchAdd,
            0x25 => Self::ChangeKey,
            _ => return None,
        })
    }

    /// Whether queue pairs of that kind have it.
    fn is_of(self, transport: Transport) -> bool {
        match transport {
            Transport::Rc | Transport::Xrc => true,
            Transport::Uc => matches!(
                self,
                Self::Nop
                    | Self::Send
                    | Self::SendImmediate
                    | Self::Write
                    | Self::WriteImmediate
                    | Self::ChangeKey
            ),
            Transport::Ud | Transport::Smi | Transport::Gsi => {
                matches!(self, Self::Nop | Self::Send | Self::SendImmediate)
            }
            // Changes of keys are not modelled there.
            Transport::Dc => self != Self::ChangeKey,
            Transport::RegUmr => matches!(self, Self::Nop | Self::ChangeKey),
        }
    }

    /// Whether it is an atomic operation.
    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether a segment with the peer's address and key follows the control segment.
    const fn is_remote(self) -> bool {
        matches!(self, Self::Write | Self::WriteImmediate | Self::Read) || self.is_atomic()
    }
}

/// The control segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Control {
    /// The opcode's variant; zero for all that the model knows.
    pub(crate) opmod: u8,
    /// The request's index in blocks.
    pub(crate) index: u16,
    /// The opcode as it stands there.
    pub(crate) opcode: u8,
    /// The queue pair's number.
    pub(crate) qpn: u32,
    /// The request's size in units.
    pub(crate) units: u8,
    signature: u8,
    /// An initiator's stream, or zero.
    reserved: [u8; 2],
    flags: u8,
    /// Immediate data or the key to invalidate, as it stands there.
    pub(crate) immediate: [u8; 4],
}

impl Control {
    /// Reads the segment.
    pub(crate) fn read(bytes: &[u8; UNIT]) -> Self {
        let [
            opmod,
            index_high,
            index_low,
            opcode,
            q2,
            q1,
            q0,
            units,
            signature,
            r1,
            r0,
            flags,
            immediate @ ..,
        ] = *bytes;
        Self {
            opmod,
            index: u16::from_be_bytes([index_high, index_low]),
            opcode,
            qpn: u32::from_be_bytes([0, q2, q1, q0]),
            units,
            signature,
            reserved: [r1, r0],
            flags,
            immediate,
        }
    }

    /// The initiator's stream, of dynamic connections.
    pub(crate) fn stream(&self) -> u16 {
        u16::from_be_bytes(self.reserved)
    }

    /// How many blocks the request takes in the queue.
    pub(crate) fn blocks(&self) -> u16 {
        u16::from(self.units).div_ceil(4)
    }

    /// The memory key that is meant, for what changes one.
    pub(crate) fn key(&self) -> u32 {
        u32::from_be_bytes(self.immediate)
    }

    /// The flags as they stand there.
    pub(crate) fn flags(&self) -> u8 {
        self.flags
    }

    /// Whether it does nothing.
    pub(crate) fn is_nop(&self) -> bool {
        self.opcode == Opcode::Nop as u8
    }

    /// Whether its completion is wanted.
    pub(crate) fn is_signaled(&self) -> bool {
        wants_completion(self.flags)
    }

    /// How it is held back.
    fn fence(&self) -> u8 {
        self.flags >> 5
    }

    /// Whether it is held back until one before it with that opcode is done.
    pub(crate) fn waits_for(&self, before: Opcode) -> bool {
        match self.fence() {
            fence::STRONG | fence::BOTH => true,
            fence::SMALL => before == Opcode::ChangeKey,
            fence::READS => before == Opcode::Read || before.is_atomic(),
            _ => false,
        }
    }

    /// Whether the peer is to be told by an event.
    pub(crate) fn is_solicited(&self) -> bool {
        self.flags & flag::SOLICITED != 0
    }
}

/// Whether these flags of a control segment ask for a completion.
pub(crate) fn wants_completion(flags: u8) -> bool {
    flags & flag::CQ_UPDATE != 0
}

impl fmt::Display for Control {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Opcode::from_code(self.opcode) {
            Some(opcode) => write!(formatter, "{opcode:?}")?,
            None => write!(formatter, "opcode {:#x}", self.opcode)?,
        }
        write!(
            formatter,
            " (variant {}), index {}, queue pair {:#x}, {} units, signature {:#x}, flags {:#x}, immediate {:02x?}",
            self.opmod,
            self.index,
            self.qpn,
            self.units,
            self.signature,
            self.flags,
            self.immediate
        )
    }
}

/// Where a datagram goes, or a request of a DC initiator (`struct mlx5_av`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct AddressVector {
    pub(crate) q_key: u32,
    /// A DC target's access key, in the place of a datagram's key and what is reserved behind that.
    pub(crate) access_key: u64,
    /// A queue pair's number, or a DC target's.
    pub(crate) qpn: u32,
    pub(crate) service_level: u8,
    pub(crate) lid: u16,
    /// The peer's MAC, on Ethernet.
    pub(crate) mac: u64,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// Which of the own GIDs is the source.
    pub(crate) source_index: u8,
    pub(crate) flow_label: u32,
    /// Whether there is a global routing header. Not said on Ethernet, where there always is one.
    pub(crate) has_grh: bool,
    /// The peer's GID, if there is such a header.
    pub(crate) gid: [u8; 16],
}

impl AddressVector {
    /// The peer's GID, if the datagram has a header for it on this kind of port.
    pub(crate) fn gid_on(&self, kind: PortKind) -> Option<[u8; 16]> {
        (self.has_grh || kind == PortKind::Roce).then_some(self.gid)
    }
}

/// A piece of the message's data.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Segment {
    /// In the request itself.
    Inline(Vec<u8>),
    /// In memory.
    Memory { length: u32, key: u32, address: u64 },
}

/// A request, decoded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Request {
    pub(crate) control: Control,
    pub(crate) opcode: Opcode,
    pub(crate) vector: Option<AddressVector>,
    /// The peer's shared receive queue, which each request of XRC names.
    pub(crate) shared_queue: Option<u32>,
    /// The peer's address and key.
    pub(crate) remote: Option<(u64, u32)>,
    /// The operands of an atomic: what is swapped in or added, and what is compared with.
    pub(crate) operands: Option<(u64, u64)>,
    pub(crate) segments: Vec<Segment>,
    /// The change to a memory key.
    pub(crate) change: Option<KeyChange>,
}

/// How a memory key is changed (`struct mlx5_wqe_umr_ctrl_seg` and what follows).
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct KeyChange {
    pub(crate) flags: u8,
    /// Which fields of the context are taken over.
    pub(crate) mask: u64,
    /// The key's new context, as the driver's commands have it.
    pub(crate) context: [u8; 64],
    /// What a window is bound to: key and address.
    pub(crate) window: Option<(u32, u64)>,
    /// Entries of pages that the key gets.
    pub(crate) list: Option<PageList>,
    /// Parts of other keys that the key gets, in so many units.
    pub(crate) layout: Option<(u64, Translation)>,
}

/// Entries of pages for a memory key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct PageList {
    /// The first entry's place in the key's translation, in units.
    pub(crate) offset: u64,
    /// Where they lie.
    pub(crate) entries: Segment,
}

/// A request that no correct driver writes, and how it is answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Malformed {
    pub(crate) syndrome: Syndrome,
    pub(crate) reason: String,
}

fn malformed<T>(syndrome: Syndrome, reason: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed {
        syndrome,
        reason: reason.into(),
    })
}

/// What a request must agree with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) transport: Transport,
    pub(crate) port: PortKind,
    pub(crate) qpn: u32,
    pub(crate) index: u16,
    /// How many blocks were posted, from this request on.
    pub(crate) posted: u16,
}

/// Checks the control segment.
///
/// # Errors
/// If it breaks a rule.
pub(crate) fn check_control(control: &Control, expected: Expected) -> Result<Opcode, Malformed> {
    let bad = Syndrome::LocalQpOperation;
    let Some(opcode) = Opcode::from_code(control.opcode) else {
        return malformed(bad, "there is no such opcode");
    };
    if control.index != expected.index {
        return malformed(
            bad,
            format!("the index should be {}: {}", expected.index, control.index),
        );
    }
    if control.qpn != expected.qpn {
        return malformed(bad, format!("the queue pair is {:#x}", expected.qpn));
    }
    if control.units == 0 || control.units > 63 {
        return malformed(bad, "the size is not from 1 to 63 units");
    }
    if control.blocks() > expected.posted {
        return malformed(
            bad,
            format!(
                "the doorbell record says that {} blocks are posted, the request has {}",
                expected.posted,
                control.blocks()
            ),
        );
    }
    if control.opmod != 0 {
        return malformed(bad, "the opcode has no such variant");
    }
    if control.signature != 0 {
        return malformed(bad, "signatures are off");
    }
    // An initiator's stream stands there, and any number will do.
    if control.reserved != [0; 2] && expected.transport != Transport::Dc {
        return malformed(bad, "the reserved bytes behind the signature are not zero");
    }
    if control.flags & flag::RESERVED != 0 {
        return malformed(bad, "reserved flags are set");
    }
    if control.fence() > fence::BOTH {
        return malformed(bad, "there is no such fence");
    }
    if !opcode.is_of(expected.transport) {
        return malformed(
            bad,
            format!(
                "{:?} queue pairs have no such operation",
                expected.transport
            ),
        );
    }
    Ok(opcode)
}

/// Decodes a request, all of it contiguous in `bytes`.
///
/// # Errors
/// If it breaks a rule.
pub(crate) fn decode(bytes: &[u8], expected: Expected) -> Result<Request, Malformed> {
    let Some(first) = bytes.first_chunk::<UNIT>() else {
        return malformed(Syndrome::LocalQpOperation, "there is no control segment");
    };
    let control = Control::read(first);
    let opcode = check_control(&control, expected)?;
    let size = usize::from(control.units) * UNIT;
    let Some(rest) = bytes.get(UNIT..size) else {
        return malformed(Syndrome::LocalQpOperation, "the request is cut off");
    };
    let mut rest = Cursor { bytes: rest };
    let mut request = Request {
        control,
        opcode,
        vector: None,
        shared_queue: None,
        remote: None,
        operands: None,
        segments: Vec::new(),
        change: None,
    };
    if opcode == Opcode::Nop {
        return Ok(request);
    }
    if opcode == Opcode::ChangeKey {
        request.change = Some(key_change(&mut rest)?);
        return Ok(request);
    }
    if expected.transport.names_destination() {
        request.vector = Some(address_vector(&mut rest, expected.port)?);
    }
    if expected.transport == Transport::Xrc {
        request.shared_queue = Some(shared_queue(rest.take()?)?);
    }
    if opcode.is_remote() {
        request.remote = Some(remote(rest.take()?)?);
    }
    if opcode.is_atomic() {
        let bytes: [u8; UNIT] = rest.take()?;
        request.operands = Some((be64(&bytes, 0), be64(&bytes, 8)));
    }
    request.segments = segments(rest.bytes)?;
    check_segments(&request)?;
    Ok(request)
}

/// Rules about the data of particular operations.
fn check_segments(request: &Request) -> Result<(), Malformed> {
    let bad = Syndrome::LocalQpOperation;
    let inline = request
        .segments
        .iter()
        .any(|segment| matches!(segment, Segment::Inline(_)));
    if inline && (request.opcode == Opcode::Read || request.opcode.is_atomic()) {
        return malformed(bad, "what comes back cannot be put into the request");
    }
    if request.opcode.is_atomic() {
        let length: u64 = request.segments.iter().map(Segment::length).sum();
        if length != 8 {
            return malformed(
                Syndrome::LocalLength,
                format!("an atomic gives 8 bytes back, there is room for {length}"),
            );
        }
    }
    Ok(())
}

impl Segment {
    /// Bytes of data.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Memory { length, .. } => u64::from(*length),
        }
    }
}

/// The data segments until the request's end.
fn segments(bytes: &[u8]) -> Result<Vec<Segment>, Malformed> {
    const INLINE: u32 = 1 << 31;
    let mut segments = Vec::new();
    let mut inlined = 0;
    let mut rest = bytes;
    while let Some(head) = rest.first_chunk::<4>() {
        let length = u32::from_be_bytes(*head);
        let size = if length & INLINE != 0 {
            let length = (length & !INLINE) as usize;
            let Some(data) = rest.get(4..4 + length) else {
                return malformed(
                    Syndrome::LocalLength,
                    format!("{length} bytes of inline data go beyond the request's end"),
                );
            };
            inlined += length;
            segments.push(Segment::Inline(data.to_vec()));
            (4 + length).next_multiple_of(UNIT)
        } else {
            segments.push(memory_segment(rest)?);
            UNIT
        };
        rest = rest.get(size..).unwrap_or_default();
    }
    if inlined > MOST_INLINE {
        return malformed(Syndrome::LocalLength, "too much inline data");
    }
    Ok(segments)
}

fn memory_segment(bytes: &[u8]) -> Result<Segment, Malformed> {
    let Some(bytes) = bytes.first_chunk::<UNIT>() else {
        return malformed(Syndrome::LocalQpOperation, "a data segment is cut off");
    };
    let length = (be64(bytes, 0) >> 32) as u32;
    if length == 0 {
        return malformed(
            Syndrome::LocalLength,
            "a data segment of length 0 (hardware takes it as 2 GiB)",
        );
    }
    Ok(Segment::Memory {
        length,
        key: be64(bytes, 0) as u32,
        address: be64(bytes, 8),
    })
}

/// The segment of XRC (`struct mlx5_wqe_xrc_seg`).
fn shared_queue(bytes: [u8; UNIT]) -> Result<u32, Malformed> {
    if bytes[0] != 0 || bytes[4..] != [0; 12] {
        return malformed(
            Syndrome::LocalQpOperation,
            "a reserved byte around the number of the shared receive queue is not zero",
        );
    }
    Ok((be64(&bytes, 0) >> 32) as u32)
}

fn remote(bytes: [u8; UNIT]) -> Result<(u64, u32), Malformed> {
    if bytes[12..] != [0; 4] {
        return malformed(
            Syndrome::LocalQpOperation,
            "the reserved word behind the remote key is not zero",
        );
    }
    Ok((be64(&bytes, 0), (be64(&bytes, 8) >> 32) as u32))
}

fn key_change(rest: &mut Cursor<'_>) -> Result<KeyChange, Malformed> {
    const INLINE: u8 = 1 << 7;
    /// The mode of access of a key with entries of pages.
    const PAGES: u64 = 1;
    let bad = Syndrome::LocalQpOperation;
    let head: [u8; 48] = rest.take()?;
    let flags = head[0];
    let inline = flags & INLINE != 0;
    if head[1..4] != [0; 3] || head[20..] != [0; 28] {
        return malformed(
            bad,
            "reserved bytes of a change to a memory key are not zero",
        );
    }
    let octowords = u16::from_be_bytes([head[4], head[5]]);
    if !usize::from(octowords).is_multiple_of(TRANSLATION_UNITS) {
        return malformed(
            bad,
            format!("a translation of {octowords} units, which are no whole blocks of 64 bytes"),
        );
    }
    let offset = translation_offset(&head)?;
    let mut change = KeyChange {
        flags,
        mask: be64(&head, 8),
        context: rest.take()?,
        window: None,
        list: None,
        layout: None,
    };
    if inline && octowords != 0 {
        if mkc::ACCESS_MODE_1_0.get(&change.context) == PAGES {
            let length = usize::from(octowords) * UNIT;
            let Some(entries) = rest.bytes.get(..length) else {
                return malformed(bad, "entries of pages are cut off");
            };
            let entries = Segment::Inline(entries.to_vec());
            change.list = Some(PageList { offset, entries });
        } else {
            let length = usize::from(octowords) * UNIT;
            let Some(units) = rest.bytes.get(..length) else {
                return malformed(bad, "the units of a translation are cut off");
            };
            rest.bytes = &rest.bytes[length..];
            if change.mask & STARTS != 0 {
                change.window = Some(window(units)?);
            } else {
                change.layout = Some((octowords.into(), gathered(units)?));
            }
        }
    }
    if !inline {
        let entries = memory_segment(rest.bytes)?;
        if octowords == 0 || entries.length() != u64::from(octowords) * UNIT as u64 {
            return malformed(
                bad,
                format!("a list of {entries:?} for a translation of {octowords} units"),
            );
        }
        change.list = Some(PageList { offset, entries });
    }
    Ok(change)
}

/// What a window is bound to: the one unit of its translation that says something.
fn window(units: &[u8]) -> Result<(u32, u64), Malformed> {
    let (entry, rest) = units.split_at(UNIT);
    if rest.iter().any(|byte| *byte != 0) {
        return malformed(
            Syndrome::LocalQpOperation,
            "a window's translation has more than one unit",
        );
    }
    Ok((be64(entry, 0) as u32, be64(entry, 8)))
}

/// The parts of other keys that a key gets: a list, or rows (`struct mlx5_wqe_umr_repeat_block_seg`).
fn gathered(units: &[u8]) -> Result<Translation, Malformed> {
    /// What a list of rows begins with, where a part has its key.
    const ROWS: u32 = 0x400;
    let bad = Syndrome::LocalQpOperation;
    // The last block may have units that say nothing.
    let padding = units.rchunks(UNIT).take(TRANSLATION_UNITS - 1);
    let padding = padding.take_while(|unit| unit.iter().all(|byte| *byte == 0));
    let used = units.len() - padding.count() * UNIT;
    let (head, rows) = units[..used].split_at(UNIT);
    if be64(head, 0) as u32 != ROWS {
        return Ok(Translation::Parts(parts(&units[..used], None)));
    }
    let (row, count) = ((be64(head, 0) >> 32) as u32, (be64(head, 8) >> 32) as u32);
    let entries = be64(head, 8) as u32;
    let (rows, _) = rows.as_chunks::<UNIT>();
    if entries as usize != rows.len() || entries == 0 || count == 0 {
        return malformed(
            bad,
            format!(
                "{count} rows of {entries} parts, where {} follow",
                rows.len()
            ),
        );
    }
    let part = |unit: &[u8; UNIT]| {
        let part = Part {
            length: be64(unit, 0) >> 32 & 0xffff,
            key: be64(unit, 0) as u32,
            address: be64(unit, 8),
        };
        (part, be64(unit, 0) >> 48)
    };
    let strides = Strides {
        count,
        parts: rows.iter().map(part).collect(),
    };
    match strides.row() == u64::from(row) {
        true => Ok(Translation::Strided(strides)),
        false => malformed(
            bad,
            format!(
                "a row has {} bytes, not the {row} that are told",
                strides.row()
            ),
        ),
    }
}

/// Where in the key's translation the request's begins, in units.
fn translation_offset(head: &[u8; 48]) -> Result<u64, Malformed> {
    const OFFSET: u8 = 1 << 4;
    let offset = (be64(head, 16) >> 32) << 16 | be64(head, 0) & 0xffff;
    if head[0] & OFFSET == 0 && offset != 0 {
        return malformed(
            Syndrome::LocalQpOperation,
            "a translation has an offset, and no flag that says so",
        );
    }
    if !offset.is_multiple_of(TRANSLATION_UNITS as u64) {
        return malformed(
            Syndrome::LocalQpOperation,
            format!("a translation begins at unit {offset}, within a block of 64 bytes"),
        );
    }
    Ok(offset)
}

/// Reads an address vector. Its first unit has all that a peer of the same InfiniBand subnet needs, and a bit
/// that says whether the other two follow.
fn address_vector(rest: &mut Cursor<'_>, port: PortKind) -> Result<AddressVector, Malformed> {
    const EXTENDED: u8 = 1 << 7;
    const HAS_GRH: u32 = 1 << 30;
    let mut bytes = [0; 48];
    let first: [u8; UNIT] = rest.take()?;
    bytes[..UNIT].copy_from_slice(&first);
    if first[8] & EXTENDED != 0 {
        bytes[UNIT..].copy_from_slice(&rest.take::<{ 48 - UNIT }>()?);
    } else if port == PortKind::Roce {
        return malformed(
            Syndrome::LocalQpOperation,
            "the address vector is not marked as extended (bit 31 of its queue pair), and so has no MAC",
        );
    }
    let word = |at: usize| (be64(&bytes, at) >> 32) as u32;
    let mut gid = [0; 16];
    gid.copy_from_slice(&bytes[32..]);
    Ok(AddressVector {
        q_key: word(0),
        access_key: be64(&bytes, 0),
        qpn: word(8) & 0xff_ffff,
        service_level: bytes[12] & 0xf,
        lid: u16::from_be_bytes([bytes[14], bytes[15]]),
        mac: be64(&bytes, 18) & 0xffff_ffff_ffff,
        traffic_class: bytes[26],
        hop_limit: bytes[27],
        source_index: (word(28) >> 20) as u8,
        flow_label: word(28) & 0xf_ffff,
        has_grh: word(28) & HAS_GRH != 0,
        gid,
    })
}

/// What is left of a request.
struct Cursor<'a> {
    bytes: &'a [u8],
}

impl Cursor<'_> {
    fn take<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], Malformed> {
        match self.bytes.split_first_chunk::<SIZE>() {
            Some((chunk, rest)) => {
                self.bytes = rest;
                Ok(*chunk)
            }
            None => malformed(
                Syndrome::LocalQpOperation,
                "the request has fewer units than its opcode needs",
            ),
        }
    }
}

/// 8 bytes from there on as a big-endian number; the caller has made sure that they are there.
fn be64(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    for (to, from) in number.iter_mut().zip(bytes.iter().skip(at)) {
        *to = *from;
    }
    u64::from_be_bytes(number)
}

#[cfg(test)]
mod tests;
