//! The results of guests that a run in full has finished, kept so that a run that was cut off can go on.

use std::collections::BTreeSet;
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
    /// Forgets guests.
    ///
    /// # Errors
    /// If a file stays.
    pub(crate) fn forget(self, guests: impl IntoIterator<Item = String>) -> Result<()> {
        for guest in guests {
            let path = self.0.path(format!("{}.json", stamp(&guest)));
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("removing {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Keeps the results of a guest.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(crate) fn keep(self, group: &Group) -> Result<()> {
        self.0.directory(DIRECTORY)?;
        self.0.write_stamp(&stamp(&group.name), group)
    }

    /// Takes the tests from a round that have run in its guest, if nothing failed there, and gives their
    /// results.
    pub(crate) fn take_from(self, round: &mut Round, guest: &str) -> Option<Group> {
        let mut group: Group = self.0.stamp(&stamp(guest))?;
        take_out(&mut group, &mut round.jobs, Job::name)?;
        Some(group)
    }
}

/// Takes the tests out that are in the group, and from the group what is no test any more. `None` if a test
/// failed, or whatever else the group has.
fn take_out<T>(group: &mut Group, tests: &mut Vec<T>, name: impl Fn(&T) -> String) -> Option<()> {
    let wanted: BTreeSet<String> = tests.iter().map(&name).collect();
    if !group.is_clean() {
        return None;
    }
    group.cases.retain(|case| wanted.contains(&case.name));
    let ran: BTreeSet<&String> = group.cases.iter().map(|case| &case.name).collect();
    tests.retain(|test| !ran.contains(&name(test)));
    Some(())
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
        let left = |group: &Group| {
            let mut group = group.clone();
            let mut tests = vec!["verbs mr::a", "verbs mr::b"];
            let ran = take_out(&mut group, &mut tests, |test| (*test).to_owned());
            (tests, ran.map(|()| group.cases.len()))
        };
        let mut group = Group::new("Linux 6.1");
        group.add("verbs mr::a", Verdict::Passed);
        assert_eq!(left(&group), (vec!["verbs mr::b"], Some(1)));
        group.add("verbs mr::b", Verdict::Skipped("too old".to_owned()));
        assert_eq!(left(&group), (vec![], Some(2)));
        group.add("verbs mr::gone", Verdict::Passed);
        assert_eq!(left(&group), (vec![], Some(2)));
        group.add("the kernel's log", Verdict::Failed("a fault".to_owned()));
        assert_eq!(left(&group), (vec!["verbs mr::a", "verbs mr::b"], None));
    }
}
