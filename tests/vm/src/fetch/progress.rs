//! Progress of a fetch on standard error: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// What a fetch reports its steps to.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A bar if standard error is a terminal.
    pub(crate) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(100);
            if let Ok(style) = ProgressStyle::with_template(
                "{spinner} [{bar:30}] {percent:>3}% {elapsed:>4} {wide_msg}",
            ) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
        Self { bar }
    }

    /// A new step begins.
    pub(crate) fn step(&self, text: &str) {
        match &self.bar {
            Some(bar) => {
                // Not earlier: if everything is there, nothing is to be drawn.
                bar.enable_steady_tick(Duration::from_millis(200));
                bar.set_position(0);
                bar.set_message(text.to_owned());
            }
            None => eprintln!("vm: {text}"),
        }
    }

    /// How far the step is.
    pub(crate) fn percent(&self, percent: f32) {
        if let Some(bar) = &self.bar {
            bar.set_position(percent.clamp(0.0, 100.0) as u64);
        }
    }

    /// A line that stays.
    pub(crate) fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(format!("vm: {text}")),
            None => eprintln!("vm: {text}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
