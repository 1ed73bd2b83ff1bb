//! The bytes of a request: what the kernel reads from an address and what it writes to one.
//!
//! A number identifies a piece. Pieces that fit are stored in the value itself, so a usual request needs no
//! allocation; their numbers are their offsets. Larger pieces are on the heap, each in an allocation of its
//! own, with numbers after all offsets.

/// Bytes in the value itself. All are zeroed at the start: for so few bytes, that is cheaper than zeroing
/// each piece.
const NEAR: usize = 128;

/// Pieces on the heap: one for each number of a byte.
const FAR: usize = 1 << u8::BITS;

/// The number of a piece.
pub(super) type Piece = u8;

/// Bytes in pieces, zeroed or copied, none of which is moved.
pub(super) struct Bytes {
    near: [u8; NEAR],
    used: usize,
    far: Vec<Box<[u8]>>,
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

    /// Adds a piece of zeros.
    #[inline(always)]
    pub(super) fn zeros(&mut self, len: usize) -> Piece {
        let at = self.used;
        match self.near.get(at..).is_some_and(|rest| len <= rest.len()) {
            true => {
                self.used = at + len;
                at as Piece
            }
            false => self.far(vec![0; len]),
        }
    }

    /// Adds a piece with these bytes.
    #[inline(always)]
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Piece {
        let at = self.used;
        match self.near.get_mut(at..at + bytes.len()) {
            Some(piece) => {
                piece.copy_from_slice(bytes);
                self.used = at + bytes.len();
                at as Piece
            }
            None => self.far(bytes.to_vec()),
        }
    }

    #[cold]
    fn far(&mut self, piece: Vec<u8>) -> Piece {
        let number = NEAR + self.far.len();
        assert!(number < FAR, "no request has so many large pieces");
        self.far.push(piece.into_boxed_slice());
        number as Piece
    }

    /// A piece, or the start of one.
    #[inline]
    pub(super) fn get(&self, piece: Piece, len: usize) -> Option<&[u8]> {
        let at = usize::from(piece);
        match at.checked_sub(NEAR) {
            None => self.near.get(at..at + len),
            Some(number) => self.far.get(number)?.get(..len),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, piece: Piece, len: usize) -> Option<&mut [u8]> {
        let at = usize::from(piece);
        match at.checked_sub(NEAR) {
            None => self.near.get_mut(at..at + len),
            Some(number) => self.far.get_mut(number)?.get_mut(..len),
        }
    }

    /// The address of a piece, for the kernel to read from and write to; valid until the value moves.
    #[inline(always)]
    pub(super) fn address(&mut self, piece: Piece) -> u64 {
        let at = usize::from(piece);
        let pointer = match at.checked_sub(NEAR) {
            None => self.near.as_mut_ptr().wrapping_add(at),
            Some(number) => self.far_address(number),
        };
        pointer.expose_provenance() as u64
    }

    #[cold]
    fn far_address(&mut self, number: usize) -> *mut u8 {
        let piece = self.far.get_mut(number);
        piece.map_or(std::ptr::null_mut(), |piece| piece.as_mut_ptr())
    }

    /// The address of the pieces in the value itself.
    #[inline(always)]
    pub(super) fn home(&self) -> usize {
        self.near.as_ptr().addr()
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

    /// Catches a piece that overwrites its neighbour: a large one in the place of a small one, or the
    /// reverse.
    #[test]
    fn pieces_keep_apart_wherever_they_lie() {
        let mut bytes = Bytes::new();
        let sizes = [100, 1, 300, 27, 1, 0, 65_535, 8];
        let places: Vec<Piece> = sizes
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
    #[should_panic(expected = "so many large pieces")]
    fn large_pieces_have_numbers() {
        let mut bytes = Bytes::new();
        for _ in 0..=FAR - NEAR {
            bytes.zeros(1000);
        }
    }

    #[test]
    fn what_is_no_piece_is_none() {
        let mut bytes = Bytes::new();
        let far = bytes.zeros(1000);
        for (at, len) in [(0, NEAR + 1), (far, 1001), (Piece::MAX, 2)] {
            assert_eq!(bytes.get(at, len), None, "{at} {len}");
        }
    }
}
