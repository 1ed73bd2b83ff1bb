//! Flags of devices.

use bitflags::bitflags;

bitflags! {
    /// Capabilities of a device (`enum ib_uverbs_device_cap_flags`); the legacy command returns the lower 32
    /// bits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DeviceCapFlags: u64 {
        /// Capacities of a QP can be changed.
        const RESIZE_MAX_WR = 1 << 0;
        /// Counts bad partition keys.
        const BAD_PKEY_CNTR = 1 << 1;
        /// Counts wrong Q_Keys.
        const BAD_QKEY_CNTR = 1 << 2;
        /// Raw packet multicast.
        const RAW_MULTI = 1 << 3;
        /// Path migration.
        const AUTO_PATH_MIG = 1 << 4;
        /// The port of a QP can be changed.
        const CHANGE_PHY_PORT = 1 << 5;
        /// Checks the port of address handles.
        const UD_AV_PORT_ENFORCE = 1 << 6;
        /// Modify can name the current state of a QP.
        const CURR_QP_STATE_MOD = 1 << 7;
        /// Ports can be shut down.
        const SHUTDOWN_PORT = 1 << 8;
        /// Raises an event when a port comes up.
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// Has a system image GUID.
        const SYS_IMAGE_GUID = 1 << 11;
        /// Notifies senders if no receive is posted.
        const RC_RNR_NAK_GEN = 1 << 12;
        /// SRQs can be resized.
        const SRQ_RESIZE = 1 << 13;
        /// Can be armed for the n-th completion.
        const N_NOTIFY_CQ = 1 << 14;
        /// Memory windows, type 1.
        const MEM_WINDOW = 1 << 17;
        /// IP checksums on UD.
        const UD_IP_CSUM = 1 << 18;
        /// XRC.
        const XRC = 1 << 20;
        /// Fast registration and invalidation by work requests.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// Memory windows, type 2A.
        const MEM_WINDOW_TYPE_2A = 1 << 23;
        /// Memory windows, type 2B.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
        /// IP checksums on RC.
        const RC_IP_CSUM = 1 << 25;
        /// IP checksums on raw packets; see also [`RawPacketCaps::IP_CSUM`].
        const RAW_IP_CSUM = 1 << 26;
        /// Flow steering.
        const MANAGED_FLOW_STEERING = 1 << 29;
        /// Frame checksums are scattered too; see also [`RawPacketCaps::SCATTER_FCS`].
        const RAW_SCATTER_FCS = 1 << 34;
        /// Writes can be padded to cache lines.
        const PCI_WRITE_END_PADDING = 1 << 36;
        /// Flush for visibility. Since Linux 6.2.
        const FLUSH_GLOBAL = 1 << 38;
        /// Flush for persistence. Since Linux 6.2.
        const FLUSH_PERSISTENT = 1 << 39;
        /// Atomic write. Since Linux 6.2.
        const ATOMIC_WRITE = 1 << 40;
        /// This is a confidential guest that needs bounce buffers. Since Linux 7.2.
        const CC_DMA_BOUNCE = 1 << 41;
    }
}

bitflags! {
    /// Capabilities of raw packet QPs (`enum ib_uverbs_raw_packet_caps`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RawPacketCaps: u32 {
        /// Strip VLAN tags.
        const CVLAN_STRIPPING = 1 << 0;
        /// Scatter frame checksums.
        const SCATTER_FCS = 1 << 1;
        /// IP checksums.
        const IP_CSUM = 1 << 2;
        /// Wait for a receive before dropping.
        const DELAY_DROP = 1 << 3;
    }
}

bitflags! {
    /// On-demand paging (`enum ib_uverbs_odp_general_cap_bits`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OdpGeneralCapBits: u64 {
        /// It is supported.
        const SUPPORT = 1 << 0;
        /// For the whole address space.
        const SUPPORT_IMPLICIT = 1 << 1;
    }
}

bitflags! {
    /// Operations that may touch memory under on-demand paging (`enum ib_uverbs_odp_transport_cap_bits`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OdpTransportCapBits: u32 {
        /// Send.
        const SEND = 1 << 0;
        /// Receive.
        const RECV = 1 << 1;
        /// RDMA write.
        const WRITE = 1 << 2;
        /// RDMA read.
        const READ = 1 << 3;
        /// Atomic operations.
        const ATOMIC = 1 << 4;
        /// Receive from an SRQ.
        const SRQ_RECV = 1 << 5;
        /// Flush.
        const FLUSH = 1 << 6;
        /// Atomic write.
        const ATOMIC_WRITE = 1 << 7;
    }
}

bitflags! {
    /// Tag matching.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct TmCapFlags: u32 {
        /// On RC QPs.
        const RC = 1 << 0;
    }
}

bitflags! {
    /// Guarantees of the kernel's core (`enum ib_uverbs_core_support`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CoreSupport: u64 {
        /// Ignores optional access flags that the driver does not know.
        const OPTIONAL_MR_ACCESS = 1 << 0;
        /// Drivers refuse driver data that they do not know. Since Linux 7.1.
        const ROBUST_UDATA = 1 << 1;
    }
}
