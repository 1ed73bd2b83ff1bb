//! Numbers of the connection manager, as types.

wire_enum! {
    /// A port space, which also determines the type of queue pairs that connect in it.
    PortSpace, "RDMA_PS_";
    /// Datagrams over IPoIB's queue pairs, on InfiniBand only.
    IPOIB = 0x0002;
    /// Reliable connections.
    TCP = 0x0106;
    /// Datagrams.
    UDP = 0x0111;
    /// Any type, by numbers of services of the InfiniBand specification.
    IB = 0x013f;
}

wire_enum! {
    /// What a query returns.
    QueryOption, "RDMA_USER_CM_QUERY_";
    /// Addresses: [`QueryAddrResp`](super::QueryAddrResp).
    ADDR = 0;
    /// Paths: [`QueryPathResp`](super::QueryPathResp).
    PATH = 1;
    /// GIDs, in the form of addresses: [`QueryAddrResp`](super::QueryAddrResp).
    GID = 2;
    /// Services: [`QueryIbServiceResp`](super::QueryIbServiceResp). Since Linux 6.18.
    IB_SERVICE = 3;
}

wire_enum! {
    /// How a multicast group is joined.
    JoinFlags, "RDMA_MC_JOIN_FLAG_";
    /// To send to it and receive from it.
    FULLMEMBER = 0;
    /// Only to send to it.
    SENDONLY_FULLMEMBER = 1;
}

wire_enum! {
    /// The level of an option.
    OptionLevel, "RDMA_OPTION_";
    /// [`IdOption`].
    ID = 0;
    /// [`IbOption`].
    IB = 1;
}

wire_enum! {
    /// Options of an identifier.
    IdOption, "RDMA_OPTION_ID_";
    /// Type of service of its packets (`u8`).
    TOS = 0;
    /// Its address may be in use already (`int`).
    REUSEADDR = 1;
    /// It listens only on addresses of its family (`int`).
    AFONLY = 2;
    /// How long an acknowledgement may take: 4.096 µs times 2 to this power (`u8`).
    ACK_TIMEOUT = 3;
}

wire_enum! {
    /// Options of InfiniBand.
    IbOption, "RDMA_OPTION_IB_";
    /// The paths to use (an array of [`PathRecData`](super::PathRecData)).
    PATH = 1;
}

wire_enum! {
    /// The type of an event.
    Event, "RDMA_CM_EVENT_";
    /// The device and the neighbour on the route to the peer are known.
    ADDR_RESOLVED = 0;
    /// The device or the neighbour could not be found.
    ADDR_ERROR = 1;
    /// The path to the peer is known.
    ROUTE_RESOLVED = 2;
    /// The path could not be found.
    ROUTE_ERROR = 3;
    /// A peer requests a connection.
    CONNECT_REQUEST = 4;
    /// The peer has accepted, and waits for the confirmation.
    CONNECT_RESPONSE = 5;
    /// Connecting failed on this side.
    CONNECT_ERROR = 6;
    /// The peer did not answer, or cannot be reached any more.
    UNREACHABLE = 7;
    /// The peer refused.
    REJECTED = 8;
    /// The connection is established.
    ESTABLISHED = 9;
    /// The peer has ended the connection, or confirmed its end.
    DISCONNECTED = 10;
    /// The device is being removed.
    DEVICE_REMOVAL = 11;
    /// A multicast group was joined.
    MULTICAST_JOIN = 12;
    /// A multicast group could not be joined, or was lost.
    MULTICAST_ERROR = 13;
    /// The network device has another address.
    ADDR_CHANGE = 14;
    /// The queue pair's number is free again.
    TIMEWAIT_EXIT = 15;
    /// Services were found. Since Linux 6.18.
    ADDRINFO_RESOLVED = 16;
    /// Services were not found. Since Linux 6.18.
    ADDRINFO_ERROR = 17;
    /// An event of the user's own. Since Linux 6.18.
    USER = 18;
    /// An event of a library's own. Since Linux 6.18.
    INTERNAL = 19;
}

wire_enum! {
    /// Why a connection was refused (InfiniBand specification, 12.6.7.2).
    RejectReason, "IB_CM_REJ_";
    /// No queue pair is available.
    NO_QP = 1;
    /// No resources are available.
    NO_RESOURCES = 3;
    /// The peer waited too long.
    TIMEOUT = 4;
    /// No program listens there.
    INVALID_SERVICE_ID = 8;
    /// The queue pair's last connection is not over yet.
    STALE_CONN = 10;
    /// The consumer refused.
    CONSUMER_DEFINED = 28;
    /// The two sides cannot agree on the vendor's options.
    VENDOR_OPTION_NOT_SUPPORTED = 35;
}

bitflags::bitflags! {
    /// The valid fields of a service. Since Linux 6.18.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct IbServiceFlags: u32 {
        /// Its number.
        const ID = 1 << 0;
        /// Its name.
        const NAME = 1 << 1;
    }
}

bitflags::bitflags! {
    /// The purpose of a path.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PathFlags: u32 {
        /// Management messages.
        const GMP = 1 << 0;
        /// The primary path.
        const PRIMARY = 1 << 1;
        /// The alternate path.
        const ALTERNATE = 1 << 2;
        /// From this side.
        const OUTBOUND = 1 << 3;
        /// To this side.
        const INBOUND = 1 << 4;
        /// To this side, as the alternate return path.
        const INBOUND_REVERSE = 1 << 5;
    }
}
