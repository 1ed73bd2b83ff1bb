//! Commands without a kernel: what they look like on their way out, and what comes of answers to them.
//!
//! The property tests in [`fuzz`] are the project's fuzzer of kernel answers.

mod encoding;
mod fallback;
mod fuzz;
mod replies;
mod samples;
mod text;

use super::{Command, Request, Spelling};

/// The command in one spelling, if it has that.
fn request(command: &impl Command, spelling: Spelling) -> Option<Request> {
    let mut request = Request::new();
    command.encode(spelling, &mut request);
    (!request.is_empty()).then_some(request)
}
