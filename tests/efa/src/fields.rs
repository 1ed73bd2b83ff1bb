//! Structures of the driver's, read field by field. What nobody reads is reserved, and must be zero.

/// Bytes that the driver wrote. All numbers are little-endian; places are in bytes from the start.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
    /// The same bytes without the bits that were read.
    unread: Vec<u8>,
}

impl<'a> Fields<'a> {
    /// A structure of which nothing was read.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            unread: bytes.to_vec(),
        }
    }

    /// Reads bytes.
    pub(crate) fn bytes<const N: usize>(&mut self, at: usize) -> [u8; N] {
        self.unread[at..at + N].fill(0);
        std::array::from_fn(|index| self.bytes[at + index])
    }

    /// Reads some bytes.
    pub(crate) fn slice(&mut self, at: usize, length: usize) -> &'a [u8] {
        self.unread[at..at + length].fill(0);
        &self.bytes[at..at + length]
    }

    /// Reads a number of 8 bits.
    pub(crate) fn u8(&mut self, at: usize) -> u8 {
        self.bytes::<1>(at)[0]
    }

    /// Reads a number of 16 bits.
    pub(crate) fn u16(&mut self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes(at))
    }

    /// Reads a number of 32 bits.
    pub(crate) fn u32(&mut self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    /// Reads a number of 64 bits.
    pub(crate) fn u64(&mut self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }

    /// Reads an address whose two halves are in the order low, high.
    pub(crate) fn address(&mut self, at: usize) -> u64 {
        self.u64(at)
    }

    /// Reads some bits of a byte.
    pub(crate) fn bits8(&mut self, at: usize, mask: u8) -> u8 {
        self.unread[at] &= !mask;
        self.bytes[at] & mask
    }

    /// Whether a bit of a byte is set.
    pub(crate) fn bit(&mut self, at: usize, bit: u8) -> bool {
        self.bits8(at, 1 << bit) != 0
    }

    /// Reads some bits of a number of 32 bits.
    pub(crate) fn bits32(&mut self, at: usize, mask: u32) -> u32 {
        let masks = mask.to_le_bytes();
        u32::from_le_bytes(std::array::from_fn(|byte| {
            self.bits8(at + byte, masks[byte])
        }))
    }

    /// Checks that all that was not read is zero.
    ///
    /// # Errors
    /// The first byte that is not.
    pub(crate) fn rest_is_zero(&self) -> Result<(), String> {
        match self.unread.iter().position(|&byte| byte != 0) {
            None => Ok(()),
            Some(at) => Err(format!(
                "byte {at} has {:#x} where zero is required",
                self.unread[at]
            )),
        }
    }
}

/// Writes a structure for the driver.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}
