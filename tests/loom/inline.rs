//! Where data of completions go: no queue pair of the models has any.

/// Not made.
#[derive(Debug)]
pub(crate) enum Landing {}
