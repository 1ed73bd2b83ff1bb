//! The results of guests that a run in full has finished, kept so that a run that was cut off can go on.

use std::fs;
use std::io;

use anyhow::{Context, Result};

use super::job::Job;
use super::round::Round;
use crate::results::Group;
use crate::store::Store;

/// What a run in full has of its guests so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept<'a>(pub(crate) &'a Store);

impl Kept<'_> {
    /// Forgets a guest.
    ///
    /// # Errors
    /// If the file stays.
    pub(crate) fn forget(self, guest: &str) -> Result<()> {
        let path = self.0.path(format!("{}.json", stamp(guest)));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Keeps the results of a guest.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(crate) fn keep(self, group: &Group) -> Result<()> {
        self.0.directory(DIRECTORY)?;
        self.0.write_stamp(&stamp(&group.name), group)
    }

    /// The results of a guest that ran all tests of the round, if nothing failed there.
    pub(crate) fn of(self, guest: &str, round: &Round) -> Option<Group> {
        let group: Group = self.0.stamp(&stamp(guest))?;
        is_whole(&group, round.jobs.iter().map(Job::name)).then_some(group)
    }
}

fn is_whole(group: &Group, mut tests: impl Iterator<Item = String>) -> bool {
    let has = |test: String| group.cases.iter().any(|case| case.name == test);
    group.is_clean() && tests.all(has)
}

const DIRECTORY: &str = "full";

fn stamp(guest: &str) -> String {
    format!("{DIRECTORY}/{guest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Verdict;

    #[test]
    fn what_failed_or_is_missing_runs_again() {
        let tests = || {
            ["verbs mr::a", "verbs mr::b"]
                .map(str::to_owned)
                .into_iter()
        };
        let mut group = Group::new("Linux 6.1");
        group.add("verbs mr::a", Verdict::Passed);
        assert!(!is_whole(&group, tests()));
        group.add("verbs mr::b", Verdict::Skipped("too old".to_owned()));
        assert!(is_whole(&group, tests()));
        group.add("the kernel's log", Verdict::Failed("a fault".to_owned()));
        assert!(!is_whole(&group, tests()));
    }
}
