//! Numbers of the connection manager that have a type.

wire_enum! {
    /// A space of ports, and with it the kind of queue pairs that connect in it.
    PortSpace, "RDMA_PS_";
    /// Datagrams over IPoIB's queue pairs, on InfiniBand only.
    IPOIB = 0x0002;
    /// Reliable connections.
    TCP = 0x0106;
    /// Datagrams.
    UDP = 0x0111;
    /// Any kind, by numbers of services of the InfiniBand specification.
    IB = 0x013f;
}

wire_enum! {
    /// What a query is to tell.
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
    /// To send to it and to receive from it.
    FULLMEMBER = 0;
    /// To send to it.
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
    /// Its address may be in use (`int`).
    REUSEADDR = 1;
    /// It listens on addresses of its family only (`int`).
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
    /// What happened.
    Event, "RDMA_CM_EVENT_";
    /// The device and the neighbour on the way to the peer are known.
    ADDR_RESOLVED = 0;
    /// They could not be found.
    ADDR_ERROR = 1;
    /// The path to the peer is known.
    ROUTE_RESOLVED = 2;
    /// It could not be found.
    ROUTE_ERROR = 3;
    /// A peer asks for a connection.
    CONNECT_REQUEST = 4;
    /// The peer has accepted, and awaits the confirmation.
    CONNECT_RESPONSE = 5;
    /// Connecting failed here.
    CONNECT_ERROR = 6;
    /// The peer did not answer, or cannot be reached any more.
    UNREACHABLE = 7;
    /// The peer refused.
    REJECTED = 8;
    /// The connection stands.
    ESTABLISHED = 9;
    /// The peer has ended the connection, or confirmed its end.
    DISCONNECTED = 10;
    /// The device is being removed.
    DEVICE_REMOVAL = 11;
    /// A multicast group was joined.
    MULTICAST_JOIN = 12;
    /// It could not be joined, or was lost.
    MULTICAST_ERROR = 13;
    /// The network device has another address.
    ADDR_CHANGE = 14;
    /// The queue pair's number is free again.
    TIMEWAIT_EXIT = 15;
    /// Services were found. Since Linux 6.18.
    ADDRINFO_RESOLVED = 16;
    /// They were not. Since Linux 6.18.
    ADDRINFO_ERROR = 17;
    /// An event of the user's own. Since Linux 6.18.
    USER = 18;
    /// An event of a library's own. Since Linux 6.18.
    INTERNAL = 19;
}

wire_enum! {
    /// Why a connection was refused (InfiniBand specification, 12.6.7.2).
    RejectReason, "IB_CM_REJ_";
    /// No queue pair is to be had.
    NO_QP = 1;
    /// No resources are to be had.
    NO_RESOURCES = 3;
    /// The peer waited too long.
    TIMEOUT = 4;
    /// Nobody listens there.
    INVALID_SERVICE_ID = 8;
    /// The queue pair's last connection is not over yet.
    STALE_CONN = 10;
    /// The consumer refused.
    CONSUMER_DEFINED = 28;
    /// The vendor's options cannot be agreed on.
    VENDOR_OPTION_NOT_SUPPORTED = 35;
}

bitflags::bitflags! {
    /// What of a service counts. Since Linux 6.18.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct IbServiceFlags: u32 {
        /// Its number.
        const ID = 1 << 0;
        /// Its name.
        const NAME = 1 << 1;
    }
}

bitflags::bitflags! {
    /// What a path is for.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PathFlags: u32 {
        /// Messages of the management.
        const GMP = 1 << 0;
        /// The primary path.
        const PRIMARY = 1 << 1;
        /// The alternate path.
        const ALTERNATE = 1 << 2;
        /// From this side.
        const OUTBOUND = 1 << 3;
        /// To this side.
        const INBOUND = 1 << 4;
        /// To this side, as the other way back.
        const INBOUND_REVERSE = 1 << 5;
    }
}
