//! Paths: every port reaches every other at the same speed, by one path.

use super::Host;
use super::mad::{self, Method, Request, Status};
use crate::layout::mad::path_record as record;

/// 4096 bytes, 100 Gbit/s, and 4.096 us times 2 to this power.
pub(super) const MTU: u64 = 5;
pub(super) const RATE: u64 = 16;
pub(super) const LIFE_TIME: u64 = 14;
/// The default partition, with full membership.
pub(super) const PKEY: u64 = 0xffff;
/// A partition key without the bit for full membership.
const PARTITION: u64 = 0x7fff;
/// What stands in a record before a value that is just that.
const EXACTLY: u64 = mad::EXACTLY;

/// Finds the paths that a request asks for.
///
/// # Errors
/// If it names no source, or for a single path no destination, or no port has the GID that it names.
pub(super) fn find(
    hosts: &[Host],
    method: Method,
    request: &Request<'_>,
) -> Result<Vec<Vec<u8>>, Status> {
    if method == Method::GetTable && request.needed(record::NUMB_PATH)? == 0 {
        return Err(Status::RequestInvalid);
    }
    let sources = ends(hosts, request, record::SGID, record::SLID)?;
    let sources = sources.ok_or(Status::InsufficientComponents)?;
    let destinations = ends(hosts, request, record::DGID, record::DLID)?;
    let destinations = match (destinations, method) {
        (None, Method::Get) => return Err(Status::InsufficientComponents),
        (None, _) => hosts.iter().collect(),
        (Some(destinations), _) => destinations,
    };
    if !suits(request) {
        return Ok(Vec::new());
    }
    let pairs = sources
        .iter()
        .flat_map(|from| destinations.iter().map(move |to| (from, to)));
    Ok(pairs.map(|(from, to)| encode(request, from, to)).collect())
}

/// The ports that a request names at one end; none if it names no end.
fn ends<'a>(
    hosts: &'a [Host],
    request: &Request<'_>,
    gid: (usize, u32),
    lid: crate::layout::mad::Component,
) -> Result<Option<Vec<&'a Host>>, Status> {
    let (gid, lid) = (request.given_gid(gid), request.given(lid));
    if gid.is_some_and(|gid| hosts.iter().all(|host| host.gid != gid)) {
        return Err(Status::InvalidGid);
    }
    if gid.is_none() && lid.is_none() {
        return Ok(None);
    }
    let is_it = |host: &&Host| {
        gid.is_none_or(|gid| host.gid == gid) && lid.is_none_or(|lid| u64::from(host.lid) == lid)
    };
    Ok(Some(hosts.iter().filter(is_it).collect()))
}

/// Whether a path of this subnet is what the request wants of one.
fn suits(request: &Request<'_>) -> bool {
    let plain = [
        record::RAW_TRAFFIC,
        record::FLOW_LABEL,
        record::HOP_LIMIT,
        record::TRAFFIC_CLASS,
        record::SL,
    ];
    let key = request.given(record::PKEY);
    plain.into_iter().all(|field| request.allows(field, 0))
        && key.is_none_or(|key| key & PARTITION == PKEY & PARTITION)
        && request.selects(record::MTU_SELECTOR, record::MTU, MTU, mad::as_it_is)
        && request.selects(record::RATE_SELECTOR, record::RATE, RATE, mad::speed)
        && request.selects(
            record::PACKET_LIFE_TIME_SELECTOR,
            record::PACKET_LIFE_TIME,
            LIFE_TIME,
            mad::as_it_is,
        )
}

fn encode(request: &Request<'_>, from: &Host, to: &Host) -> Vec<u8> {
    let mut bytes = vec![0; record::SIZE];
    for ((at, _), gid) in [(record::DGID, to.gid), (record::SGID, from.gid)] {
        bytes[at..at + 16].copy_from_slice(&gid);
    }
    record::REVERSIBLE.set(&mut bytes, 1);
    for (component, value) in [
        (
            record::SERVICE_ID,
            request.given(record::SERVICE_ID).unwrap_or(0),
        ),
        (record::DLID, to.lid.into()),
        (record::SLID, from.lid.into()),
        (record::NUMB_PATH, 1),
        (record::PKEY, PKEY),
        (record::MTU_SELECTOR, EXACTLY),
        (record::MTU, MTU),
        (record::RATE_SELECTOR, EXACTLY),
        (record::RATE, RATE),
        (record::PACKET_LIFE_TIME_SELECTOR, EXACTLY),
        (record::PACKET_LIFE_TIME, LIFE_TIME),
    ] {
        component.field.set(&mut bytes, value);
    }
    bytes
}
