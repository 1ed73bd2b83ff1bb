//! What rdma-core's `ibv_devinfo -v` prints of the device, line by line against what this library's queries
//! say. A line that is not known here fails the test: somebody knows something that this library does not
//! tell.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv6Addr;
use std::process::Command;

use libtest_mimic::Trial;
use support::program::uverbs;
use support::role::finish;
use support::{Device, Result, device, fail, open, same, test};
use uverbs::uapi::flags::{DeviceCapFlags, OdpGeneralCapBits, OdpTransportCapBits, RawPacketCaps};
use uverbs::{
    Context,
    device::{NodeType, PhysicalState, PortState},
    gid::GidEntry,
    gid::GidType,
    qp::{Mtu, QpType},
    query::{AtomicCap, DeviceAttr, LinkLayer, PortAttr},
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("devinfo::says_the_same", says_the_same),
        test("devinfo::gids_are_those_of_sysfs", gids_are_those_of_sysfs),
        test("devinfo::a_shell_completes_them", a_shell_completes_them),
    ]
}

/// Catches a script that bash does not take, and names and numbers that are not those of this host.
fn a_shell_completes_them() -> Result {
    let program = uverbs()?;
    let folder = program.parent().ok_or("no folder")?.display().to_string();
    let completed = |words: &[&str]| -> Result<Vec<String>> {
        let last = words.last().copied().unwrap_or_default();
        let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let script = format!(
            "PATH={folder}:$PATH\neval \"$(uverbs completions bash)\"\nCOMP_WORDS=(uverbs {})\n\
             COMP_CWORD={}\n_clap_complete_uverbs uverbs '{last}' x\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len(),
        );
        let said = finish(Command::new("bash").args(["-c", &script]))?;
        Ok(said.lines().map(|line| line.trim().to_owned()).collect())
    };
    let mut names: Vec<String> = uverbs::devices()?
        .iter()
        .map(|device| device.name().to_owned())
        .collect();
    let has_all = |found: &[String], wanted: &[String]| {
        let all = wanted.iter().all(|it| found.contains(it));
        same(all, true, &format!("{wanted:?} in {found:?}"))
    };
    names.sort_unstable();
    has_all(&completed(&["info", "-d", ""])?, &names)?;
    has_all(&completed(&["gids", "--device", ""])?, &names)?;
    has_all(&completed(&["perf", "serve", "-d", ""])?, &names)?;
    has_all(&completed(&["gids", "-i", ""])?, &["1".to_owned()])?;
    let gids = open()?.gid_table()?;
    let indices: Vec<String> = gids.iter().map(|entry| entry.index.to_string()).collect();
    has_all(&completed(&["pingpong", "rc", "-g", ""])?, &indices)?;
    has_all(&completed(&["stati"])?, &["statistic".to_owned()])?;
    // What begins otherwise is left out.
    same(
        completed(&["info", "-d", "no such"])?,
        vec![String::new()],
        "completions",
    )
}

/// Catches a field that is read from the wrong place, and one that is not told at all.
fn says_the_same() -> Result {
    let context = open()?;
    let output = Command::new("ibv_devinfo")
        .args(["-v", "-d", device().name()])
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    same(output.status.success(), true, &text)?;
    let attr = context.query_device()?;
    let port = context.query_port(1)?;
    let mut ours = BTreeMap::new();
    of_device(&mut ours, &context, &attr);
    limits(&mut ours, &attr);
    of_port(&mut ours, &port);
    for entry in context.gid_table()? {
        ours.insert(format!("GID[{:3}]", entry.index), gid(&entry));
    }
    let mut wrong = Vec::new();
    for (key, said) in lines(&text)? {
        match ours.remove(&key) {
            Some(value) if value == said => {}
            Some(value) => wrong.push(format!("{key}: it says {said:?}, we {value:?}")),
            None if not_asked(&key, &said) => println!("not compared: {key}: {said}"),
            None => wrong.push(format!("{key}: {said}: a line that is not known")),
        }
    }
    // What it does not print has nothing in it.
    ours.retain(|_, value| value != "0x0");
    if attr.max_srq == 0 {
        ours.retain(|key, _| !["max_srq_wr", "max_srq_sge"].contains(&key.as_str()));
    }
    if port.link_layer == LinkLayer::UNSPECIFIED {
        ours.remove("phys_state");
    }
    same(
        (wrong, ours),
        Default::default(),
        "what differs, what it does not say",
    )
}

/// What the kernel's generic answers have no field for: the driver-private one has segmentation, pacing and
/// hashes of raw packets, which no queue pair of this library can use; and old kinds of objects, of which the
/// kernel has none.
fn not_asked(key: &str, said: &str) -> bool {
    let driver = [
        "tso_caps max_tso",
        "tso_caps supported_qp set",
        "rss_caps rx_hash_function",
        "rss_caps rx_hash_fields_mask",
        "packet_pacing_caps qp_rate_limit_min",
        "packet_pacing_caps qp_rate_limit_max",
        "xrc_odp_caps set",
        // The part number of the board, an attribute of the driver's in sysfs.
        "board_id",
    ];
    let old = [
        "max_ee_rd_atom",
        "max_ee_init_rd_atom",
        "max_ee",
        "max_rdd",
        "max_raw_ipv6_qp",
        "max_fmr",
    ];
    driver.contains(&key) || old.contains(&key) && said == "0"
}

/// The lines as keys with values. A line deep within is a bit of a set, which belongs to the key above it; a
/// set becomes one value, its bits.
fn lines(text: &str) -> Result<BTreeMap<String, String>> {
    let mut lines = BTreeMap::new();
    let mut sets: BTreeMap<String, u64> = BTreeMap::new();
    let (mut section, mut key) = ("", String::new());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let depth = line.len() - line.trim_start_matches('\t').len();
        let line = line.trim();
        if depth >= 5 {
            let Some(bits) = bits(&key, line) else {
                return fail(format!("{key}: {line:?}: a word that is not known"));
            };
            *sets.entry(format!("{key} set")).or_default() |= bits;
            continue;
        }
        let (name, value) = match (line.split_once(':'), line.strip_suffix(" not supported")) {
            (Some((name, value)), _) => (name, value.trim()),
            (None, Some(name)) => (name, "not supported"),
            (None, None) => return fail(format!("{line:?}: neither key nor value")),
        };
        key = match depth {
            2 if name != "port" => format!("{section} {name}"),
            _ => name.to_owned(),
        };
        if depth < 2 {
            section = name;
        }
        if !value.is_empty() {
            lines.insert(key.clone(), value.to_owned());
        }
    }
    lines.extend(sets.into_iter().map(|(key, bits)| (key, hex(bits))));
    Ok(lines)
}

/// The bits that a word in a set stands for.
fn bits(key: &str, word: &str) -> Option<u64> {
    if let Some(digits) = word.strip_prefix("Unknown flags: 0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    match key {
        "device_cap_flags" | "device_cap_flags_ex" => {
            DeviceCapFlags::from_name(word).map(|flag| flag.bits())
        }
        "general_odp_caps" => {
            OdpGeneralCapBits::from_name(word.strip_prefix("ODP_")?).map(|flag| flag.bits())
        }
        "rc_odp_caps" | "uc_odp_caps" | "ud_odp_caps" | "xrc_odp_caps" => {
            let name = match word.strip_prefix("SUPPORT_") {
                None if word == "NO SUPPORT" => return Some(0),
                Some("SRQ") => "SRQ_RECV",
                name => name?,
            };
            OdpTransportCapBits::from_name(name).map(|flag| flag.bits().into())
        }
        "raw packet caps" => Some(u64::from(match word {
            "C-VLAN stripping offload" => RawPacketCaps::CVLAN_STRIPPING.bits(),
            "Scatter FCS offload" => RawPacketCaps::SCATTER_FCS.bits(),
            "IP csum offload" => RawPacketCaps::IP_CSUM.bits(),
            "Delay drop" => RawPacketCaps::DELAY_DROP.bits(),
            _ => return None,
        })),
        "tso_caps supported_qp" | "rss_caps supported_qp" => match word {
            "SUPPORT_RAW_PACKET" => Some(1 << QpType::RAW_PACKET.0),
            "SUPPORT_UD" => Some(1 << QpType::UD.0),
            _ => None,
        },
        _ => None,
    }
}

fn hex(number: impl Into<u64>) -> String {
    format!("{:#x}", number.into())
}

/// Who the device is, and what it can do.
fn of_device(ours: &mut BTreeMap<String, String>, context: &Context, attr: &DeviceAttr) {
    let known = context.device();
    let capabilities = attr.capabilities.bits();
    let (low, high) = (capabilities & 0xffff_ffff, capabilities >> 32 << 32);
    let odp = attr.odp.per_transport_caps;
    let atomic = match attr.atomic_cap {
        AtomicCap::NONE => "ATOMIC_NONE (0)",
        AtomicCap::HCA => "ATOMIC_HCA (1)",
        AtomicCap::GLOB => "ATOMIC_GLOB (2)",
        _ => "invalid atomic capability",
    };
    let clock = match attr.hca_core_clock {
        0 => ("core clock", "not supported".into()),
        kilohertz => ("hca_core_clock", format!("{kilohertz}kHZ")),
    };
    let timestamps = match attr.timestamp_mask {
        0 => ("completion_timestamp_mask", "not supported".into()),
        mask => ("completion timestamp_mask", format!("{mask:#018x}")),
    };
    let tags = match attr.tag_matching.max_num_tags {
        0 => "not supported".into(),
        tags => tags.to_string(),
    };
    // rxe has no text for it; its library makes one of the number.
    let firmware = match known.firmware_version().unwrap_or_default() {
        // That of an EFA's of each of its first bytes.
        _ if device() == Device::Efa => {
            let [a, b, c, d, ..] = attr.fw_ver.to_ne_bytes();
            format!("{a}.{b}.{c}.{d}")
        }
        "" => {
            let part = |shift: u32| attr.fw_ver >> shift & 0xffff;
            format!("{}.{}.{}", part(32), part(16), part(0))
        }
        text => text.to_owned(),
    };
    let moderation = attr.cq_moderation;
    ours.extend(
        [
            ("hca_id", context.name().to_owned()),
            // Of channel adapters, InfiniBand's also on Ethernet.
            (
                "transport",
                match known.node_type() {
                    Some(NodeType::ChannelAdapter) => "InfiniBand (0)".into(),
                    Some(NodeType::Unspecified) => "unspecified (4)".into(),
                    other => format!("{other:?}"),
                },
            ),
            ("fw_ver", firmware),
            ("node_guid", attr.node_guid.to_string()),
            ("sys_image_guid", attr.sys_image_guid.to_string()),
            ("vendor_id", format!("{:#06x}", attr.vendor_id)),
            ("vendor_part_id", attr.vendor_part_id.to_string()),
            ("hw_ver", format!("0x{:X}", attr.hw_ver)),
            ("phys_port_cnt", attr.phys_port_cnt.to_string()),
            ("page_size_cap", hex(attr.page_size_cap)),
            ("device_cap_flags", format!("{low:#010x}")),
            ("device_cap_flags set", hex(low)),
            ("device_cap_flags_ex", format!("0x{capabilities:X}")),
            ("device_cap_flags_ex set", hex(high)),
            ("atomic_cap", atomic.into()),
            ("general_odp_caps set", hex(attr.odp.general_caps)),
            ("rc_odp_caps set", hex(odp.rc_odp_caps)),
            ("uc_odp_caps set", hex(odp.uc_odp_caps)),
            ("ud_odp_caps set", hex(odp.ud_odp_caps)),
            clock,
            timestamps,
            ("raw packet caps set", hex(attr.raw_packet.bits())),
            ("rss_caps supported_qp set", hex(attr.rss.supported_qpts)),
            ("tag matching", tags),
            ("num_comp_vectors", context.num_comp_vectors().to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    // Printed only where there is any.
    if moderation.max_cq_moderation_count > 0 {
        let count = moderation.max_cq_moderation_count.to_string();
        let period = format!("{} us", moderation.max_cq_moderation_period);
        ours.insert("cq moderation caps max_cq_count".into(), count);
        ours.insert("cq moderation caps max_cq_period".into(), period);
    }
}

/// The device's limits, which are plain numbers.
fn limits(ours: &mut BTreeMap<String, String>, attr: &DeviceAttr) {
    let numbers: [(&str, u64); 25] = [
        ("max_qp", attr.max_qp.into()),
        ("max_qp_wr", attr.max_qp_wr.into()),
        ("max_sge", attr.max_sge.into()),
        ("max_sge_rd", attr.max_sge_rd.into()),
        ("max_cq", attr.max_cq.into()),
        ("max_cqe", attr.max_cqe.into()),
        ("max_mr", attr.max_mr.into()),
        ("max_pd", attr.max_pd.into()),
        ("max_qp_rd_atom", attr.max_qp_rd_atom.into()),
        ("max_res_rd_atom", attr.max_res_rd_atom.into()),
        ("max_qp_init_rd_atom", attr.max_qp_init_rd_atom.into()),
        ("max_mw", attr.max_mw.into()),
        ("max_raw_ethy_qp", attr.max_raw_ethy_qp.into()),
        ("max_mcast_grp", attr.max_mcast_grp.into()),
        ("max_mcast_qp_attach", attr.max_mcast_qp_attach.into()),
        (
            "max_total_mcast_qp_attach",
            attr.max_total_mcast_qp_attach.into(),
        ),
        ("max_ah", attr.max_ah.into()),
        ("max_srq", attr.max_srq.into()),
        ("max_srq_wr", attr.max_srq_wr.into()),
        ("max_srq_sge", attr.max_srq_sge.into()),
        ("max_pkeys", attr.max_pkeys.into()),
        ("local_ca_ack_delay", attr.local_ca_ack_delay.into()),
        ("max_wq_type_rq", attr.max_wq_type_rq.into()),
        (
            "rss_caps max_rwq_indirection_tables",
            attr.rss.max_rwq_indirection_tables.into(),
        ),
        (
            "rss_caps max_rwq_indirection_table_size",
            attr.rss.max_rwq_indirection_table_size.into(),
        ),
    ];
    let texts = numbers.map(|(key, number)| (key.to_owned(), number.to_string()));
    ours.extend(texts);
    ours.insert("max_mr_size".into(), hex(attr.max_mr_size));
    if attr.max_dm_size > 0 {
        let said = format!("{}Bytes", attr.max_dm_size);
        ours.insert("maximum available device memory".into(), said);
    }
}

fn of_port(ours: &mut BTreeMap<String, String>, attr: &PortAttr) {
    let mtu = |mtu: Mtu| format!("{} ({})", mtu.bytes().unwrap_or(0), mtu.0);
    let state = match attr.state {
        PortState::Active => "PORT_ACTIVE (4)".into(),
        other => format!("{other:?}"),
    };
    let physical = match attr.phys_state {
        PhysicalState::LinkUp => "LINK_UP (5)".into(),
        other => format!("{other:?}"),
    };
    let layer = match attr.link_layer {
        LinkLayer::ETHERNET => "Ethernet".into(),
        LinkLayer::INFINIBAND => "InfiniBand".into(),
        LinkLayer::UNSPECIFIED => "Unspecified".into(),
        other => format!("{other:?}"),
    };
    let lanes = match attr.max_vl_num {
        code @ 1..=4 => format!("{} ({code})", 1 << (code - 1)),
        5 => "15 (5)".into(),
        code => format!("invalid value ({code})"),
    };
    let width = match attr.active_width {
        code @ (1 | 2) => format!("{}X ({code})", code * code),
        4 => "8X (4)".into(),
        8 => "12X (8)".into(),
        16 => "2X (16)".into(),
        code => format!("invalid width ({code})"),
    };
    let speed = match attr.active_speed {
        code @ 1 => format!("2.5 Gbps ({code})"),
        code @ 2 => format!("5.0 Gbps ({code})"),
        code @ (4 | 8) => format!("10.0 Gbps ({code})"),
        code @ 16 => format!("14.0 Gbps ({code})"),
        code @ 32 => format!("25.0 Gbps ({code})"),
        code @ 64 => format!("50.0 Gbps ({code})"),
        code @ 128 => format!("100.0 Gbps ({code})"),
        code => format!("invalid speed ({code})"),
    };
    ours.extend(
        [
            ("port", "1".into()),
            ("state", state),
            ("max_mtu", mtu(attr.max_mtu)),
            ("active_mtu", mtu(attr.active_mtu)),
            ("sm_lid", attr.sm_lid.to_string()),
            ("port_lid", attr.lid.to_string()),
            ("port_lmc", format!("{:#04x}", attr.lmc)),
            ("link_layer", layer),
            ("max_msg_sz", hex(attr.max_msg_sz)),
            (
                "port_cap_flags",
                format!("{:#010x}", attr.capabilities.bits()),
            ),
            (
                "port_cap_flags2",
                format!("{:#06x}", attr.capabilities2.bits()),
            ),
            ("max_vl_num", lanes),
            ("bad_pkey_cntr", hex(attr.bad_pkey_cntr)),
            ("qkey_viol_cntr", hex(attr.qkey_viol_cntr)),
            ("sm_sl", attr.sm_sl.to_string()),
            ("pkey_tbl_len", attr.pkey_tbl_len.to_string()),
            ("gid_tbl_len", attr.gid_tbl_len.to_string()),
            ("subnet_timeout", attr.subnet_timeout.to_string()),
            ("init_type_reply", attr.init_type_reply.to_string()),
            ("active_width", width),
            ("active_speed", speed),
            ("phys_state", physical),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
}

/// A GID: as an IP address where packets have IP headers, else in groups of four digits.
fn gid(entry: &GidEntry) -> String {
    let groups = || grouped(entry.gid.raw());
    match entry.gid_type {
        GidType::Ib => groups(),
        GidType::RoceV2 => format!("{}, RoCE v2", Ipv6Addr::from(entry.gid)),
        other => format!("{}, {other}", groups()),
    }
}

fn grouped(raw: [u8; 16]) -> String {
    let (pairs, _) = raw.as_chunks::<2>();
    let groups = pairs
        .iter()
        .map(|[first, second]| format!("{first:02x}{second:02x}"));
    groups.collect::<Vec<_>>().join(":")
}

/// Catches an entry that is left out, doubled, of another type, or of another network device: `show_gids`
/// prints what is compared here, from the same files.
fn gids_are_those_of_sysfs() -> Result {
    let context = open()?;
    let port = format!("/sys/class/infiniband/{}/ports/1", context.name());
    let is_roce = context.query_port(1)?.link_layer == LinkLayer::ETHERNET;
    let mut there = Vec::new();
    for index in 0..context.query_port(1)?.gid_tbl_len {
        let gid = fs::read_to_string(format!("{port}/gids/{index}"))?;
        if gid.trim() == grouped([0; 16]) {
            continue;
        }
        let kind = fs::read_to_string(format!("{port}/gid_attrs/types/{index}"))?;
        // One text for two types, which the link tells apart.
        let kind = match kind.trim() {
            "IB/RoCE v1" if is_roce => GidType::RoceV1,
            "IB/RoCE v1" => GidType::Ib,
            "RoCE v2" => GidType::RoceV2,
            other => return fail(format!("the type {other:?}")),
        };
        // On InfiniBand a GID has no network device, and its file cannot be read.
        let netdev = match fs::read_to_string(format!("{port}/gid_attrs/ndevs/{index}")) {
            Ok(name) => {
                let number = format!("/sys/class/net/{}/ifindex", name.trim());
                fs::read_to_string(number)?.trim().parse::<u32>()?
            }
            Err(_) if !is_roce => 0,
            Err(error) => return Err(error.into()),
        };
        there.push((1, index, gid.trim().to_owned(), kind, netdev));
    }
    same(there.is_empty(), false, "an empty table")?;
    let ours = |entry: &GidEntry| {
        let gid = grouped(entry.gid.raw());
        (
            entry.port,
            entry.index,
            gid,
            entry.gid_type,
            entry.netdev_ifindex,
        )
    };
    let table = context.gid_table()?;
    same(table.iter().map(ours).collect(), there, "the table")?;
    for entry in &table {
        same(
            context.query_gid(1, entry.index)?,
            *entry,
            "an entry by itself",
        )?;
    }
    Ok(())
}
