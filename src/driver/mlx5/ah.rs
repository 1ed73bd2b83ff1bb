//! Address handles: the address vector that goes into every datagram's request.
//!
//! The device has no address handles, but the kernel has. The kernel resolves the link-layer address on
//! Ethernet, and keeps the GID from which a global route starts. A path within an InfiniBand subnet needs
//! neither, so the kernel is not called.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use uverbs_uapi::enums::{GidType, LinkLayer, Rate};
use uverbs_uapi::flags::QueryPortFlags;
use uverbs_uapi::handle::AhHandle;
use uverbs_uapi::mlx5 as abi;
use uverbs_uapi::types::AhAttr;

use super::format::{Be16, Be32, Datagram};
use crate::command::{
    CommandFd, CreateAh, CreateAhReply, DriverData, DriverReply, QueryGid, QueryPort, quiet,
};
use crate::driver::answer;
use crate::error::{Error, Result, Subject, Verb};

/// An address vector, complete except for the queue pair and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ah(pub(super) Datagram);

impl Ah {
    #[inline(always)]
    pub(super) fn datagram(&self) -> Datagram {
        self.0
    }

    /// The address vector, for a program that writes requests by itself.
    #[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
    pub(crate) fn vector(&self) -> &Datagram {
        &self.0
    }
}

/// An empty vector.
const NOWHERE: Datagram = Datagram {
    qkey: Be32::ZERO,
    reserved: Be32::ZERO,
    dqp_dct: Be32::ZERO,
    stat_rate_sl: 0,
    fl_mlid: 0,
    rlid: Be16::ZERO,
    reserved0: [0; 4],
    rmac: [0; 6],
    tclass: 0,
    hop_limit: 0,
    grh_gid_fl: Be32::ZERO,
    rgid: [0; 16],
};

/// A global header follows (not set on Ethernet, where one always does).
const GRH: u32 = 1 << 30;
/// The device's offset of rate codes (`MLX5_STAT_RATE_OFFSET`).
const RATE_OFFSET: u8 = 5;
/// The ports that RoCE v2 sends from (`IB_ROCE_UDP_ENCAP_VALID_PORT_MIN`).
const FIRST_SOURCE_PORT: u16 = 0xc000;

/// What paths over a port need to know of it.
#[derive(Clone, Copy, Debug)]
struct Port {
    link: LinkLayer,
    flags: QueryPortFlags,
}

/// The ports by their numbers, once they have been queried: neither property changes while the device exists.
#[derive(Debug, Default)]
pub(super) struct Ports(Mutex<BTreeMap<u8, Port>>);

impl Ports {
    fn get(&self, fd: &CommandFd, number: u8) -> Result<Port> {
        // A panic elsewhere has not spoilt what is known.
        let mut known = quiet(|| self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(port) = known.get(&number) {
            return Ok(*port);
        }
        let reply = fd.execute(&QueryPort { port: number })?.legacy_resp;
        let port = Port {
            link: LinkLayer(reply.link_layer.into()),
            flags: QueryPortFlags::from_bits_retain(reply.flags),
        };
        known.insert(number, port);
        Ok(port)
    }
}

/// Creates an address handle. Within an InfiniBand subnet the kernel has no handle for it.
pub(super) fn create_ah(
    ports: &Ports,
    fd: &CommandFd,
    mut command: CreateAh,
) -> Result<(Option<AhHandle>, Ah)> {
    let path = command.attributes;
    let port = ports.get(fd, path.port_num)?;
    let ethernet = port.link == LinkLayer::ETHERNET;
    if !ethernet {
        check_route(&path, port.flags)?;
        if path.is_global == 0 {
            return Ok((None, Ah(over_infiniband(&path))));
        }
    }
    command.driver = DriverData::output::<abi::CreateAhResp>();
    let CreateAhReply { handle, driver } = fd.execute(&command)?;
    let vector = if ethernet {
        over_ethernet(fd, &path, handle, &driver).inspect_err(|_| fd.abandon(handle))?
    } else {
        over_infiniband(&path)
    };
    Ok((Some(handle), Ah(vector)))
}

/// An address handle over InfiniBand, where the kernel would do nothing but check the path.
#[cfg(feature = "c-abi")]
pub(super) fn ah_without_kernel(
    ports: &Ports,
    fd: &CommandFd,
    path: &AhAttr,
) -> Result<Option<Ah>> {
    let port = ports.get(fd, path.port_num)?;
    if port.link == LinkLayer::ETHERNET {
        return Ok(None);
    }
    check_route(path, port.flags)?;
    Ok(Some(Ah(over_infiniband(path))))
}

/// Refuses a path without a global route over a port that requires one. (The kernel checks this on Ethernet
/// only, and the device drops packets without a global header.)
fn check_route(path: &AhAttr, flags: QueryPortFlags) -> Result<()> {
    if path.is_global == 0 && flags.contains(QueryPortFlags::GRH_REQUIRED) {
        let subject = Subject::the("AH");
        let why = format!(
            "port {} requires a global route: give the path a GID",
            path.port_num
        );
        return Err(Error::invalid(Verb::CreateAh, subject, why));
    }
    Ok(())
}

/// A rate limit in the device's 4 bits, 0 for none. The device has the rates of the first links. Other rates
/// are rounded up to one of them; rates that are unknown or faster than all get no limit.
fn static_rate(rate: Rate) -> u8 {
    let has = match rate {
        Rate::GBPS_14 => Rate::GBPS_20,
        Rate::GBPS_25 | Rate::GBPS_28 => Rate::GBPS_30,
        Rate::GBPS_50 | Rate::GBPS_56 => Rate::GBPS_60,
        Rate::GBPS_100 | Rate::GBPS_112 => Rate::GBPS_120,
        rate => rate,
    };
    match has.0 {
        // From 2.5 to 120 Gbit/s.
        code @ 2..=10 => code as u8 + RATE_OFFSET,
        _ => 0,
    }
}

/// The fields that are the same on both link layers.
fn vector(path: &AhAttr) -> Datagram {
    let mut vector = Datagram {
        stat_rate_sl: static_rate(Rate(path.static_rate.into())) << 4,
        ..NOWHERE
    };
    if path.is_global != 0 {
        let grh = &path.grh;
        vector.tclass = grh.traffic_class;
        vector.hop_limit = grh.hop_limit;
        vector.grh_gid_fl = Be32::new(u32::from(grh.sgid_index) << 20 | grh.flow_label & 0xf_ffff);
        vector.rgid = grh.dgid;
    }
    vector
}

pub(super) fn over_infiniband(path: &AhAttr) -> Datagram {
    let mut vector = vector(path);
    vector.stat_rate_sl |= path.sl & 0xf;
    vector.fl_mlid = path.src_path_bits & 0x7f;
    vector.rlid = Be16::new(path.dlid);
    if path.is_global != 0 {
        vector.grh_gid_fl = Be32::new(vector.grh_gid_fl.get() | GRH);
    }
    vector
}

fn over_ethernet(
    fd: &CommandFd,
    path: &AhAttr,
    handle: AhHandle,
    reply: &DriverReply,
) -> Result<Datagram> {
    let abi::CreateAhResp { dmac, .. } = answer(Verb::CreateAh, || Subject::the("AH"), reply)?;
    let gid = fd.execute(&QueryGid {
        port: path.port_num.into(),
        index: path.grh.sgid_index.into(),
    })?;
    let mut vector = vector(path);
    vector.stat_rate_sl |= (path.sl & 0x7) << 1;
    vector.rmac = dmac;
    if GidType(gid.gid_type) == GidType::ROCE_V2 {
        vector.rlid = Be16::new(source_port(path.grh.flow_label, handle.0));
    }
    Ok(vector)
}

/// The UDP source port of datagrams, by which the network spreads them over its paths. It comes from the flow
/// label as in the RoCE annex (`rdma_flow_label_to_udp_sport` in the kernel); without one, each handle gets
/// its own.
fn source_port(flow_label: u32, handle: u32) -> u16 {
    let folded = match flow_label {
        0 => handle,
        label => label & 0x3fff ^ (label & 0xf_c000) >> 14,
    };
    FIRST_SOURCE_PORT | (folded & 0x3fff) as u16
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::command::Route;
    use crate::device::DriverId;
    use crate::owned::tests::Listener;

    /// Would catch a subscriber of traces that is notified under the lock of the ports, which it needs to
    /// create an address handle.
    #[test]
    fn a_subscriber_may_ask_for_ports() {
        // A file that takes no commands.
        let file = File::open("/dev/null").unwrap().into();
        let fd = CommandFd::new(file, DriverId::MLX5.0, Route::Best);
        let (ports, told) = (Arc::new(Ports::default()), Arc::new(AtomicU32::new(0)));
        let (asked, counted) = (Arc::clone(&ports), Arc::clone(&told));
        let listener = Listener("uverbs::command", move |_| {
            assert!(asked.0.try_lock().is_ok());
            counted.fetch_add(1, Ordering::Relaxed);
        });
        tracing::subscriber::with_default(listener, || ports.get(&fd, 1).map(drop)).unwrap_err();
        assert!(told.load(Ordering::Relaxed) > 0);
    }

    /// Would catch a path that is dropped by the routes of a port without a subnet of its own.
    #[test]
    fn a_port_that_requires_a_global_route_gets_one() {
        let local = AhAttr {
            port_num: 1,
            ..AhAttr::default()
        };
        let global = AhAttr {
            is_global: 1,
            ..local
        };
        let required = QueryPortFlags::GRH_REQUIRED;
        let error = check_route(&local, required).unwrap_err();
        assert!(error.to_string().contains("give the path a GID"), "{error}");
        assert!(check_route(&global, required).is_ok());
        assert!(check_route(&local, required.complement()).is_ok());
    }

    /// What libmlx5 writes for each rate of the specification, by their codes. Would catch a rate that spills
    /// over into another field, or that the device does not have.
    #[test]
    fn every_rate_is_one_that_the_device_has() {
        let expected = [
            0, 0, 7, 8, 9, 10, 11, 12, 13, 14, 15, 11, 13, 15, 0, 9, 15, 0, 0, 9, 13, 0, 0, 0, 0,
        ];
        for (code, expected) in expected.into_iter().enumerate() {
            assert_eq!(static_rate(Rate(code as u32)), expected, "rate {code}");
        }
        for static_rate in 0..=u8::MAX {
            let path = AhAttr {
                static_rate,
                ..AhAttr::default()
            };
            let rate = vector(&path).stat_rate_sl >> 4;
            assert!(
                rate == 0 || (7..=15).contains(&rate),
                "{static_rate}: {rate}"
            );
        }
    }
}
