//! Printing: tables for people, JSON for programs.

use std::fmt::{self, Write as _};
use std::io::{self, Write};

use comfy_table::{Table, presets};
use serde_json::Value;

use crate::failure::{Failure, Result};

/// Prints bytes unchanged.
pub(crate) fn raw(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::of_output(&error))
}

/// Prints a message for a person to standard error. Where that cannot be written, nobody reads it: the exit
/// code still says how the command ended.
pub(crate) fn complain(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "uverbs: {text}");
}

/// Prints a line.
pub(crate) fn line(text: impl std::fmt::Display) -> Result<()> {
    raw(format!("{text}\n").as_bytes())
}

/// Prints a JSON value over several lines.
pub(crate) fn json(value: &Value) -> Result<()> {
    line(format_args!("{value:#}"))
}

/// Prints rows in columns under a header.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> Result<()> {
    let header = header.map(str::to_owned).into();
    self::rows(header, rows.into_iter().map(Into::into).collect())
}

/// Prints rows in the columns of the header.
pub(crate) fn rows(header: Vec<String>, rows: Vec<Vec<String>>) -> Result<()> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table.add_rows(rows);
    // Columns have padding by default; there is none before the first column, and no spaces at the end.
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    line(table.trim_fmt())
}

/// Text from elsewhere. Its control characters must not reach the terminal, nor those that are not seen or
/// that reorder what is: they are shown escaped.
pub(crate) struct Foreign<'a>(pub(crate) &'a str);

impl fmt::Display for Foreign<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter.is_control() || is_unseen(letter) {
                true => write!(f, "{}", letter.escape_default())?,
                false => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// Whether it has no width, or changes the direction of others.
fn is_unseen(letter: char) -> bool {
    matches!(
        letter,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    )
}

/// The text of a value that may be unknown.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a process that sends commands to an administrator's terminal through its name.
    #[test]
    fn control_characters_are_shown_escaped() {
        let shown = Foreign("\u{1b}[2Jx\n\u{9b}é").to_string();
        assert_eq!(shown, "\\u{1b}[2Jx\\n\\u{9b}é");
        // A name that is read from right to left.
        let shown = Foreign("a\u{202e}b\u{200b}").to_string();
        assert_eq!(shown, "a\\u{202e}b\\u{200b}");
    }
}
