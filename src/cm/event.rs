//! What happens to a connection after it has been made.

use uverbs_uapi::rdma_cm::{Event as Kind, EventResp};

use super::data::Received;
use crate::error::{Cause, Errno, Error, Refusal, RejectReason, Subject, Verb};

/// Something that happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The peer has ended the connection, or has confirmed that this side ended it.
    Disconnected {
        /// The peer did not confirm: the kernel has given up waiting for it.
        timed_out: bool,
    },
    /// The connection is over for good: late packets no longer matter, and the queue pair may be reconnected.
    TimewaitExit,
    /// The peer's link-layer address has changed. The connection keeps using the old one.
    NeighbourChanged,
    /// The network interface's address has changed. The connection keeps using the old one.
    AddressChanged,
    /// The device is being removed. [`Disconnected`](Self::Disconnected) may come before: the kernel ends the
    /// connections of a device one after another, and notifies a peer on the same device.
    DeviceRemoved,
    /// The peer quit while the connection was being made.
    Refused(Refusal),
    /// An event that this library does not know.
    Unknown {
        /// Its number.
        event: u32,
        /// Its status.
        status: i32,
    },
}

impl From<&EventResp> for Event {
    fn from(raw: &EventResp) -> Self {
        let status = raw.status as i32;
        match Kind(raw.event) {
            Kind::DISCONNECTED => Self::Disconnected {
                timed_out: status != 0,
            },
            Kind::TIMEWAIT_EXIT => Self::TimewaitExit,
            Kind::UNREACHABLE => Self::NeighbourChanged,
            Kind::ADDR_CHANGE => Self::AddressChanged,
            Kind::DEVICE_REMOVAL => Self::DeviceRemoved,
            Kind::REJECTED => Self::Refused(refusal(raw)),
            _ => Self::Unknown {
                event: raw.event,
                status,
            },
        }
    }
}

impl Event {
    /// Whether the connection is over: nothing is exchanged with the peer after this event.
    pub fn ends(&self) -> bool {
        matches!(
            self,
            Self::Disconnected { .. } | Self::TimewaitExit | Self::DeviceRemoved | Self::Refused(_)
        )
    }
}

/// The refusal of a connection by a peer.
fn refusal(raw: &EventResp) -> Refusal {
    let param = raw.param.conn();
    Refusal {
        reason: RejectReason::of_connection(raw.status as u16),
        private_data: Received::new(param.private_data, param.private_data_len)
            .bytes()
            .to_vec(),
    }
}

/// The refusal of a datagram lookup by a peer.
fn no_datagrams(raw: &EventResp) -> Refusal {
    let param = raw.param.ud();
    Refusal {
        reason: RejectReason::of_look_up(raw.status as u16),
        private_data: Received::new(param.private_data, param.private_data_len)
            .bytes()
            .to_vec(),
    }
}

/// The error of an event that ends a step in progress.
pub(super) fn failure(verb: Verb, subject: &Subject, raw: &EventResp) -> Error {
    let kind = Kind(raw.event);
    let status = raw.status as i32;
    let of = |cause| Error::new(verb, subject.clone(), cause);
    match (kind, status) {
        (Kind::REJECTED, 1..) => of(Cause::Refused(refusal(raw))),
        (Kind::UNREACHABLE, 1..) => of(Cause::Refused(no_datagrams(raw))),
        (Kind::DEVICE_REMOVAL, _) => of(Cause::Os(Errno::IO)),
        (Kind::DISCONNECTED, 0) => of(Cause::Os(Errno::CONNRESET)),
        (_, -4095..=-1) => of(Cause::Os(Errno::from_raw_os_error(-status))),
        _ => of(Cause::Malformed(
            format!("the event {kind:?} with status {status} while it was awaited").into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(kind: Kind, status: i32) -> EventResp {
        EventResp {
            event: kind.0,
            status: status as u32,
            ..EventResp::default()
        }
    }

    #[test]
    fn events_are_told_as_what_they_mean() {
        let told = |kind, status| Event::from(&raw(kind, status));
        assert_eq!(
            told(Kind::DISCONNECTED, -110),
            Event::Disconnected { timed_out: true }
        );
        assert_eq!(told(Kind::UNREACHABLE, 0), Event::NeighbourChanged);
        assert_eq!(
            told(Kind::USER, 3),
            Event::Unknown {
                event: 18,
                status: 3
            }
        );
        let Event::Refused(refusal) = told(Kind::REJECTED, 8) else {
            panic!("a refusal");
        };
        assert_eq!(refusal.reason, RejectReason::NoListener);
    }

    #[test]
    fn a_refusal_has_no_more_than_the_field() {
        let mut event = raw(Kind::REJECTED, 28);
        event.param.0.fill(0xff);
        let told = refusal(&event);
        assert_eq!(told.private_data.len(), 255);
        assert_eq!(told.reason, RejectReason::Consumer);
    }
}
