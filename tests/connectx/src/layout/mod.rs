//! Where the fields of the device's structures lie: bit offsets and widths, by the names of the driver's
//! header `include/linux/mlx5/mlx5_ifc.h`.
//!
//! Only the fields that the model reads or writes are here. Offsets count bits from the start of the
//! structure, the most significant bit of the first byte being bit 0, as the header counts them.

pub(crate) mod atomic;
pub(crate) mod cmd;
pub(crate) mod cqc;
pub(crate) mod dctc;
pub(crate) mod eqc;
pub(crate) mod ethernet;
pub(crate) mod hca_cap;
pub(crate) mod mad;
pub(crate) mod memic;
pub(crate) mod mkc;
pub(crate) mod port;
pub(crate) mod qpc;
pub(crate) mod srqc;
pub(crate) mod umem;

/// A field of a big-endian structure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Field {
    bit: usize,
    width: usize,
}

impl Field {
    /// A field of up to 64 bits.
    pub(crate) const fn new(bit: usize, width: usize) -> Self {
        assert!(width >= 1 && width <= 64);
        Self { bit, width }
    }

    /// The same field of a structure that lies so many bytes into the bytes given to `get` and `set`.
    pub(crate) const fn within(self, bytes: usize) -> Self {
        Self {
            bit: self.bit + bytes * 8,
            width: self.width,
        }
    }

    /// The field's value. Bytes that the structure is too short for count as zero.
    pub(crate) fn get(self, bytes: &[u8]) -> u64 {
        let mut value = 0;
        for index in self.bit / 8..=(self.bit + self.width - 1) / 8 {
            let byte = bytes.get(index).copied().unwrap_or(0);
            let (first, last) = self.bits_in(index);
            let part = u64::from(byte >> (7 - last)) & ((1 << (last - first + 1)) - 1);
            value = (value << (last - first + 1)) | part;
        }
        value
    }

    /// The field's value as 32 bits; wider fields are cut.
    pub(crate) fn get32(self, bytes: &[u8]) -> u32 {
        self.get(bytes) as u32
    }

    /// Whether the field is not zero.
    pub(crate) fn is_set(self, bytes: &[u8]) -> bool {
        self.get(bytes) != 0
    }

    /// Sets the field; bits beyond its width are cut, and bytes that the structure is too short for are left
    /// out.
    pub(crate) fn set(self, bytes: &mut [u8], value: u64) {
        let mut value = value;
        for index in (self.bit / 8..=(self.bit + self.width - 1) / 8).rev() {
            let (first, last) = self.bits_in(index);
            let mask = (((1_u16 << (last - first + 1)) - 1) as u8) << (7 - last);
            if let Some(byte) = bytes.get_mut(index) {
                *byte = (*byte & !mask) | (((value << (7 - last)) as u8) & mask);
            }
            value >>= last - first + 1;
        }
    }

    /// The first and the last bit of the byte that belong to the field.
    fn bits_in(self, byte: usize) -> (usize, usize) {
        let first = self.bit.max(byte * 8) - byte * 8;
        let last = (self.bit + self.width - 1).min(byte * 8 + 7) - byte * 8;
        (first, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_across_bytes_keeps_its_neighbours() {
        let mut bytes = [0xff; 4];
        let field = Field::new(0xb, 12);
        field.set(&mut bytes, 0x123);
        assert_eq!(field.get(&bytes), 0x123);
        assert_eq!(bytes, [0xff, 0xe2, 0x47, 0xff]);
    }

    #[test]
    fn a_field_of_64_bits() {
        let mut bytes = [0; 16];
        Field::new(0, 64)
            .within(8)
            .set(&mut bytes, 0x0102_0304_0506_0708);
        assert_eq!(bytes[8..], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Field::new(64, 64).get(&bytes), 0x0102_0304_0506_0708);
    }

    #[test]
    fn a_structure_too_short_reads_as_zero() {
        assert_eq!(Field::new(0, 16).get(&[0x12]), 0x1200);
        let mut bytes = [0];
        Field::new(0, 16).set(&mut bytes, 0x1234);
        assert_eq!(bytes, [0x12]);
    }
}
