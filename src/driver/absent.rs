//! Queues that a driver does not have: types without values, so every promise of the contract holds.

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;

use super::contract::{Completion, Cq, Nothing, Position, RecvQueue, SendQueue};
use crate::error::{Errno, Result};
use crate::work::{Element, PollError, PostError, WorkRequest};

/// A send queue that a driver does not have.
#[derive(Debug)]
pub(crate) enum NoSendQueue {}

/// A receive queue that a driver does not have.
#[derive(Debug)]
pub(crate) enum NoRecvQueue {}

/// A completion queue that a driver does not have, with its completions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoCq {}

impl SendQueue for NoSendQueue {
    type Ah = ();

    fn capacity(&self) -> u32 {
        match *self {}
    }

    fn max_sge(&self) -> u32 {
        match *self {}
    }

    fn max_inline(&self) -> u32 {
        match *self {}
    }

    fn in_flight(&self) -> u32 {
        match *self {}
    }

    fn position(&self) -> Position {
        match *self {}
    }

    fn write(&mut self, _: Position, _: WorkRequest<'_, ()>) -> Result<Position, PostError> {
        match *self {}
    }

    fn ring(&mut self, _: Position, _: Position) -> Result<usize, Errno> {
        match *self {}
    }
}

impl RecvQueue for NoRecvQueue {
    fn capacity(&self) -> u32 {
        match *self {}
    }

    fn max_sge(&self) -> u32 {
        match *self {}
    }

    fn in_flight(&self) -> u32 {
        match *self {}
    }

    fn write<E: Element>(&mut self, _: u32, _: u64, _: &[E]) -> Result<(), PostError> {
        match *self {}
    }

    fn ring(&mut self, _: u32) {
        match *self {}
    }
}

impl Cq for NoCq {
    type Backing = Nothing;
    type Completion = Self;
    type Polled<'q> = Self;

    fn backing(&self) -> Nothing {
        match *self {}
    }

    fn capacity(&self) -> u32 {
        match *self {}
    }

    fn is_empty(&mut self) -> Result<bool, PollError> {
        match *self {}
    }

    fn poll(&mut self) -> Result<Self, PollError> {
        match *self {}
    }

    #[cfg(feature = "c-abi")]
    fn show_next(&mut self) -> Result<Option<Self>, PollError> {
        match *self {}
    }

    #[cfg(feature = "c-abi")]
    fn shown(&self) -> Option<Self> {
        match *self {}
    }

    #[cfg(feature = "c-abi")]
    fn hide(&mut self) {
        match *self {}
    }
}

impl Iterator for NoCq {
    type Item = Self;

    fn next(&mut self) -> Option<Self> {
        match *self {}
    }
}

impl Completion for NoCq {
    fn wr_id(&self) -> u64 {
        match *self {}
    }

    fn status(&self) -> WcStatus {
        match *self {}
    }

    fn opcode(&self) -> WcOpcode {
        match *self {}
    }

    fn byte_len(&self) -> u32 {
        match *self {}
    }

    fn qp_num(&self) -> u32 {
        match *self {}
    }

    fn src_qp(&self) -> u32 {
        match *self {}
    }

    fn ex(&self) -> u32 {
        match *self {}
    }

    fn flags(&self) -> WcFlags {
        match *self {}
    }
}
