//! What the model has to complain about.
//!
//! A *violation* is something that no correct driver or provider does, whatever the application asks for: a
//! malformed work request, a wrong doorbell, an unknown command. It fails a test run. An application's own
//! error, such as an access without the right, is not reported: it is answered with a completion, as the
//! verbs say.

use std::sync::{Arc, Mutex, PoisonError};

/// How many violations are kept; a program that breaks a rule breaks it often.
const KEPT: usize = 100;

/// The violations so far, shared by all functions of a model.
#[derive(Clone, Debug, Default)]
pub struct Report {
    violations: Arc<Mutex<Vec<String>>>,
    expected: Arc<Mutex<Vec<String>>>,
    /// The model's name, if what happens is told on standard error.
    trace: Option<&'static str>,
}

impl Report {
    /// An empty report of the model of that name. With `trace`, what happens is told on standard error as
    /// well.
    #[must_use]
    pub fn new(model: &'static str, trace: bool) -> Self {
        Self {
            violations: Arc::default(),
            expected: Arc::default(),
            trace: trace.then_some(model),
        }
    }

    /// Adds a violation.
    pub fn violation(&self, text: String) {
        self.trace(|| format!("violation: {text}"));
        let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        if expected.iter().any(|part| text.contains(part)) {
            return;
        }
        let mut violations = self
            .violations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if violations.len() < KEPT {
            violations.push(text);
        }
    }

    /// Lets violations whose text has this in it be, from now on.
    pub fn expect(&self, part: String) {
        self.expected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(part);
    }

    /// Tells what happens, if that is wanted.
    pub fn trace(&self, text: impl FnOnce() -> String) {
        if let Some(model) = self.trace {
            eprintln!("{model}: {}", text());
        }
    }

    /// Takes the violations out.
    #[must_use]
    pub fn take(&self) -> Vec<String> {
        let mut violations = self
            .violations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut violations)
    }
}
