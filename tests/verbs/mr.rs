//! Memory regions beyond the plain one.

use libtest_mimic::Trial;

pub(crate) fn tests() -> Vec<Trial> {
    Vec::new()
}
