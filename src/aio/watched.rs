//! What the runtimes that this module knows have in common.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use super::error::timed_out;
use crate::cm::{Failed, Pending};
use crate::readable::Readable;

/// Waits for something of the connection manager until `sleep` ends, which it does after so long, and cancels
/// it then.
pub(super) async fn finish_before<P: Pending + Unpin>(
    limit: Duration,
    pending: P,
    by: impl Readable + Unpin,
    sleep: impl Future<Output = ()>,
) -> Result<P::Output, Failed<P::Back>> {
    let (verb, subject) = pending.describe();
    let mut finish = pending.finish(by);
    let mut sleep = pin!(sleep);
    let ended = poll_fn(|cx| {
        if let Poll::Ready(ended) = Pin::new(&mut finish).poll(cx) {
            return Poll::Ready(Some(ended));
        }
        sleep.as_mut().poll(cx).map(|()| None)
    });
    match ended.await {
        Some(ended) => ended,
        None => match finish.cancel() {
            Some(back) => Err(Failed {
                back,
                error: timed_out(verb, subject, limit),
            }),
            // It has ended, and would have returned its result.
            None => std::future::pending().await,
        },
    }
}
