//! What the model has to complain about.
//!
//! A *violation* is something that no correct driver or provider does, whatever the application asks for: a
//! malformed work request, a wrong doorbell, an unknown command. It fails a test run. An application's own
//! error, such as an access without the right, is not reported: it is answered with a completion, as the
//! verbs say.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many violations are kept; a program that breaks a rule breaks it often.
const KEPT: usize = 100;

/// The violations so far, and those that are expected.
#[derive(Debug, Default)]
struct Found {
    violations: Vec<String>,
    expected: Vec<Expected>,
}

/// A violation that a test causes on purpose.
#[derive(Debug)]
struct Expected {
    words: String,
    came: bool,
}

/// The violations so far, shared by all functions of a model.
#[derive(Clone, Debug, Default)]
pub struct Report {
    found: Arc<Mutex<Found>>,
    /// The model's name, if what happens is told on standard error.
    trace: Option<&'static str>,
}

impl Report {
    /// An empty report of the model of that name. With `trace`, what happens is told on standard error as
    /// well.
    #[must_use]
    pub fn new(model: &'static str, trace: bool) -> Self {
        Self {
            found: Arc::default(),
            trace: trace.then_some(model),
        }
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a violation, unless it is expected.
    pub fn violation(&self, text: String) {
        self.trace(|| format!("violation: {text}"));
        let mut found = self.found();
        let mut is_expected = false;
        for expected in &mut found.expected {
            if has_words(&text, &expected.words) {
                expected.came = true;
                is_expected = true;
            }
        }
        if !is_expected && found.violations.len() < KEPT {
            found.violations.push(text);
        }
    }

    /// Expects violations with these words, until the violations are taken. One must come.
    pub fn expect(&self, words: String) {
        self.found().expected.push(Expected { words, came: false });
    }

    /// Tells what happens, if that is wanted.
    pub fn trace(&self, text: impl FnOnce() -> String) {
        if let Some(model) = self.trace {
            eprintln!("{model}: {}", text());
        }
    }

    /// Takes the violations out, and for each that was expected and did not come a text that says so.
    #[must_use]
    pub fn take(&self) -> Vec<String> {
        let Found {
            mut violations,
            expected,
        } = std::mem::take(&mut *self.found());
        let missing = expected.into_iter().filter(|expected| !expected.came);
        violations.extend(missing.map(|it| format!("expected, and did not come: {}", it.words)));
        violations
    }
}

/// Whether a text has these words. A number must be the whole one.
fn has_words(text: &str, words: &str) -> bool {
    text.match_indices(words).any(|(at, _)| {
        let behind = text[at + words.len()..].chars().next();
        !behind.is_some_and(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::Report;

    /// Would catch a test that turns a rule off for the tests behind it.
    #[test]
    fn a_violation_is_expected_until_they_are_taken() {
        let report = Report::new("model", false);
        report.expect("queue pair 0x1".into());
        for text in ["queue pair 0x1: no room", "queue pair 0x12: no room"] {
            report.violation(text.into());
        }
        assert_eq!(report.take(), ["queue pair 0x12: no room"]);
        report.violation("queue pair 0x1: no room".into());
        assert_eq!(report.take(), ["queue pair 0x1: no room"]);
        report.expect("no room".into());
        assert_eq!(report.take(), ["expected, and did not come: no room"]);
        assert!(report.take().is_empty());
    }
}
