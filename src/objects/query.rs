//! What a device and its ports are capable of.
//!
//! The structs carry the field names of `ibv_query_device_ex(3)` and `ibv_query_port(3)`; flags and numbers
//! that mean something have types.

use uverbs_uapi::enums::{LinkSpeed, LinkWidth, Mtu};
use uverbs_uapi::flags::RawPacketCaps;
use uverbs_uapi::types::{
    CqModerationCaps, ExQueryDeviceResp, OdpCaps, QueryPortRespEx, RssCaps, TmCaps,
};

pub use crate::work::WallClock;
pub use uverbs_uapi::enums::{AtomicCap, LinkLayer};
pub use uverbs_uapi::flags::{
    CoreSupport, DeviceCapFlags, PortCapFlags, PortCapFlags2, QueryPortFlags,
};

use crate::command::{QueryDevice, QueryGid, QueryGidTable, QueryPort};
use crate::context::Context;
use crate::device::{Bandwidth, PhysicalState, PortState};
use crate::error::{Errno, Error, Result, Verb};
use crate::gid::GidEntry;
use crate::guid::Guid;

/// The attributes of a device. The limits are those of the device; those of the process may be lower.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Firmware version as a number; [`Device::firmware_version`](crate::Device::firmware_version) has its
    /// text.
    pub fw_ver: u64,
    /// GUID of the node.
    pub node_guid: Guid,
    /// GUID of the system that the node is a part of.
    pub sys_image_guid: Guid,
    /// Bytes of the largest memory region.
    pub max_mr_size: u64,
    /// The page sizes that memory can be mapped with: bit n for 2ⁿ bytes.
    pub page_size_cap: u64,
    /// IEEE vendor id.
    pub vendor_id: u32,
    /// The vendor's number of the part.
    pub vendor_part_id: u32,
    /// Hardware version.
    pub hw_ver: u32,
    /// What the device can do.
    pub capabilities: DeviceCapFlags,
    /// Queue pairs.
    pub max_qp: u32,
    /// Requests in flight on a queue.
    pub max_qp_wr: u32,
    /// Slices of a request.
    pub max_sge: u32,
    /// Slices of an RDMA READ.
    pub max_sge_rd: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// READs and atomics of the peer in flight on a queue pair.
    pub max_qp_rd_atom: u32,
    /// READs and atomics of peers in flight on the device.
    pub max_res_rd_atom: u32,
    /// READs and atomics of this side in flight on a queue pair.
    pub max_qp_init_rd_atom: u32,
    /// Whether there are atomics, and whether they are atomic within the device or towards the processor too.
    pub atomic_cap: AtomicCap,
    /// Memory windows.
    pub max_mw: u32,
    /// Raw packet queue pairs.
    pub max_raw_ethy_qp: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs in a multicast group.
    pub max_mcast_qp_attach: u32,
    /// Queue pairs in multicast groups in all.
    pub max_total_mcast_qp_attach: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Requests on a shared receive queue.
    pub max_srq_wr: u32,
    /// Slices of a request on a shared receive queue.
    pub max_srq_sge: u32,
    /// Partition keys.
    pub max_pkeys: u16,
    /// How long the device takes to acknowledge: 4.096 µs · 2ⁿ.
    pub local_ca_ack_delay: u8,
    /// Ports.
    pub phys_port_cnt: u8,
    /// On-demand paging, by transport.
    pub odp: OdpCaps,
    /// The valid bits of a completion timestamp; 0 without timestamps.
    pub timestamp_mask: u64,
    /// The clock of the timestamps in kHz; 0 if there is none.
    pub hca_core_clock: u64,
    /// Receive-side scaling.
    pub rss: RssCaps,
    /// Work queues of the receive kind.
    pub max_wq_type_rq: u32,
    /// What raw packet queue pairs can do.
    pub raw_packet: RawPacketCaps,
    /// Tag matching.
    pub tag_matching: TmCaps,
    /// Moderation of completion events.
    pub cq_moderation: CqModerationCaps,
    /// Bytes of the device's own memory that can be allocated.
    pub max_dm_size: u64,
}

impl From<ExQueryDeviceResp> for DeviceAttr {
    fn from(raw: ExQueryDeviceResp) -> Self {
        let base = raw.base;
        Self {
            fw_ver: base.fw_ver,
            node_guid: Guid(base.node_guid.get()),
            sys_image_guid: Guid(base.sys_image_guid.get()),
            max_mr_size: base.max_mr_size,
            page_size_cap: base.page_size_cap,
            vendor_id: base.vendor_id,
            vendor_part_id: base.vendor_part_id,
            hw_ver: base.hw_ver,
            // The extended flags repeat the 32 plain ones where the kernel knows them.
            capabilities: DeviceCapFlags::from_bits_retain(
                raw.device_cap_flags_ex | u64::from(base.device_cap_flags),
            ),
            max_qp: base.max_qp,
            max_qp_wr: base.max_qp_wr,
            max_sge: base.max_sge,
            max_sge_rd: base.max_sge_rd,
            max_cq: base.max_cq,
            max_cqe: base.max_cqe,
            max_mr: base.max_mr,
            max_pd: base.max_pd,
            max_qp_rd_atom: base.max_qp_rd_atom,
            max_res_rd_atom: base.max_res_rd_atom,
            max_qp_init_rd_atom: base.max_qp_init_rd_atom,
            atomic_cap: base.atomic_cap.into(),
            max_mw: base.max_mw,
            max_raw_ethy_qp: base.max_raw_ethy_qp,
            max_mcast_grp: base.max_mcast_grp,
            max_mcast_qp_attach: base.max_mcast_qp_attach,
            max_total_mcast_qp_attach: base.max_total_mcast_qp_attach,
            max_ah: base.max_ah,
            max_srq: base.max_srq,
            max_srq_wr: base.max_srq_wr,
            max_srq_sge: base.max_srq_sge,
            max_pkeys: base.max_pkeys,
            local_ca_ack_delay: base.local_ca_ack_delay,
            phys_port_cnt: base.phys_port_cnt,
            odp: raw.odp_caps,
            timestamp_mask: raw.timestamp_mask,
            hca_core_clock: raw.hca_core_clock,
            rss: raw.rss_caps,
            max_wq_type_rq: raw.max_wq_type_rq,
            raw_packet: RawPacketCaps::from_bits_retain(raw.raw_packet_caps),
            tag_matching: raw.tm_caps,
            cq_moderation: raw.cq_moderation_caps,
            max_dm_size: raw.max_dm_size,
        }
    }
}

/// The attributes of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttr {
    /// The logical state of the link.
    pub state: PortState,
    /// The physical state of the link.
    pub phys_state: PhysicalState,
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// The largest packet that the port supports.
    pub max_mtu: Mtu,
    /// The largest packet as the link is configured.
    pub active_mtu: Mtu,
    /// Bytes of the largest message.
    pub max_msg_sz: u32,
    /// Entries of the GID table.
    pub gid_tbl_len: u32,
    /// Entries of the partition key table.
    pub pkey_tbl_len: u16,
    /// The port's LID; 0 on Ethernet.
    pub lid: u16,
    /// The LID of the subnet manager.
    pub sm_lid: u16,
    /// The service level of the subnet manager.
    pub sm_sl: u8,
    /// How many low bits of the LID address this port.
    pub lmc: u8,
    /// Virtual lanes, as a code.
    pub max_vl_num: u8,
    /// How long a packet may take through the subnet, as a code.
    pub subnet_timeout: u8,
    /// What the subnet manager did when it initialised the port.
    pub init_type_reply: u8,
    /// The width of the link, as a code: 1 for 1x, 2 for 4x, 4 for 8x, 8 for 12x, 16 for 2x.
    pub active_width: u8,
    /// The speed of a lane, as a code.
    pub active_speed: u8,
    /// The speed of a lane, as a code: also one that does not fit into `active_speed`, which is then a lower
    /// one.
    pub active_speed_ex: u32,
    /// What the link carries, by its width and speed; `None` if one of them is unknown.
    pub bandwidth: Option<Bandwidth>,
    /// Packets dropped for their partition key.
    pub bad_pkey_cntr: u32,
    /// Packets dropped for their Q_Key.
    pub qkey_viol_cntr: u32,
    /// What the port can do.
    pub capabilities: PortCapFlags,
    /// More of what the port can do.
    pub capabilities2: PortCapFlags2,
    /// What the port requires of paths.
    pub flags: QueryPortFlags,
}

impl From<QueryPortRespEx> for PortAttr {
    fn from(raw: QueryPortRespEx) -> Self {
        let port = raw.legacy_resp;
        // Speeds above 8 bits are only in the newer of the two.
        let speed = match raw.active_speed_ex {
            0 => port.active_speed.into(),
            speed => speed,
        };
        Self {
            state: port.state.into(),
            phys_state: port.phys_state.into(),
            link_layer: port.link_layer.into(),
            max_mtu: port.max_mtu.into(),
            active_mtu: port.active_mtu.into(),
            max_msg_sz: port.max_msg_sz,
            gid_tbl_len: port.gid_tbl_len,
            pkey_tbl_len: port.pkey_tbl_len,
            lid: port.lid,
            sm_lid: port.sm_lid,
            sm_sl: port.sm_sl,
            lmc: port.lmc,
            max_vl_num: port.max_vl_num,
            subnet_timeout: port.subnet_timeout,
            init_type_reply: port.init_type_reply,
            active_width: port.active_width,
            active_speed: port.active_speed,
            active_speed_ex: speed,
            bandwidth: Bandwidth::of_port(LinkSpeed(speed), LinkWidth(port.active_width.into())),
            bad_pkey_cntr: port.bad_pkey_cntr,
            qkey_viol_cntr: port.qkey_viol_cntr,
            capabilities: PortCapFlags::from_bits_retain(port.port_cap_flags),
            capabilities2: PortCapFlags2::from_bits_retain(raw.port_cap_flags2),
            flags: QueryPortFlags::from_bits_retain(port.flags),
        }
    }
}

impl Context {
    /// Adds the device's limits to an error that they may have caused: the kernel's EINVAL to a verb, except
    /// to the mapping of a ring.
    pub(crate) fn with_limits(
        &self,
        error: Error,
        limits: impl FnOnce(&DeviceAttr) -> String,
    ) -> Error {
        if error.errno() != Some(Errno::INVAL) || error.verb() == Verb::MapQueue {
            return error;
        }
        match self.query_device() {
            Ok(device) => error.with_detail(limits(&device)),
            Err(_) => error,
        }
    }

    /// Queries the device.
    ///
    /// # Errors
    ///
    /// The device has been removed. Manual page: `ibv_query_device_ex(3)`.
    #[doc(alias = "ibv_query_device_ex")]
    pub fn query_device(&self) -> Result<DeviceAttr> {
        self.device_limits().map(DeviceAttr::from)
    }

    /// What the kernel says of the device, within what the driver can use.
    pub(crate) fn device_limits(&self) -> Result<ExQueryDeviceResp> {
        let mut found = self.fd().execute(&QueryDevice)?;
        found.base.max_qp_wr = self.driver().max_requests(found.base.max_qp_wr);
        Ok(found)
    }

    /// The device's clock now, in ticks of [`DeviceAttr::hca_core_clock`] kHz: the clock of completions'
    /// [timestamps](crate::Completion::timestamp).
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device has none, like rxe, or this library's
    /// driver cannot read it: mlx5's kernel driver shows the clock where pages have 4 KiB, and nowhere else.
    /// Manual page: `ibv_query_rt_values_ex(3)`.
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn raw_clock(&self) -> Result<u64> {
        self.driver().raw_clock(self.fd())
    }

    /// The relation of the device's clock to time of day, now: it converts
    /// [timestamps](crate::Completion::timestamp) of completions to nanoseconds since 1970.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver has no such clock, like rxe. Manual
    /// page: `mlx5dv_get_clock_info(3)`.
    pub fn wall_clock(&self) -> Result<WallClock> {
        self.driver().wall_clock(self.fd())
    }

    /// Queries a port, counted from 1.
    ///
    /// # Errors
    ///
    /// There is no such port (`EINVAL`); the text says how many there are. Manual page: `ibv_query_port(3)`.
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port: u8) -> Result<PortAttr> {
        let answer = self.fd().execute(&QueryPort { port });
        answer.map(PortAttr::from).map_err(|error| {
            self.with_limits(error, |device| match device.phys_port_cnt {
                1 => "its only port is 1".into(),
                last => format!("its ports are 1 to {last}"),
            })
        })
    }

    /// The entries of the GID tables of all ports that are in use.
    ///
    /// Kernels before 5.10 have no command for it; the library reads sysfs there.
    ///
    /// # Errors
    ///
    /// The device has been removed. Manual page: `ibv_query_gid_table(3)`.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_table(&self) -> Result<Vec<GidEntry>> {
        let mut room = QueryGidTable::USUAL;
        loop {
            return match self.fd().execute(&QueryGidTable { room }) {
                Ok(entries) => Ok(entries.into_iter().map(GidEntry::from).collect()),
                // The kernel answers EINVAL if there are more entries than there is room for.
                Err(error) if error.errno() == Some(Errno::INVAL) && room < QueryGidTable::MAX => {
                    room = QueryGidTable::MAX;
                    continue;
                }
                Err(error) if error.is_unsupported() => self.gid_table_by_sysfs(),
                Err(error) => Err(error),
            };
        }
    }

    fn gid_table_by_sysfs(&self) -> Result<Vec<GidEntry>> {
        let mut entries = Vec::new();
        for port in 1..=self.query_device()?.phys_port_cnt.into() {
            entries.extend(self.device().gid_table(port)?);
        }
        Ok(entries)
    }

    /// Whether the device has been removed, so that nothing in this context will work again. Makes one system
    /// call.
    ///
    /// Waits find out by themselves, and so does everything in `aio`. A loop that only polls has to ask. On
    /// Linux before 7.3 a soft-RoCE device is not gone as long as some process has it open.
    ///
    /// ```no_run
    /// # fn poll(context: &uverbs::Context, cq: &mut uverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut idle = 0_u32;
    /// loop {
    ///     match cq.poll()?.iter().count() {
    ///         0 => idle += 1,
    ///         _ => idle = 0,
    ///     }
    ///     // Rarely enough to cost nothing.
    ///     if idle >= 1 << 20 && context.is_device_gone() {
    ///         return Err("the device has been removed".into());
    ///     }
    ///     idle %= 1 << 20;
    /// }
    /// # }
    /// ```
    pub fn is_device_gone(&self) -> bool {
        self.query_port(1)
            .is_err_and(|error| error.is_device_gone())
    }

    /// One entry of a port's GID table.
    ///
    /// # Errors
    ///
    /// There is no such port or index, or the entry is empty; the text has the length of the table. Manual
    /// page: `ibv_query_gid_ex(3)`.
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn query_gid(&self, port: u8, index: u32) -> Result<GidEntry> {
        let command = QueryGid {
            port: port.into(),
            index,
        };
        match self.fd().execute(&command) {
            Ok(entry) => Ok(entry.into()),
            Err(error) if error.is_unsupported() => self.device().gid_entry(port.into(), index),
            Err(error) if error.is_device_gone() => Err(error),
            Err(error) => Err(error.with_detail(self.gids_in_use(port))),
        }
    }

    /// The indices of a port's GID table that are in use, for the error about one that is not.
    pub(crate) fn gids_in_use(&self, port: u8) -> String {
        let asked = self.query_port(port).and_then(|attr| {
            let table = self.gid_table()?;
            Ok((attr.gid_tbl_len, table))
        });
        let (length, table) = match asked {
            Ok(answers) => answers,
            Err(error) => return error.to_string(),
        };
        let of_port = table.iter().filter(|entry| entry.port == u32::from(port));
        match in_words(of_port.map(|entry| entry.index)) {
            None => format!("none of the {length} GID entries of port {port} is in use"),
            Some(used) => format!(
                "of the {length} GID entries of port {port} these are in use: {used}; `uverbs gids` shows them"
            ),
        }
    }

    /// One entry of a port's partition key table. Only sysfs has the table.
    ///
    /// # Errors
    ///
    /// There is no such port or index, or sysfs is not mounted. Manual page: `ibv_query_pkey(3)`.
    #[doc(alias = "ibv_query_pkey")]
    pub fn query_pkey(&self, port: u8, index: u16) -> Result<u16> {
        self.device().pkey(port.into(), index.into())
    }
}

/// Numbers in ascending order, as a list of ranges; `None` if there are none.
fn in_words(numbers: impl Iterator<Item = u32>) -> Option<String> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if Some(number) == last.checked_add(1) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let words = ranges.iter().map(|&(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    });
    (!ranges.is_empty()).then(|| words.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a table that cannot be read and is told as an empty one.
    #[test]
    fn a_table_that_cannot_be_read_is_not_empty() {
        let (_kernel, file) = rustix::pipe::pipe().unwrap();
        let context = Context::over(file);
        // The kernel has no command for the table, and sysfs is read after this.
        context.fd().refuse(Verb::QueryDevice, Errno::NOMEM, 1);
        let told = context.gids_in_use(1);
        assert_eq!(context.fd().refusals_left(), 0);
        assert!(told.starts_with("query_device"), "{told}");
    }

    /// Catches a list that leaves an index out, or names one that is not in use.
    #[test]
    fn indices_are_told_as_ranges() {
        let told = |numbers: &[u32]| in_words(numbers.iter().copied());
        assert_eq!(told(&[]), None);
        assert_eq!(told(&[3]).as_deref(), Some("3"));
        assert_eq!(
            told(&[0, 1, 4, 5, 6, 9]).as_deref(),
            Some("0, 1, 4 to 6, 9")
        );
        assert_eq!(told(&[u32::MAX, 0]).as_deref(), Some("4294967295, 0"));
    }
}
