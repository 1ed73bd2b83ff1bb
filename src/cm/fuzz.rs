//! Events and answers of a kernel that may send any bytes.

use uverbs_uapi::rdma_cm::{EventResp, PortSpace, QueryAddrResp};
use uverbs_uapi::types::QpAttr;
use zerocopy::{FromBytes, IntoBytes};

use super::event::{Event, failure};
use super::{address, attributes};
use crate::error::{Subject, Verb};
use crate::qp::QpState;

/// Reads the bytes as an event, as an answer with addresses, and as proposed attributes.
pub(crate) fn read(bytes: &[u8]) {
    let raw: EventResp = first(bytes);
    let event = Event::from(&raw);
    let ends = event.ends();
    std::hint::black_box((format!("{event:?} {raw:?}"), ends));
    let error = failure(Verb::Connect, &Subject::the("connection"), &raw);
    std::hint::black_box(error.to_string());
    let place: QueryAddrResp = first(bytes);
    if let Some(address) = address::read(&place.src_addr) {
        // An address that was read is written with the same bytes, as far as they belong to the address.
        let wire = address.wire(PortSpace::TCP);
        assert_eq!(address::read(&wire.bytes), Some(address));
    }
    let proposed: QpAttr = first(bytes);
    let attr = attributes::read(&proposed, QpState::RTR);
    let known = attr.mask().bits();
    // `state` is always set, whether it was proposed or not.
    assert_eq!(known & !proposed.qp_attr_mask & !1, 0);
}

/// The struct at the start of the bytes, with zeros for missing bytes.
fn first<T: FromBytes + IntoBytes>(bytes: &[u8]) -> T {
    let mut value = T::new_zeroed();
    let length = size_of::<T>().min(bytes.len());
    value.as_mut_bytes()[..length].copy_from_slice(&bytes[..length]);
    value
}
