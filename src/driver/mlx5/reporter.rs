//! The reporters of a completion queue: the ledgers that know the requests of its completions.

use std::sync::{Arc, Weak};

use super::again::post_again;
use super::directory::Report;
use super::format::cqe;
use super::inline::Landing;
use super::ledger::{Does, LooseLedger, RecvLedger, SendLedger, SendNote, SrqElement, SrqLedger};
use super::srq::SrqRing;
use crate::work::Progress;

/// What a queue pair reports to a completion queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Reporter {
    pub(super) send: Option<Arc<SendLedger>>,
    pub(super) recv: Receiver,
    /// Where data in completions are copied to; `None` unless the user has asked for that.
    pub(super) landing: Option<Arc<Landing>>,
    /// The ring of the shared queue from which it receives, as long as there is one.
    pub(super) shared_ring: Weak<SrqRing>,
}

/// The queue from which it receives.
#[derive(Clone, Debug, Default)]
pub(super) enum Receiver {
    /// None that reports here.
    #[default]
    None,
    /// Its own queue.
    Own(Arc<RecvLedger>),
    /// Its own queue, whose requests finish in any order.
    Loose(Arc<LooseLedger>),
    /// A shared queue.
    Shared(Arc<SrqLedger>),
}

impl Receiver {
    /// Finishes the request of a completion and returns its id.
    #[inline(always)]
    fn finish(&self, counter: u16) -> Option<u64> {
        match self {
            Self::Own(ledger) => Some(ledger.finish()),
            Self::Shared(ledger) => ledger.finish(counter),
            Self::Loose(ledger) => ledger.finish(counter),
            Self::None => None,
        }
    }

    /// The ledger of the shared queue from which it receives.
    fn shared(&self) -> Option<&Arc<SrqLedger>> {
        match self {
            Self::Shared(ledger) => Some(ledger),
            Self::Own(_) | Self::Loose(_) | Self::None => None,
        }
    }

    /// The notes for the poster of its own queue.
    pub(super) fn notes(&self) -> Option<&Arc<RecvLedger>> {
        match self {
            Self::Own(ledger) => Some(ledger),
            Self::Loose(ledger) => Some(ledger.notes()),
            Self::Shared(_) | Self::None => None,
        }
    }

    /// How far its own queue is. The low halves of two counts are compared: how many requests the device
    /// knows of, which `told` loads with acquire, and how many are finished.
    pub(super) fn progress(&self, told: impl Fn() -> u32) -> Option<Progress> {
        let mask = u16::MAX.into();
        match self {
            Self::Own(ledger) => Some(Progress::look(mask, told, || ledger.done())),
            Self::Loose(ledger) => Some(Progress::look(mask, told, || ledger.before())),
            Self::Shared(_) | Self::None => None,
        }
    }
}

/// The request of a completion in its ledger, if its queue's requests finish in order or it is a shared
/// queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Noted<'a> {
    Send(&'a SendLedger, &'a SendNote),
    Own(&'a RecvLedger),
    Shared(&'a SrqLedger, &'a SrqElement),
}

impl Noted<'_> {
    /// Its id, and what it did.
    #[inline(always)]
    pub(super) fn id(self) -> (u64, Does) {
        match self {
            Self::Send(_, note) => note.id(),
            Self::Own(ledger) => (ledger.next_id(), Does::default()),
            Self::Shared(_, element) => (element.id(), Does::default()),
        }
    }

    /// Finishes it.
    #[inline(always)]
    pub(super) fn finish(self) {
        match self {
            Self::Send(ledger, note) => ledger.finish_noted(note),
            Self::Own(ledger) => ledger.finish_next(),
            Self::Shared(ledger, element) => ledger.finish_element(element),
        }
    }
}

impl Reporter {
    /// The request of a completion that reports no failure; `None` if its queue has another kind of ledger,
    /// or no such request is reported here.
    #[inline(always)]
    pub(super) fn noted(&self, op_own: u8, counter: u16) -> Option<Noted<'_>> {
        match (op_own >> 4, &self.recv) {
            (cqe::REQ, _) => {
                let ledger = self.send.as_deref()?;
                Some(Noted::Send(ledger, ledger.note(counter.into())))
            }
            (code, Receiver::Own(ledger)) if code <= cqe::RESP_SEND_INV => Some(Noted::Own(ledger)),
            (code, Receiver::Shared(ledger)) if code <= cqe::RESP_SEND_INV => {
                Some(Noted::Shared(ledger, ledger.reported(counter)?))
            }
            _ => None,
        }
    }

    /// Finishes the request of a completion; returns its id, and what it did. `None` if nothing of that kind
    /// reports here.
    #[inline(always)]
    pub(super) fn finish(&self, op_own: u8, counter: u16) -> Option<(u64, Does)> {
        match op_own >> 4 {
            cqe::REQ | cqe::REQ_ERR => Some(self.send.as_ref()?.finish(counter)),
            _ if cqe::is_receive(op_own) => Some((self.recv.finish(counter)?, Does::default())),
            _ => None,
        }
    }

    /// Frees the element of a shared receive queue to which a completion belongs whose request is forgotten.
    pub(super) fn reclaim(&self, op_own: u8, counter: u16) {
        if let Receiver::Shared(ledger) = &self.recv
            && cqe::is_receive(op_own)
        {
            ledger.finish(counter);
        }
    }

    /// Posts again a request of a shared queue whose message found a page missing. False if it is not a
    /// request of a shared queue, or this cannot be done.
    pub(super) fn post_again(&self, counter: u16) -> bool {
        let shared = self.recv.shared();
        shared.is_some_and(|ledger| post_again(&self.shared_ring, ledger, counter))
    }

    /// Whether a queue reports here.
    pub(super) fn is_known(&self) -> bool {
        self.send.is_some() || !matches!(self.recv, Receiver::None)
    }
}

impl Report for Reporter {
    fn halves(self) -> (Self, Self) {
        let Self {
            send,
            recv,
            landing,
            shared_ring,
        } = self;
        let of_send = Self {
            send,
            recv: Receiver::None,
            landing: landing.clone(),
            shared_ring: Weak::new(),
        };
        let of_recv = Self {
            send: None,
            recv,
            landing,
            shared_ring,
        };
        (of_send, of_recv)
    }

    fn shared(&self) -> Option<&Arc<SrqLedger>> {
        self.recv.shared()
    }
}
