//! The rules, each broken in one place.
