//! A queue that counts requests and checks nothing but their size: what must not happen in a state of its
//! queue pair is none of a driver's business.

use crate::driver::contract::{self, Position};
use crate::error::Errno;
use crate::work::{Element, Payload, PostError, WorkRequest};

const CAPACITY: u32 = 7;
const MAX_SGE: u32 = 2;
const MAX_INLINE: u32 = 32;

/// A send queue whose requests never finish.
#[derive(Debug, Default)]
pub(crate) struct Sends {
    rung: u32,
}

/// As [`Sends`], of receives.
#[derive(Debug, Default)]
pub(crate) struct Receives {
    rung: u32,
}

/// Refuses a request behind so many others.
fn has_room(count: u32) -> Result<(), PostError> {
    match count < CAPACITY {
        true => Ok(()),
        false => Err(PostError::QueueFull { capacity: CAPACITY }),
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
        self.rung
    }

    fn position(&self) -> Position {
        Position {
            count: self.rung,
            ..Position::default()
        }
    }

    fn write(&mut self, at: Position, request: WorkRequest<'_, ()>) -> Result<Position, PostError> {
        let payload = request.payload;
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
        has_room(at.count)?;
        let count = at.count + 1;
        Ok(Position { count, ..at })
    }

    fn ring(&mut self, start: Position, end: Position) -> Result<usize, Errno> {
        let count = end.count - start.count;
        self.rung = end.count;
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
        self.rung
    }

    fn write<E: Element>(&mut self, nth: u32, _: u64, slices: &[E]) -> Result<(), PostError> {
        check(slices.len())?;
        has_room(self.rung + nth)
    }

    fn ring(&mut self, count: u32) {
        self.rung += count;
    }
}
