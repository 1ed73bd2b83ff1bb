//! Memory regions: what keys mean.

use vfio_model::memory::{GuestMemory, Unmapped};

use crate::admin::Status;
use crate::fields::Fields;
use crate::function::Function;

/// In the flags of a command: it has a list elsewhere, which is in chunks.
pub(crate) const LIST: u8 = 1 << 1;
pub(crate) const CHUNKS: u8 = 1 << 2;

/// Bytes of a page of a list, and how many addresses are in a chunk before that of the next.
const LIST_PAGE: u64 = 4096;
const IN_CHUNK: usize = 510;

/// What a region may be used for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Right {
    /// The device reads it for its owner.
    LocalRead,
    /// The device writes to it for its owner.
    LocalWrite,
    RemoteWrite,
    RemoteRead,
}

/// A region.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) pd: u16,
    iova: u64,
    length: u64,
    page_shift: u8,
    pages: Vec<u64>,
    rights: u8,
}

/// The keys of the region of a number differ, so that one taken for the other is noticed.
pub(crate) fn lkey(number: u32) -> u32 {
    number << 4 | 0x5
}

/// The key for peers.
pub(crate) fn rkey(number: u32) -> u32 {
    number << 4 | 0xa
}

impl Region {
    /// Whether it may be used so.
    pub(crate) fn allows(&self, right: Right) -> bool {
        match right {
            Right::LocalRead => true,
            Right::LocalWrite => self.rights & 1 != 0,
            Right::RemoteWrite => self.rights & 1 << 1 != 0,
            Right::RemoteRead => self.rights & 1 << 2 != 0,
        }
    }

    /// The pieces of memory, address and length, behind a range of the region; none if it is not in it.
    pub(crate) fn pieces(&self, address: u64, length: u64) -> Option<Vec<(u64, usize)>> {
        let start = address.checked_sub(self.iova)?;
        if start.checked_add(length)? > self.length {
            return None;
        }
        let page = 1_u64 << self.page_shift;
        let mut at = start + self.iova % page;
        let end = at + length;
        let mut pieces = Vec::new();
        while at < end {
            let piece = (page - at % page).min(end - at);
            let base = self.pages.get((at / page) as usize)?;
            pieces.push((base + at % page, piece as usize));
            at += piece;
        }
        Some(pieces)
    }
}

/// Finds the region of a key, if the key, its domain and its rights fit.
pub(crate) fn find(
    function: &Function,
    key: u32,
    of_number: fn(u32) -> u32,
    pd: u16,
    right: Right,
) -> Option<&Region> {
    let number = key >> 4;
    let region = function.objects.regions.get(number).ok()?;
    (of_number(number) == key && region.pd == pd && region.allows(right)).then_some(region)
}

/// REG_MR.
pub(crate) fn register(
    function: &mut Function,
    command: &mut Fields<'_>,
    flags: u8,
) -> Result<u32, Status> {
    let pd = command.u16(0);
    function.objects.pds.get(pd.into())?;
    let list: [u64; 4] = std::array::from_fn(|index| command.u64(4 + 8 * index));
    let (length, page_shift) = (command.u64(36), command.bits8(44, 0x3f));
    let rights = command.bits8(45, 0x7);
    // The count of pages is redundant, and no driver fills it.
    let (count, iova) = (command.u32(48), command.u64(52));
    let page = 1_u64 << page_shift;
    let pages = (iova % page + length).div_ceil(page) as usize;
    if length == 0 || crate::feature::PAGE_SIZES & page == 0 {
        function.violation(format_args!(
            "a region of {length} bytes in pages of {page}"
        ));
        return Err(Status::IllegalParameter);
    }
    if count != 0 && count as usize != pages {
        function.violation(format_args!("a region of {pages} pages says {count}"));
    }
    let pages = if flags & LIST == 0 {
        if pages > list.len() {
            function.violation(format_args!("{pages} pages are not in a list"));
            return Err(Status::Malformed);
        }
        list[..pages].to_vec()
    } else {
        let (bytes, address) = (list[0] as u32, list[0] >> 32 | list[1] << 32);
        if list[1] >> 32 != 0 || list[2..] != [0, 0] {
            function.violation("something is behind the address of a list of pages");
        }
        let read = match flags & CHUNKS {
            0 => in_one(&function.memory, address, bytes, pages),
            _ => in_chunks(&function.memory, address, bytes, pages),
        };
        read.map_err(|wrong| {
            function.violation(format_args!("a list of {pages} pages: {wrong}"));
            Status::Malformed
        })?
    };
    if let Some(odd) = pages.iter().find(|address| *address % page != 0) {
        function.violation(format_args!("a page of {page} bytes is at {odd:#x}"));
        return Err(Status::IllegalParameter);
    }
    function.objects.regions.insert(Region {
        pd,
        iova,
        length,
        page_shift,
        pages,
        rights,
    })
}

/// Reads addresses that are one behind the other.
fn addresses(memory: &GuestMemory, at: u64, count: usize) -> Result<Vec<u64>, String> {
    let mut bytes = vec![0; 8 * count];
    memory
        .read(at, &mut bytes)
        .map_err(|Unmapped { address, .. }| format!("nothing is mapped at {address:#x}"))?;
    let (numbers, _) = bytes.as_chunks::<8>();
    Ok(numbers
        .iter()
        .map(|bytes| u64::from_le_bytes(*bytes))
        .collect())
}

/// A list in one piece.
fn in_one(memory: &GuestMemory, at: u64, bytes: u32, pages: usize) -> Result<Vec<u64>, String> {
    if bytes as usize != 8 * pages {
        return Err(format!("it has {bytes} bytes"));
    }
    addresses(memory, at, pages)
}

/// A list that is in pages of memory, whose addresses are in chunks, each with length and address of the
/// next.
fn in_chunks(
    memory: &GuestMemory,
    mut at: u64,
    mut bytes: u32,
    pages: usize,
) -> Result<Vec<u64>, String> {
    let mut left = (8 * pages as u64).div_ceil(LIST_PAGE) as usize;
    let mut all = Vec::with_capacity(pages);
    while left > 0 {
        let here = left.min(IN_CHUNK);
        if bytes as usize != 8 * here + 12 {
            return Err(format!("a chunk of {here} addresses has {bytes} bytes"));
        }
        for page in addresses(memory, at, here)? {
            let count = (pages - all.len()).min(LIST_PAGE as usize / 8);
            all.extend(addresses(memory, page, count)?);
        }
        left -= here;
        if left > 0 {
            let mut next = [0; 12];
            let end = at + 8 * IN_CHUNK as u64;
            memory
                .read(end, &mut next)
                .map_err(|unmapped| format!("{unmapped:x?}"))?;
            let mut next = Fields::new(&next);
            (bytes, at) = (next.u32(0), next.address(4));
        }
    }
    Ok(all)
}
