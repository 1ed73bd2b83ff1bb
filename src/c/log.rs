//! The log, for programs whose environment requests one: `VERBS_LOG_LEVEL` sets the level, with libibverbs'
//! numbers, and `VERBS_LOG_FILE` the file; without a file the log goes to the standard error stream. A verb
//! that fails has a line at the first level, with its name, the object and the cause.
//!
//! The crate reports events with `tracing`, and this module is a subscriber.

use std::env;
use std::fmt::{self, Debug, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Subscribes if the environment requests it. Only the first call has an effect.
pub(super) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let text = |name| env::var_os(name).filter(|_| is_own());
        let level = text("VERBS_LOG_LEVEL").map(|level| level_of(&level.to_string_lossy()));
        let Some(level) = level.filter(|level| *level != LevelFilter::OFF) else {
            return;
        };
        let named = text("VERBS_LOG_FILE");
        let open = |path| OpenOptions::new().append(true).create(true).open(path);
        let log = Log {
            level,
            file: named.and_then(|path| open(path).ok()),
        };
        // Nothing else in this library sets a subscriber.
        let _ = tracing::subscriber::set_global_default(log);
    });
}

/// Whether the program runs with the rights of the user who started it: if not, the environment cannot be
/// trusted.
pub(super) fn is_own() -> bool {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    getuid() == geteuid() && getgid() == getegid()
}

/// libibverbs' numbers, from errors to debugging. Higher numbers add all commands to the kernel.
fn level_of(number: &str) -> LevelFilter {
    match number.trim().parse::<i64>() {
        Err(_) | Ok(..=0) => LevelFilter::OFF,
        Ok(1) => LevelFilter::ERROR,
        Ok(2) => LevelFilter::WARN,
        Ok(3) => LevelFilter::INFO,
        Ok(4) => LevelFilter::DEBUG,
        Ok(5..) => LevelFilter::TRACE,
    }
}

struct Log {
    level: LevelFilter,
    /// `None` for the standard error stream.
    file: Option<File>,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let line = line(event);
        // One write for a line, so that lines of several threads and processes do not mix. If the log cannot
        // be written, the call still succeeds.
        let _ = match &self.file {
            Some(file) => (&*file).write_all(line.as_bytes()),
            None => io::stderr().write_all(line.as_bytes()),
        };
    }

    // The crate has no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The line of an event, with its newline.
fn line(event: &Event<'_>) -> String {
    let (process, level) = (std::process::id(), event.metadata().level());
    let mut line = Line(format!("uverbs[{process}]: {level}:"));
    event.record(&mut line);
    line.0.push('\n');
    line.0
}

/// A line that is being written.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a `String` does not fail.
        let _: fmt::Result = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stand-in log that keeps the lines.
    #[derive(Default)]
    struct Kept(std::sync::Mutex<String>);

    impl Subscriber for Kept {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn event(&self, event: &Event<'_>) {
            self.0.lock().unwrap().push_str(&line(event));
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn an_event_is_a_line_with_its_fields() {
        let kept = std::sync::Arc::new(Kept::default());
        let error = "why";
        tracing::subscriber::with_default(std::sync::Arc::clone(&kept), || {
            tracing::warn!(target: "uverbs", %error, "it {}", "happened");
        });
        let process = std::process::id();
        let expected = format!("uverbs[{process}]: WARN: it happened error=why\n");
        assert_eq!(*kept.0.lock().unwrap(), expected);
    }

    #[test]
    fn levels_are_libibverbs_numbers() {
        for none in ["", "0", "-1", "much"] {
            assert_eq!(level_of(none), LevelFilter::OFF);
        }
        assert_eq!(level_of("1"), LevelFilter::ERROR);
        assert_eq!(level_of(" 4 "), LevelFilter::DEBUG);
        assert_eq!(level_of("99"), LevelFilter::TRACE);
    }
}
