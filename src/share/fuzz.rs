//! Messages of a broker that are none.

use super::message::{parse_reply, parse_request, request};

/// What is read spells what was read: nothing is read in two ways.
pub(crate) fn read(bytes: &[u8]) {
    if let Ok(key) = parse_request(bytes) {
        assert_eq!(request(&key), bytes);
    }
    match parse_reply(bytes) {
        Ok(Ok(grant)) => {
            assert!(grant.files() <= super::message::MAX_FILES);
            assert_eq!(grant.encode().as_deref(), Ok(bytes));
        }
        // The handle and the reserved bytes of a refusal are not looked at.
        Ok(Err(refusal)) => assert_eq!(refusal.encode()[..8], bytes[..8]),
        Err(bad) => assert!(!bad.0.is_empty()),
    }
}
