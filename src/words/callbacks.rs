//! Calls of functions that users pass in: wakers, subscribers of traces, destructors. If one panics, only its
//! owner suffers, and none of those that are called after it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

/// Calls `act` with each item, also with the rest if one call panics. The first panic continues after the
/// last call, unless the thread is panicking already, since a second panic would abort the process.
pub(crate) fn each<T>(items: impl IntoIterator<Item = T>, mut act: impl FnMut(T)) {
    let mut first: Option<Box<dyn Any + Send>> = None;
    for item in items {
        match catch_unwind(AssertUnwindSafe(|| act(item))) {
            Ok(()) => {}
            Err(panic) if first.is_none() => first = Some(panic),
            // Its payload may panic when it is dropped.
            Err(panic) => std::mem::forget(panic),
        }
    }
    match first {
        None => {}
        Some(panic) if thread::panicking() => std::mem::forget(panic),
        Some(panic) => resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch callbacks that are not called because an earlier one panicked.
    #[test]
    fn the_rest_is_called_too() {
        let mut called = Vec::new();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            each(0..4, |number| {
                called.push(number);
                assert!(![1, 2].contains(&number), "{number} panics");
            });
        }));
        let text = panicked.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("1 panics"), "{text}");
        assert_eq!(called, [0, 1, 2, 3]);
    }

    /// Would catch a process that aborts because callbacks panic while a thread unwinds.
    #[test]
    fn a_thread_that_panics_already_goes_on_with_that() {
        struct Last;
        impl Drop for Last {
            fn drop(&mut self) {
                each([()], |()| panic!("the second"));
            }
        }
        let panicked = catch_unwind(|| {
            let _last = Last;
            panic!("the first");
        });
        let text = *panicked.unwrap_err().downcast::<&str>().unwrap();
        assert_eq!(text, "the first");
    }
}
