//! The contents of the messages, which show every wrong byte.
//!
//! rdma-core's programs fill a message with 0x7b, and with `-c` the client writes 0 at the start of each
//! page, which is all that the server checks. A checking client here keeps these zeros, and all other bytes
//! depend on the message's number and their place, so a lost, repeated or shifted packet cannot look right.

/// The byte that the C programs fill messages with.
const FILL: u8 = 0x7b;

/// The distance of the zeros. If pages are larger, the zeros of the pages are among these.
const PAGE: usize = 4096;

/// Fills a message that will not be checked.
pub(super) fn fill_plain(message: &mut [u8]) {
    message.fill(FILL);
}

/// Fills message `number` for a check at the other end.
pub(super) fn fill_numbered(message: &mut [u8], number: u64) {
    for (at, word) in message.chunks_mut(8).enumerate() {
        word.copy_from_slice(&numbered_word(number, at)[..word.len()]);
    }
    for page in message.chunks_mut(PAGE) {
        page[0] = 0;
    }
}

/// Eight bytes that no other place of no other message has (the finaliser of MurmurHash3).
fn numbered_word(number: u64, at: usize) -> [u8; 8] {
    let mut word = (number << 32) ^ at as u64;
    word ^= word >> 33;
    word = word.wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^= word >> 33;
    word = word.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (word ^ (word >> 33)).to_le_bytes()
}

/// A byte that has the wrong value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// The message, counted from 1.
    number: u64,
    at: usize,
    expected: u8,
    got: u8,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            number,
            at,
            expected,
            got,
        } = self;
        write!(
            f,
            "message {number}: byte {at} is {got:#04x} instead of {expected:#04x}"
        )
    }
}

/// The kinds of messages that a peer may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Numbered,
    /// A message of the C programs, with this byte at the start of each page.
    Plain {
        page_start: u8,
    },
}

/// Checks one message after the other.
#[derive(Debug)]
pub(super) struct Checker {
    /// `None` until a message has shown what the peer sends.
    kind: Option<Kind>,
    expected: Vec<u8>,
}

impl Checker {
    /// For the client, which gets back what it sent.
    pub(super) fn of_echoes(size: usize) -> Self {
        Self {
            kind: Some(Kind::Numbered),
            expected: vec![0; size],
        }
    }

    /// For the server: the first message shows the kind of peer.
    pub(super) fn of_any_peer(size: usize) -> Self {
        Self {
            kind: None,
            expected: vec![0; size],
        }
    }

    /// Compares message `number`, counted from 1, with its expected contents.
    pub(super) fn check(&mut self, number: u64, message: &[u8]) -> Result<(), Mismatch> {
        let kind = *self.kind.get_or_insert_with(|| guess(message));
        match kind {
            Kind::Numbered => fill_numbered(&mut self.expected, number),
            Kind::Plain { page_start } => {
                fill_plain(&mut self.expected);
                for page in self.expected.chunks_mut(PAGE) {
                    page[0] = page_start;
                }
            }
        }
        if message == self.expected {
            return Ok(());
        }
        let mut pairs = message.iter().zip(&self.expected).enumerate();
        match pairs.find(|(_, (got, expected))| got != expected) {
            Some((at, (&got, &expected))) => Err(Mismatch {
                number,
                at,
                expected,
                got,
            }),
            // Only the lengths differ, which the completion reports.
            None => Ok(()),
        }
    }
}

/// The kind of the first message. A message of no kind counts as a numbered one, and the check then finds it
/// wrong.
fn guess(message: &[u8]) -> Kind {
    let mut pages = message.chunks(PAGE);
    let rest_is_plain = pages.all(|page| page[1..].iter().all(|&byte| byte == FILL));
    match message.first() {
        Some(&page_start @ FILL) if rest_is_plain => Kind::Plain { page_start },
        // A single zero may begin either kind; with more bytes both kinds contain other bytes than zeros.
        Some(&page_start @ 0) if rest_is_plain && message.len() > 1 => Kind::Plain { page_start },
        _ => Kind::Numbered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(size: usize, number: u64) -> Vec<u8> {
        let mut message = vec![0xee; size];
        fill_numbered(&mut message, number);
        message
    }

    /// The message of `ibv_rc_pingpong -c`, or without `-c` if `page_start` is 0x7b.
    fn classic(size: usize, page_start: u8) -> Vec<u8> {
        let mut message = vec![FILL; size];
        message
            .iter_mut()
            .step_by(PAGE)
            .for_each(|byte| *byte = page_start);
        message
    }

    #[test]
    fn a_c_server_finds_its_zeros() {
        let message = numbered(3 * PAGE + 1, 7);
        assert!(message.iter().step_by(PAGE).all(|&byte| byte == 0));
    }

    #[test]
    fn right_messages_pass() {
        for size in [1, 2, 7, 8, 9, 1024, PAGE, PAGE + 1, 65536] {
            let mut server = Checker::of_any_peer(size);
            let mut client = Checker::of_echoes(size);
            for number in 1..=3 {
                let message = numbered(size, number);
                assert_eq!(server.check(number, &message), Ok(()));
                assert_eq!(client.check(number, &message), Ok(()));
            }
            for page_start in [0, FILL] {
                let mut server = Checker::of_any_peer(size);
                for number in 1..=3 {
                    assert_eq!(server.check(number, &classic(size, page_start)), Ok(()));
                }
            }
        }
    }

    #[test]
    fn wrong_messages_are_found() {
        let size = 2 * PAGE;
        let repeated = numbered(size, 1);
        let mut shifted = numbered(size, 2);
        shifted.copy_within(1024..2048, 3072);
        let mut flipped = numbered(size, 2);
        flipped[size - 1] ^= 1;
        for wrong in [&repeated, &shifted, &flipped, &classic(size, 0)] {
            let mut server = Checker::of_any_peer(size);
            server.check(1, &repeated).unwrap();
            assert!(server.check(2, wrong).is_err());
        }
    }

    #[test]
    fn the_first_wrong_byte_is_named() {
        let mut server = Checker::of_any_peer(PAGE + 5);
        server.check(1, &classic(PAGE + 5, 0)).unwrap();
        let mut message = classic(PAGE + 5, 0);
        message[PAGE] = 9;
        let mismatch = server.check(2, &message).unwrap_err();
        assert_eq!(
            mismatch.to_string(),
            "message 2: byte 4096 is 0x09 instead of 0x00"
        );
    }
}
