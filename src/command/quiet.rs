//! Locks under which commands are sent. A subscriber of `tracing` is the program's code, which may take the
//! same lock, or take long. So it is notified of such commands only when the lock is free again.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use tracing::Level;

/// A notification that is delayed.
type Event = Box<dyn FnOnce()>;

/// The number of quiet locks that this thread holds, and the notifications that follow when it holds none.
struct Kept {
    locks: u32,
    events: Vec<Event>,
}

thread_local! {
    static KEPT: RefCell<Kept> = const {
        RefCell::new(Kept {
            locks: 0,
            events: Vec::new(),
        })
    };
}

/// The guard of a quiet lock.
pub(crate) struct Quiet<G> {
    // In this order: the lock is free before subscribers are notified.
    guard: G,
    _silence: Option<Silence>,
}

/// Takes a lock. Subscribers are notified of this thread's commands under it when the lock is free again.
#[inline]
pub(crate) fn quiet<G>(lock: impl FnOnce() -> G) -> Quiet<G> {
    // Usually there is no subscriber.
    let listens = tracing::enabled!(target: "uverbs::command", Level::TRACE);
    let silence = if listens { Silence::begin() } else { None };
    Quiet {
        guard: lock(),
        _silence: silence,
    }
}

/// Notifies a subscriber: at once, or when this thread holds no quiet lock any more.
pub(super) fn tell(event: impl FnOnce() + 'static) {
    match kept(|kept| kept.locks > 0) {
        Some(true) => _ = kept(|kept| kept.events.push(Box::new(event))),
        Some(false) | None => event(),
    }
}

/// This thread's delayed notifications; `None` while the thread ends, when destructors of its other variables
/// may still run.
fn kept<T>(look: impl FnOnce(&mut Kept) -> T) -> Option<T> {
    KEPT.try_with(|kept| look(&mut kept.borrow_mut())).ok()
}

impl<G: Deref> Deref for Quiet<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Quiet<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

struct Silence;

impl Silence {
    fn begin() -> Option<Self> {
        kept(|kept| kept.locks += 1).map(|()| Self)
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        let events = kept(|kept| {
            kept.locks -= 1;
            match kept.locks {
                0 => std::mem::take(&mut kept.events),
                _ => Vec::new(),
            }
        });
        // A second panic would end the process.
        if !std::thread::panicking() {
            events.into_iter().flatten().for_each(|event| event());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Mutex;

    use super::*;
    use crate::owned::tests::Listener;

    /// Would catch a panic if the destructor of a thread's variable destroys an object while the thread ends.
    #[test]
    fn a_thread_that_ends_tells_at_once() {
        struct Last(std::sync::mpsc::Sender<u32>);
        impl Drop for Last {
            fn drop(&mut self) {
                let said = self.0.clone();
                tell(move || said.send(7).unwrap());
            }
        }
        thread_local! {
            static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
        }
        let (said, heard) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(|| {
            // Initialised first, so that it is dropped last.
            LAST.with_borrow_mut(|last| *last = Some(Last(said)));
            tell(|| ());
        });
        thread.join().unwrap();
        assert_eq!(heard.recv(), Ok(7));
    }

    /// Would catch a subscriber that is notified under a lock, or not at all.
    #[test]
    fn what_happens_under_locks_is_told_behind_the_last() {
        let listener = Listener("uverbs::command", |_| ());
        tracing::subscriber::with_default(listener, || {
            let (outer, inner) = (Mutex::new(1), Mutex::new(2));
            let told = Rc::new(RefCell::new(Vec::new()));
            let say = |number| {
                let told = Rc::clone(&told);
                tell(move || told.borrow_mut().push(number));
            };
            say(1);
            let first = quiet(|| outer.lock().unwrap());
            let second = quiet(|| inner.lock().unwrap());
            say(*second);
            drop(second);
            say(3);
            assert_eq!(*told.borrow(), [*first]);
            drop(first);
            assert_eq!(*told.borrow(), [1, 2, 3]);
        });
    }
}
