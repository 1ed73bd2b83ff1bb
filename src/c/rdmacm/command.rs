//! Commands of the connection manager that only C programs need, and addresses in the form of C programs.

use std::ffi::c_int;
use std::slice;

use uverbs_uapi::rdma_cm::{self as abi, cmd};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::abi::sockaddr_storage;
use crate::c::abi::port::ibv_gid;
use crate::c::abi::sa::ibv_sa_path_rec;
use crate::cm::address::Wire;
use crate::cm::command::{Command, query};
use crate::error::Verb;

/// Queries the GIDs of both ends.
#[derive(Clone, Debug, IntoBytes, Immutable)]
#[repr(transparent)]
pub(super) struct QueryGid(abi::Query);

impl QueryGid {
    /// The query for this identifier.
    pub(super) fn of(id: u32) -> Self {
        Self(query(id, abi::QueryOption::GID))
    }
}

impl Command for QueryGid {
    type Reply = abi::QueryAddrResp;
    const NUMBER: u32 = cmd::QUERY;
    const VERB: Verb = Verb::QueryId;

    fn answer_at(&mut self, address: u64) {
        self.0.response = address;
    }
}

/// The most paths that an answer has, and room for one more: older kernels omit a path that just fits.
const PATHS: usize = 6;

/// An answer with paths.
#[derive(FromBytes, IntoBytes)]
#[repr(C)]
pub(super) struct Paths {
    head: abi::QueryPathResp,
    paths: [abi::PathRecData; PATHS],
}

impl Paths {
    /// The paths in the answer.
    pub(super) fn records(&self) -> Vec<ibv_sa_path_rec> {
        let number = PATHS.min(self.head.num_paths as usize);
        self.paths[..number].iter().map(record).collect()
    }
}

/// Queries the paths.
#[derive(Clone, Debug, IntoBytes, Immutable)]
#[repr(transparent)]
pub(super) struct QueryPath(abi::Query);

impl QueryPath {
    /// The query for this identifier.
    pub(super) fn of(id: u32) -> Self {
        Self(query(id, abi::QueryOption::PATH))
    }
}

impl Command for QueryPath {
    type Reply = Paths;
    const NUMBER: u32 = cmd::QUERY;
    const VERB: Verb = Verb::QueryId;

    fn answer_at(&mut self, address: u64) {
        self.0.response = address;
    }
}

/// Converts a path from the record on the wire (InfiniBand specification, 15.2.5.16). Numbers of several
/// bytes are in network byte order in both.
fn record(path: &abi::PathRecData) -> ibv_sa_path_rec {
    let bytes = path.path_rec.as_bytes();
    let gid = |at: usize| ibv_gid {
        raw: bytes[at..at + 16].try_into().unwrap_or_default(),
    };
    let short = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let flow = [0, bytes[44], bytes[45], bytes[46]];
    ibv_sa_path_rec {
        dgid: gid(8),
        sgid: gid(24),
        dlid: short(40),
        slid: short(42),
        raw_traffic: 0,
        flow_label: u32::from_ne_bytes(flow),
        hop_limit: bytes[47],
        traffic_class: bytes[48],
        reversible: (bytes[49] >> 7).into(),
        numb_path: 1,
        pkey: short(50),
        sl: bytes[53] & 0xf,
        mtu_selector: EXACTLY,
        mtu: bytes[54] & 0x1f,
        rate_selector: EXACTLY,
        rate: bytes[55] & 0x1f,
        packet_life_time_selector: EXACTLY,
        packet_life_time: bytes[56] & 0x1f,
        preference: path.flags as u8,
    }
}

/// The selector's value for "exactly the value next to it".
const EXACTLY: u8 = 2;

/// The most services that an answer has; further ones are ignored.
const SERVICES: usize = 16;

/// An answer with services.
#[derive(FromBytes, IntoBytes)]
#[repr(C)]
pub(super) struct Services {
    head: abi::QueryIbServiceResp,
    records: [abi::UserServiceRec; SERVICES],
}

impl Services {
    /// The services in the answer.
    pub(super) fn records(&self) -> &[abi::UserServiceRec] {
        let number = SERVICES.min(self.head.num_service_recs as usize);
        &self.records[..number]
    }
}

/// Queries the services that were found.
#[derive(Clone, Debug, IntoBytes, Immutable)]
#[repr(transparent)]
pub(super) struct QueryServices(abi::Query);

impl QueryServices {
    /// The query for this identifier.
    pub(super) fn of(id: u32) -> Self {
        Self(query(id, abi::QueryOption::IB_SERVICE))
    }
}

impl Command for QueryServices {
    type Reply = Services;
    const NUMBER: u32 = cmd::QUERY;
    const VERB: Verb = Verb::QueryId;

    fn answer_at(&mut self, address: u64) {
        self.0.response = address;
    }
}

/// Queries the subnet administrator for the providers of a service.
impl Command for abi::ResolveIbService {
    type Reply = ();
    const NUMBER: u32 = cmd::RESOLVE_IB_SERVICE;
    const VERB: Verb = Verb::ResolveService;
}

/// Puts an event into the queue of an identifier.
impl Command for abi::WriteCmEvent {
    type Reply = ();
    const NUMBER: u32 = cmd::WRITE_CM_EVENT;
    const VERB: Verb = Verb::WriteCmEvent;
}

/// Leaves a multicast group.
#[derive(Clone, Debug, IntoBytes, Immutable)]
#[repr(transparent)]
pub(super) struct LeaveMcast(abi::DestroyId);

impl LeaveMcast {
    /// The command for the group with this number.
    pub(super) fn of(group: u32) -> Self {
        Self(abi::DestroyId {
            id: group,
            ..Default::default()
        })
    }
}

impl Command for LeaveMcast {
    type Reply = abi::DestroyIdResp;
    const NUMBER: u32 = cmd::LEAVE_MCAST;
    const VERB: Verb = Verb::LeaveMulticast;

    fn answer_at(&mut self, address: u64) {
        self.0.response = address;
    }
}

/// `AF_IB`, which libc does not name.
pub(super) const AF_IB: c_int = 27;

/// The address that a program passes; `None` if the pointer is NULL or the family is unknown.
///
/// # Safety
/// The pointer is NULL, or points to an address of its family.
pub(super) unsafe fn address(from: *const libc::sockaddr) -> Option<Wire> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the caller vouches for it; all families have this field at the start.
    let length = match i32::from(unsafe { from.cast::<u16>().read_unaligned() }) {
        libc::AF_INET => 16,
        libc::AF_INET6 => 28,
        AF_IB => 48,
        _ => return None,
    };
    // SAFETY: addresses of this family have this length.
    let bytes = unsafe { slice::from_raw_parts(from.cast::<u8>(), length) };
    let mut wire = Wire {
        bytes: abi::SockaddrStorage::new_zeroed(),
        length: length as u16,
    };
    wire.bytes.0[..length].copy_from_slice(bytes);
    Some(wire)
}

/// The port of an address, in network byte order.
pub(super) fn port(address: &sockaddr_storage) -> u16 {
    let bytes = &address.0;
    match u16::from_ne_bytes([bytes[0], bytes[1]]).into() {
        // The last bytes of the service's number.
        AF_IB => u16::from_ne_bytes([bytes[30], bytes[31]]),
        libc::AF_INET | libc::AF_INET6 => u16::from_ne_bytes([bytes[2], bytes[3]]),
        _ => 0,
    }
}
