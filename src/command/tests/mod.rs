//! Commands without a kernel: their encodings, and the replies to answers.
//!
//! The property tests in [`fuzz`] are the project's fuzzer of kernel answers.

mod beyond_rxe;
mod encoding;
mod failures;
mod fallback;
mod fuzz;
mod replies;
mod text;
