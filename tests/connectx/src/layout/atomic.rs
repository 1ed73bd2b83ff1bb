//! Capabilities for atomics (`atomic_caps`).

use super::Field;

pub(crate) const ATOMIC_REQ_8B_ENDIANNESS_MODE: Field = Field::new(0x40, 2);
pub(crate) const SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1: Field = Field::new(0x46, 1);
pub(crate) const ATOMIC_OPERATIONS: Field = Field::new(0x90, 16);
pub(crate) const ATOMIC_SIZE_QP: Field = Field::new(0xb0, 16);
pub(crate) const ATOMIC_SIZE_DC: Field = Field::new(0xd0, 16);
pub(crate) const SWAP_PCI_ATOMIC: Field = Field::new(0x290, 16);
