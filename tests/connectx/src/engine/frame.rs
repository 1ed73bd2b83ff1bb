//! Ethernet frames: made of the requests of the netdev's send queues, with the check sums and the cutting
//! that the driver leaves to the device.

use crate::engine::wqe::{Control, UNIT};
use crate::function::Function;
use crate::object::mkey::Access;
use crate::translate::{self, Place, User};

/// Sends one frame.
const SEND: u8 = 0x0a;
/// Sends a long one, cut into several.
const LARGE_SEND: u8 = 0x0e;

/// Bytes of an Ethernet header.
const HEADER: usize = 14;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Bits of `cs_flags` in the Ethernet segment (`struct mlx5_wqe_eth_seg`).
mod flag {
    pub(super) const IP_CHECK_SUM: u8 = 1 << 6;
    pub(super) const TRANSPORT_CHECK_SUM: u8 = 1 << 7;
}

/// A frame, without the check sum at its end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Frame {
    bytes: Vec<u8>,
}

/// The layers of a frame that the device knows.
#[derive(Clone, Copy, Debug)]
struct Layers {
    /// Whether it is IPv4; else it is IPv6.
    v4: bool,
    protocol: u8,
    /// Where TCP or UDP begins.
    transport: usize,
}

impl Frame {
    /// All of it.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whom it is for.
    pub(crate) fn destination(&self) -> u64 {
        let mut mac = [0; 8];
        for (to, from) in mac[2..].iter_mut().zip(&self.bytes) {
            *to = *from;
        }
        u64::from_be_bytes(mac)
    }

    /// The sum of all that follows the Ethernet header, as a receiver is told it.
    pub(crate) fn sum(&self) -> u16 {
        fold(sum(self.bytes.get(HEADER..).unwrap_or_default()))
    }

    /// What a receiver is told of the network and transport layers (`l4_l3_hdr_type`).
    pub(crate) fn kinds(&self) -> u8 {
        let Some(layers) = self.layers() else {
            return 0;
        };
        let network = if layers.v4 { 2 } else { 1 };
        let transport = match layers.protocol {
            TCP => 4,
            UDP => 2,
            _ => 0,
        };
        transport << 4 | network << 2
    }

    fn layers(&self) -> Option<Layers> {
        let bytes = &self.bytes;
        let kind = u16::from_be_bytes([*bytes.get(12)?, *bytes.get(13)?]);
        let packet = bytes.get(HEADER..)?;
        match kind {
            IPV4 => Some(Layers {
                v4: true,
                protocol: *packet.get(9)?,
                transport: HEADER + usize::from(packet.first()? & 0xf) * 4,
            }),
            IPV6 => Some(Layers {
                v4: false,
                protocol: *packet.get(6)?,
                transport: HEADER + 40,
            }),
            _ => None,
        }
    }

    /// Puts the check sums in that the flags ask for.
    fn complete(&mut self, flags: u8) {
        let Some(layers) = self.layers() else {
            return;
        };
        if flags & flag::IP_CHECK_SUM != 0
            && layers.v4
            && let Some(header) = self.bytes.get_mut(HEADER..layers.transport)
        {
            header[10..12].fill(0);
            let sum = !fold(sum(header));
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        if flags & flag::TRANSPORT_CHECK_SUM != 0 {
            self.complete_transport(layers);
        }
    }

    fn complete_transport(&mut self, layers: Layers) {
        let at = match layers.protocol {
            TCP => 16,
            UDP => 6,
            _ => return,
        };
        let addresses = if layers.v4 {
            HEADER + 12..HEADER + 20
        } else {
            HEADER + 8..HEADER + 40
        };
        let pseudo = sum(self.bytes.get(addresses).unwrap_or_default());
        let Some(datagram) = self.bytes.get_mut(layers.transport..) else {
            return;
        };
        let length = datagram.len() as u32;
        let Some(field) = datagram.get_mut(at..at + 2) else {
            return;
        };
        field.fill(0);
        let total = pseudo + u32::from(layers.protocol) + length + sum(datagram);
        let result = match !fold(total) {
            // In UDP a zero means that there is no check sum.
            0 if layers.protocol == UDP => 0xffff,
            result => result,
        };
        datagram[at..at + 2].copy_from_slice(&result.to_be_bytes());
    }
}

/// Makes the frames of a request.
///
/// # Errors
/// If the request is malformed or names memory that may not be used; in words.
pub(crate) fn of_request(
    function: &Function,
    pd: u32,
    request: &[u8],
) -> Result<Vec<Frame>, String> {
    /// Bytes of the header that are within the Ethernet segment.
    const IN_SEGMENT: usize = 2;
    /// Instead of a header there is a tag to insert.
    const INSERT_TAG: usize = 1 << 15;
    let (control, rest) = request.split_first_chunk::<UNIT>().ok_or("no control")?;
    let control = Control::read(control);
    if control.opcode != SEND && control.opcode != LARGE_SEND {
        return Ok(Vec::new());
    }
    let ethernet = rest.first_chunk::<UNIT>().ok_or("no Ethernet segment")?;
    let flags = ethernet[4];
    let most = usize::from(u16::from_be_bytes([ethernet[6], ethernet[7]]));
    let inline = usize::from(u16::from_be_bytes([ethernet[12], ethernet[13]]));
    if inline & INSERT_TAG != 0 {
        return Err("VLAN tags are not modelled".to_owned());
    }
    let header = rest.get(UNIT - IN_SEGMENT..UNIT - IN_SEGMENT + inline);
    let header = header.ok_or("the inline header is cut off")?;
    let segments = UNIT + inline.saturating_sub(IN_SEGMENT).next_multiple_of(UNIT);
    let segments = rest.get(segments..).ok_or("the header is cut off")?;
    let by = User { qpn: 0, pd };
    let mut data = Vec::new();
    for segment in segments.as_chunks::<UNIT>().0 {
        let [l3, l2, l1, l0, k3, k2, k1, k0, address @ ..] = *segment;
        let place = Place {
            key: u32::from_be_bytes([k3, k2, k1, k0]),
            address: u64::from_be_bytes(address),
            length: u32::from_be_bytes([l3, l2, l1, l0]).into(),
        };
        translate::read(function, by, place, Access::LocalRead, &mut data)
            .map_err(|error| format!("{place:x?}: {error:?}"))?;
    }
    let mut frames = if control.opcode == LARGE_SEND {
        cut(header, &data, most)?
    } else {
        vec![Frame {
            bytes: [header, &data].concat(),
        }]
    };
    for frame in &mut frames {
        frame.complete(flags);
    }
    Ok(frames)
}

/// Cuts a long TCP segment into frames with up to `most` bytes of data, each with a header of its own.
fn cut(header: &[u8], data: &[u8], most: usize) -> Result<Vec<Frame>, String> {
    /// Flags of TCP that belong to the last piece: FIN and PSH.
    const LAST_ONLY: u8 = 0x09;
    if most == 0 {
        return Err("a long frame is to be cut into pieces of no bytes".to_owned());
    }
    let whole = Frame {
        bytes: header.to_vec(),
    };
    let layers = whole.layers().filter(|layers| layers.protocol == TCP);
    let layers = layers.ok_or("only TCP is cut")?;
    if header.len() < layers.transport + 20 {
        return Err("the header of TCP is cut off".to_owned());
    }
    let pieces = data.chunks(most).enumerate();
    Ok(pieces
        .map(|(number, piece)| {
            let mut bytes = [header, piece].concat();
            let length = bytes.len() - HEADER;
            if layers.v4 {
                put16(&mut bytes[HEADER + 2..], length);
                let id = u16::from_be_bytes([header[HEADER + 4], header[HEADER + 5]]);
                put16(&mut bytes[HEADER + 4..], usize::from(id) + number);
            } else {
                put16(&mut bytes[HEADER + 4..], length - 40);
            }
            let tcp = &mut bytes[layers.transport..];
            let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
            let sequence = sequence.wrapping_add((number * most) as u32);
            tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
            if (number + 1) * most < data.len() {
                tcp[13] &= !LAST_ONLY;
            }
            Frame { bytes }
        })
        .collect())
}

fn put16(to: &mut [u8], value: usize) {
    to[..2].copy_from_slice(&(value as u16).to_be_bytes());
}

/// The sum of 16-bit words; a byte that is left over is the upper half of one.
fn sum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let words = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)));
    words.sum::<u32>() + rest.first().map_or(0, |last| u32::from(*last) << 8)
}

/// Adds what went beyond 16 bits.
fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The headers of a TCP segment in IPv4, with the length of these alone.
    fn header() -> Vec<u8> {
        let mut bytes = vec![0x11; 12];
        bytes.extend([8, 0]);
        bytes.extend([0x45, 0, 0, 40, 0, 7, 0x40, 0, 64, TCP, 0, 0]);
        bytes.extend([10, 9, 0, 1, 10, 9, 0, 2]);
        bytes.extend([0x30, 0x39, 0x1f, 0x90, 0, 0, 0, 100, 0, 0, 0, 0]);
        bytes.extend([0x50, 0x19, 1, 0, 0, 0, 0, 0]);
        bytes
    }

    #[test]
    fn check_sums_add_up() {
        let mut frame = Frame {
            bytes: [header(), vec![1, 2, 3]].concat(),
        };
        frame.bytes[HEADER + 3] = 43;
        frame.complete(flag::IP_CHECK_SUM | flag::TRANSPORT_CHECK_SUM);
        assert_eq!(fold(sum(&frame.bytes[HEADER..HEADER + 20])), 0xffff);
        let pseudo = sum(&frame.bytes[HEADER + 12..HEADER + 20]) + u32::from(TCP) + 23;
        assert_eq!(fold(pseudo + sum(&frame.bytes[HEADER + 20..])), 0xffff);
        assert_eq!(frame.kinds(), 4 << 4 | 2 << 2);
    }

    #[test]
    fn pieces_of_a_long_segment_have_headers_of_their_own() -> Result<(), String> {
        let data: Vec<u8> = (0..25).collect();
        let frames = cut(&header(), &data, 10)?;
        let of = |index: usize| {
            let bytes = frames[index].bytes();
            let (length, id) = (bytes[HEADER + 3], bytes[HEADER + 5]);
            let tcp = &bytes[HEADER + 20..];
            (length, id, tcp[7], tcp[13], tcp[20..].to_vec())
        };
        assert_eq!(of(0), (50, 7, 100, 0x10, data[..10].to_vec()));
        assert_eq!(of(1), (50, 8, 110, 0x10, data[10..20].to_vec()));
        assert_eq!(of(2), (45, 9, 120, 0x19, data[20..].to_vec()));
        Ok(())
    }

    #[test]
    fn the_destination_is_a_mac() {
        let frame = Frame {
            bytes: vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 8, 6],
        };
        assert_eq!((frame.destination(), frame.kinds()), (0x0200_0000_0009, 0));
    }
}
