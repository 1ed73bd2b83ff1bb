//! The context of a DC target (`dctc`).

use super::Field;

pub(crate) const STATE: Field = Field::new(0x0, 4);
pub(crate) const USER_INDEX: Field = Field::new(0x28, 24);
pub(crate) const CQN: Field = Field::new(0x48, 24);
pub(crate) const RRE: Field = Field::new(0x6c, 1);
pub(crate) const RWE: Field = Field::new(0x6d, 1);
pub(crate) const RAE: Field = Field::new(0x6e, 1);
pub(crate) const CS_RES: Field = Field::new(0x88, 8);
pub(crate) const SRQN: Field = Field::new(0xa8, 24);
pub(crate) const PD: Field = Field::new(0xc8, 24);
pub(crate) const DC_ACCESS_KEY: Field = Field::new(0x100, 64);
pub(crate) const MTU: Field = Field::new(0x145, 3);
pub(crate) const PORT: Field = Field::new(0x148, 8);

/// Bytes of the whole context.
pub(crate) const SIZE: usize = 0x40;
