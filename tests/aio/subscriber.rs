//! Subscribers of the library's traces that make queue pairs while they are told of a command, or panic.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use support::{Listener, Result, device, fail, same, test_without_leaks};
use uverbs::aio::{Cq, OpError, Post, Wait};
use uverbs::{Caps, ConnectOptions, Rc};

use crate::ground::{Side, Two};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 3] = [
        ("subscriber::it_makes_queue_pairs", makes_queue_pairs),
        (
            "subscriber::it_ends_what_takes_completions",
            ends_what_takes_completions,
        ),
        (
            "subscriber::it_panics_at_a_lost_batch",
            panics_at_a_lost_batch,
        ),
    ];
    tests
        .map(|(name, run)| test_without_leaks(name, run))
        .into()
}

thread_local! {
    /// Whether this thread is in the subscriber.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Catches a lock of the completion queue that is held while a subscriber is told of a command: it never
/// comes back if it makes or drops a queue pair there.
fn makes_queue_pairs() -> Result {
    let two = Two::new()?;
    let cq = Cq::new(&two.context, 4 * 2 * 128)?;
    let told = Arc::<Mutex<BTreeSet<String>>>::default();
    // It makes a queue pair that reports to the queue, and drops it, whenever it is told something.
    let maker = Listener {
        target: "uverbs::command",
        hear: {
            let (cq, pd) = (cq.clone(), two.context.alloc_pd()?);
            let told = Arc::clone(&told);
            move |text: String| {
                if INSIDE.replace(true) {
                    return;
                }
                let verb = text.split(':').next().unwrap_or_default().to_owned();
                told.lock().unwrap().insert(verb);
                drop(cq.create_qp::<Rc>(&pd, Caps::default()));
                INSIDE.set(false);
            }
        },
    };
    tracing::subscriber::with_default(maker, || -> Result {
        // It arms the queue before it sleeps.
        let mut begun = false;
        let later = poll_fn(|cx| {
            if std::mem::replace(&mut begun, true) {
                return Poll::Ready(());
            }
            let waker = cx.waker().clone();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(50));
                waker.wake();
            });
            Poll::Pending
        });
        cq.block_on_with(later, Wait::Park)?;
        let qp = cq.create_qp::<Rc>(&two.pd, Caps::default())?;
        drop(qp);
        drop(cq.create_srq(&two.pd, 16)?);
        Ok(())
    })?;
    let told = told.lock().unwrap();
    let mut verbs = vec!["create_qp", "create_srq", "destroy_qp"];
    // The adapter is armed by a store.
    if device().is_rxe() {
        verbs.push("req_notify_cq");
    }
    match verbs.iter().find(|verb| !told.contains(**verb)) {
        None => Ok(()),
        Some(verb) => fail(format!("nothing of {verb}, but of {told:?}")),
    }
}

/// Catches operations that never end since nobody takes completions any more: their queue pair was being made
/// when the last one who did so ended.
fn ends_what_takes_completions() -> Result {
    let side = Side::new()?;
    let ends = Listener {
        target: "uverbs::command",
        hear: {
            let cq = side.cq.clone();
            move |text: String| {
                if text.starts_with("create_qp") && !INSIDE.replace(true) {
                    // There is no runtime: it ends with an error.
                    let mut cx = Context::from_waker(Waker::noop());
                    let serving = pin!(cq.serve(uverbs::aio::tokio::Watch::new(), Wait::Park));
                    assert!(serving.poll(&mut cx).is_ready());
                    INSIDE.set(false);
                }
            }
        },
    };
    let made = tracing::subscriber::with_default(ends, || side.qp::<Rc>());
    let mut qp = made?;
    qp.init(&ConnectOptions::default())?;
    let mut received = qp.recv(side.pool.try_get(256)?);
    let mut cx = Context::from_waker(Waker::noop());
    match Pin::new(&mut received).poll(&mut cx) {
        Poll::Ready((Err(OpError::Broken), _)) => {}
        other => return fail(format!("{other:?}")),
    }
    drop(qp);
    same(side.pool.stats().in_use(), 0, "buffers in use")
}

/// Catches operations of a dropped batch that never end, because a subscriber panics that is told of it
/// (which builds without debug assertions do not tell).
fn panics_at_a_lost_batch() -> Result {
    let mut two = Two::new()?;
    let bufs = [two.buf(b"one")?, two.buf(b"two")?];
    let mut batch = two.a.batch();
    let ops = bufs.map(|buf| batch.send(buf));
    let panics = Listener {
        target: "uverbs",
        hear: |text: String| assert!(!text.contains("not rung"), "told of {text}"),
    };
    let dropped = tracing::subscriber::with_default(panics, || {
        catch_unwind(AssertUnwindSafe(|| drop(batch)))
    });
    same(dropped.is_err(), cfg!(debug_assertions), "it panics")?;
    for op in ops {
        let (result, _) = two.run(op)?;
        same(result, Err(OpError::NotRung), "not rung")?;
    }
    two.run(two.a.control().drained())??;
    two.nothing_is_missing()
}
