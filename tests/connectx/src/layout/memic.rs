//! Device memory: its capabilities (`device_mem_cap`), and the commands that allocate it.

use super::Field;

pub(crate) const MEMIC: Field = Field::new(0x0, 1);
/// Both binary logarithms count units of 64 bytes.
pub(crate) const LOG_MIN_MEMIC_ALLOC_SIZE: Field = Field::new(0x2b, 5);
pub(crate) const LOG_MAX_MEMIC_ADDR_ALIGNMENT: Field = Field::new(0x38, 8);
pub(crate) const MEMIC_BAR_START_ADDR: Field = Field::new(0x40, 64);
pub(crate) const MEMIC_BAR_SIZE: Field = Field::new(0x80, 32);
pub(crate) const MAX_MEMIC_SIZE: Field = Field::new(0xa0, 32);

/// The input of ALLOC_MEMIC.
pub(crate) mod alloc {
    use super::Field;

    pub(crate) const LOG_MEMIC_ADDR_ALIGNMENT: Field = Field::new(0x78, 8);
    pub(crate) const RANGE_START_ADDR: Field = Field::new(0x80, 64);
    pub(crate) const RANGE_SIZE: Field = Field::new(0xc0, 32);
    pub(crate) const MEMIC_SIZE: Field = Field::new(0xe0, 32);
    /// Of the output.
    pub(crate) const MEMIC_START_ADDR: Field = Field::new(0x40, 64);
}

/// The input of DEALLOC_MEMIC.
pub(crate) mod dealloc {
    use super::Field;

    pub(crate) const MEMIC_START_ADDR: Field = Field::new(0x80, 64);
    pub(crate) const MEMIC_SIZE: Field = Field::new(0xc0, 32);
}
