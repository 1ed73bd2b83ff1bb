//! Locks under which commands are sent. A subscriber of `tracing` is the program's code, which may ask for
//! the same lock, or take long: so it is told of such commands when the lock is free again.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use tracing::Level;

/// What is told later.
type Event = Box<dyn FnOnce()>;

/// The locks of this thread under which nothing is told, and what is to be told behind the last of them.
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

/// The guard of a lock that is quiet.
pub(crate) struct Quiet<G> {
    // In this order: the lock is free before anything is told.
    guard: G,
    _silence: Option<Silence>,
}

/// Takes a lock. What this thread does under it is told when it has given it back.
#[inline]
pub(crate) fn quiet<G>(lock: impl FnOnce() -> G) -> Quiet<G> {
    // Nobody listens, mostly.
    let listens = tracing::enabled!(target: "uverbs::command", Level::TRACE);
    let silence = if listens { Silence::begin() } else { None };
    Quiet {
        guard: lock(),
        _silence: silence,
    }
}

/// Tells a subscriber something, at once or when this thread has no quiet lock any more.
pub(super) fn tell(event: impl FnOnce() + 'static) {
    match kept(|kept| kept.locks > 0) {
        Some(true) => _ = kept(|kept| kept.events.push(Box::new(event))),
        Some(false) | None => event(),
    }
}

/// What this thread keeps; `None` at its end, when other variables of the thread may still go.
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
        // Another panic would end the process.
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

    /// Would catch a panic where a variable of a thread destroys an object while the thread ends.
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
            // First, so that it goes last.
            LAST.with_borrow_mut(|last| *last = Some(Last(said)));
            tell(|| ());
        });
        thread.join().unwrap();
        assert_eq!(heard.recv(), Ok(7));
    }

    /// Would catch a subscriber that is told under a lock, or not at all.
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
