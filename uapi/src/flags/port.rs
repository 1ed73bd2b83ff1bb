//! Flags of ports.

use bitflags::bitflags;

bitflags! {
    /// InfiniBand capability mask of a port (`enum ib_uverbs_query_port_cap_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PortCapFlags: u32 {
        /// Subnet manager.
        const SM = 1 << 1;
        /// Notices.
        const NOTICE_SUP = 1 << 2;
        /// Traps.
        const TRAP_SUP = 1 << 3;
        /// Optional inter-packet delays.
        const OPT_IPD_SUP = 1 << 4;
        /// Automatic path migration.
        const AUTO_MIGR_SUP = 1 << 5;
        /// Mapping of service levels.
        const SL_MAP_SUP = 1 << 6;
        /// M_Key is kept.
        const MKEY_NVRAM = 1 << 7;
        /// P_Keys are kept.
        const PKEY_NVRAM = 1 << 8;
        /// LED.
        const LED_INFO_SUP = 1 << 9;
        /// Subnet manager is disabled.
        const SM_DISABLED = 1 << 10;
        /// System image GUID.
        const SYS_IMAGE_GUID_SUP = 1 << 11;
        /// Traps of P_Keys at external ports.
        const PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12;
        /// Extended speeds.
        const EXTENDED_SPEEDS_SUP = 1 << 14;
        /// [`PortCapFlags2`] counts.
        const CAP_MASK2_SUP = 1 << 15;
        /// Connection management.
        const CM_SUP = 1 << 16;
        /// SNMP tunnel.
        const SNMP_TUNNEL_SUP = 1 << 17;
        /// Reinitialisation.
        const REINIT_SUP = 1 << 18;
        /// Device management.
        const DEVICE_MGMT_SUP = 1 << 19;
        /// Vendor classes.
        const VENDOR_CLASS_SUP = 1 << 20;
        /// Directed-route notices.
        const DR_NOTICE_SUP = 1 << 21;
        /// Notices of capability changes.
        const CAP_MASK_NOTICE_SUP = 1 << 22;
        /// Boot management.
        const BOOT_MGMT_SUP = 1 << 23;
        /// Link latency.
        const LINK_LATENCY_SUP = 1 << 24;
        /// Client reregistration.
        const CLIENT_REG_SUP = 1 << 25;
        /// GIDs come from IP addresses. Linux' own meaning of the bit.
        const IP_BASED_GIDS = 1 << 26;
        /// Table of speeds and widths.
        const LINK_SPEED_WIDTH_TABLE_SUP = 1 << 27;
        /// Table of vendor-specific MADs.
        const VENDOR_SPECIFIC_MADS_TABLE_SUP = 1 << 28;
        /// Suppression of multicast P_Key traps.
        const MCAST_PKEY_TRAP_SUPPRESSION_SUP = 1 << 29;
        /// Top of the multicast forwarding table.
        const MCAST_FDB_TOP_SUP = 1 << 30;
        /// Hierarchy information.
        const HIERARCHY_INFO_SUP = 1 << 31;
    }
}

bitflags! {
    /// Second InfiniBand capability mask of a port.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PortCapFlags2: u16 {
        /// Node description can be set.
        const SET_NODE_DESC_SUP = 1 << 0;
        /// Extended port information.
        const INFO_EXT_SUP = 1 << 1;
        /// Virtualisation.
        const VIRT_SUP = 1 << 2;
        /// Table of switch port states.
        const SWITCH_PORT_STATE_TABLE_SUP = 1 << 3;
        /// Two lanes.
        const LINK_WIDTH_2X_SUP = 1 << 4;
        /// HDR.
        const LINK_SPEED_HDR_SUP = 1 << 5;
        /// NDR.
        const LINK_SPEED_NDR_SUP = 1 << 10;
        /// XDR.
        const LINK_SPEED_XDR_SUP = 1 << 12;
    }
}

bitflags! {
    /// Flags of a port (`enum ib_uverbs_query_port_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QueryPortFlags: u8 {
        /// Every path needs a global route.
        const GRH_REQUIRED = 1 << 0;
    }
}
