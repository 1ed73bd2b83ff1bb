//! Numbers of mlx5.

wire_enum! {
    /// Headers that raw packets must carry inline (`enum mlx5_user_inline_mode`).
    InlineMode, "MLX5_USER_INLINE_MODE_";
    /// Not reported.
    NA = 0;
    /// None.
    NONE = 1;
    /// Ethernet.
    L2 = 2;
    /// Up to IP.
    IP = 3;
    /// Up to TCP or UDP.
    TCP_UDP = 4;
}

wire_enum! {
    /// Kind of device memory (`enum mlx5_ib_uapi_dm_type`).
    DmType, "MLX5_IB_UAPI_DM_TYPE_";
    /// Memory for data.
    MEMIC = 0;
    /// For steering.
    STEERING_SW_ICM = 1;
    /// For header changes.
    HEADER_MODIFY_SW_ICM = 2;
    /// For patterns of header changes.
    HEADER_MODIFY_PATTERN_SW_ICM = 3;
    /// For headers to add. Since Linux 6.8.
    ENCAP_SW_ICM = 4;
}

wire_enum! {
    /// How a UAR is mapped (`enum mlx5_ib_uapi_uar_alloc_type`).
    UarAllocType, "MLX5_IB_UAPI_UAR_ALLOC_TYPE_";
    /// Write-combining, for BlueFlame.
    BF = 0;
    /// Uncached.
    NC = 1;
}

wire_enum! {
    /// Where a flow rule applies (`enum mlx5_ib_uapi_flow_table_type`).
    FlowTableType, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_";
    /// Receive.
    NIC_RX = 0;
    /// Send.
    NIC_TX = 1;
    /// Switch.
    FDB = 2;
    /// RDMA receive.
    RDMA_RX = 3;
    /// RDMA send.
    RDMA_TX = 4;
    /// RDMA transport receive. Since Linux 6.15.
    RDMA_TRANSPORT_RX = 5;
    /// RDMA transport send. Since Linux 6.15.
    RDMA_TRANSPORT_TX = 6;
}

wire_enum! {
    /// The headers that a reformat action changes (`enum mlx5_ib_uapi_flow_action_packet_reformat_type`).
    PacketReformatType, "MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_";
    /// Removes a tunnel that carries Ethernet.
    L2_TUNNEL_TO_L2 = 0;
    /// Adds a tunnel that carries Ethernet.
    L2_TO_L2_TUNNEL = 1;
    /// Removes a tunnel that carries IP.
    L3_TUNNEL_TO_L2 = 2;
    /// Adds a tunnel that carries IP.
    L2_TO_L3_TUNNEL = 3;
}

wire_enum! {
    /// Type of a matcher (`enum mlx5_ib_flow_type`).
    FlowType, "MLX5_IB_FLOW_TYPE_";
    /// By its mask.
    NORMAL = 0;
    /// Everything.
    SNIFFER = 1;
    /// Everything that no other rule takes.
    ALL_DEFAULT = 2;
    /// Multicast that no other rule takes.
    MC_DEFAULT = 3;
}

wire_enum! {
    /// The mapping at a file offset of `mmap()` (`enum mlx5_ib_mmap_cmd`).
    MmapCmd, "MLX5_IB_MMAP_";
    /// UAR pages.
    REGULAR_PAGE = 0;
    /// Contiguous memory (gone from the kernel).
    GET_CONTIGUOUS_PAGES = 1;
    /// UAR pages, write-combining.
    WC_PAGE = 2;
    /// UAR pages, uncached.
    NC_PAGE = 3;
    /// Clock of the device.
    CORE_CLOCK = 5;
    /// New UAR page, write-combining.
    ALLOC_WC = 6;
    /// [`crate::types::ClockInfo`].
    CLOCK_INFO = 7;
    /// Device memory.
    DEVICE_MEM = 8;
}
