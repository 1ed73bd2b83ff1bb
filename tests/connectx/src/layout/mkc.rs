//! The context of a memory key (`mkc`).

use super::Field;

pub(crate) const FREE: Field = Field::new(0x1, 1);
pub(crate) const ACCESS_MODE_4_2: Field = Field::new(0x3, 3);
pub(crate) const UMR_EN: Field = Field::new(0x10, 1);
pub(crate) const A: Field = Field::new(0x11, 1);
pub(crate) const RW: Field = Field::new(0x12, 1);
pub(crate) const RR: Field = Field::new(0x13, 1);
pub(crate) const LW: Field = Field::new(0x14, 1);
pub(crate) const LR: Field = Field::new(0x15, 1);
pub(crate) const ACCESS_MODE_1_0: Field = Field::new(0x16, 2);
pub(crate) const QPN: Field = Field::new(0x20, 24);
pub(crate) const MKEY_7_0: Field = Field::new(0x38, 8);
pub(crate) const LENGTH64: Field = Field::new(0x60, 1);
pub(crate) const EN_RINVAL: Field = Field::new(0x67, 1);
pub(crate) const PD: Field = Field::new(0x68, 24);
pub(crate) const START_ADDR: Field = Field::new(0x80, 64);
pub(crate) const LEN: Field = Field::new(0xc0, 64);
pub(crate) const TRANSLATIONS_OCTWORD_SIZE: Field = Field::new(0x1a0, 32);
pub(crate) const LOG_PAGE_SIZE: Field = Field::new(0x1db, 5);
