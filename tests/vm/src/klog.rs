//! Finds what is wrong in a guest kernel's log.
