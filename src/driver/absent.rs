//! Queues that a driver does not have: types without values, so every promise of the contract holds.

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::{SendFlags, WcFlags};

use super::contract::{Completion, Cq, Nothing, Polled, RecvQueue, SendBatch, SendQueue, SendSlot};
#[cfg(feature = "c-abi")]
use super::contract::{Opened, Shown};
use crate::command::Failed;
use crate::error::{Errno, Result};
use crate::work::{Destination, Element, Operation, Payload, PollError, PostError};

/// A send queue that a driver does not have, with its batches.
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
    type Slot = Self;
    type Batch<'q> = Self;

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

    fn batch(&mut self) -> Self {
        match *self {}
    }

    fn post(&mut self, _: u64, _: Operation, _: Payload<'_>) -> Option<Result<(), Failed>> {
        match *self {}
    }

    fn ring_again(&mut self, _: Failed) -> Result<(), Errno> {
        match *self {}
    }
}

impl SendBatch for NoSendQueue {
    type Ah = ();
    type Slot = Self;

    fn len(&self) -> u32 {
        match *self {}
    }

    fn push_usual(
        &mut self,
        _: Operation,
        _: Option<Destination<'_, ()>>,
        _: Payload<'_>,
    ) -> Option<Self> {
        match *self {}
    }

    fn push_other(
        &mut self,
        _: Operation,
        _: Option<Destination<'_, ()>>,
        _: Payload<'_>,
    ) -> Result<Self, PostError> {
        match *self {}
    }

    #[cfg(feature = "c-abi")]
    fn open(&mut self, _: Operation, _: u64, _: SendFlags) -> Option<Opened> {
        match *self {}
    }

    #[cfg(feature = "c-abi")]
    unsafe fn close(&mut self, _: Opened, _: Payload<'_>) -> bool {
        match *self {}
    }

    fn is_usual(&self) -> bool {
        match *self {}
    }

    fn ring(&mut self) -> Result<usize, Errno> {
        match *self {}
    }
}

impl SendSlot for NoSendQueue {
    fn set_id(&mut self, _: u64) {
        match *self {}
    }

    fn add_flags(&mut self, _: SendFlags) {
        match *self {}
    }
}

impl RecvQueue for NoRecvQueue {
    type At = ();

    fn capacity(&self) -> u32 {
        match *self {}
    }

    fn max_sge(&self) -> u32 {
        match *self {}
    }

    fn in_flight(&self) -> u32 {
        match *self {}
    }

    fn begin(&mut self) {
        match *self {}
    }

    fn pending(&self, (): ()) -> u32 {
        match *self {}
    }

    fn push_usual<E: Element>(&mut self, (): &mut (), _: u64, _: &[E]) -> bool {
        match *self {}
    }

    fn push<E: Element>(&mut self, (): (), _: u64, _: &[E]) -> Result<(), PostError> {
        match *self {}
    }

    fn ring_usual(&mut self, (): ()) {
        match *self {}
    }

    fn ring(&mut self, (): ()) {
        match *self {}
    }
}

impl Cq for NoCq {
    type Backing = Nothing;
    type Completion = Self;
    type Polled<'q> = Self;
    #[cfg(feature = "c-abi")]
    type Shown = Self;

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
    fn show_nothing(&self) -> Self {
        match *self {}
    }

    #[cfg(feature = "c-abi")]
    fn show_first(&mut self, _: &mut Self) -> Result<bool, PollError> {
        match *self {}
    }

    #[cfg(feature = "c-abi")]
    fn show_plainly(&mut self, _: &mut Self) -> Option<bool> {
        match *self {}
    }
}

#[cfg(feature = "c-abi")]
impl Shown for NoCq {
    type Completion = Self;

    unsafe fn completion(&self) -> Self {
        match *self {}
    }
}

impl Polled for NoCq {
    type Completion = Self;

    fn take(&mut self) -> Option<Self> {
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

    fn vendor_err(&self) -> u32 {
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

    fn timestamp(&self) -> Option<u64> {
        match *self {}
    }

    fn pkey_index(&self) -> u16 {
        match *self {}
    }

    fn slid(&self) -> u16 {
        match *self {}
    }

    fn sl(&self) -> u8 {
        match *self {}
    }

    fn dlid_path_bits(&self) -> u8 {
        match *self {}
    }
}
