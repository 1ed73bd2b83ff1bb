//! Memory keys: who may do what with which memory, and where that lies.

use crate::command::Status;
use crate::function::Function;
use crate::layout::{Field, cmd, mkc};
use crate::pages::addresses;

const CONTEXT_SIZE: usize = 0x40;
/// Pages are powers of two of 4 KiB in keys as well, but given as such.
const SMALLEST_PAGE_SHIFT: u32 = 12;
/// The key that stands for the end of a list of receive buffers.
pub(crate) const TERMINATOR: u32 = 0x100;
/// The key that stands for no memory: what is written there is discarded, and zeros are read. No table of
/// keys is so long that it has another.
pub(crate) const NOTHING: u32 = 0xffff_ff00;
/// The key that a queue pair with `rlky` may use for all memory; none is given out.
const RESERVED_LKEY: u64 = 0;

/// How a key finds memory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Translation {
    /// Addresses are bus addresses.
    Physical,
    /// Pages of equal size, by their entries: the address, and in the low bits what may be done there. Pages
    /// behind the last one may not be used.
    Pages(Vec<u64>),
    /// A part of what another key covers: a memory window.
    Window {
        /// The other key.
        key: u32,
        /// Where in it the window begins.
        address: u64,
    },
    /// Parts of what other keys cover, one behind the other.
    Parts(Vec<Part>),
    /// Rows of parts, one behind the other.
    Strided(Strides),
    /// What is written is discarded, and zeros are read.
    Nothing,
    /// Nothing yet: a memory window that is not bound.
    Unbound,
    /// Memory of the device, from that offset in BAR 0 on. The key's addresses count from 0.
    DeviceMemory(u64),
}

/// A part of what a key covers, in the list of another (`klm` of the driver).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Part {
    /// Bytes.
    pub(crate) length: u64,
    /// The key, with its low byte.
    pub(crate) key: u32,
    /// Where the part begins, as the key has it.
    pub(crate) address: u64,
}

/// Rows of parts of what other keys cover. Each row has a part of each, a stride further on than in the row
/// before.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Strides {
    /// Rows.
    pub(crate) count: u32,
    /// Of each part, where it lies in the first row, and its stride.
    pub(crate) parts: Vec<(Part, u64)>,
}

impl Strides {
    /// Bytes of a row.
    pub(crate) fn row(&self) -> u64 {
        self.parts.iter().map(|(part, _)| part.length).sum()
    }

    /// The parts from that row on.
    pub(crate) fn from(&self, row: u64) -> impl Iterator<Item = Part> {
        let rows = row..u64::from(self.count);
        rows.flat_map(|row| {
            self.parts.iter().map(move |(part, stride)| Part {
                address: part.address.wrapping_add(row * stride),
                ..*part
            })
        })
    }
}

/// Reads a list of parts. Where all have one size it is given, and those in the list do not matter.
pub(crate) fn parts(list: &[u8], size: Option<u64>) -> Vec<Part> {
    let (units, _) = list.as_chunks::<UNIT>();
    let part = |unit: &[u8; UNIT]| Part {
        length: size.unwrap_or(Field::new(0, 32).get(unit)),
        key: Field::new(32, 32).get32(unit),
        address: Field::new(64, 64).get(unit),
    };
    units.iter().map(part).collect()
}

/// Bytes of a unit in which the driver counts lists.
const UNIT: usize = 16;

/// Bits of a page's entry (`MLX5_IB_MTT_READ` and `MLX5_IB_MTT_WRITE` in the driver).
pub(crate) mod entry {
    /// The device may read there.
    pub(crate) const READ: u64 = 1 << 0;
    /// The device may write there.
    pub(crate) const WRITE: u64 = 1 << 1;
    /// What is not the address.
    pub(crate) const BITS: u64 = 0x7;
}

/// The mode of a key over parts of other keys that have one size, whose logarithm is in the place of a
/// page's.
const PARTS_OF_ONE_SIZE: u64 = 3;

/// How a key finds memory, as a number.
fn mode(context: &[u8]) -> u64 {
    mkc::ACCESS_MODE_4_2.get(context) << 2 | mkc::ACCESS_MODE_1_0.get(context)
}

/// Entries in a unit of 16 bytes, in which the driver counts them.
const ENTRIES_OF_UNIT: u64 = 2;
/// Units of the blocks in which the device has room for them, however few were asked for.
const BLOCK_UNITS: u64 = 4;

/// What an access wants to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Access {
    /// Read by the function's own queue pair.
    LocalRead,
    /// Written by the function's own queue pair.
    LocalWrite,
    /// Read by a peer.
    RemoteRead,
    /// Written by a peer.
    RemoteWrite,
    /// Changed by a peer's atomic operation.
    Atomic,
}

/// A key.
#[derive(Debug)]
pub(crate) struct MemoryKey {
    context: Vec<u8>,
    translation: Translation,
}

impl MemoryKey {
    /// The key [`NOTHING`], which covers all addresses and gives no rights to peers.
    pub(crate) fn nothing() -> Self {
        let mut context = vec![0; CONTEXT_SIZE];
        for right in [mkc::LENGTH64, mkc::LR, mkc::LW] {
            right.set(&mut context, 1);
        }
        Self {
            context,
            translation: Translation::Nothing,
        }
    }

    fn new(context: &[u8], list: &[u8], may: u64) -> Result<Self, Status> {
        let translation = match mode(context) {
            0 => Translation::Physical,
            1 if mkc::LOG_PAGE_SIZE.get32(context) < SMALLEST_PAGE_SHIFT => {
                return Err(Status::BadParameter);
            }
            // Work requests write the list later.
            1 if mkc::FREE.is_set(context) => Translation::Pages(Vec::new()),
            1 => Translation::Pages(addresses(list).iter().map(|page| page | may).collect()),
            // Windows, and what work requests write the list of later.
            2 | PARTS_OF_ONE_SIZE if mkc::FREE.is_set(context) => Translation::Unbound,
            2 => Translation::Parts(parts(list, None)),
            PARTS_OF_ONE_SIZE => {
                let size = 1 << mkc::LOG_PAGE_SIZE.get(context);
                Translation::Parts(parts(list, Some(size)))
            }
            5 => Translation::DeviceMemory(mkc::START_ADDR.get(context)),
            _ => return Err(Status::BadParameter),
        };
        Ok(Self {
            context: context.to_vec(),
            translation,
        })
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> u32 {
        mkc::PD.get32(&self.context)
    }

    /// The low byte of the key as the driver knows it.
    pub(crate) fn variant(&self) -> u8 {
        mkc::MKEY_7_0.get32(&self.context) as u8
    }

    /// Whether it stands for no memory now.
    pub(crate) fn is_free(&self) -> bool {
        mkc::FREE.is_set(&self.context)
    }

    /// How it finds memory.
    pub(crate) fn translation(&self) -> &Translation {
        &self.translation
    }

    /// The first address that it covers.
    pub(crate) fn start(&self) -> u64 {
        match self.translation {
            Translation::DeviceMemory(_) => 0,
            _ => mkc::START_ADDR.get(&self.context),
        }
    }

    /// Whether the addresses lie in its range.
    pub(crate) fn covers(&self, address: u64, length: u64) -> bool {
        if mkc::LENGTH64.is_set(&self.context) {
            return true;
        }
        let size = u128::from(mkc::LEN.get(&self.context));
        let start = u128::from(self.start());
        let address = u128::from(address);
        address >= start && address + u128::from(length) <= start + size
    }

    /// Whether it gives the right.
    pub(crate) fn allows(&self, access: Access) -> bool {
        let field = match access {
            Access::LocalRead => mkc::LR,
            Access::LocalWrite => mkc::LW,
            Access::RemoteRead => mkc::RR,
            Access::RemoteWrite => mkc::RW,
            Access::Atomic => mkc::A,
        };
        field.is_set(&self.context)
    }

    /// Whether a queue pair may use it: windows of type 2 belong to one.
    pub(crate) fn is_for(&self, qpn: u32) -> bool {
        const ALL: u32 = 0xff_ffff;
        let bound = mkc::QPN.get32(&self.context);
        bound == ALL || bound == qpn
    }

    /// Whether work requests may change it.
    pub(crate) fn is_changeable(&self) -> bool {
        mkc::UMR_EN.is_set(&self.context)
    }

    /// Takes fields over from another context.
    pub(crate) fn take(&mut self, from: &[u8], fields: impl Iterator<Item = Field>) {
        for field in fields {
            field.set(&mut self.context, field.get(from));
        }
    }

    /// Makes it a window.
    pub(crate) fn bind(&mut self, key: u32, address: u64) {
        self.translation = Translation::Window { key, address };
    }

    /// Gives it a list of so many units; false if it has no room for these.
    pub(crate) fn gather(&mut self, units: u64, layout: Translation) -> bool {
        let room = mkc::TRANSLATIONS_OCTWORD_SIZE.get(&self.context);
        let fits = units <= room.next_multiple_of(BLOCK_UNITS);
        if fits {
            self.translation = layout;
        }
        fits
    }

    /// Binary logarithm of the size of its pages.
    pub(crate) fn page_shift(&self) -> u32 {
        mkc::LOG_PAGE_SIZE.get32(&self.context)
    }

    /// Whether so many entries of pages fit from that one on.
    pub(crate) fn has_room(&self, first: u64, entries: usize) -> bool {
        let units = mkc::TRANSLATIONS_OCTWORD_SIZE.get(&self.context);
        let room = units.next_multiple_of(BLOCK_UNITS) * ENTRIES_OF_UNIT;
        matches!(self.translation, Translation::Pages(_)) && first + entries as u64 <= room
    }

    /// Overwrites entries from that one on; the caller has made sure that there is room.
    pub(crate) fn load(&mut self, first: u64, entries: &[u64]) {
        let Translation::Pages(pages) = &mut self.translation else {
            return;
        };
        let first = first as usize;
        let end = first + entries.len();
        pages.resize(pages.len().max(end), 0);
        pages[first..end].copy_from_slice(entries);
    }

    /// Takes its memory away for a peer, if peers may do that.
    pub(crate) fn invalidate(&mut self) -> bool {
        let allowed = mkc::EN_RINVAL.is_set(&self.context) && !self.is_free();
        if allowed {
            mkc::FREE.set(&mut self.context, 1);
        }
        allowed
    }
}

/// Executes CREATE_MKEY.
///
/// # Errors
/// If the context is one that the model cannot serve, the domain is not there, the list is short, or device
/// memory is not allocated.
pub(crate) fn create(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let context = input
        .get(cmd::CONTEXT..cmd::CONTEXT + CONTEXT_SIZE)
        .ok_or(Status::BadInputLength)?;
    let may = match cmd::PG_ACCESS.is_set(input) {
        true => 0,
        false => entry::READ | entry::WRITE,
    };
    if cmd::MKEY_UMEM_VALID.is_set(input) {
        return Err(Status::BadParameter);
    }
    let key = MemoryKey::new(context, input.get(cmd::PAS..).unwrap_or_default(), may)?;
    if let Translation::Parts(parts) = &key.translation {
        let units = cmd::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.get(input);
        let room = mkc::TRANSLATIONS_OCTWORD_SIZE.get(context);
        // In whole blocks; of these no more are used than the length needs. Lists of parts of one size are
        // not padded by UCX, the program that is known to make such keys.
        let is_whole = units.is_multiple_of(BLOCK_UNITS) || mode(context) == PARTS_OF_ONE_SIZE;
        if units == 0 || units > room || !is_whole {
            return Err(Status::BadParameter);
        }
        if parts.len() as u64 != units {
            return Err(Status::BadInputLength);
        }
    }
    function.check_pd(key.pd())?;
    if let (Translation::Pages(pages), false) = (&key.translation, key.is_free()) {
        let shift = key.page_shift();
        let start = mkc::START_ADDR.get(context);
        let within = start & ((1 << shift) - 1);
        let needed = (within + mkc::LEN.get(context)).div_ceil(1 << shift);
        if (pages.len() as u64) < needed {
            return Err(Status::BadInputLength);
        }
    }
    if let Translation::DeviceMemory(start) = key.translation {
        let end = start.saturating_add(mkc::LEN.get(context));
        if mkc::LENGTH64.is_set(context) || !function.objects.memic.has(&(start..end)) {
            return Err(Status::BadParameter);
        }
    }
    cmd::OBJECT.set(output, function.objects.mkeys.insert(key)?.into());
    Ok(())
}

/// Executes DESTROY_MKEY.
///
/// # Errors
/// If there is no such key.
pub(crate) fn destroy(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let index = cmd::OBJECT.get32(input);
    function.objects.mkeys.remove(index).map(drop)
}

/// Answers QUERY_MKEY.
///
/// # Errors
/// If there is no such key.
pub(crate) fn query(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let key = function.objects.mkeys.get(cmd::OBJECT.get32(input))?;
    for (to, from) in output.iter_mut().skip(cmd::CONTEXT).zip(&key.context) {
        *to = *from;
    }
    Ok(())
}

/// Answers QUERY_SPECIAL_CONTEXTS.
///
/// # Errors
/// None.
pub(crate) fn query_special(_: &mut Function, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    cmd::RESD_LKEY.set(output, RESERVED_LKEY);
    cmd::DUMP_FILL_MKEY.set(output, NOTHING.into());
    Ok(())
}
