//! The queues of an agent, in whose memory somebody else writes what he likes.

use std::cell::RefCell;

use uverbs_queue::mlx5::agent::{
    Action, CompletionQueue, Kind, Local, Options, Poller, Poster, ReceiveQueue, Receiver, Refused,
    SendQueue, Space, Watcher,
};

/// Memory that an access beyond it, or one that is not aligned, makes the target fail.
struct Cells(RefCell<Vec<u8>>);

impl Cells {
    fn new(length: usize) -> Self {
        Self(RefCell::new(vec![0; length]))
    }

    fn set(&self, at: usize, bytes: &[u8]) {
        self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Space for Cells {
    fn length(&self) -> usize {
        self.0.borrow().len()
    }

    fn load_u8(&self, at: usize) -> u8 {
        self.0.borrow()[at]
    }

    fn load_u64(&self, at: usize) -> [u8; 8] {
        assert!(at.is_multiple_of(8));
        self.0.borrow()[at..at + 8].try_into().unwrap()
    }

    fn store_u32(&self, at: usize, bytes: [u8; 4]) {
        assert!(at.is_multiple_of(4));
        self.set(at, &bytes);
    }

    fn store_u64(&self, at: usize, bytes: [u8; 8]) {
        assert!(at.is_multiple_of(8));
        self.set(at, &bytes);
    }
}

/// Blocks of the send ring.
const BLOCKS: u32 = 4;

/// Posts and polls while the completion ring is filled with the bytes, lap by lap. The first ones say how
/// large it is and where it begins.
pub(crate) fn poll(bytes: &[u8]) {
    let Some((&[shape, low, high, top], mut rest)) = bytes.split_first_chunk() else {
        return;
    };
    let queue = CompletionQueue {
        entries: 1 << (shape % 5),
        entry_bytes: if shape & 0x80 == 0 { 64 } else { 128 },
        taken: u32::from_be_bytes([top, top, high, low]),
    };
    let (ring, record) = (
        Cells::new((queue.entries * queue.entry_bytes) as usize),
        Cells::new(8),
    );
    let (sends, register) = (Cells::new(BLOCKS as usize * 64), Cells::new(8));
    let mut poller = Poller::new(&ring, &record, queue).unwrap();
    let written = u64::from(queue.taken);
    let blocks = SendQueue {
        blocks: BLOCKS,
        qpn: 7,
        written,
    };
    let mut poster = Poster::new(&sends, &record, &register, blocks).unwrap();
    let receives = Cells::new(BLOCKS as usize * 16);
    let elements = ReceiveQueue {
        entries: BLOCKS,
        entry_bytes: 16,
        posted: written,
    };
    let mut receiver = Receiver::new(&receives, &record, elements).unwrap();
    let watcher = Watcher::new(&ring, queue).unwrap();
    let signaled = Options {
        signaled: true,
        ..Options::default()
    };
    while !rest.is_empty() {
        let (lap, next) = rest.split_at(rest.len().min(ring.length()));
        ring.set(0, lap);
        rest = next;
        let local = Local {
            address: u64::from(low),
            length: u32::from(shape),
            lkey: u32::from(high),
        };
        match poster.write(Action::Send, local, signaled) {
            Ok(number) => assert_eq!(number, (poster.written() - 1) as u16),
            Err(Refused::Full) => assert_eq!(poster.in_flight(), BLOCKS.into()),
            Err(Refused::Length(length)) => assert_eq!(length, 0),
        }
        poster.ring();
        if receiver.write(local) == Err(Refused::Full) {
            assert_eq!(receiver.in_flight(), BLOCKS.into());
        }
        receiver.tell();
        if let Some(newest) = watcher.newest() {
            assert_eq!(newest.qpn(), watcher.entry().qpn());
            assert_eq!(newest.counter(), watcher.entry().counter());
        }
        // One lap at most has the owner's bit.
        for _ in 0..=queue.entries {
            let taken = poller.taken();
            let Some(entry) = poller.poll() else {
                break;
            };
            assert_eq!(poller.taken(), taken.wrapping_add(1));
            assert!(entry.qpn() >> 24 == 0 && entry.kind() != Kind::Other(0xf));
            let before = poster.in_flight();
            let is_done = poster.done(entry.counter());
            assert_eq!(is_done, poster.in_flight() < before);
            let before = receiver.in_flight();
            let is_done = receiver.done(entry.counter());
            assert_eq!(is_done, receiver.in_flight() < before);
            poller.pass();
        }
        assert!(poller.poll().is_none());
    }
}
