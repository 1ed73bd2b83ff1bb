//! What memory that the peer writes to may hold.

use std::collections::VecDeque;

use super::message::Key;

/// How many writes of an unreliable peer may still come once more, as late or doubled packets.
const LATE: usize = 6;

/// Bytes that are compared at a time.
const PIECE: usize = 256;

/// One slot of memory: the bytes that it surely has, and writes that may have changed some of them.
#[derive(Debug)]
pub(crate) struct Shadow {
    sure: Vec<u8>,
    maybe: VecDeque<(Key, Vec<u8>)>,
}

impl Shadow {
    /// Memory that holds zeros.
    pub(crate) fn new(length: usize) -> Self {
        Self {
            sure: vec![0; length],
            maybe: VecDeque::new(),
        }
    }

    /// A write is about to be posted.
    pub(crate) fn may_be_written(&mut self, key: Key, message: Vec<u8>) {
        self.maybe.push_back((key, message));
    }

    /// The write has surely been done, and will not be done again.
    pub(crate) fn is_written(&mut self, key: Key) {
        if let Some(at) = self.maybe.iter().position(|(other, _)| *other == key)
            && let Some((_, message)) = self.maybe.remove(at)
        {
            self.sure[..message.len()].copy_from_slice(&message);
        }
    }

    /// Takes what is there now as sure: none of the writes that were in flight will change it any more.
    pub(crate) fn settle(&mut self, now: &[u8]) {
        self.sure.copy_from_slice(now);
        self.maybe.clear();
    }

    /// Forgets writes that are too old to come once more.
    pub(crate) fn age(&mut self, now: &[u8]) {
        if self.maybe.len() > LATE {
            self.sure.copy_from_slice(now);
            self.maybe.drain(..self.maybe.len() - LATE);
        }
    }

    /// Fails if a byte is neither what was there nor what was written.
    pub(crate) fn check(&self, now: &[u8]) -> Result<(), String> {
        for (number, piece) in now.chunks(PIECE).enumerate() {
            let start = number * PIECE;
            let place = start..start + piece.len();
            // What is the same as a whole need not be looked at byte by byte.
            let mut written = self.maybe.iter().map(|(_, message)| message);
            if self.sure[place.clone()] == *piece
                || written.any(|message| message.get(place.clone()) == Some(piece))
            {
                continue;
            }
            self.check_bytes(start, piece)?;
        }
        Ok(())
    }

    fn check_bytes(&self, start: usize, piece: &[u8]) -> Result<(), String> {
        let is_right = |(at, byte): (usize, &u8)| {
            let mut written = self.maybe.iter().map(|(_, message)| message);
            self.sure[start + at] == *byte
                || written.any(|message| message.get(start + at) == Some(byte))
        };
        match piece.iter().enumerate().position(|place| !is_right(place)) {
            None => Ok(()),
            Some(at) => Err(format!(
                "byte {} is {:#04x}, was {:#04x}, and none of {:?} writes it",
                start + at,
                piece[at],
                self.sure[start + at],
                self.maybe
                    .iter()
                    .map(|(key, message)| (key.serial, message.len()))
                    .collect::<Vec<_>>()
            )),
        }
    }
}

/// The word that the peer's atomics work on: what it surely was, and operations that may have changed it
/// since, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Word {
    sure: u64,
    maybe: VecDeque<(u32, Atomic)>,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    Add(u64),
    Swap { compare: u64, swap: u64 },
}

impl Atomic {
    fn apply(self, word: u64) -> u64 {
        match self {
            Atomic::Add(number) => word.wrapping_add(number),
            Atomic::Swap { compare, swap } if compare == word => swap,
            Atomic::Swap { .. } => word,
        }
    }
}

impl Word {
    /// What the word is once all operations are done.
    pub(crate) fn last(&self) -> u64 {
        self.maybe
            .iter()
            .fold(self.sure, |word, (_, atomic)| atomic.apply(word))
    }

    /// An operation is about to be posted.
    pub(crate) fn may_be_changed(&mut self, serial: u32, atomic: Atomic) {
        self.maybe.push_back((serial, atomic));
    }

    /// The operation has been done: fails if it did not find the word as the ones before left it.
    pub(crate) fn is_changed(&mut self, serial: u32, found: u64) -> Result<(), String> {
        match self.maybe.pop_front() {
            Some((first, atomic)) if first == serial => {
                let was = self.sure;
                self.sure = atomic.apply(was);
                if found == was {
                    return Ok(());
                }
                Err(format!(
                    "atomic {serial} ({atomic:?}) found {found:#x}, and the word was {was:#x}; to come: {:?}",
                    self.maybe
                ))
            }
            other => Err(format!("atomic {serial} completed, and {other:?} was due")),
        }
    }

    /// No operation is under way any more: fails unless the first few of them have been done, each once.
    pub(crate) fn settle(&mut self, now: u64) -> Result<(), String> {
        let mut word = self.sure;
        let mut may_be = vec![word];
        for (_, atomic) in self.maybe.drain(..) {
            word = atomic.apply(word);
            may_be.push(word);
        }
        self.sure = now;
        match may_be.contains(&now) {
            true => Ok(()),
            false => Err(format!("the word is {now:#x}, and could be {may_be:#x?}")),
        }
    }
}
