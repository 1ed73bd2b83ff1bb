//! How much each side may send: a message goes out only if the peer has a receive posted for it.

use std::collections::VecDeque;

/// The credits of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credits {
    /// Receives that the peer has posted and this side has not used.
    left: u32,
    /// Receives of this side that the peer does not know of yet. With `lent`, as many as are posted or have
    /// messages that nobody has taken: so neither counts further than that.
    owed: u32,
    /// Receives of this side that the peer knows of, or will soon, and has not used.
    lent: u32,
    /// At this number of owed credits, a message of their own carries them to the peer.
    enough: u32,
}

/// Credits that other messages leave unused, so that a message with credits can always be sent.
const RESERVED: u32 = 1;

impl Credits {
    /// The credits at the start: each side has posted `receives`, and the peer knows of one, for the
    /// greeting.
    pub(super) fn new(receives: u32) -> Self {
        Self {
            left: 1,
            owed: receives - 1,
            lent: 1,
            enough: (receives / 2).max(2),
        }
    }

    /// A receive was posted.
    pub(super) fn post(&mut self) {
        self.owed += 1;
    }

    /// A message of the peer's has come, and has announced `credits` more receives; false if the peer had no
    /// credit for it.
    #[must_use]
    pub(super) fn came(&mut self, credits: u16) -> bool {
        let Some(lent) = self.lent.checked_sub(1) else {
            return false;
        };
        self.lent = lent;
        self.left = self.left.saturating_add(credits.into());
        true
    }

    /// Uses a credit for a message of the user, and returns the credits that go with it; `None` if the peer
    /// has no receive for it.
    pub(super) fn spend(&mut self) -> Option<u16> {
        (self.left > RESERVED).then(|| self.take())
    }

    /// Like [`spend`](Self::spend), for the greeting.
    pub(super) fn greet(&mut self) -> u16 {
        self.take()
    }

    /// Uses a credit to announce this side's receives, if enough are owed.
    pub(super) fn tell(&mut self) -> Option<u16> {
        (self.owed >= self.enough && self.left > 0).then(|| self.take())
    }

    fn take(&mut self) -> u16 {
        self.left = self.left.saturating_sub(1);
        let told = self.owed.min(u16::MAX.into());
        self.owed -= told;
        self.lent += told;
        told as u16
    }
}

/// The most answers that wait for credits. A peer of this library lets each be sent when it has taken a few
/// messages, and has a buffer that it keeps for each until then.
const MOST_ANSWERS: usize = 1 << 16;

/// Answers to what the peer has offered, that wait for its credits.
#[derive(Debug, Default)]
pub(super) struct Answers(VecDeque<(u32, bool)>);

impl Answers {
    /// Whether one more offer may be answered, of as many as nobody has taken yet. A peer may well leave no
    /// room for answers and go on with offers.
    pub(super) fn may_grow(&self, offers: usize) -> bool {
        self.0.len() + offers < MOST_ANSWERS
    }

    /// Adds one: the offer's number, and whether it was taken.
    pub(super) fn push(&mut self, number: u32, taken: bool) {
        self.0.push_back((number, taken));
    }

    /// The first one.
    pub(super) fn first(&self) -> Option<(u32, bool)> {
        self.0.front().copied()
    }

    /// Removes the first one, which is sent.
    pub(super) fn pop(&mut self) {
        self.0.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two sides, and the messages on the way to each.
    struct Wire {
        sides: [Credits; 2],
        /// Messages on the way to a side, by the credits that they carry.
        on_the_way: [Vec<u16>; 2],
        /// Receives that a side has posted and that no message has consumed.
        posted: [u32; 2],
    }

    impl Wire {
        fn new(receives: [u32; 2]) -> Self {
            let mut wire = Self {
                sides: receives.map(Credits::new),
                on_the_way: Default::default(),
                posted: receives,
            };
            for side in 0..2 {
                let told = wire.sides[side].greet();
                wire.on_the_way[1 - side].push(told);
            }
            wire
        }

        /// A message arrives, takes a receive, and another one is posted.
        fn arrive(&mut self, side: usize) -> bool {
            if self.on_the_way[side].is_empty() {
                return false;
            }
            let told = self.on_the_way[side].remove(0);
            assert!(self.posted[side] > 0, "no receive is posted");
            assert!(self.sides[side].came(told), "it had a credit");
            self.sides[side].post();
            if let Some(told) = self.sides[side].tell() {
                self.on_the_way[1 - side].push(told);
            }
            true
        }

        fn send(&mut self, side: usize) -> bool {
            let spent = self.sides[side].spend();
            self.on_the_way[1 - side].extend(spent);
            spent.is_some()
        }
    }

    /// Would catch a peer that is let send more than it was told of: then what is kept for it has no bound.
    #[test]
    fn a_peer_sends_no_more_than_it_has_credits_for() {
        let mut credits = Credits::new(8);
        assert!(credits.came(0), "its greeting");
        credits.post();
        assert!(!credits.came(1), "it knows of no more yet");
        let mut credits = Credits::new(8);
        assert_eq!(credits.greet(), 7);
        for number in 0..1000 {
            assert_eq!(credits.came(0), number < 8, "message {number}");
            if number < 8 {
                // Never told, since the peer leaves no credit for that.
                credits.post();
                assert_eq!(credits.tell(), None);
            }
        }
    }

    /// Would catch a count of receives that overflows where a peer gives no credits, by which alone it can be
    /// told of them.
    #[test]
    fn what_is_owed_is_no_more_than_what_is_posted() {
        let most = u32::from(u16::MAX);
        let mut credits = Credits::new(most);
        let told = u32::from(credits.greet());
        let mut posted = most;
        while credits.came(0) {
            posted -= 1;
            credits.post();
            posted += 1;
            assert_eq!(credits.owed + credits.lent, posted);
        }
        assert_eq!((credits.owed, told), (most, most - 1));
    }

    /// Would catch answers that pile up without bound, for a peer that gives no more credits than lets it go
    /// on.
    #[test]
    fn answers_do_not_pile_up() {
        let mut answers = Answers::default();
        let mut number = 0;
        while answers.may_grow(7) {
            answers.push(number, true);
            number += 1;
        }
        assert_eq!(number as usize, MOST_ANSWERS - 7);
        assert_eq!(answers.first(), Some((0, true)));
        answers.pop();
        assert!(answers.may_grow(7));
    }

    proptest! {
        /// Would catch a receiver that gets more than it has receives for, and two sides that wait for each
        /// other for ever.
        #[test]
        fn nobody_is_overrun_and_nobody_is_stuck(
            receives in [4u32..9, 4u32..9],
            steps in proptest::collection::vec((any::<bool>(), 0usize..2), 0..300),
        ) {
            let mut wire = Wire::new(receives);
            for (sends, side) in steps {
                match sends {
                    true => drop(wire.send(side)),
                    false => drop(wire.arrive(side)),
                }
                for side in 0..2 {
                    prop_assert!(wire.on_the_way[side].len() <= wire.posted[side] as usize);
                }
            }
            // When all has arrived each may send again.
            while wire.arrive(0) || wire.arrive(1) {}
            prop_assert!(wire.send(0));
            while wire.arrive(0) || wire.arrive(1) {}
            prop_assert!(wire.send(1));
        }
    }
}
