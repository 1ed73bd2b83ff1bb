//! What is read from text, and the route header of a datagram.

use std::fmt::Display;
use std::hint::black_box;
use std::str::FromStr;

use uverbs::share::ShareKey;
use uverbs::{
    Endpoint, Gid,
    grh::{GRH_LENGTH, Grh},
    guid::Guid,
};

/// Reads the text as everything that can be read from one. What is read must come back from its own text.
pub(crate) fn read(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    comes_back::<Gid>(text);
    comes_back::<Guid>(text);
    comes_back::<Endpoint>(text);
    if let Ok(key) = text.parse::<ShareKey>() {
        assert!(format!("{:016x}", key.expose()).eq_ignore_ascii_case(text));
    }
}

fn comes_back<T: FromStr + Display + PartialEq>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let again = value.to_string().parse::<T>();
        assert!(again.is_ok_and(|again| again == value), "{value}");
    }
}

/// The 40 bytes before a datagram.
pub(crate) fn grh(bytes: &[u8]) {
    if let Some(header) = bytes.first_chunk::<GRH_LENGTH>() {
        black_box(Grh::parse(header).map(|grh| format!("{grh:?}")));
    }
}
