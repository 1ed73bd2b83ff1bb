//! Calls into what users hand in: wakers, subscribers of traces, destructors. One that panics costs its
//! owner, and nobody who comes behind it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

/// Does something with each, the rest too where one panics. The first panic goes on behind the last of them;
/// not if the thread panics already, which a second one would abort.
pub(crate) fn each<T>(items: impl IntoIterator<Item = T>, mut act: impl FnMut(T)) {
    let mut first: Option<Box<dyn Any + Send>> = None;
    for item in items {
        match catch_unwind(AssertUnwindSafe(|| act(item))) {
            Ok(()) => {}
            Err(panic) if first.is_none() => first = Some(panic),
            // What it says may panic in its turn when it is dropped.
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

    /// Would catch callbacks that are not called because of one before them.
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

    /// Would catch a process that ends since callbacks panic while a thread unwinds.
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
