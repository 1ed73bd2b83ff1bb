//! Inline scatter: data that lie in the completion entry instead of the buffers, from which the consumer
//! copies them on.
//!
//! The driver asks for it with `cs_res` for received messages and `cs_req` for what reads and atomics bring
//! back. The data are at the start of the entry, over fields that only datagrams need, or fill the first half
//! of one of 128 bytes.

use serde_json::json;

use crate::function::Function;
use crate::layout::{dctc, qpc};
use crate::object::dct::Target;
use crate::object::qp::{QueuePair, Transport};
use crate::tap;

/// What is in the place for data behind those that are there: nothing that a consumer may rely on.
const LEFT_OVER: u8 = 0xee;

/// How much an entry takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Room {
    /// 32 bytes, at the start of the half that counts.
    Bytes32,
    /// 64 bytes, before the half that counts.
    Bytes64,
}

impl Room {
    const fn bytes(self) -> usize {
        match self {
            Self::Bytes32 => 32,
            Self::Bytes64 => 64,
        }
    }
}

/// Whose data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    /// Those of a received message.
    Responder,
    /// Those that a read or an atomic brings back.
    Requester,
}

/// An entry to write, but for its owner bit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The 64 bytes that count.
    pub(crate) last: [u8; 64],
    /// What is before them in an entry of 128 bytes, if it is of interest.
    pub(crate) first: Option<[u8; 64]>,
}

impl From<[u8; 64]> for Entry {
    fn from(last: [u8; 64]) -> Self {
        Self { last, first: None }
    }
}

impl Entry {
    /// The entry with the data in it that are to lie there, of which there are no more than there is room
    /// for.
    pub(crate) fn new(mut last: [u8; 64], inline: Option<(&[u8], Room)>) -> Self {
        const FORMAT_32: u8 = 0x4;
        const FORMAT_64: u8 = 0x8;
        let Some((data, room)) = inline else {
            return Self::from(last);
        };
        let mut place = [LEFT_OVER; 64];
        for (to, from) in place.iter_mut().zip(data) {
            *to = *from;
        }
        match room {
            Room::Bytes32 => {
                last[..32].copy_from_slice(&place[..32]);
                last[63] |= FORMAT_32;
                Self::from(last)
            }
            Room::Bytes64 => {
                last[63] |= FORMAT_64;
                Self {
                    last,
                    first: Some(place),
                }
            }
        }
    }
}

/// What a queue pair's context asks for on that side; an error if there is nothing of that code, or not for
/// such queue pairs.
pub(crate) fn asked(queue_pair: &QueuePair, side: Side) -> Result<Option<Room>, ()> {
    let (code, serves) = match side {
        Side::Responder => (
            queue_pair.field(qpc::CS_RES),
            matches!(queue_pair.transport(), Transport::Rc | Transport::Uc),
        ),
        Side::Requester => (
            queue_pair.field(qpc::CS_REQ),
            matches!(queue_pair.transport(), Transport::Rc | Transport::Dc),
        ),
    };
    let room = match (side, code) {
        (_, 0) => return Ok(None),
        (Side::Responder, 0x1) | (Side::Requester, 0x11) => Room::Bytes32,
        (Side::Responder, 0x2) | (Side::Requester, 0x22) => Room::Bytes64,
        _ => return Err(()),
    };
    if serves { Ok(Some(room)) } else { Err(()) }
}

/// What a DC target's context asks for; an error if there is nothing of that code for targets.
pub(crate) fn asked_by_target(target: &Target) -> Result<Option<Room>, ()> {
    match target.field(dctc::CS_RES) {
        0 => Ok(None),
        0x2 => Ok(Some(Room::Bytes64)),
        _ => Err(()),
    }
}

/// Whether these data of a queue pair or a DC target go into the completion, and where there.
pub(crate) fn room(function: &Function, qpn: u32, side: Side, data: &[u8]) -> Option<Room> {
    let room = match function.objects.qps.get(qpn) {
        Ok(queue_pair) => asked(queue_pair, side),
        Err(_) => asked_by_target(function.objects.dcts.get(qpn).ok()?),
    };
    let room = room.ok()??;
    let fits = (1..=room.bytes()).contains(&data.len());
    fits.then(|| {
        function.tap.record(|| {
            json!({
                "kind": "inline",
                "function": function.number(),
                "qpn": qpn,
                "side": format!("{side:?}"),
                "room": room.bytes(),
                "data": tap::hex(data),
            })
        });
        room
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_lie_where_the_provider_looks_for_them() {
        let mut last = [7; 64];
        last[63] = 0x20;
        let small = Entry::new(last, Some((b"abc", Room::Bytes32)));
        assert_eq!(small.last[..4], [b'a', b'b', b'c', LEFT_OVER]);
        assert_eq!(small.last[32..63], [7; 31], "fields behind stay");
        assert_eq!((small.last[63], small.first), (0x24, None));

        let large = Entry::new(last, Some((&[9; 64], Room::Bytes64)));
        assert_eq!(large.last[..63], [7; 63]);
        assert_eq!((large.last[63], large.first), (0x28, Some([9; 64])));
    }
}
