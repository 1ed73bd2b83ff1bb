//! Flags of mlx5.

use bitflags::bitflags;

bitflags! {
    /// Capabilities of user space (`enum mlx5_lib_caps`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct LibCaps: u64 {
        /// UARs of 4 KiB on larger pages.
        const UAR_4K = 1 << 0;
        /// UARs are allocated as needed.
        const DYN_UAR = 1 << 1;
    }
}

bitflags! {
    /// How to open a context (`enum mlx5_ib_alloc_uctx_v2_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AllocUctxFlags: u32 {
        /// With DEVX.
        const DEVX = 1 << 0;
    }
}

bitflags! {
    /// The valid fields of the answer (`enum mlx5_ib_alloc_ucontext_resp_mask`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AllocUcontextRespMask: u32 {
        /// Offset of the clock.
        const CORE_CLOCK_OFFSET = 1 << 0;
        /// Key of the filler region.
        const DUMP_FILL_MKEY = 1 << 1;
        /// Enhanced connection establishment works.
        const ECE = 1 << 2;
        /// A drained send queue can be started again.
        const SQD2RTS = 1 << 3;
        /// Timestamps are real time.
        const REAL_TIME_TS = 1 << 4;
        /// The tag of a key can be updated.
        const MKEY_UPDATE_TAG = 1 << 5;
    }
}

bitflags! {
    /// Commands that take driver data (`enum mlx5_user_cmds_supp_uhw`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct UhwCmds: u8 {
        /// `QUERY_DEVICE`.
        const QUERY_DEVICE = 1 << 0;
        /// `CREATE_AH`.
        const CREATE_AH = 1 << 1;
    }
}

bitflags! {
    /// IPsec offload.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FlowActionCaps: u16 {
        /// AES-GCM.
        const ESP_AES_GCM = 1 << 0;
        /// Needs metadata.
        const ESP_AES_GCM_REQ_METADATA = 1 << 1;
        /// Steers by the security parameters index.
        const ESP_AES_GCM_SPI_STEERING = 1 << 2;
        /// Does all of IPsec.
        const ESP_AES_GCM_FULL_OFFLOAD = 1 << 3;
        /// The vector is the sequence number.
        const ESP_AES_GCM_TX_IV_IS_ESN = 1 << 4;
    }
}

bitflags! {
    /// How to make a QP.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpFlags: u32 {
        /// Elements carry a signature.
        const SIGNATURE = 1 << 0;
        /// The completion contains small payloads.
        const SCATTER_CQE = 1 << 1;
        /// Parses headers within tunnels.
        const TUNNEL_OFFLOADS = 1 << 2;
        /// The request names the doorbell register.
        const BFREG_INDEX = 1 << 3;
        /// DC target.
        const TYPE_DCT = 1 << 4;
        /// DC initiator.
        const TYPE_DCI = 1 << 5;
        /// The QP receives its own unicast.
        const TIR_ALLOW_SELF_LB_UC = 1 << 6;
        /// The QP receives its own multicast.
        const TIR_ALLOW_SELF_LB_MC = 1 << 7;
        /// The completion may contain payloads, even of unsignaled requests.
        const ALLOW_SCATTER_CQE = 1 << 8;
        /// Credits count packets.
        const PACKET_BASED_CREDIT_MODE = 1 << 9;
        /// The request names the UAR page.
        const UAR_PAGE_INDEX = 1 << 10;
        /// With streams.
        const DCI_STREAM = 1 << 11;
    }
}

bitflags! {
    /// How to make an SRQ.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SrqFlags: u32 {
        /// Elements carry a signature.
        const SIGNATURE = 1 << 0;
    }
}

bitflags! {
    /// How to make a WQ.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WqFlags: u32 {
        /// Elements carry a signature.
        const SIGNATURE = 1 << 0;
    }
}

bitflags! {
    /// Optional fields of WQ creation (`enum mlx5_ib_create_wq_mask`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CreateWqMask: u32 {
        /// Strides.
        const STRIDING_RQ = 1 << 0;
    }
}

bitflags! {
    /// How to make a CQ (`enum mlx5_ib_create_cq_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CreateCqFlags: u16 {
        /// Entries of 128 bytes are padded.
        const CQE_128B_PAD = 1 << 0;
        /// The request names the UAR page.
        const UAR_PAGE_INDEX = 1 << 1;
        /// Timestamps are real time.
        const REAL_TIME_TS = 1 << 2;
    }
}

bitflags! {
    /// The fields that compressed completions keep (`enum mlx5_ib_cqe_comp_res_format`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CqeCompFormat: u32 {
        /// Hash.
        const HASH = 1 << 0;
        /// Checksum.
        const CSUM = 1 << 1;
        /// Checksum and stride.
        const CSUM_STRIDX = 1 << 2;
    }
}

bitflags! {
    /// The valid numbers of the answer (`enum mlx5_ib_create_qp_resp_mask`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CreateQpRespMask: u32 {
        /// Receive object.
        const TIRN = 1 << 0;
        /// Send object.
        const TISN = 1 << 1;
        /// Receive queue.
        const RQN = 1 << 2;
        /// Send queue.
        const SQN = 1 << 3;
        /// Address of the receive object.
        const TIR_ICM_ADDR = 1 << 4;
    }
}

bitflags! {
    /// Optional fields of `MODIFY_QP` (`enum mlx5_ib_modify_qp_mask`). Since Linux 6.13.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ModifyQpMask: u32 {
        /// Data may be placed out of order.
        const OOO_DP = 1 << 0;
    }
}

bitflags! {
    /// The fields by which a packet is hashed (`enum mlx5_rx_hash_fields`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RxHashFields: u64 {
        /// IPv4 source.
        const SRC_IPV4 = 1 << 0;
        /// IPv4 destination.
        const DST_IPV4 = 1 << 1;
        /// IPv6 source.
        const SRC_IPV6 = 1 << 2;
        /// IPv6 destination.
        const DST_IPV6 = 1 << 3;
        /// TCP source port.
        const SRC_PORT_TCP = 1 << 4;
        /// TCP destination port.
        const DST_PORT_TCP = 1 << 5;
        /// UDP source port.
        const SRC_PORT_UDP = 1 << 6;
        /// UDP destination port.
        const DST_PORT_UDP = 1 << 7;
        /// Security parameters index.
        const IPSEC_SPI = 1 << 8;
        /// Headers within a tunnel.
        const INNER = 1 << 31;
    }
}

bitflags! {
    /// Hash functions (`enum mlx5_rx_hash_function_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RxHashFunctions: u8 {
        /// Toeplitz.
        const TOEPLITZ = 1 << 0;
    }
}

bitflags! {
    /// Packet pacing (`enum mlx5_ib_packet_pacing_cap_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PacketPacingCapFlags: u8 {
        /// Bursts.
        const BURST = 1 << 0;
    }
}

bitflags! {
    /// Multi-packet sends (`enum mlx5_ib_mpw_caps`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MpwCaps: u32 {
        /// Plain.
        const ALLOW_MPW = 1 << 1;
        /// Enhanced.
        const SUPPORT_EMPW = 1 << 2;
    }
}

bitflags! {
    /// Parsing helped by software (`enum mlx5_ib_sw_parsing_offloads`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SwParsingOffloads: u32 {
        /// It is supported.
        const PARSING = 1 << 0;
        /// Checksums.
        const PARSING_CSUM = 1 << 1;
        /// Segmentation.
        const PARSING_LSO = 1 << 2;
    }
}

bitflags! {
    /// Capabilities of a device (`enum mlx5_ib_query_dev_resp_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QueryDevRespFlags: u32 {
        /// Compressed completions of 128 bytes.
        const FLAGS_CQE_128B_COMP = 1 << 0;
        /// Padded completions of 128 bytes.
        const FLAGS_CQE_128B_PAD = 1 << 1;
        /// Credits that count packets.
        const PACKET_BASED_CREDIT_MODE = 1 << 2;
        /// Payloads in the completion on DC targets.
        const FLAGS_SCAT2CQE_DCT = 1 << 3;
        /// Data placed out of order. Since Linux 6.13.
        const FLAGS_OOO_DP = 1 << 4;
    }
}

bitflags! {
    /// Tunnels that a device parses (`enum mlx5_ib_tunnel_offloads`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct TunnelOffloads: u32 {
        /// VXLAN.
        const VXLAN = 1 << 0;
        /// GRE.
        const GRE = 1 << 1;
        /// Geneve.
        const GENEVE = 1 << 2;
        /// MPLS over GRE.
        const MPLS_GRE = 1 << 3;
        /// MPLS over UDP.
        const MPLS_UDP = 1 << 4;
    }
}

bitflags! {
    /// The valid fields of the answer (`enum mlx5_ib_uapi_query_port_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QueryPortFlags: u64 {
        /// Virtual port.
        const VPORT = 1 << 0;
        /// Virtual device.
        const VPORT_VHCA_ID = 1 << 1;
        /// Steering root for receive.
        const VPORT_STEERING_ICM_RX = 1 << 2;
        /// Steering root for send.
        const VPORT_STEERING_ICM_TX = 1 << 3;
        /// Mark of packets.
        const VPORT_REG_C0 = 1 << 4;
        /// Owner of the switch.
        const ESW_OWNER_VHCA_ID = 1 << 5;
    }
}

bitflags! {
    /// How to register a dma-buf (`enum mlx5_ib_uapi_reg_dmabuf_flags`). Since Linux 6.12.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RegDmabufFlags: u32 {
        /// Through the data-direct device.
        const DATA_DIRECT = 1 << 0;
    }
}

bitflags! {
    /// How events are delivered (`enum mlx5_ib_uapi_devx_create_event_channel_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DevxEventChannelFlags: u32 {
        /// Without data.
        const OMIT_DATA = 1 << 0;
    }
}

bitflags! {
    /// How to allocate a doorbell page (`enum mlx5_ib_uapi_var_alloc_flags`). Since Linux 7.1.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct VarAllocFlags: u32 {
        /// For emulated transactions.
        const TLP = 1 << 0;
    }
}

bitflags! {
    /// How to allocate a pacing entry (`enum mlx5_ib_uapi_pp_alloc_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PpAllocFlags: u32 {
        /// Not shared.
        const DEDICATED_INDEX = 1 << 0;
    }
}

bitflags! {
    /// How a flow rule works (`enum mlx5_ib_create_flow_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CreateFlowFlags: u32 {
        /// Continues as if nothing matched.
        const DEFAULT_MISS = 1 << 0;
        /// Drops.
        const DROP = 1 << 1;
    }
}

bitflags! {
    /// How a flow action works (`enum mlx5_ib_uapi_flow_action_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FlowActionFlags: u32 {
        /// Needs metadata.
        const REQUIRE_METADATA = 1 << 0;
    }
}
