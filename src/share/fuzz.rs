//! Arbitrary bytes read as messages of a broker.

use super::message::{parse_reply, parse_request, request};

/// A message that was parsed encodes to the same bytes: nothing has two encodings.
pub(crate) fn read(bytes: &[u8]) {
    if let Ok(key) = parse_request(bytes) {
        assert_eq!(request(&key), bytes);
    }
    match parse_reply(bytes) {
        Ok(Ok(grant)) => {
            assert!(grant.files() <= super::message::MAX_FILES);
            assert_eq!(grant.encode().as_deref(), Ok(bytes));
        }
        // The handle and the reserved bytes of a refusal are ignored.
        Ok(Err(refusal)) => assert_eq!(refusal.encode()[..8], bytes[..8]),
        Err(bad) => assert!(!bad.0.is_empty()),
    }
}
