//! Memory of a user's context (`umem`).

use super::Field;

/// Where the entries of pages begin.
pub(crate) const MTT: usize = 0x20;

pub(crate) const LOG_PAGE_SIZE: Field = Field::new(0x9b, 5);
pub(crate) const PAGE_OFFSET: Field = Field::new(0xa0, 32);
pub(crate) const NUM_OF_MTT: Field = Field::new(0xc0, 64);
