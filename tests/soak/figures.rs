//! Counts by name, for the report.

use std::collections::BTreeMap;
use std::fmt;

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures(BTreeMap<String, u64>);

impl Figures {
    /// Adds to a count.
    pub(crate) fn add(&mut self, name: impl Into<String>, count: u64) {
        if count > 0 {
            *self.0.entry(name.into()).or_default() += count;
        }
    }

    /// Adds all counts of another.
    pub(crate) fn merge(&mut self, other: Self) {
        for (name, count) in other.0 {
            self.add(name, count);
        }
    }

    /// A count.
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|(name, count)| writeln!(f, "{count:>10}  {name}"))
    }
}
