//! Completion queues: one thread creates, resets and destroys queue pairs, another polls.

use std::sync::{Arc, Weak};

use libtest_mimic::Trial;
use loom::thread;

use crate::directory::{Change, Directory, Receiver, Registration, Reporter};
use crate::entries::Entries;
use crate::ledger::SendLedger;
use crate::memory::Record;
use crate::test;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("queue_pairs::the_poller_knows_who_reports", created),
        test("queue_pairs::a_reset_divides_the_completions", reset),
        test("queue_pairs::completions_outlive_them", destroyed),
        test("overruns::the_poller_hears_of_one", overran),
    ]
}

/// A poller that does with the directory what the driver's does (`src/driver/mlx5/cq.rs`).
struct Poller {
    directory: Arc<Directory>,
    entries: Entries,
    next: u32,
    overrun: bool,
    /// By their places, as many as a power of two.
    reporters: Vec<Option<Known>>,
}

struct Known {
    ledger: Arc<SendLedger>,
    forget_until: u32,
    leave_at: Option<u32>,
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
            reporters: vec![None, None],
        }
    }

    /// Waits for the next entry and takes it.
    fn take(&mut self) -> Taken {
        let index = self.next;
        loop {
            // As each poll begins.
            if self.directory.last_place() == 0 {
                self.catch_up();
            }
            if self.entries.is_valid(index) {
                break;
            }
            thread::yield_now();
        }
        self.next += 1;
        let place = self.entries.place(index);
        // Whatever has to be attended to, the place that is looked up is nobody's.
        if self.reporters[(place & self.directory.last_place()) as usize].is_none() {
            self.catch_up();
        }
        let known = &self.reporters[place as usize];
        let known = known.as_ref();
        let known = known.unwrap_or_else(|| panic!("entry {index}: nobody has place {place}"));
        let taken = if index < known.forget_until {
            Taken::Forgotten
        } else {
            Taken::Completion(known.ledger.finish(0).0)
        };
        self.directory.consumed(self.next);
        self.settle();
        taken
    }

    fn last_place(&self) -> u32 {
        self.reporters.len() as u32 - 1
    }

    fn catch_up(&mut self) {
        let heard = self.directory.hear(self.last_place());
        self.overrun |= heard.overrun;
        self.reporters
            .resize_with(heard.last_place as usize + 1, || None);
        for change in heard.changes {
            match change {
                Change::Set {
                    number,
                    reporter,
                    forget_until,
                } => {
                    self.reporters[number as usize] = reporter.send.map(|ledger| Known {
                        ledger,
                        forget_until: forget_until.unwrap_or(0),
                        leave_at: None,
                    });
                }
                Change::Remove {
                    number,
                    until,
                    forgotten,
                } => {
                    if let Some(Some(known)) = self.reporters.get_mut(number as usize) {
                        if forgotten {
                            known.forget_until = until;
                        }
                        known.leave_at = Some(until);
                    }
                }
            }
        }
    }

    /// Gives the numbers back that nothing in the ring is of any more.
    fn settle(&mut self) {
        let next = self.next;
        for (number, known) in self.reporters.iter_mut().enumerate() {
            let leaves = |known: &mut Known| known.leave_at.is_some_and(|at| at <= next);
            if known.take_if(leaves).is_some() {
                self.directory.lock().free(number as u32);
            }
        }
    }
}

/// A reporter whose requests all have this id.
fn reporter(id: u64) -> Reporter {
    let ledger = SendLedger::new(1);
    ledger.note(0).write(id, 1, 0);
    Reporter {
        shared_ring: Weak::new(),
        send: Some(Arc::new(ledger)),
        recv: Receiver::None,
        landing: None,
    }
}

fn register(directory: &Arc<Directory>, id: u64) -> Registration {
    Registration::new(directory, directory, reporter(id)).unwrap()
}

/// Two queue pairs, one created after the other, have one completion each; `between` gets the first one in
/// between.
fn two_report(between: impl FnOnce(Registration) -> Option<Registration>) {
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
        let look = |poller: &mut Poller| {
            if poller.directory.last_place() == 0 {
                poller.catch_up();
            }
        };
        while !poller.entries.is_valid(0) {
            look(&mut poller);
            thread::yield_now();
        }
        // The entry was written behind it.
        look(&mut poller);
        assert!(poller.overrun);
    });
    let queue_pair = register(&directory, 7);
    directory.overran();
    entries.write(0, queue_pair.number());
    poller.join().unwrap();
}
