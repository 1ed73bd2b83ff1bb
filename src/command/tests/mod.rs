//! Commands without a kernel: what they look like on their way out, and what comes of answers to them.
//!
//! The property tests in [`fuzz`] are the project's fuzzer of kernel answers.

mod beyond_rxe;
mod encoding;
mod fallback;
mod fuzz;
mod replies;
mod text;
