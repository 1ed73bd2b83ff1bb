//! Named values of several kinds, shown as text for people or as JSON for programs.

use std::fmt;

use bitflags::Flags;
use serde_json::{Map, Value as Json, json};
use uverbs::uapi::names::Ids;

/// A value with its kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Number(u64),
    /// A number that is a mask or an id; text shows it in hexadecimal.
    Hex(u64),
    /// A code without a known meaning: JSON has no number that would be taken for the meaning.
    Code(u64),
    /// A number with a unit, which text shows.
    Quantity(u64, &'static str),
    /// Names of set bits; bits without a name as one number.
    Flags {
        names: Vec<String>,
        unknown: u64,
    },
    /// Several elements, each as text and as JSON.
    List(Vec<(String, Json)>),
}

impl Value {
    /// The set flags by name.
    pub(super) fn flags<F>(flags: F) -> Self
    where
        F: Flags,
        F::Bits: Into<u64>,
    {
        let names = flags.iter_names().map(|(name, _)| name.to_owned());
        Self::Flags {
            names: names.collect(),
            unknown: flags.difference(F::all()).bits().into(),
        }
    }

    /// A number by its name in a table.
    pub(super) fn named(ids: Ids, number: u32) -> Self {
        match ids.name(number) {
            Some(name) => Self::Text(name.to_owned()),
            None => Self::Code(number.into()),
        }
    }

    pub(super) fn text(value: impl fmt::Display) -> Self {
        Self::Text(value.to_string())
    }

    fn to_json(&self) -> Json {
        match self {
            Self::Text(text) => json!(text),
            Self::Number(number) | Self::Hex(number) | Self::Quantity(number, _) => json!(number),
            Self::Code(_) => Json::Null,
            Self::Flags { names, unknown } => {
                let mut names = names.clone();
                if *unknown != 0 {
                    names.push(format!("{unknown:#x}"));
                }
                json!(names)
            }
            Self::List(elements) => elements.iter().map(|(_, json)| json.clone()).collect(),
        }
    }
}

impl From<u8> for Value {
    fn from(number: u8) -> Self {
        Self::Number(number.into())
    }
}

impl From<u16> for Value {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

/// Values in order, each with the field's name in C.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Fields(Vec<(&'static str, Value)>);

impl Fields {
    pub(super) fn add(&mut self, name: &'static str, value: impl Into<Value>) -> &mut Self {
        self.0.push((name, value.into()));
        self
    }

    pub(super) fn to_json(&self) -> Map<String, Json> {
        let fields = self.0.iter();
        fields
            .map(|(name, value)| ((*name).to_owned(), value.to_json()))
            .collect()
    }

    /// Lines of `name value` with this indentation; elements are below each other.
    pub(super) fn to_text(&self, indent: usize) -> String {
        let mut text = String::new();
        let widest = self.0.iter().map(|(name, _)| name.len()).max();
        let column = widest.unwrap_or(0) + 2;
        for (name, value) in &self.0 {
            let mut lead = *name;
            for line in lines(value) {
                text.push_str(format!("{:indent$}{lead:column$}{line}", "").trim_end());
                text.push('\n');
                lead = "";
            }
        }
        text
    }
}

/// The lines of a value, at least one.
fn lines(value: &Value) -> Vec<String> {
    let or_none = |lines: Vec<String>| match lines.is_empty() {
        true => vec!["none".into()],
        false => lines,
    };
    match value {
        Value::Text(text) => vec![text.clone()],
        Value::Number(number) => vec![number.to_string()],
        Value::Code(code) => vec![format!("code {code}")],
        Value::Hex(number) => vec![format!("{number:#x}")],
        Value::Quantity(number, unit) => vec![format!("{number} {unit}")],
        Value::Flags { names, unknown } => {
            let mut lines = names.clone();
            if *unknown != 0 {
                lines.push(format!("unknown: {unknown:#x}"));
            }
            or_none(lines)
        }
        Value::List(elements) => or_none(elements.iter().map(|(text, _)| text.clone()).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs::Access;

    #[test]
    fn flags_without_a_name_are_not_lost() {
        let flags = Access::from_bits_retain(Access::LOCAL_WRITE.bits() | 1 << 31);
        let value = Value::flags(flags);
        assert_eq!(lines(&value), ["LOCAL_WRITE", "unknown: 0x80000000"]);
        assert_eq!(value.to_json(), json!(["LOCAL_WRITE", "0x80000000"]));
    }

    /// Catches a field that is a text in the JSON of one device, and a number of another meaning in that of
    /// another.
    #[test]
    fn a_code_without_a_name_is_no_number() {
        let value = Value::Code(7);
        assert_eq!(
            (lines(&value), value.to_json()),
            (vec!["code 7".into()], Json::Null)
        );
    }

    #[test]
    fn columns_are_aligned_and_elements_below_each_other() {
        let mut fields = Fields::default();
        fields
            .add("a", 1u8)
            .add("flags", Value::flags(Access::empty()));
        fields.add(
            "list",
            Value::List(vec![("x".into(), json!(1)), ("y".into(), json!(2))]),
        );
        assert_eq!(
            fields.to_text(2),
            "  a      1\n  flags  none\n  list   x\n         y\n"
        );
    }
}
