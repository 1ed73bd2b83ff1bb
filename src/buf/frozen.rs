//! Immutable bytes of a buffer.

use std::fmt;
use std::ops::{Bound, Deref, RangeBounds};

use super::filled::Buf;
use crate::pd::Pd;
use crate::work::RemoteSlice;

/// Immutable bytes of a [`Buf`]. Clones share the bytes, so they can be in several requests at the same time;
/// the block returns to its pool with the last one. It derefs to `[u8]`.
pub struct Frozen(Buf);

impl Frozen {
    pub(super) fn new(mut buf: Buf) -> Self {
        buf.set_frozen(true);
        Self(buf)
    }

    /// The buffer, for the time that a request has it.
    #[inline]
    pub(crate) fn into_inner(self) -> Buf {
        self.0
    }

    /// The bytes of a buffer that [`into_inner`](Self::into_inner) returned.
    #[inline]
    pub(crate) fn from_inner(buf: Buf) -> Self {
        Self(buf)
    }

    /// A part of the bytes.
    ///
    /// # Panics
    ///
    /// If the range does not lie within them, as with a slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len(),
        };
        // Panics on a bad range as slices do.
        let length = self.0[start..end].len();
        let mut part = self.0.share();
        part.narrow(start, length);
        Self(part)
    }

    /// Turns it back into a buffer that can be changed.
    ///
    /// # Errors
    ///
    /// Clones or parts of it exist; it is returned.
    pub fn try_into_buf(mut self) -> Result<Buf, Self> {
        match self.0.is_alone() {
            true => {
                self.0.set_frozen(false);
                Ok(self.0)
            }
            false => Err(self),
        }
    }

    /// The bytes as peers address them: see [`Buf::remote`].
    pub fn remote(&self, pd: &Pd) -> Option<RemoteSlice> {
        self.0.remote(pd)
    }
}

/// # Panics
///
/// If there are 2³¹ clones and parts, which takes clones that were forgotten ([`std::mem::forget`]).
impl Clone for Frozen {
    fn clone(&self) -> Self {
        Self(self.0.share())
    }
}

// Hidden: the page would list all methods of slices, 3,000 lines of them. The text above says that it derefs.
#[doc(hidden)]
impl Deref for Frozen {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Buf> for Frozen {
    fn from(buf: Buf) -> Self {
        buf.freeze()
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen").field("len", &self.len()).finish()
    }
}
