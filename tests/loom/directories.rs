//! Completion queues: one thread creates, resets and destroys queue pairs, another polls.

use std::sync::{Arc, Weak};

use libtest_mimic::Trial;
use loom::thread;

use crate::directory::{Registration, Ring as _, poller};
use crate::entries::Entries;
use crate::format::cqe;
use crate::ledger::SendLedger;
use crate::memory::Record;
use crate::reporter::{Receiver, Reporter};
use crate::test;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("queue_pairs::the_poller_knows_who_reports", created),
        test("queue_pairs::a_reset_divides_the_completions", reset),
        test("queue_pairs::a_reset_sees_a_ring_that_wraps", wrapped),
        test("queue_pairs::completions_outlive_them", destroyed),
        test("overruns::the_poller_hears_of_one", overran),
    ]
}

type Directory = crate::directory::Directory<Entries, Reporter>;

/// A poller that does with the table what the driver's does (`src/driver/mlx5/cq/mod.rs`).
struct Poller {
    directory: Arc<Directory>,
    entries: Entries,
    next: u32,
    overrun: bool,
    reporters: poller::Reporters<Reporter>,
}

/// What became of an entry.
#[derive(Debug, PartialEq)]
enum Taken {
    /// It reports the request with this id.
    Completion(u64),
    /// It dates from before a reset.
    Forgotten,
}

impl Poller {
    fn new(directory: &Arc<Directory>, entries: &Entries) -> Self {
        Self {
            directory: Arc::clone(directory),
            entries: entries.clone(),
            next: 0,
            overrun: false,
            reporters: poller::Reporters::new(),
        }
    }

    /// What each poll begins with.
    fn check(&mut self) {
        if self.reporters.are_stale(&self.directory) || self.reporters.are_waiting() {
            self.catch_up();
            self.reporters.settle(&self.directory, self.next);
        }
    }

    fn catch_up(&mut self) {
        self.overrun |= self.reporters.catch_up(&self.directory);
    }

    /// Waits for the next entry and takes it.
    fn take(&mut self) -> Taken {
        let index = self.next;
        let number = loop {
            self.check();
            if let Some(number) = self.entries.number(index) {
                break number;
            }
            thread::yield_now();
        };
        if self.reporters.are_stale(&self.directory) {
            self.catch_up();
        }
        let known = self.reporters.get(number);
        let known = known.unwrap_or_else(|| panic!("entry {index}: nobody has number {number}"));
        self.next += 1;
        self.directory.pass(self.next);
        if known.has_forgotten(index) {
            return Taken::Forgotten;
        }
        let finished = known.reporter.finish(cqe::REQ << 4, 0);
        let (id, _) = finished.unwrap_or_else(|| panic!("entry {index}: number {number} is free"));
        Taken::Completion(id)
    }
}

/// A reporter whose requests all have this id.
fn reporter(id: u64) -> Reporter {
    let ledger = SendLedger::new(1);
    ledger.note(0).write(id, 1);
    Reporter {
        shared_ring: Weak::new(),
        send: Some(Arc::new(ledger)),
        recv: Receiver::None,
        landing: None,
    }
}

fn register(directory: &Arc<Directory>, id: u64) -> Registration<Entries, Reporter> {
    Registration::new(directory, directory, reporter(id)).unwrap()
}

/// Two queue pairs, one created after the other, have one completion each; `between` gets the first one in
/// between.
fn two_report(
    between: impl FnOnce(Registration<Entries, Reporter>) -> Option<Registration<Entries, Reporter>>,
) {
    let entries = Entries::new();
    let directory = Arc::new(Directory::new(entries.clone(), Record::new()));
    let mut poller = Poller::new(&directory, &entries);
    let poller = thread::spawn(move || {
        let taken = [poller.take(), poller.take()];
        assert_eq!(taken, [Taken::Completion(7), Taken::Completion(8)]);
    });
    let first = register(&directory, 7);
    entries.write(0, first.number());
    let kept = between(first);
    let second = register(&directory, 8);
    if let Some(first) = &kept {
        assert_ne!(first.number(), second.number());
    }
    entries.write(1, second.number());
    poller.join().unwrap();
}

/// Would catch a completion that the poller sees before it can see whose it is.
fn created() {
    two_report(Some);
}

/// Would catch a completion of before a reset that is taken for one of a new request, and a new one that is
/// passed over.
fn reset() {
    let entries = Entries::new();
    let directory = Arc::new(Directory::new(entries.clone(), Record::new()));
    let queue_pair = register(&directory, 7);
    entries.write(0, queue_pair.number());
    let mut poller = Poller::new(&directory, &entries);
    let poller = thread::spawn(move || {
        let taken = poller.take();
        let is_right = matches!(taken, Taken::Completion(7) | Taken::Forgotten);
        assert!(is_right, "of before the reset: {taken:?}");
        assert_eq!(poller.take(), Taken::Completion(8), "of after it");
    });
    queue_pair.replace(reporter(8));
    entries.write(1, queue_pair.number());
    poller.join().unwrap();
}

/// Would catch a reset that finds the ring empty because the device has gone round it, and that then passes
/// over no completion of before.
fn wrapped() {
    let entries = Entries::new();
    let directory = Arc::new(Directory::new(entries.clone(), Record::new()));
    let (queue_pair, other) = (register(&directory, 7), register(&directory, 9));
    let others = other.number();
    entries.write(0, others);
    entries.write(1, queue_pair.number());
    let mut poller = Poller::new(&directory, &entries);
    let poller = thread::spawn(move || {
        assert_eq!(poller.take(), Taken::Completion(9));
        // There is room for another one.
        poller.entries.write(2, others);
        let taken = poller.take();
        let is_right = matches!(taken, Taken::Completion(7) | Taken::Forgotten);
        assert!(is_right, "of before the reset: {taken:?}");
    });
    queue_pair.replace(reporter(8));
    poller.join().unwrap();
}

/// Would catch a number that another queue pair has while a completion of the one before is in the ring.
fn destroyed() {
    two_report(|first| {
        drop(first);
        None
    });
}

/// Would catch an overrun that is noted while the poller takes changes over, and lost with them.
fn overran() {
    let entries = Entries::new();
    let directory = Arc::new(Directory::new(entries.clone(), Record::new()));
    let mut poller = Poller::new(&directory, &entries);
    let poller = thread::spawn(move || {
        while poller.entries.number(0).is_none() {
            poller.check();
            thread::yield_now();
        }
        // The entry was written behind it.
        poller.check();
        assert!(poller.overrun);
    });
    let queue_pair = register(&directory, 7);
    directory.overran();
    entries.write(0, queue_pair.number());
    poller.join().unwrap();
}
