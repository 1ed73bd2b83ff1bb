//! Fuzz targets: whatever reads bytes of the kernel, of a device or of a peer, each as a function of bytes
//! that must come back. Errors are fine; a panic, a hang or a fault is a finding.
//!
//! The same functions are driven by libFuzzer (`src/main.rs`) and by the test that tries each file of the
//! corpus.

mod agent;
mod sysfs;
mod text;

// The command line has no library; its exchange with a peer needs none of the rest of it.
#[path = "../../../src/bin/uverbs/pingpong/exchange.rs"]
#[allow(dead_code, reason = "only what receives is fuzzed")]
mod exchange;

/// A target: its name, which is that of its corpus too, and what is called.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 13] = [
    ("agent", agent::poll),
    ("answers", uverbs::fuzz::answers),
    ("cm", uverbs::fuzz::cm),
    ("efa_poll", uverbs::fuzz::efa_poll),
    ("events", uverbs::fuzz::events),
    ("exchange", exchanged),
    ("grh", text::grh),
    ("netlink", uverbs::fuzz::netlink),
    ("rxe_poll", uverbs::fuzz::rxe_poll),
    ("rxe_post", uverbs::fuzz::rxe_post),
    ("share", uverbs::fuzz::share),
    ("sysfs", sysfs::read),
    ("text", text::read),
];

/// The target with this name.
pub fn target(name: &str) -> Option<fn(&[u8])> {
    let found = TARGETS.iter().find(|target| target.0 == name);
    found.map(|target| target.1)
}

/// What the peer of a ping-pong sends: an endpoint, and a word when it is done.
fn exchanged(bytes: &[u8]) {
    let mut from = bytes;
    match exchange::receive_endpoint(&mut from) {
        Ok(endpoint) => {
            let mut sent = Vec::new();
            assert!(exchange::send_endpoint(&mut sent, &endpoint).is_ok());
            assert!(sent.eq_ignore_ascii_case(&bytes[..sent.len()]));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Err(error) = exchange::receive_done(&mut from) {
        assert!(!error.to_string().is_empty());
    }
}
