//! A queue on its way to an agent: the description of a queue pair, and of the completion queue that this
//! queue pair has to itself.
//!
//! The value has no pointers. Each [`Piece`] of memory is named by a file and an offset in it, so the agent
//! maps the files itself, or lets a device map them. The owner may send the value by copying its bytes to a
//! socket, to a file, or to a GPU. Numbers are in the byte order of the machine, which is the same for both.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The form of [`Handover`] in this package. Another form has another number.
pub const VERSION: u32 = 1;

/// The most regions in a [`Handover`].
pub const MOST_REGIONS: usize = 8;

/// A file in which pieces lie.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(transparent)]
pub struct File(pub u32);

impl File {
    /// The command file of the owner's context, through which registers are mapped.
    pub const COMMAND: Self = Self(0);

    /// A dma-buf, by its index among those that the owner hands over.
    pub const fn dmabuf(index: u32) -> Self {
        Self(index + 1)
    }

    /// The index among the dma-bufs; `None` for the command file.
    pub const fn index(self) -> Option<u32> {
        self.0.checked_sub(1)
    }
}

/// What kind of memory a piece is, by which the agent chooses a mapping and fences.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(transparent)]
pub struct Kind(pub u32);

impl Kind {
    /// Memory of a dma-buf: of the host or of a device, whichever its exporter uses.
    pub const MEMORY: Self = Self(0);
    /// A register to which stores go one by one.
    pub const UNCACHED: Self = Self(1);
    /// A register whose stores the processor may combine, until they are flushed.
    pub const COMBINING: Self = Self(2);
}

/// A piece of memory in a file.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Piece {
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Bytes. A missing piece has 0.
    pub length: u64,
    /// The file.
    pub file: File,
    /// The kind of memory.
    pub kind: Kind,
}

/// Whole pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Where they begin in the file, in bytes.
    pub offset: u64,
    /// Bytes.
    pub length: usize,
    /// Where the piece begins in them, in bytes.
    pub start: usize,
}

impl Piece {
    /// The pages to map for the piece, of `page` bytes each, a power of two. `None` if they cannot be mapped.
    pub fn pages(&self, page: usize) -> Option<Pages> {
        let inside = page.checked_sub(1)? as u64;
        let end = self.offset.checked_add(self.length)?;
        let offset = self.offset & !inside;
        let length = end.checked_add(inside)? & !inside;
        Some(Pages {
            offset,
            length: usize::try_from(length - offset).ok()?,
            start: (self.offset & inside) as usize,
        })
    }
}

/// Registered memory that the agent may name in requests.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Region {
    /// The first byte's address, as requests give it with the keys.
    pub address: u64,
    /// Bytes. An unused entry has 0.
    pub length: u64,
    /// The key for requests of this side.
    pub lkey: u32,
    /// The key for peers.
    pub rkey: u32,
}

/// A ring.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Ring {
    /// Where the ring lies.
    pub piece: Piece,
    /// Entries, a power of two; 0 if there is no such ring.
    pub entries: u32,
    /// Bytes of an entry.
    pub entry_bytes: u32,
    /// Entries that were written or taken before the hand-over.
    pub count: u64,
}

/// What a device does when there is no room for a completion.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(transparent)]
pub struct Overrun(pub u32);

impl Overrun {
    /// The queue fails. The poller reports what it has taken to the device, by the record.
    pub const FAILS: Self = Self(0);
    /// The device writes over older entries. The poster must make sure that there is room, or need only the
    /// newest completion. The record is not read.
    pub const IGNORED: Self = Self(1);
}

/// A queue pair with its completion queue, for an agent.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Handover {
    /// [`VERSION`].
    pub version: u32,
    /// The kernel's number of the device's driver, which determines the formats of the rings.
    pub driver: u32,
    /// The queue pair's number.
    pub qpn: u32,
    /// The completion queue's number.
    pub cqn: u32,
    /// What happens when the completion queue is full.
    pub overrun: Overrun,
    /// How many entries of [`Self::regions`] are used: the first ones.
    pub regions_count: u32,
    /// The ring of send requests, in blocks.
    pub send: Ring,
    /// The ring of receives.
    pub receive: Ring,
    /// The ring of completions.
    pub completions: Ring,
    /// The queue pair's doorbell record.
    pub record: Piece,
    /// The completion queue's doorbell record.
    pub completion_record: Piece,
    /// The register of the queue pair's doorbell.
    pub register: Piece,
    /// The memory that the agent may name in requests.
    pub regions: [Region; MOST_REGIONS],
}

impl Handover {
    /// The value in these bytes; `None` if they are too few, or of another version.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (value, _) = Self::read_from_prefix(bytes).ok()?;
        (value.version == VERSION).then_some(value)
    }

    /// The regions that are used.
    pub fn regions(&self) -> &[Region] {
        let count = (self.regions_count as usize).min(MOST_REGIONS);
        &self.regions[..count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_through_bytes() {
        let value = Handover {
            version: VERSION,
            qpn: 7,
            regions_count: 1,
            ..Handover::default()
        };
        assert_eq!(Handover::read(value.as_bytes()), Some(value));
        assert_eq!(value.regions().len(), 1);
        let bytes = value.as_bytes();
        assert_eq!(Handover::read(&bytes[..bytes.len() - 1]), None);
        let other = Handover {
            version: VERSION + 1,
            regions_count: u32::MAX,
            ..value
        };
        assert_eq!(Handover::read(other.as_bytes()), None);
        assert_eq!(other.regions().len(), MOST_REGIONS);
    }

    #[test]
    fn a_piece_lies_in_whole_pages() {
        let pages = |offset, length| {
            let piece = Piece {
                offset,
                length,
                ..Piece::default()
            };
            let Pages {
                offset,
                length,
                start,
            } = piece.pages(4096)?;
            Some((offset, length, start))
        };
        assert_eq!(pages(0, 4096), Some((0, 4096, 0)));
        assert_eq!(pages(0x2840, 8), Some((0x2000, 4096, 0x840)));
        assert_eq!(pages(0x2ff8, 16), Some((0x2000, 8192, 0xff8)));
        assert_eq!(pages(u64::MAX, 1), None);
        assert_eq!(pages(u64::MAX - 1, 1), None);
    }

    #[test]
    fn files_have_numbers() {
        assert_eq!(File::COMMAND.index(), None);
        assert_eq!(File::dmabuf(3).index(), Some(3));
    }
}
