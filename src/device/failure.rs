//! Why a query of devices failed, before the verb and its object are known.

use std::borrow::Cow;

use crate::error::{Errno, Error, Subject, Verb};

/// A malformed answer; the text says what is wrong with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Malformed(pub(super) Cow<'static, str>);

impl From<&'static str> for Malformed {
    fn from(text: &'static str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Malformed {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

/// Why a query failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// The kernel refused.
    Refused(Errno),
    /// The kernel answered, but the answer is malformed.
    Malformed(Malformed),
}

impl Failure {
    /// The failure as an error of `verb` on `subject`.
    pub(super) fn of(self, verb: Verb, subject: Subject) -> Error {
        match self {
            Self::Refused(errno) => Error::os(verb, subject, errno),
            Self::Malformed(Malformed(text)) => Error::malformed(verb, subject, text),
        }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}
