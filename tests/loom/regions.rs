//! Regions that go while requests are in flight that name them, against who posts and who polls.

use std::sync::Arc;

use libtest_mimic::Trial;
use loom::thread;

use crate::device::{Device, Places};
use crate::ledger::{SendLedger, SrqLedger};
use crate::progress::Progress;
use crate::test;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("regions::stay_until_their_send_is_finished", sends),
        test("regions::stay_until_their_element_is_finished", elements),
    ]
}

/// What the device was told of, and what is finished, as a region that goes asks for it.
trait Queue: Send + Sync + 'static {
    fn new() -> Self;
    /// Posts request `index`, and tells how many the device is to know of then.
    fn post(&self, index: u32);
    /// Takes request `index` as finished.
    fn finish(&self, index: u32);
    fn progress(&self) -> Progress;
}

impl Queue for SendLedger {
    fn new() -> Self {
        Self::new(RING)
    }

    fn post(&self, index: u32) {
        self.note(index).write(index.into(), index + 1);
        // SAFETY: the ledger keeps a note before the first; the driver's poster relies on it too.
        unsafe { self.first().sub(1).as_ref() }.tell(u64::from(index) + 1);
    }

    fn finish(&self, index: u32) {
        self.finish(index as u16);
    }

    fn progress(&self) -> Progress {
        let (posted, finished) = self.progress();
        Progress::new(posted, finished, u32::MAX)
    }
}

impl Queue for SrqLedger {
    fn new() -> Self {
        Self::new(RING)
    }

    // Each request has an element of its own.
    fn post(&self, index: u32) {
        self.post(index, index.into(), index);
        self.tell(index + 1);
    }

    fn finish(&self, index: u32) {
        self.finish(index as u16);
    }

    fn progress(&self) -> Progress {
        let (posted, finished) = self.progress();
        Progress::new(posted, finished, u32::MAX)
    }
}

const RING: u32 = 2;

/// Requests, as many as there is room for; the first one names the region.
const REQUESTS: u32 = 2;

/// Has one thread post, another poll, and a third let the region go behind `before` requests.
fn run<Q: Queue>(before: u32) {
    let shared = Arc::new((Q::new(), Device::default(), Places::<1>::new()));
    let poller = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (queue, device, memory) = &*shared;
            for index in 0..REQUESTS {
                device.wait(index);
                if index == 0 {
                    // The device reaches the memory before it writes the completion.
                    memory.read(0);
                }
                queue.finish(index);
            }
        })
    };
    let (queue, device, _) = &*shared;
    let post = |index| {
        queue.post(index);
        device.ring(index + 1);
    };
    (0..before).for_each(post);
    // Starting the thread orders it behind the request, as the end of a borrow does.
    let owner = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (queue, _, memory) = &*shared;
            let then = queue.progress();
            // It does not wait: in one of the orders the request is finished by now.
            if queue.progress().has_passed(then) {
                // Somebody else's now.
                memory.write(0, 1);
            }
        })
    };
    (before..REQUESTS).for_each(post);
    owner.join().unwrap();
    poller.join().unwrap();
}

/// Would catch a region that is freed while the device may still read it: a count that is told too late, or a
/// finished request that is seen before what the device did for it.
fn sends() {
    run::<SendLedger>(1);
}

/// Would catch the same of elements of a shared receive queue. The second is posted before the region goes:
/// beside it there are more orders than can be tried in a minute.
fn elements() {
    run::<SrqLedger>(2);
}
