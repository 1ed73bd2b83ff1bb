//! A progress bar for games that last longer than a moment, on terminals.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// A game that ends before this shows no bar.
const FIRST: Duration = Duration::from_secs(1);

/// The time between two updates of the bar.
const NEXT: Duration = Duration::from_millis(100);

/// The bar; it vanishes when it is dropped.
pub(super) struct Progress {
    bar: ProgressBar,
    next: Instant,
}

impl Progress {
    /// A bar on standard error that will be full at `iters`; hidden if that is no terminal.
    pub(super) fn new(iters: u64, now: Instant) -> Self {
        let template = "{bar:40} {human_pos}/{human_len} messages, {eta} left";
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self {
            bar: ProgressBar::new(iters).with_style(style),
            next: now + FIRST,
        }
    }

    /// Updates the bar, if it is time to.
    #[inline]
    pub(super) fn show(&mut self, messages: u64, now: Instant) {
        if now >= self.next {
            self.next = now + NEXT;
            self.bar.set_position(messages);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
