//! Which test programs and examples are for the guest: `[package.metadata.vm]` in a package's Cargo.toml.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

/// What a package has for the guest.
#[derive(Clone, Debug)]
pub(crate) struct Suite {
    /// The package's directory, in which its tests run.
    pub(crate) directory: PathBuf,
    /// Integration tests, which print and take what libtest does.
    pub(crate) tests: Vec<String>,
    /// Integration tests for a guest that is laid out as two hosts.
    pub(crate) two_hosts_tests: Vec<String>,
    /// Integration tests for a guest that has the adapter instead of soft-RoCE.
    pub(crate) hca_tests: Vec<String>,
    /// Integration tests for a guest that has the EFA.
    pub(crate) efa_tests: Vec<String>,
    /// Integration tests that run in two guests at a time, which share an adapter.
    pub(crate) pair_tests: Vec<String>,
    /// Those of the integration tests that also run while signals interrupt them.
    pub(crate) signal_tests: Vec<String>,
    /// C programs on libibverbs that tests run, as paths of their sources in the directory.
    pub(crate) c_programs: Vec<String>,
    /// Examples, which pass if they end with status 0.
    pub(crate) examples: Vec<String>,
    /// Those of the integration tests and examples that run in guests of arm64 as well.
    pub(crate) arm64_tests: Vec<String>,
    /// The tests of those that run in every run, by name with the program.
    pub(crate) arm64_always: Vec<String>,
}

impl Suite {
    /// The part of it that runs in guests of arm64.
    pub(crate) fn for_arm64(&self) -> Self {
        let kept = |tests: &[String]| {
            let tests = tests.iter().filter(|test| self.arm64_tests.contains(test));
            tests.cloned().collect()
        };
        Self {
            tests: kept(&self.tests),
            two_hosts_tests: Vec::new(),
            hca_tests: kept(&self.hca_tests),
            efa_tests: kept(&self.efa_tests),
            pair_tests: Vec::new(),
            signal_tests: Vec::new(),
            c_programs: Vec::new(),
            examples: kept(&self.examples),
            ..self.clone()
        }
    }

    /// The part of it that has the tests that run on arm64 in every run.
    pub(crate) fn for_arm64_always(&self) -> Self {
        let has_some = |program: &String| {
            let mut always = self.arm64_always.iter();
            always.any(|test| test.split(' ').next() == Some(program))
        };
        let mut suite = self.clone();
        suite.arm64_tests.retain(has_some);
        suite.for_arm64()
    }

    /// The part of it that is this integration test, in a guest with soft-RoCE; none if it has no such test.
    pub(crate) fn with_test(self, name: &str) -> Option<Self> {
        let has_it = self.tests.iter().any(|test| test == name);
        has_it.then(|| Self {
            tests: vec![name.to_owned()],
            examples: Vec::new(),
            ..self
        })
    }

    /// Whether there is an integration test of that name that runs in a guest.
    pub(crate) fn is_for_guest(&self, name: &str) -> bool {
        let lists = [
            &self.tests,
            &self.two_hosts_tests,
            &self.hca_tests,
            &self.efa_tests,
            &self.pair_tests,
        ];
        lists.into_iter().flatten().any(|test| test == name)
    }
}

/// The table in Cargo.toml.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
struct Table {
    guest_tests: Vec<String>,
    guest_tests_on_two_hosts: Vec<String>,
    hca_tests: Vec<String>,
    efa_tests: Vec<String>,
    pair_tests: Vec<String>,
    signal_tests: Vec<String>,
    c_programs: Vec<String>,
    guest_examples: Vec<String>,
    arm64_tests: Vec<String>,
    arm64_always: Vec<String>,
}

/// Reads the tables of all packages of the workspace.
///
/// # Errors
/// If cargo cannot read the workspace, or a table has unknown entries.
pub(crate) fn read(workspace: &Path) -> Result<Vec<Suite>> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .current_dir(workspace)
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .context("reading the workspace (cargo metadata)")?;
    let mut suites = Vec::new();
    for package in metadata.packages {
        let Some(table) = package.metadata.get("vm") else {
            continue;
        };
        let table = Table::deserialize(table).with_context(|| {
            format!("reading [package.metadata.vm] of {}", package.manifest_path)
        })?;
        suites.push(Suite {
            directory: package
                .manifest_path
                .parent()
                .map(Into::into)
                .unwrap_or_default(),
            tests: table.guest_tests,
            two_hosts_tests: table.guest_tests_on_two_hosts,
            hca_tests: table.hca_tests,
            efa_tests: table.efa_tests,
            pair_tests: table.pair_tests,
            signal_tests: table.signal_tests,
            c_programs: table.c_programs,
            examples: table.guest_examples,
            arm64_tests: table.arm64_tests,
            arm64_always: table.arm64_always,
        });
    }
    Ok(suites)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_entry_is_refused() {
        let table = serde_json::json!({"guest-tests": ["verbs"], "guest-example": ["pingpong"]});
        let error = Table::deserialize(table)
            .err()
            .map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("guest-example")));
        let table =
            Table::deserialize(serde_json::json!({"guest-tests": ["verbs"]})).expect("a table");
        assert_eq!(table.guest_tests, ["verbs"]);
        assert!(table.guest_examples.is_empty() && table.hca_tests.is_empty());
    }
}
