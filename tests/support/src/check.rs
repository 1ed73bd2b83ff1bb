//! What a test says of values.

use std::fmt::{Debug, Display};
use std::panic::Location;

use crate::{Result, fail};

/// Fails unless the two are the same; the error says where the test stands and what they are.
///
/// # Errors
/// If they differ.
#[track_caller]
pub fn same<T: PartialEq + Debug>(is: T, should_be: T, what: &str) -> Result {
    if is == should_be {
        return Ok(());
    }
    // Payloads are long.
    let short = |value: T| format!("{value:?}").chars().take(300).collect::<String>();
    fail(format!(
        "line {}: {what}: {}, not {}",
        Location::caller().line(),
        short(is),
        short(should_be)
    ))
}

/// Fails unless the text of an error has all of these in it.
///
/// # Errors
/// If one is missing.
pub fn says(error: &dyn Display, words: &[&str]) -> Result {
    let text = error.to_string();
    match words.iter().find(|word| !text.contains(**word)) {
        None => Ok(()),
        Some(word) => fail(format!("{word:?} is not in {text:?}")),
    }
}
