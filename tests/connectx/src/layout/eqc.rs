//! The context of an event queue (`eqc`).

use super::Field;

pub(crate) const PAGE_OFFSET: Field = Field::new(0x54, 6);
pub(crate) const LOG_EQ_SIZE: Field = Field::new(0x63, 5);
pub(crate) const UAR_PAGE: Field = Field::new(0x68, 24);
pub(crate) const INTR: Field = Field::new(0xb4, 12);
pub(crate) const LOG_PAGE_SIZE: Field = Field::new(0xc3, 5);
pub(crate) const CONSUMER_COUNTER: Field = Field::new(0x148, 24);
pub(crate) const PRODUCER_COUNTER: Field = Field::new(0x168, 24);
