//! Address handles: the address vector that goes into every datagram's request.
//!
//! The device knows no address handles. The kernel is asked for one all the same: it looks the link-layer address up
//! on Ethernet, and counts the handle with its protection domain.

use uverbs_uapi::enums::{GidType, LinkLayer};
use uverbs_uapi::handle::AhHandle;
use uverbs_uapi::mlx5 as abi;
use uverbs_uapi::types::AhAttr;

use super::format::{Be16, Be32, Datagram};
use crate::command::{
    CommandFd, CreateAh, CreateAhReply, DestroyAh, DriverData, DriverReply, QueryGid, QueryPort,
};
use crate::driver::answer;
use crate::error::{Result, Subject, Verb};

/// An address vector, whole but for the queue pair and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ah(Datagram);

impl Ah {
    #[inline(always)]
    pub(super) fn datagram(&self) -> Datagram {
        self.0
    }
}

/// A vector that leads nowhere.
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
/// What is added to a rate of the InfiniBand specification (`MLX5_STAT_RATE_OFFSET`).
const RATE_OFFSET: u8 = 5;
/// The ports that RoCE v2 sends from (`IB_ROCE_UDP_ENCAP_VALID_PORT_MIN`).
const FIRST_SOURCE_PORT: u16 = 0xc000;

/// Creates an address handle.
pub(super) fn create_ah(fd: &CommandFd, mut command: CreateAh) -> Result<(AhHandle, Ah)> {
    let path = command.attributes;
    let port = fd.execute(&QueryPort {
        port: path.port_num,
    })?;
    let ethernet = LinkLayer(port.legacy_resp.link_layer.into()) == LinkLayer::ETHERNET;
    command.driver = DriverData::output::<abi::CreateAhResp>();
    let CreateAhReply { handle, driver } = fd.execute(&command)?;
    let vector = if ethernet {
        over_ethernet(fd, &path, handle, &driver).inspect_err(|_| {
            // The first error is the one to tell; an AH that stays behind goes with the context.
            let _ = fd.execute(&DestroyAh(handle));
        })?
    } else {
        over_infiniband(&path)
    };
    Ok((handle, Ah(vector)))
}

/// The fields that both links have.
fn vector(path: &AhAttr) -> Datagram {
    let rate = match path.static_rate {
        0 => 0,
        rate => rate.wrapping_add(RATE_OFFSET) << 4,
    };
    let mut vector = Datagram {
        stat_rate_sl: rate,
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

fn over_infiniband(path: &AhAttr) -> Datagram {
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

/// The UDP port that datagrams come from, by which the network spreads them over its paths: of the flow label as the
/// RoCE annex has it (`rdma_flow_label_to_udp_sport` in the kernel), or one for each handle where there is none.
fn source_port(flow_label: u32, handle: u32) -> u16 {
    let folded = match flow_label {
        0 => handle,
        label => label & 0x3fff ^ (label & 0xf_c000) >> 14,
    };
    FIRST_SOURCE_PORT | (folded & 0x3fff) as u16
}
