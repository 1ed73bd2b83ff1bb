//! `uverbs info`: what a device and its ports can do, as `ibv_devinfo` shows it, with names for numbers.

mod fields;

use clap::Args;
use serde_json::{Value as Json, json};
use uverbs::uapi::enums::{AtomicCap, LinkLayer, LinkSpeed, LinkWidth, QpType};
use uverbs::uapi::flags::{OdpGeneralCapBits, OdpTransportCapBits, TmCapFlags};
use uverbs::{
    Context, Device, OpenOptions,
    gid::GidEntry,
    qp::Mtu,
    query::{DeviceAttr, PortAttr},
};

use crate::complete;
use crate::failure::{Failure, Kind, Result};
use crate::{output, select};
use fields::{Fields, Value};

const NOTES: &str = "\
Fields have the names of ibv_query_device_ex(3) and ibv_query_port(3).

";

/// Show the properties and capabilities of devices and their ports.
#[derive(Debug, Args)]
#[command(after_help = NOTES.to_owned() + crate::failure::EXIT_CODES)]
pub(crate) struct Options {
    /// The device; all by default
    #[arg(short, long, add = complete::devices())]
    pub(crate) device: Option<String>,

    /// Show only this port
    #[arg(short = 'i', long = "ib-port", value_name = "PORT",
          value_parser = clap::value_parser!(u8).range(1..), add = complete::ports())]
    pub(crate) port: Option<u8>,

    /// Show everything: limits, capabilities, GID and partition key tables
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The data that is shown of a device.
struct Info {
    device: Fields,
    ports: Vec<Fields>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut infos = Vec::new();
    let mut failed = None;
    for device in select::devices(options.device.as_deref())? {
        match of_device(&device, options) {
            Ok(info) => infos.push(info),
            // The other devices are shown all the same.
            Err(failure) => failed = Some(failure),
        }
    }
    match options.json {
        true => output::json(&infos.iter().map(to_json).collect())?,
        false => output::raw(to_text(&infos).as_bytes())?,
    }
    failed.map_or(Ok(()), Err)
}

fn of_device(device: &Device, options: &Options) -> Result<Info> {
    let context = OpenOptions::new().open(device)?;
    let attr = context.query_device()?;
    let numbers = match options.port {
        None => 1..=attr.phys_port_cnt,
        Some(port) if port <= attr.phys_port_cnt => port..=port,
        Some(port) => {
            let text = format!(
                "{} has no port {port}, only {}",
                device.name(),
                attr.phys_port_cnt
            );
            return Err(Failure::new(Kind::NotFound, text));
        }
    };
    let mut fields = identity(device, &attr);
    if options.verbose {
        limits(&mut fields, &attr);
        capabilities(&mut fields, &context, &attr);
    }
    let gids = match options.verbose {
        true => context.gid_table()?,
        false => Vec::new(),
    };
    let mut ports = Vec::new();
    for number in numbers {
        let attr = context.query_port(number)?;
        let mut fields = port_basics(number, &attr);
        if options.verbose {
            port_details(&mut fields, &attr);
            port_tables(&mut fields, device, number, &gids);
        }
        ports.push(fields);
    }
    Ok(Info {
        device: fields,
        ports,
    })
}

fn identity(device: &Device, attr: &DeviceAttr) -> Fields {
    let mut fields = Fields::default();
    fields.add("device", Value::text(device.name()));
    if let Some(driver) = device.driver() {
        fields.add("driver", Value::text(driver));
    }
    if let Some(node_type) = device.node_type() {
        fields.add("node_type", Value::text(node_type));
    }
    if let Some(fw_ver) = device.firmware_version().filter(|text| !text.is_empty()) {
        fields.add("fw_ver", Value::text(fw_ver));
    }
    fields
        .add("node_guid", Value::text(attr.node_guid))
        .add("sys_image_guid", Value::text(attr.sys_image_guid))
        .add("vendor_id", Value::Hex(attr.vendor_id.into()))
        .add("vendor_part_id", attr.vendor_part_id)
        .add("hw_ver", Value::Hex(attr.hw_ver.into()))
        .add("phys_port_cnt", attr.phys_port_cnt);
    fields
}

fn limits(fields: &mut Fields, attr: &DeviceAttr) {
    fields
        .add("max_mr_size", Value::Hex(attr.max_mr_size))
        .add("page_size_cap", Value::Hex(attr.page_size_cap))
        .add("max_qp", attr.max_qp)
        .add("max_qp_wr", attr.max_qp_wr)
        .add("max_sge", attr.max_sge)
        .add("max_sge_rd", attr.max_sge_rd)
        .add("max_cq", attr.max_cq)
        .add("max_cqe", attr.max_cqe)
        .add("max_mr", attr.max_mr)
        .add("max_pd", attr.max_pd)
        .add("max_qp_rd_atom", attr.max_qp_rd_atom)
        .add("max_res_rd_atom", attr.max_res_rd_atom)
        .add("max_qp_init_rd_atom", attr.max_qp_init_rd_atom)
        .add("max_mw", attr.max_mw)
        .add("max_raw_ethy_qp", attr.max_raw_ethy_qp)
        .add("max_mcast_grp", attr.max_mcast_grp)
        .add("max_mcast_qp_attach", attr.max_mcast_qp_attach)
        .add("max_total_mcast_qp_attach", attr.max_total_mcast_qp_attach)
        .add("max_ah", attr.max_ah)
        .add("max_srq", attr.max_srq)
        .add("max_srq_wr", attr.max_srq_wr)
        .add("max_srq_sge", attr.max_srq_sge)
        .add("max_pkeys", attr.max_pkeys)
        .add("max_wq_type_rq", attr.max_wq_type_rq)
        .add("max_dm_size", Value::Quantity(attr.max_dm_size, "bytes"))
        .add("local_ca_ack_delay", attr.local_ca_ack_delay);
}

fn capabilities(fields: &mut Fields, context: &Context, attr: &DeviceAttr) {
    let transport_odp = |bits| Value::flags(OdpTransportCapBits::from_bits_retain(bits));
    let odp = attr.odp.per_transport_caps;
    fields
        .add("device_cap_flags", Value::flags(attr.capabilities))
        .add("raw_packet_caps", Value::flags(attr.raw_packet))
        .add(
            "atomic_cap",
            Value::named(AtomicCap::IDS, attr.atomic_cap.0),
        )
        .add(
            "general_odp_caps",
            Value::flags(OdpGeneralCapBits::from_bits_retain(attr.odp.general_caps)),
        )
        .add("rc_odp_caps", transport_odp(odp.rc_odp_caps))
        .add("uc_odp_caps", transport_odp(odp.uc_odp_caps))
        .add("ud_odp_caps", transport_odp(odp.ud_odp_caps))
        .add("completion_timestamp_mask", Value::Hex(attr.timestamp_mask))
        .add(
            "hca_core_clock",
            Value::Quantity(attr.hca_core_clock, "kHz"),
        )
        .add("rss_supported_qpts", qp_types(attr.rss.supported_qpts))
        .add(
            "max_rwq_indirection_tables",
            attr.rss.max_rwq_indirection_tables,
        )
        .add(
            "max_rwq_indirection_table_size",
            attr.rss.max_rwq_indirection_table_size,
        );
    tag_matching(fields, attr);
    fields
        .add(
            "max_cq_moderation_count",
            attr.cq_moderation.max_cq_moderation_count,
        )
        .add(
            "max_cq_moderation_period",
            Value::Quantity(attr.cq_moderation.max_cq_moderation_period.into(), "µs"),
        )
        .add("num_comp_vectors", context.num_comp_vectors())
        .add("core_support", Value::flags(context.core_support()));
}

fn tag_matching(fields: &mut Fields, attr: &DeviceAttr) {
    let caps = attr.tag_matching;
    fields.add("tm_max_num_tags", caps.max_num_tags);
    if caps.max_num_tags > 0 {
        fields
            .add("tm_max_rndv_hdr_size", caps.max_rndv_hdr_size)
            .add("tm_max_ops", caps.max_ops)
            .add("tm_max_sge", caps.max_sge)
            .add(
                "tm_flags",
                Value::flags(TmCapFlags::from_bits_retain(caps.flags)),
            );
    }
}

/// The QP types of a mask that has bit n for type n.
fn qp_types(mask: u32) -> Value {
    let set = (0..u32::BITS).filter(|bit| mask & 1 << bit != 0);
    let names = set.map(|bit| match QpType::IDS.name(bit) {
        Some(name) => name.to_owned(),
        None => bit.to_string(),
    });
    Value::List(names.map(|name| (name.clone(), json!(name))).collect())
}

fn port_basics(number: u8, attr: &PortAttr) -> Fields {
    let mut fields = Fields::default();
    fields
        .add("port", number)
        .add("state", Value::text(attr.state))
        .add("phys_state", Value::text(attr.phys_state))
        .add(
            "link_layer",
            Value::named(LinkLayer::IDS, attr.link_layer.0),
        )
        .add("max_mtu", mtu(attr.max_mtu))
        .add("active_mtu", mtu(attr.active_mtu))
        .add("lid", attr.lid)
        .add("lmc", attr.lmc)
        .add("sm_lid", attr.sm_lid);
    fields
}

fn port_details(fields: &mut Fields, attr: &PortAttr) {
    fields
        .add("sm_sl", attr.sm_sl)
        .add(
            "max_msg_sz",
            Value::Quantity(attr.max_msg_sz.into(), "bytes"),
        )
        .add("port_cap_flags", Value::flags(attr.capabilities))
        .add("port_cap_flags2", Value::flags(attr.capabilities2))
        .add("flags", Value::flags(attr.flags))
        .add("max_vl_num", lanes(attr.max_vl_num))
        .add("bad_pkey_cntr", attr.bad_pkey_cntr)
        .add("qkey_viol_cntr", attr.qkey_viol_cntr)
        .add("pkey_tbl_len", attr.pkey_tbl_len)
        .add("gid_tbl_len", attr.gid_tbl_len)
        .add("subnet_timeout", attr.subnet_timeout)
        .add("init_type_reply", attr.init_type_reply)
        .add(
            "active_width",
            Value::named(LinkWidth::IDS, attr.active_width.into()),
        )
        .add("active_speed", speed(attr.active_speed_ex));
    if let Some(bandwidth) = attr.bandwidth {
        fields.add("bandwidth", Value::text(bandwidth));
    }
}

fn port_tables(fields: &mut Fields, device: &Device, number: u8, gids: &[GidEntry]) {
    let of_port = gids.iter().filter(|entry| entry.port == u32::from(number));
    fields.add("gids", Value::List(of_port.map(gid).collect()));
    // Only sysfs has partition keys. If it is missing, nothing is shown.
    if let Ok(pkeys) = device.pkeys(number.into()) {
        fields.add("pkeys", Value::List(pkeys.into_iter().map(pkey).collect()));
    }
}

fn gid(entry: &GidEntry) -> (String, Json) {
    let GidEntry {
        index,
        gid,
        gid_type,
        ..
    } = entry;
    let json = json!({
        "index": index,
        "gid": gid.to_string(),
        "type": gid_type.to_string(),
    });
    (format!("{index:3}  {gid}  {gid_type}"), json)
}

fn pkey((index, pkey): (u32, u16)) -> (String, Json) {
    let json = json!({ "index": index, "pkey": pkey });
    (format!("{index:3}  {pkey:#06x}"), json)
}

/// An MTU in bytes, or its code if the code is unknown.
fn mtu(mtu: Mtu) -> Value {
    match mtu.bytes() {
        Some(bytes) => Value::Quantity(bytes.into(), "bytes"),
        None => Value::Code(mtu.0.into()),
    }
}

/// The speed of a lane by its code (`enum ib_port_speed` in the kernel's `include/rdma/ib_verbs.h`).
fn speed(code: u32) -> Value {
    let gigabits = match LinkSpeed(code) {
        LinkSpeed::SDR => "2.5",
        LinkSpeed::DDR => "5",
        LinkSpeed::QDR | LinkSpeed::FDR10 => "10",
        LinkSpeed::FDR => "14",
        LinkSpeed::EDR => "25",
        LinkSpeed::HDR => "50",
        LinkSpeed::NDR => "100",
        LinkSpeed::XDR => "200",
        _ => return Value::Code(code.into()),
    };
    let name = LinkSpeed::IDS.name(code).unwrap_or_default();
    Value::text(format_args!("{name}, {gigabits} Gbit/s a lane"))
}

/// Virtual lanes by their code (InfiniBand specification, PortInfo:VLCap).
fn lanes(code: u8) -> Value {
    match code {
        1..=4 => Value::Number(1 << (code - 1)),
        5 => Value::Number(15),
        other => Value::Code(other.into()),
    }
}

fn to_text(infos: &[Info]) -> String {
    let texts = infos.iter().map(|info| {
        let ports = info
            .ports
            .iter()
            .map(|port| format!("\n{}", port.to_text(4)));
        info.device.to_text(0) + &ports.collect::<String>()
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn to_json(info: &Info) -> Json {
    let mut device = info.device.to_json();
    let ports = info.ports.iter().map(|port| port.to_json().into());
    device.insert("ports".into(), json!(ports.collect::<Vec<Json>>()));
    device.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a fast port that is shown as half as fast, and one whose code is not known as a number of
    /// another kind in JSON.
    #[test]
    fn speeds_have_names() {
        let text = |code| Value::text(format_args!("{code}"));
        assert_eq!(speed(128), text("NDR, 100 Gbit/s a lane"));
        assert_eq!(speed(256), text("XDR, 200 Gbit/s a lane"));
        assert_eq!(speed(512), Value::Code(512));
    }
}
