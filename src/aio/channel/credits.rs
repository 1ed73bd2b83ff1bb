//! Who may send how much: a message goes out only if the peer has a receive posted for it.

/// The credits of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credits {
    /// Receives that the peer has posted and this side has not used.
    left: u32,
    /// Receives of this side that the peer does not know of yet.
    owed: u32,
    /// At this number of owed credits, a message of their own carries them to the peer.
    enough: u32,
}

/// Credits that other messages leave over, so that a message with credits can always be sent.
const RESERVED: u32 = 1;

impl Credits {
    /// The credits at the start: each side has posted `receives`, and the peer knows of one, for the
    /// greeting.
    pub(super) fn new(receives: u32) -> Self {
        Self {
            left: 1,
            owed: receives - 1,
            enough: (receives / 2).max(2),
        }
    }

    /// A receive was posted.
    pub(super) fn post(&mut self) {
        self.owed += 1;
    }

    /// The peer has announced `credits` more receives.
    pub(super) fn told(&mut self, credits: u16) {
        self.left = self.left.saturating_add(credits.into());
    }

    /// Uses a credit for a message of the user's, and gives the credits that go with it; `None` if the peer
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
        told as u16
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two sides, and what is on the way to each.
    struct Wire {
        sides: [Credits; 2],
        /// Messages on the way to a side, by the credits that they carry.
        on_the_way: [Vec<u16>; 2],
        /// Receives that a side has posted and that nothing has come for.
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
            self.sides[side].told(told);
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

    proptest! {
        /// Would catch a receiver that is overrun, and two that wait for each other for ever.
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
