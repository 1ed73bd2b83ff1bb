//! The context of a completion queue (`cqc`).

use super::Field;

pub(crate) const STATUS: Field = Field::new(0x0, 4);
pub(crate) const DBR_UMEM_VALID: Field = Field::new(0x6, 1);
pub(crate) const DBR_UMEM_ID: Field = Field::new(0x20, 32);
pub(crate) const CQE_SZ: Field = Field::new(0x8, 3);
/// All entries go to the first place.
pub(crate) const CC: Field = Field::new(0xb, 1);
/// Overrun is ignored.
pub(crate) const OI: Field = Field::new(0xe, 1);
pub(crate) const CQE_COMP_EN: Field = Field::new(0x11, 1);
pub(crate) const PAGE_OFFSET: Field = Field::new(0x54, 6);
pub(crate) const LOG_CQ_SIZE: Field = Field::new(0x63, 5);
pub(crate) const UAR_PAGE: Field = Field::new(0x68, 24);
pub(crate) const C_EQN: Field = Field::new(0xb8, 8);
pub(crate) const LOG_PAGE_SIZE: Field = Field::new(0xc3, 5);
pub(crate) const CONSUMER_COUNTER: Field = Field::new(0x148, 24);
pub(crate) const PRODUCER_COUNTER: Field = Field::new(0x168, 24);
pub(crate) const DBR_ADDR: Field = Field::new(0x1c0, 64);
