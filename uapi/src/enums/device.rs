//! Numbers about devices.

wire_enum! {
    /// The kernel driver of a device (`enum rdma_driver_id`).
    DriverId, "RDMA_DRIVER_";
    /// A driver without a number.
    UNKNOWN = 0;
    /// mlx5_ib: ConnectX-4 and later, Connect-IB, BlueField.
    MLX5 = 1;
    /// mlx4_ib: ConnectX to ConnectX-3.
    MLX4 = 2;
    /// iw_cxgb3: Chelsio T3 (gone from the kernel).
    CXGB3 = 3;
    /// iw_cxgb4: Chelsio T4 and later.
    CXGB4 = 4;
    /// ib_mthca: Mellanox InfiniHost.
    MTHCA = 5;
    /// bnxt_re: Broadcom NetXtreme.
    BNXT_RE = 6;
    /// ocrdma: Emulex OneConnect.
    OCRDMA = 7;
    /// iw_nes: NetEffect (gone from the kernel).
    NES = 8;
    /// irdma: Intel Ethernet; once i40iw.
    IRDMA = 9;
    /// vmw_pvrdma: VMware's virtual device.
    VMW_PVRDMA = 10;
    /// qedr: Marvell FastLinQ.
    QEDR = 11;
    /// hns_roce: HiSilicon.
    HNS = 12;
    /// usnic_verbs: Cisco.
    USNIC = 13;
    /// rdma_rxe: soft-RoCE.
    RXE = 14;
    /// hfi1: Omni-Path.
    HFI1 = 15;
    /// ib_qib: TrueScale (gone from the kernel).
    QIB = 16;
    /// efa: Amazon.
    EFA = 17;
    /// siw: soft-iWARP.
    SIW = 18;
    /// erdma: Alibaba.
    ERDMA = 19;
    /// mana_ib: Microsoft Azure. Since Linux 6.2.
    MANA = 20;
    /// ionic_rdma: AMD Pensando. Since Linux 6.18.
    IONIC = 21;
}

wire_enum! {
    /// Kind of device (`RDMA_NODE_*` in `rdma_netlink.h`).
    NodeType, "IBV_NODE_";
    /// Channel adapter: InfiniBand or RoCE.
    CA = 1;
    /// InfiniBand switch.
    SWITCH = 2;
    /// InfiniBand router.
    ROUTER = 3;
    /// iWARP network interface.
    RNIC = 4;
    /// Cisco usNIC.
    USNIC = 5;
    /// Cisco usNIC over UDP.
    USNIC_UDP = 6;
    /// None of these.
    UNSPECIFIED = 7;
}

wire_enum! {
    /// How far atomic operations are atomic.
    AtomicCap, "IBV_ATOMIC_";
    /// There are none.
    NONE = 0;
    /// Among QPs of this device.
    HCA = 1;
    /// Among all agents of the system, the CPU too.
    GLOB = 2;
}
