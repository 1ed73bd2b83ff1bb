//! A queue that counts requests and checks nothing but their size: what must not happen in a state of its
//! queue pair is none of a driver's business.

use uverbs_uapi::flags::SendFlags;

use crate::driver::contract;
use crate::error::Errno;
use crate::work::{Destination, Element, Operation, Payload, PostError};

const CAPACITY: u32 = 7;
const MAX_SGE: u32 = 2;
const MAX_INLINE: u32 = 32;

/// A send queue whose requests never finish.
#[derive(Debug, Default)]
pub(crate) struct Sends(Tally);

/// As [`Sends`], of receives.
#[derive(Debug, Default)]
pub(crate) struct Receives(Tally);

#[derive(Debug, Default)]
struct Tally {
    rung: u32,
    tail: u32,
}

impl Tally {
    fn add(&mut self) -> Result<(), PostError> {
        if self.tail == CAPACITY {
            return Err(PostError::QueueFull { capacity: CAPACITY });
        }
        self.tail += 1;
        Ok(())
    }
}

/// Refuses a list that is too long.
fn check(given: usize) -> Result<(), PostError> {
    match given > MAX_SGE as usize {
        true => Err(PostError::TooManySges {
            given,
            max: MAX_SGE,
        }),
        false => Ok(()),
    }
}

impl contract::SendQueue for Sends {
    type Ah = ();

    fn capacity(&self) -> u32 {
        CAPACITY
    }

    fn max_sge(&self) -> u32 {
        MAX_SGE
    }

    fn max_inline(&self) -> u32 {
        MAX_INLINE
    }

    fn in_flight(&self) -> u32 {
        self.0.rung
    }

    fn begin(&mut self) {
        self.0.tail = self.0.rung;
    }

    fn pending(&self) -> u32 {
        self.0.tail - self.0.rung
    }

    fn write(
        &mut self,
        _: u64,
        _: SendFlags,
        _: Operation,
        _: Option<Destination<'_, ()>>,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        match payload {
            Payload::Gather(slices) => check(slices.len())?,
            Payload::Sges(sges) => check(sges.len())?,
            Payload::Inline(_) | Payload::InlineSges(_) if payload.len() > MAX_INLINE.into() => {
                return Err(PostError::InlineTooLong {
                    given: payload.len() as usize,
                    max: MAX_INLINE,
                });
            }
            Payload::Inline(_) | Payload::InlineSges(_) => {}
        }
        self.0.add()
    }

    fn amend(&mut self, _: Option<u64>, _: SendFlags) {}

    fn ring(&mut self) -> Result<usize, Errno> {
        let count = self.0.tail - self.0.rung;
        self.0.rung = self.0.tail;
        Ok(count as usize)
    }
}

impl contract::RecvQueue for Receives {
    fn capacity(&self) -> u32 {
        CAPACITY
    }

    fn max_sge(&self) -> u32 {
        MAX_SGE
    }

    fn in_flight(&self) -> u32 {
        self.0.rung
    }

    fn begin(&mut self) {
        self.0.tail = self.0.rung;
    }

    fn pending(&self) -> u32 {
        self.0.tail - self.0.rung
    }

    fn write<E: Element>(&mut self, _: u64, slices: &[E]) -> Result<(), PostError> {
        check(slices.len())?;
        self.0.add()
    }

    fn ring(&mut self) {
        self.0.rung = self.0.tail;
    }
}
