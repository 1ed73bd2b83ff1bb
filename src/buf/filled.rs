//! A buffer that belongs exclusively to its holder.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::error::BufferFull;
use super::frozen::Frozen;
use super::home::Home;
use crate::pd::Pd;
use crate::work::{LocalSlice, PdTag, RemoteSlice};

/// A buffer of a [`Pool`](super::Pool): registered memory that belongs exclusively to its holder.
///
/// Like a vector, it derefs to the first [`len`](slice::len) bytes, the filled ones, as `[u8]`: it has all
/// methods of slices. And it has a [capacity](Self::capacity). A receive or READ fills it from the beginning
/// and sets its length; a send or WRITE sends the filled bytes.
///
/// Dropping it returns it to its pool, which it keeps alive. The bytes stay: the next holder finds them
/// beyond the buffer's length. [`clear`](Self::clear) does not wipe them, `fill(0)` does.
///
/// The default buffer is of no pool and has no capacity.
///
/// ```no_run
/// # fn fill(pool: &uverbs::buf::Pool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut buf = pool.try_get(64)?;
/// assert!(buf.is_empty() && buf.capacity() >= 64);
/// buf.extend_from_slice(b"hello")?;           // what a send would send
/// assert_eq!(&buf[..4], b"hell");
/// buf[0] = b'J';
/// assert_eq!(*buf, *b"Jello");
/// // Without appending: first the bytes, then how many of them count.
/// buf.whole_mut()[..2].copy_from_slice(b"no");
/// buf.set_len(2)?;
/// let parts = buf.freeze().slice(..1);        // shared, and immutable
/// # drop(parts); Ok(()) }
/// ```
pub struct Buf {
    start: NonNull<u8>,
    // Lengths have 32 bits, as in requests: no transfer is longer.
    len: u32,
    capacity: u32,
    home: Option<Home>,
}

impl Default for Buf {
    fn default() -> Self {
        Self {
            start: NonNull::dangling(),
            len: 0,
            capacity: 0,
            home: None,
        }
    }
}

// SAFETY: it owns its memory, as a vector does.
unsafe impl Send for Buf {}
// SAFETY: shared references only read, as with a vector.
unsafe impl Sync for Buf {}

impl Buf {
    /// All of a block, which only the caller uses.
    #[inline]
    pub(super) fn new((home, start, capacity): (Home, NonNull<u8>, u32)) -> Self {
        Self {
            start,
            len: 0,
            capacity,
            home: Some(home),
        }
    }

    /// How many bytes it holds at most.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Changes how many of its bytes count as filled. The bytes keep their contents, possibly those of an
    /// earlier holder.
    ///
    /// # Errors
    ///
    /// `len` exceeds the capacity; the length is unchanged.
    #[inline]
    pub fn set_len(&mut self, len: usize) -> Result<(), BufferFull> {
        if len > self.capacity() {
            return Err(BufferFull {
                wanted: len,
                capacity: self.capacity(),
            });
        }
        self.len = len as u32;
        Ok(())
    }

    /// Makes none of its bytes count as filled.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends bytes to the filled ones.
    ///
    /// # Errors
    ///
    /// They do not fit; nothing is appended.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<(), BufferFull> {
        let old = self.len();
        self.set_len(old.saturating_add(bytes.len()))?;
        self[old..].copy_from_slice(bytes);
        Ok(())
    }

    /// All of its bytes, filled or not.
    pub fn whole_mut(&mut self) -> &mut [u8] {
        let capacity = self.capacity();
        // SAFETY: see `bytes_mut`.
        unsafe { self.bytes_mut(capacity) }
    }

    /// Splits it in two: this buffer keeps the bytes before `at`, and the returned one gets those from `at`
    /// up to the capacity. They can go into different requests; the block returns to the pool with the last
    /// of them.
    ///
    /// # Panics
    ///
    /// If `at` lies beyond the capacity, as with a vector.
    #[must_use = "the bytes from there on are in what is returned"]
    pub fn split_off(&mut self, at: usize) -> Self {
        let capacity = self.capacity();
        assert!(
            at <= capacity,
            "a buffer of {capacity} bytes has no byte {at}"
        );
        // SAFETY: as has just been found, that lies in the buffer or just after its end.
        let start = unsafe { self.start.add(at) };
        let at = at as u32;
        let behind = Self {
            start,
            len: self.len.saturating_sub(at),
            capacity: self.capacity - at,
            home: self.home.as_ref().map(Home::share),
        };
        self.capacity = at;
        self.len = self.len.min(at);
        behind
    }

    /// Makes the filled bytes immutable, so that several requests can use them at the same time.
    pub fn freeze(self) -> Frozen {
        Frozen::new(self)
    }

    /// The filled bytes as peers address them, for requests to queue pairs of a protection domain. `None` if
    /// the pool does not let peers read ([`PoolBuilder::remote_read`](super::PoolBuilder::remote_read)), or
    /// is not on that domain.
    ///
    /// A peer that reads while the holder writes sees old or new bytes, in any mixture. The key covers the
    /// whole chunk that the buffer is cut from: a peer that has the key can also read the other buffers in
    /// that chunk.
    pub fn remote(&self, pd: &Pd) -> Option<RemoteSlice> {
        self.remote_on(pd.tag())
    }

    pub(crate) fn remote_on(&self, pd: PdTag) -> Option<RemoteSlice> {
        self.home.as_ref()?.remote(pd, self.start, self.len())
    }

    /// Its first `length` bytes for a request on a protection domain; `None` if it is not registered there.
    ///
    /// It borrows nothing: the caller keeps the buffer until the device has done with the request.
    #[inline]
    pub(crate) fn slice(&self, pd: PdTag, length: usize) -> Option<LocalSlice<'static>> {
        self.piece(pd, length.min(self.capacity()) as u32)
    }

    /// The bytes that are filled, as [`slice`](Self::slice) gives them.
    #[inline]
    pub(crate) fn filled(&self, pd: PdTag) -> Option<LocalSlice<'static>> {
        self.piece(pd, self.len)
    }

    /// Its first `length` bytes, as [`slice`](Self::slice) gives them.
    #[inline(always)]
    fn piece(&self, pd: PdTag, length: u32) -> Option<LocalSlice<'static>> {
        let lkey = self.home.as_ref()?.lkey(pd)?;
        // The region's address is the memory's own: pools register no memory under another address.
        let start = self.start.addr().get() as u64;
        Some(LocalSlice::new(start, length, lkey, pd))
    }

    /// Whether it is the buffer of a [`Frozen`].
    pub(crate) fn is_frozen(&self) -> bool {
        self.home.as_ref().is_some_and(Home::is_frozen)
    }

    /// Says whether it is the buffer of a [`Frozen`].
    pub(super) fn set_frozen(&mut self, frozen: bool) {
        if let Some(home) = &mut self.home {
            home.set_frozen(frozen);
        }
    }

    /// Another handle on its block, for bytes that are not written any more.
    pub(super) fn share(&self) -> Self {
        Self {
            home: self.home.as_ref().map(Home::share),
            ..*self
        }
    }

    /// Whether this is the only handle on its block.
    pub(super) fn is_alone(&self) -> bool {
        self.home.as_ref().is_none_or(Home::is_alone)
    }

    /// Keeps only a part of the filled bytes, as all that it has.
    pub(super) fn narrow(&mut self, start: usize, length: usize) {
        debug_assert!(start + length <= self.len());
        // SAFETY: callers have checked that the part lies within the filled bytes.
        self.start = unsafe { self.start.add(start) };
        (self.len, self.capacity) = (length as u32, length as u32);
    }

    /// # Safety
    ///
    /// `length` is at most the capacity.
    #[inline]
    unsafe fn bytes_mut(&mut self, length: usize) -> &mut [u8] {
        let start = self.start;
        // SAFETY: the bytes are memory of the pool, initialised, and only this buffer has them: a buffer that
        // is here is not part of a request, no other handle on its block has these bytes, and peers may at
        // most read. A buffer of no pool has no bytes.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), length) }
    }
}

// Hidden: the page would list all methods of slices, 3,000 lines of them. The text above says that it derefs.
#[doc(hidden)]
impl Deref for Buf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `bytes_mut`; the filled bytes are within the capacity.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len();
        // SAFETY: the filled bytes are within the capacity.
        unsafe { self.bytes_mut(len) }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("len", &self.len())
            .field("capacity", &self.capacity)
            .finish()
    }
}
