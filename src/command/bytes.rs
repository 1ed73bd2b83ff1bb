//! The bytes of a request: what the kernel reads from an address and what it writes to one.
//!
//! An offset identifies a piece. Pieces that fit are stored in the value itself, so a usual request needs no
//! allocation. Larger ones are on the heap, at offsets after all others.

/// Bytes in the value itself. All are zeroed at the start: for so few, that is cheaper than zeroing each
/// piece.
const NEAR: usize = 128;

/// Zeroed or given bytes in pieces, each of which stays at its offset.
#[derive(Clone)]
pub(super) struct Bytes {
    near: [u8; NEAR],
    used: usize,
    far: Vec<u8>,
}

impl Bytes {
    /// No pieces.
    #[inline]
    pub(super) fn new() -> Self {
        Self {
            near: [0; NEAR],
            used: 0,
            far: Vec::new(),
        }
    }

    /// Adds a piece of zeros; returns its offset.
    #[inline]
    pub(super) fn zeros(&mut self, len: usize) -> usize {
        let at = self.used;
        if len <= NEAR - at {
            self.used = at + len;
            return at;
        }
        self.far_zeros(len)
    }

    #[cold]
    fn far_zeros(&mut self, len: usize) -> usize {
        let at = self.far.len();
        self.far.resize(at + len, 0);
        NEAR + at
    }

    /// Adds a piece with these bytes; returns its offset.
    #[inline]
    pub(super) fn copy(&mut self, bytes: &[u8]) -> usize {
        let at = self.zeros(bytes.len());
        if let Some(piece) = self.get_mut(at, bytes.len()) {
            piece.copy_from_slice(bytes);
        }
        at
    }

    /// A piece, or a part of one.
    #[inline]
    pub(super) fn get(&self, at: usize, len: usize) -> Option<&[u8]> {
        match at.checked_sub(NEAR) {
            None => self.near.get(at..at + len),
            Some(at) => self.far.get(at..at.checked_add(len)?),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: usize, len: usize) -> Option<&mut [u8]> {
        match at.checked_sub(NEAR) {
            None => self.near.get_mut(at..at + len),
            Some(at) => self.far.get_mut(at..at.checked_add(len)?),
        }
    }

    /// The address of an offset, for the kernel to read from and write to; valid until the value moves or
    /// grows.
    #[inline]
    pub(super) fn address(&mut self, at: usize) -> u64 {
        let pointer = match at.checked_sub(NEAR) {
            None => self.near.as_mut_ptr().wrapping_add(at),
            Some(at) => self.far.as_mut_ptr().wrapping_add(at),
        };
        pointer.expose_provenance() as u64
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        self.near[..self.used] == other.near[..other.used] && self.far == other.far
    }
}

impl Eq for Bytes {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Large pieces must not lead into small ones, nor small ones behind large ones into those.
    #[test]
    fn pieces_keep_apart_wherever_they_lie() {
        let mut bytes = Bytes::new();
        let sizes = [100, 1, 300, 27, 1, 0, 65_535, 8];
        let places: Vec<usize> = sizes
            .iter()
            .zip(1..)
            .map(|(&size, number)| bytes.copy(&vec![number; size]))
            .collect();
        for ((&at, &size), number) in places.iter().zip(&sizes).zip(1..) {
            assert_eq!(bytes.get(at, size).unwrap(), vec![number; size], "{size}");
            let address = bytes.get(at, size).unwrap().as_ptr().addr();
            assert_eq!(bytes.address(at), address as u64);
        }
    }

    #[test]
    fn what_is_no_piece_is_none() {
        let mut bytes = Bytes::new();
        let far = bytes.zeros(1000);
        for (at, len) in [(0, NEAR + 1), (far, 1001), (usize::MAX, 2)] {
            assert_eq!(bytes.get(at, len), None, "{at} {len}");
        }
    }
}
