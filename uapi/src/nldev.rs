//! RDMA netlink (`include/uapi/rdma/rdma_netlink.h`): the numbers that list devices, ports, their char
//! devices, the objects on them and the counters of queue pairs. It is not complete: settings of counters,
//! namespaces and pools are left out.

/// Client of the netlink family: upper bits of a message type.
pub mod client {
    ids! { u16, "RDMA_NL_";
        /// Devices.
        NLDEV = 5;
    }
}

/// Message type of an operation of a client (`RDMA_NL_GET_TYPE`).
#[must_use]
pub const fn message_type(client: u16, op: u16) -> u16 {
    (client << 10) + op
}

/// Operations of [`client::NLDEV`].
pub mod cmd {
    ids! { u16, "RDMA_NLDEV_CMD_";
        /// A device, or all of them as a dump.
        GET = 1;
        /// Change a device.
        SET = 2;
        /// Create a device on a network interface (rxe, siw).
        NEWLINK = 3;
        /// Delete such a device.
        DELLINK = 4;
        /// A port, or all ports of a device as a dump.
        PORT_GET = 5;
        /// Settings of the subsystem.
        SYS_GET = 6;
        /// Change settings of the subsystem.
        SYS_SET = 7;
        /// How many objects a device has.
        RES_GET = 9;
        /// QPs.
        RES_QP_GET = 10;
        /// Connection identifiers.
        RES_CM_ID_GET = 11;
        /// CQs.
        RES_CQ_GET = 12;
        /// Memory regions.
        RES_MR_GET = 13;
        /// Protection domains.
        RES_PD_GET = 14;
        /// A char device.
        GET_CHARDEV = 15;
        /// Counters of queue pairs, of ports or of memory regions.
        STAT_GET = 17;
        /// Contexts.
        RES_CTX_GET = 22;
        /// SRQs.
        RES_SRQ_GET = 23;
        /// Notifications of devices that appear and disappear. Since Linux 6.12.
        MONITOR = 28;
    }
}

/// Attributes of [`client::NLDEV`] messages.
pub mod attr {
    ids! { u16, "RDMA_NLDEV_";
        /// Index of a device (`u32`).
        DEV_INDEX = 1 => "ATTR_DEV_INDEX";
        /// Name of a device (string).
        DEV_NAME = 2 => "ATTR_DEV_NAME";
        /// Port, counted from 1; for a device the number of ports (`u32`).
        PORT_INDEX = 3 => "ATTR_PORT_INDEX";
        /// Capabilities of a device or a port (`u64`).
        CAP_FLAGS = 4 => "ATTR_CAP_FLAGS";
        /// Firmware version (string).
        FW_VERSION = 5 => "ATTR_FW_VERSION";
        /// GUID of the device in host order (`u64`).
        NODE_GUID = 6 => "ATTR_NODE_GUID";
        /// GUID of the system in host order (`u64`).
        SYS_IMAGE_GUID = 7 => "ATTR_SYS_IMAGE_GUID";
        /// Subnet prefix in host order (`u64`).
        SUBNET_PREFIX = 8 => "ATTR_SUBNET_PREFIX";
        /// Base LID (`u32`).
        LID = 9 => "ATTR_LID";
        /// LID of the subnet manager (`u32`).
        SM_LID = 10 => "ATTR_SM_LID";
        /// LID mask count (`u8`).
        LMC = 11 => "ATTR_LMC";
        /// [`crate::enums::PortState`] (`u8`).
        PORT_STATE = 12 => "ATTR_PORT_STATE";
        /// [`crate::enums::PhysState`] (`u8`).
        PORT_PHYS_STATE = 13 => "ATTR_PORT_PHYS_STATE";
        /// [`crate::enums::NodeType`] (`u8`).
        DEV_NODE_TYPE = 14 => "ATTR_DEV_NODE_TYPE";
        /// Counts of objects (nested).
        RES_SUMMARY = 15 => "ATTR_RES_SUMMARY";
        /// The count of one kind (nested).
        RES_SUMMARY_ENTRY = 16 => "ATTR_RES_SUMMARY_ENTRY";
        /// Its kind (string): "pd", "cq", "qp", "mr", ...
        RES_SUMMARY_ENTRY_NAME = 17 => "ATTR_RES_SUMMARY_ENTRY_NAME";
        /// How many there are (`u64`).
        RES_SUMMARY_ENTRY_CURR = 18 => "ATTR_RES_SUMMARY_ENTRY_CURR";
        /// QPs (nested).
        RES_QP = 19 => "ATTR_RES_QP";
        /// A QP (nested).
        RES_QP_ENTRY = 20 => "ATTR_RES_QP_ENTRY";
        /// Number of the QP (`u32`).
        RES_LQPN = 21 => "ATTR_RES_LQPN";
        /// Number of the peer's QP (`u32`).
        RES_RQPN = 22 => "ATTR_RES_RQPN";
        /// Packet sequence number to receive (`u32`).
        RES_RQ_PSN = 23 => "ATTR_RES_RQ_PSN";
        /// Packet sequence number to send (`u32`).
        RES_SQ_PSN = 24 => "ATTR_RES_SQ_PSN";
        /// [`crate::enums::MigState`] (`u8`).
        RES_PATH_MIG_STATE = 25 => "ATTR_RES_PATH_MIG_STATE";
        /// [`crate::enums::QpType`] (`u8`).
        RES_TYPE = 26 => "ATTR_RES_TYPE";
        /// [`crate::enums::QpState`] (`u8`).
        RES_STATE = 27 => "ATTR_RES_STATE";
        /// Process that created the object (`u32`).
        RES_PID = 28 => "ATTR_RES_PID";
        /// Part of the kernel that created the object (string).
        RES_KERN_NAME = 29 => "ATTR_RES_KERN_NAME";
        /// Connection identifiers (nested).
        RES_CM_ID = 30 => "ATTR_RES_CM_ID";
        /// A connection identifier (nested).
        RES_CM_ID_ENTRY = 31 => "ATTR_RES_CM_ID_ENTRY";
        /// Its port space (`u32`).
        RES_PS = 32 => "ATTR_RES_PS";
        /// Its own address (`sockaddr_storage`).
        RES_SRC_ADDR = 33 => "ATTR_RES_SRC_ADDR";
        /// The peer's address (`sockaddr_storage`).
        RES_DST_ADDR = 34 => "ATTR_RES_DST_ADDR";
        /// CQs (nested).
        RES_CQ = 35 => "ATTR_RES_CQ";
        /// A CQ (nested).
        RES_CQ_ENTRY = 36 => "ATTR_RES_CQ_ENTRY";
        /// Entries of a CQ (`u32`).
        RES_CQE = 37 => "ATTR_RES_CQE";
        /// Users of an object (`u64`).
        RES_USECNT = 38 => "ATTR_RES_USECNT";
        /// How a kernel's CQ is polled (`u8`).
        RES_POLL_CTX = 39 => "ATTR_RES_POLL_CTX";
        /// Memory regions (nested).
        RES_MR = 40 => "ATTR_RES_MR";
        /// A memory region (nested).
        RES_MR_ENTRY = 41 => "ATTR_RES_MR_ENTRY";
        /// Its remote key (`u32`).
        RES_RKEY = 42 => "ATTR_RES_RKEY";
        /// Its local key (`u32`).
        RES_LKEY = 43 => "ATTR_RES_LKEY";
        /// Its address for peers (`u64`).
        RES_IOVA = 44 => "ATTR_RES_IOVA";
        /// Its length in bytes (`u64`).
        RES_MRLEN = 45 => "ATTR_RES_MRLEN";
        /// Protection domains (nested).
        RES_PD = 46 => "ATTR_RES_PD";
        /// A protection domain (nested).
        RES_PD_ENTRY = 47 => "ATTR_RES_PD_ENTRY";
        /// Local key of all memory (`u32`).
        RES_LOCAL_DMA_LKEY = 48 => "ATTR_RES_LOCAL_DMA_LKEY";
        /// Remote key of all memory (`u32`).
        RES_UNSAFE_GLOBAL_RKEY = 49 => "ATTR_RES_UNSAFE_GLOBAL_RKEY";
        /// Index of a port's network interface (`u32`).
        NDEV_INDEX = 50 => "ATTR_NDEV_INDEX";
        /// Name of a port's network interface (string).
        NDEV_NAME = 51 => "ATTR_NDEV_NAME";
        /// The driver's own attributes (nested).
        DRIVER = 52 => "ATTR_DRIVER";
        /// Identifier of a PD (`u32`).
        RES_PDN = 60 => "ATTR_RES_PDN";
        /// Identifier of a CQ (`u32`).
        RES_CQN = 61 => "ATTR_RES_CQN";
        /// Identifier of a memory region (`u32`).
        RES_MRN = 62 => "ATTR_RES_MRN";
        /// Identifier of a connection (`u32`).
        RES_CM_IDN = 63 => "ATTR_RES_CM_IDN";
        /// Identifier of a context (`u32`).
        RES_CTXN = 64 => "ATTR_RES_CTXN";
        /// Driver of a device on a network interface (string): "rxe", "siw".
        LINK_TYPE = 65 => "ATTR_LINK_TYPE";
        /// Not 0: all network namespaces see all devices (`u8`).
        SYS_NETNS_MODE = 66 => "SYS_ATTR_NETNS_MODE";
        /// Protocol of a device (string): "ib", "roce", "iw".
        DEV_PROTOCOL = 67 => "ATTR_DEV_PROTOCOL";
        /// Network namespace to move a device to (`u32`, a file descriptor).
        NET_NS_FD = 68;
        /// Kind of char device (string): "uverbs", "umad", ...
        CHARDEV_TYPE = 69 => "ATTR_CHARDEV_TYPE";
        /// Name of the char device, without directory (string).
        CHARDEV_NAME = 70 => "ATTR_CHARDEV_NAME";
        /// ABI version of the char device (`u64`).
        CHARDEV_ABI = 71 => "ATTR_CHARDEV_ABI";
        /// Device number of the char device, as `dev_t` (`u64`).
        CHARDEV = 72 => "ATTR_CHARDEV";
        /// [`crate::enums::DriverId`] (`u32`).
        UVERBS_DRIVER_ID = 73 => "ATTR_UVERBS_DRIVER_ID";
        /// How a counter is bound to queue pairs (`u32`).
        STAT_MODE = 74 => "ATTR_STAT_MODE";
        /// The counted objects (`u32`), such as [`RES_QP`].
        STAT_RES = 75 => "ATTR_STAT_RES";
        /// Counters (nested).
        STAT_COUNTER = 77 => "ATTR_STAT_COUNTER";
        /// A counter (nested).
        STAT_COUNTER_ENTRY = 78 => "ATTR_STAT_COUNTER_ENTRY";
        /// Identifier of a counter (`u32`).
        STAT_COUNTER_ID = 79 => "ATTR_STAT_COUNTER_ID";
        /// Values of a counter (nested).
        STAT_HWCOUNTERS = 80 => "ATTR_STAT_HWCOUNTERS";
        /// A value (nested).
        STAT_HWCOUNTER_ENTRY = 81 => "ATTR_STAT_HWCOUNTER_ENTRY";
        /// Name of a value (string).
        STAT_HWCOUNTER_ENTRY_NAME = 82 => "ATTR_STAT_HWCOUNTER_ENTRY_NAME";
        /// The value (`u64`).
        STAT_HWCOUNTER_ENTRY_VALUE = 83 => "ATTR_STAT_HWCOUNTER_ENTRY_VALUE";
        /// Not 0: adaptive moderation of CQs (`u8`).
        DEV_DIM = 84 => "ATTR_DEV_DIM";
        /// Contexts (nested).
        RES_CTX = 86 => "ATTR_RES_CTX";
        /// A context (nested).
        RES_CTX_ENTRY = 87 => "ATTR_RES_CTX_ENTRY";
        /// SRQs (nested).
        RES_SRQ = 88 => "ATTR_RES_SRQ";
        /// An SRQ (nested).
        RES_SRQ_ENTRY = 89 => "ATTR_RES_SRQ_ENTRY";
        /// Identifier of an SRQ (`u32`).
        RES_SRQN = 90 => "ATTR_RES_SRQN";
        /// Lowest number of a range (`u32`).
        MIN_RANGE = 91 => "ATTR_MIN_RANGE";
        /// Highest number of a range (`u32`).
        MAX_RANGE = 92 => "ATTR_MAX_RANGE";
        /// Not 0: pinned pages are copied on fork, `madvise()` is not needed (`u8`).
        SYS_COPY_ON_FORK = 93 => "SYS_ATTR_COPY_ON_FORK";
    }
}
