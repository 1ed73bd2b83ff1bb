//! Whom a connection's packets reach on Ethernet: the peer that both ends name alike, and nobody if one field
//! of the path is another.

use super::*;
use crate::command::Status;
use crate::engine::packet::Travels;
use crate::fixture::{self, create};
use crate::function::RoceAddress;
use crate::layout::{Field, cmd};
use crate::object::qp::{self, State};

/// Where the record and the ring lie in the memory.
const RECORD: u64 = 0x1000;
const RING: u64 = 0x2000;

/// The index of the GID of version 2; the one before it is the same of version 1.
const INDEX: u8 = 3;

/// The GID of the function with that number.
fn gid(number: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, number]
}

/// A function with an Ethernet port, its GID in both versions, and a queue pair that is connected to the
/// other function's; that one's number.
fn end(number: u8, other: u8) -> Result<(Function, u32), Status> {
    let mut function = fixture::function();
    function.port = Port::new(PortKind::Roce, u16::from(number) - 1);
    for (index, version) in [(INDEX - 1, 0), (INDEX, 2)] {
        let entry = RoceAddress {
            gid: gid(number),
            version,
            bytes: [0; 32],
        };
        function.objects.addresses.insert(index, entry);
    }
    let pd = function.objects.pds.insert(())?;
    let fields = [
        (qpc::PD, u64::from(pd)),
        (qpc::NO_SQ, 1),
        // No receive queue.
        (qpc::RQ_TYPE, 3),
        (qpc::DBR_ADDR, RECORD),
    ];
    let output = create(&mut function, qp::create, cmd::QP_CONTEXT, &fields, &[RING])?;
    let qpn = cmd::OBJECT.get32(&output);
    let queue_pair = function.objects.qps.get_mut(qpn)?;
    queue_pair.set_state(State::ReadyToSend);
    let peer = Port::new(PortKind::Roce, u16::from(other) - 1);
    let gid = u128::from_be_bytes(gid(other));
    for (field, value) in [
        (qpc::REMOTE_QPN, u64::from(qpn)),
        (qpc::MTU, 3),
        (path::RMAC, peer.mac),
        (path::SRC_ADDR_INDEX, INDEX.into()),
        (path::RGID[0], (gid >> 64) as u64),
        (path::RGID[1], gid as u64),
    ] {
        queue_pair.set_field(field, value);
    }
    Ok((function, qpn))
}

/// Whether the second function's queue pair hears of a READ from the first one's; it has no rights, and says
/// so.
fn hears(functions: &mut [Function], qpn: u32) -> Result<bool, Status> {
    let queue_pair = functions[0].objects.qps.get(qpn)?;
    let target = peer(&functions[0], queue_pair);
    let message = Message {
        operation: Operation::Read {
            address: 0,
            key: 0,
            length: 8,
        },
        solicited: false,
        shared_queue: None,
        source: Source {
            qpn,
            lid: 0,
            service_level: 0,
            header: NetworkHeader::None,
        },
        header: None,
        q_key: None,
        access_key: None,
        travels: Some(Travels {
            psn: 0,
            packets: 1,
            mtu: 1024,
            reads: 1,
        }),
    };
    let answer = carry(functions, 0, qpn, target, &message);
    Ok(!matches!(answer, Answer::Silence))
}

/// Catches packets that reach a port with another GID, or with the GID in another version, or a queue pair
/// that is connected to another GID, and packets without a source.
#[test]
fn each_end_has_the_gid_that_the_other_names() -> Result<(), Status> {
    const WRONG: u64 = 0x7f;
    let ways: [(&str, usize, Field); 6] = [
        ("another MAC", 0, path::RMAC),
        ("a GID that is not the peer's", 0, path::RGID[1]),
        ("another prefix of the GID", 0, path::RGID[0]),
        ("an index without a GID", 0, path::SRC_ADDR_INDEX),
        ("the peer is connected to another MAC", 1, path::RMAC),
        ("the peer is connected to another GID", 1, path::RGID[1]),
    ];
    let ((one, qpn), (other, _)) = (end(1, 2)?, end(2, 1)?);
    assert!(hears(&mut [one, other], qpn)?, "all is right");
    for (name, side, field) in ways {
        let ((one, qpn), (other, _)) = (end(1, 2)?, end(2, 1)?);
        let mut functions = [one, other];
        let queue_pair = functions[side].objects.qps.get_mut(qpn)?;
        queue_pair.set_field(field, WRONG);
        assert!(!hears(&mut functions, qpn)?, "{name}");
    }
    Ok(())
}

/// Catches packets of a version of RoCE that reach a port which has their GID in the other version alone.
#[test]
fn a_gid_is_of_a_version() -> Result<(), Status> {
    let ((one, qpn), (mut other, _)) = (end(1, 2)?, end(2, 1)?);
    other.objects.addresses.remove(&INDEX);
    let mut functions = vec![one, other];
    assert!(!hears(&mut functions, qpn)?, "version 2 alone is sent");
    let queue_pair = functions[0].objects.qps.get_mut(qpn)?;
    queue_pair.set_field(path::SRC_ADDR_INDEX, u64::from(INDEX) - 1);
    assert!(hears(&mut functions, qpn)?, "version 1 is there");
    Ok(())
}

/// Catches a GID that the driver has taken away and that packets still leave by.
#[test]
fn an_emptied_entry_is_no_source() -> Result<(), Status> {
    let ((mut one, qpn), (other, _)) = (end(1, 2)?, end(2, 1)?);
    let entry = one
        .objects
        .addresses
        .get_mut(&INDEX)
        .ok_or(Status::BadResource)?;
    entry.gid = [0; 16];
    assert!(!hears(&mut [one, other], qpn)?);
    Ok(())
}
