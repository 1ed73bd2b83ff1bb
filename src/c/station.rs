//! The Ethernet station that takes packets for a peer.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv6Addr};

use super::abi::attr::ibv_ah_attr;
use super::abi::context::ibv_context;
use super::context::{ContextObject, context};
use super::failure::{Failure, Result};
use crate::device::netlink::station::{Mac, Station, station};
use crate::error::Errno;
use crate::gid::GidType;

/// The number that libibverbs returns for packets without a VLAN.
const NO_VLAN: u16 = 0xffff;

/// `ibv_resolve_eth_l2_from_gid`, which no manual page describes: a negative errno if it fails. `vlan` may be
/// NULL.
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    c: *mut ibv_context,
    attr: *const ibv_ah_attr,
    mac: *mut Mac,
    vlan: *mut u16,
) -> c_int {
    // SAFETY: the caller passes an open context, a path, room for the address, and room for the VLAN or NULL.
    let found = unsafe {
        context(c).and_then(|context| {
            let station = find(context, &*attr)?;
            *mac = station.mac;
            if let Some(vlan) = vlan.as_mut() {
                *vlan = station.vlan.unwrap_or(NO_VLAN);
            }
            Ok(())
        })
    };
    match found {
        Ok(()) => 0,
        Err(failure) => -failure.tell(),
    }
}

/// The station to which a path leads.
fn find(context: &ContextObject, attr: &ibv_ah_attr) -> Result<Station> {
    let from = context
        .context()
        .query_gid(attr.port_num, attr.grh.sgid_index.into());
    let from = from.map_err(|_| Failure::INVALID)?;
    if from.gid_type == GidType::Ib || from.netdev_ifindex == 0 {
        return Err(Failure(Errno::HOSTUNREACH));
    }
    // SAFETY: all bytes of the union are initialised, whichever variant was written.
    let to = unsafe { attr.grh.dgid.raw };
    let (interface, [from, to]) = (from.netdev_ifindex, [from.gid.raw(), to].map(address));
    Ok(station(interface, from, to)?)
}

/// The IP address in a RoCE GID.
fn address(gid: [u8; 16]) -> IpAddr {
    match gid {
        // A multicast group of IPv4, as RoCE v1 has it.
        [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => [a, b, c, d].into(),
        _ => Ipv6Addr::from(gid).to_canonical(),
    }
}
