//! One test of the guest: a program, and which of its tests is to run.

use std::process::Command;
use std::sync::Arc;

use anyhow::Result;

use super::build::{Kind, Program};
use crate::process;
use crate::results;

/// A test, or an example as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The program.
    pub(crate) program: Arc<Program>,
    /// The test's name in it; none for an example.
    pub(crate) test: Option<String>,
}

impl Job {
    /// All tests of a program, in its order. `here` is asked: the same program as this machine can run it.
    ///
    /// # Errors
    /// If the program cannot be run, or fails.
    pub(crate) fn all(program: &Arc<Program>, here: &Program) -> Result<Vec<Self>> {
        let job = |test| Self {
            program: Arc::clone(program),
            test,
        };
        if program.kind == Kind::Example {
            return Ok(vec![job(None)]);
        }
        let mut command = Command::new(&here.path);
        command
            .arg("--list")
            .current_dir(&program.directory)
            .env_remove("VM_GUEST");
        let listed = process::output("listing tests", &mut command)?;
        let tests = results::listed(&listed).into_iter();
        Ok(tests.map(|test| job(Some(test))).collect())
    }

    /// What it is called in reports, and by filters.
    pub(crate) fn name(&self) -> String {
        match &self.test {
            Some(test) => format!("{} {test}", self.program.name),
            None => format!("example {}", self.program.name),
        }
    }

    /// The program's arguments.
    pub(super) fn arguments(&self) -> Vec<&str> {
        match &self.test {
            Some(test) => vec!["--exact", test, "--test-threads=1"],
            None => Vec::new(),
        }
    }

    /// Whether its name contains one of these, or there are none.
    pub(crate) fn is_wanted(&self, filters: &[String]) -> bool {
        let name = self.name();
        filters.is_empty() || filters.iter().any(|filter| name.contains(filter))
    }
}
