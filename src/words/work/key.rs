//! The keys of registered memory, and slices of such memory.
//!
//! A local key identifies memory to this device, a remote key identifies it to a peer's. They are different
//! types, because on most devices they are different numbers, and mixing them up fails only at run time.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};
use std::str::FromStr;

use super::error::PostError;
use crate::error::{Error, ParseError, Subject, Verb};

/// The key of local memory in local work requests (lkey).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct LocalKey(pub u32);

/// The key of this side's memory in a peer's work requests, or of a peer's memory in this side's (rkey).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct RemoteKey(pub u32);

impl fmt::Debug for LocalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lkey {:#010x}", self.0)
    }
}

impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rkey {:#010x}", self.0)
    }
}

/// The user chooses the low byte of a memory window's key at each bind; the rest belongs to the kernel.
impl RemoteKey {
    /// The low byte.
    pub const fn tag(self) -> u8 {
        self.0 as u8
    }

    /// The same key with another low byte.
    pub const fn with_tag(self, tag: u8) -> Self {
        Self(self.0 & !0xff | tag as u32)
    }

    /// The key with the next low byte; 0 comes after 255. Manual page: `ibv_inc_rkey(3)`.
    ///
    /// ```
    /// # use uverbs::mr::RemoteKey;
    /// assert_eq!(RemoteKey(0x1201).next(), RemoteKey(0x1202));
    /// assert_eq!(RemoteKey(0x12ff).next(), RemoteKey(0x1200));
    /// ```
    #[doc(alias = "ibv_inc_rkey")]
    #[must_use]
    pub const fn next(self) -> Self {
        self.with_tag(self.tag().wrapping_add(1))
    }
}

/// The protection domain, of one open device, that an object belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PdTag(u64);

impl PdTag {
    /// The tag of the PD with kernel handle `handle` on the command file `fd`.
    ///
    /// A file descriptor identifies one open device while it is open, and a handle identifies one object of
    /// it. So no two live protection domains have the same pair.
    pub(crate) fn new(fd: i32, handle: u32) -> Self {
        Self(u64::from(fd as u32) << 32 | u64::from(handle))
    }

    /// Marks a slice to which no request may write. Descriptors are not negative, so no protection domain has
    /// this bit: if a request writes to the slice, the comparison of the tags fails.
    const READ_ONLY: u64 = 1 << 63;

    /// The tag of a slice to which no request may write.
    pub(crate) const fn read_only(self) -> Self {
        Self(self.0 | Self::READ_ONLY)
    }

    /// Refuses slices of other protection domains, and read-only ones if the request writes to them.
    #[inline(always)]
    pub(crate) fn check(self, slices: &[LocalSlice<'_>], writes: bool) -> Result<(), PostError> {
        if slices.iter().all(|slice| slice.pd == self) {
            return Ok(());
        }
        match self.may_read(slices) {
            false => Err(PostError::ForeignPd),
            true if writes => Err(PostError::ReadOnly),
            true => Ok(()),
        }
    }

    /// Whether all of these are of this protection domain, read-only ones included.
    #[cold]
    #[inline(never)]
    fn may_read(self, slices: &[LocalSlice<'_>]) -> bool {
        let mut slices = slices.iter();
        slices.all(|slice| slice.pd.0 & !Self::READ_ONLY == self.0)
    }
}

/// A range that does not lie within its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds {
    /// Where the range starts, in bytes.
    pub start: u64,
    /// Where it ends, exclusive.
    pub end: u64,
    /// How long the memory is.
    pub length: u64,
}

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, end, length } = self;
        match start <= end && end <= length {
            true => write!(
                f,
                "bytes {start}..{end} are more than 2 GiB, and no message is longer"
            ),
            false => write!(
                f,
                "bytes {start}..{end} do not lie within memory of {length} bytes"
            ),
        }
    }
}

impl std::error::Error for OutOfBounds {}

/// For callers that use one error type for slices and for the control path.
impl From<OutOfBounds> for Error {
    fn from(error: OutOfBounds) -> Self {
        Error::invalid(Verb::Slice, Subject::the("MR"), error.to_string())
    }
}

/// Resolves a range against memory of `length` bytes, as start and length.
fn resolve(range: impl RangeBounds<usize>, length: u64) -> Result<(u64, u64), OutOfBounds> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start as u64,
        Bound::Excluded(&start) => (start as u64).saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => (end as u64).saturating_add(1),
        Bound::Excluded(&end) => end as u64,
        Bound::Unbounded => length,
    };
    if start <= end && end <= length {
        Ok((start, end - start))
    } else {
        Err(OutOfBounds { start, end, length })
    }
}

/// Bytes of the longest message in the InfiniBand specification, and so of the longest slice.
pub(crate) const LONGEST: u32 = 1 << 31;

/// The byte range of a slot in an array of slots. If the numbers overflow, the range lies outside of any
/// memory.
pub(crate) fn slot(index: usize, size: usize) -> Range<usize> {
    let start = index.saturating_mul(size);
    start..start.saturating_add(size)
}

/// A piece of local registered memory: one element of a gather or scatter list.
///
/// It borrows its region. A batch holds the borrow until it is rung or dropped; after that the library keeps
/// the region registered until the request has completed (see [`Mr`](crate::Mr)).
// Length and key are adjacent, for drivers that read them as one number.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct LocalSlice<'r> {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) lkey: LocalKey,
    /// Marked as read-only if the region has no local write access.
    pub(crate) pd: PdTag,
    region: PhantomData<&'r ()>,
}

impl<'r> LocalSlice<'r> {
    /// A slice of at most [`LONGEST`] bytes. The caller guarantees the lifetime.
    #[inline(always)]
    pub(crate) const fn new(address: u64, length: u32, lkey: LocalKey, pd: PdTag) -> Self {
        debug_assert!(length <= LONGEST);
        Self {
            address,
            length,
            lkey,
            pd,
            region: PhantomData,
        }
    }

    pub(crate) fn within(
        range: impl RangeBounds<usize>,
        iova: u64,
        length: u64,
        lkey: LocalKey,
        pd: PdTag,
    ) -> Result<Self, OutOfBounds> {
        let (start, len) = resolve(range, length)?;
        let end = start + len;
        match u32::try_from(len) {
            Ok(len @ ..=LONGEST) => Ok(Self::new(iova.wrapping_add(start), len, lkey, pd)),
            _ => Err(OutOfBounds { start, end, length }),
        }
    }

    /// The address of the first byte, as the device knows it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The local key.
    pub fn lkey(&self) -> LocalKey {
        self.lkey
    }

    /// A part of it, in bytes from its start.
    ///
    /// # Errors
    ///
    /// The range does not lie within it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self, OutOfBounds> {
        Self::within(range, self.address, self.length.into(), self.lkey, self.pd)
    }
}

impl fmt::Debug for LocalSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSlice")
            .field("address", &format_args!("{:#x}", self.address))
            .field("length", &self.length)
            .field("lkey", &self.lkey)
            .finish()
    }
}

/// One slice is a list of one.
impl<'r> AsRef<[LocalSlice<'r>]> for LocalSlice<'r> {
    fn as_ref(&self) -> &[LocalSlice<'r>] {
        std::slice::from_ref(self)
    }
}

/// A piece of a peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteSlice {
    /// The address of the first byte, as the peer registered it.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// The peer's key.
    pub rkey: RemoteKey,
}

impl RemoteSlice {
    /// A part of it, in bytes from its start.
    ///
    /// # Errors
    ///
    /// The range does not lie within it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self, OutOfBounds> {
        let (start, length) = resolve(range, self.length)?;
        Ok(Self {
            address: self.address.wrapping_add(start),
            length,
            rkey: self.rkey,
        })
    }

    /// Slot `index`, if it is an array of slots of `size` bytes each.
    ///
    /// # Errors
    ///
    /// The slot does not lie within it.
    pub fn slot(&self, index: usize, size: usize) -> Result<Self, OutOfBounds> {
        self.slice(slot(index, size))
    }
}

/// The binary form, for peers: address, length and key, in network byte order. It is stable.
impl RemoteSlice {
    /// Its bytes.
    pub const fn to_bytes(self) -> [u8; 20] {
        let mut bytes = [0; 20];
        let (address, rest) = bytes.split_at_mut(8);
        let (length, rkey) = rest.split_at_mut(8);
        address.copy_from_slice(&self.address.to_be_bytes());
        length.copy_from_slice(&self.length.to_be_bytes());
        rkey.copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes
    }

    /// The slice that these bytes encode; any bytes encode one.
    pub fn from_bytes(bytes: [u8; 20]) -> Self {
        let word = |at: usize| {
            bytes[at..at + 4]
                .iter()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        Self {
            address: word(0) << 32 | word(4),
            length: word(8) << 32 | word(12),
            rkey: RemoteKey(word(16) as u32),
        }
    }
}

/// The address, the length and the key in hexadecimal, separated by colons, as [`FromStr`] reads them.
impl fmt::Display for RemoteSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            length,
            rkey: RemoteKey(rkey),
        } = self;
        write!(f, "{address:x}:{length:x}:{rkey:x}")
    }
}

/// The expected text.
const NO_SLICE: ParseError = ParseError::new(
    "not a remote slice: address, length and key in hexadecimal, with colons between",
);

impl FromStr for RemoteSlice {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut fields = text.split(':').map(|field| {
            // The standard library also takes a sign.
            let digits = field.bytes().all(|byte| byte.is_ascii_hexdigit());
            digits
                .then(|| u64::from_str_radix(field, 16).ok())
                .flatten()
        });
        let read = (fields.next(), fields.next(), fields.next(), fields.next());
        let (Some(Some(address)), Some(Some(length)), Some(Some(rkey)), None) = read else {
            return Err(NO_SLICE);
        };
        let rkey = RemoteKey(u32::try_from(rkey).map_err(|_| NO_SLICE)?);
        Ok(Self {
            address,
            length,
            rkey,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: RemoteSlice = RemoteSlice {
        address: 0x1000,
        length: 100,
        rkey: RemoteKey(7),
    };

    #[test]
    fn slices_lie_within() {
        assert_eq!(MEMORY.slice(..).unwrap(), MEMORY);
        assert_eq!(
            MEMORY.slice(10..=19).unwrap(),
            RemoteSlice {
                address: 0x100a,
                length: 10,
                ..MEMORY
            }
        );
        assert_eq!(MEMORY.slice(100..).unwrap().length, 0);
        assert_eq!(
            MEMORY.slice(..50).unwrap().slice(40..).unwrap().address,
            0x1028
        );
    }

    #[test]
    fn slots_lie_side_by_side() {
        assert_eq!(MEMORY.slot(0, 50), MEMORY.slice(..50));
        assert_eq!(MEMORY.slot(1, 50), MEMORY.slice(50..));
        assert!(MEMORY.slot(2, 50).is_err());
        assert!(MEMORY.slot(usize::MAX, usize::MAX).is_err());
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges)]
    fn what_does_not_is_refused() {
        for (start, end) in [(0, 101), (101, 101), (5, 4), (usize::MAX, usize::MAX)] {
            assert_eq!(
                MEMORY.slice(start..end),
                Err(OutOfBounds {
                    start: start as u64,
                    end: end as u64,
                    length: 100
                })
            );
        }
        assert!(MEMORY.slice(..=usize::MAX).is_err());
    }

    #[test]
    fn the_text_form_goes_both_ways() {
        assert_eq!(MEMORY.to_string(), "1000:64:7");
        let largest = RemoteSlice {
            address: u64::MAX,
            length: u64::MAX,
            rkey: RemoteKey(u32::MAX),
        };
        for slice in [MEMORY, largest] {
            assert_eq!(slice.to_string().parse(), Ok(slice));
        }
        for bad in [
            "",
            "::",
            "1:2",
            "1:2:3:4",
            "1:2:+3",
            "1:2:100000000",
            "g:1:1",
        ] {
            assert!(bad.parse::<RemoteSlice>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_slice_is_no_longer_than_a_message() {
        let whole = |length| LocalSlice::within(.., 0, length, LocalKey(1), PdTag::new(3, 4));
        let longest = whole(1 << 31).unwrap().len();
        assert_eq!(longest, 1 << 31);
        for length in [(1 << 31) + 1, 1 << 32] {
            let error = whole(length).unwrap_err().to_string();
            assert!(error.contains("more than 2 GiB"), "{error}");
        }
    }
}
