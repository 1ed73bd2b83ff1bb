//! Numbers about queue pairs.

wire_enum! {
    /// Transport of a QP (`enum ib_uverbs_qp_type`).
    QpType, "IBV_QPT_";
    /// Reliable connection.
    RC = 2;
    /// Unreliable connection.
    UC = 3;
    /// Unreliable datagram.
    UD = 4;
    /// Whole Ethernet frames.
    RAW_PACKET = 8;
    /// Extended reliable connection, initiator; the kernel's `XRC_INI`.
    XRC_SEND = 9;
    /// Extended reliable connection, target; the kernel's `XRC_TGT`.
    XRC_RECV = 10;
    /// A transport of the driver's own.
    DRIVER = 255;
    @within {
        /// Dynamically connected, initiator; [`DRIVER`](Self::DRIVER) on the wire, with the driver's data.
        DCI = 0x1002 => "MLX5_IB_QPT_DCI";
        /// Dynamically connected, target; as [`DCI`](Self::DCI).
        DCT = 0x1003 => "MLX5_IB_QPT_DCT";
    }
}

wire_enum! {
    /// State of a QP.
    QpState, "IBV_QPS_";
    /// New, or reset.
    RESET = 0;
    /// Receives may be posted.
    INIT = 1;
    /// Ready to receive.
    RTR = 2;
    /// Ready to send too.
    RTS = 3;
    /// Send queue drained: the device starts no new send.
    SQD = 4;
    /// Send queue in error, receiving continues (unconnected transports).
    SQE = 5;
    /// In error: all posted requests are flushed.
    ERR = 6;
}

wire_enum! {
    /// State of path migration.
    MigState, "IBV_MIG_";
    /// On the primary path, the alternate one is not set up.
    MIGRATED = 0;
    /// Migration has been requested from the peer.
    REARM = 1;
    /// Both sides may migrate.
    ARMED = 2;
}

wire_enum! {
    /// Limit of a path's rate. The numbers are InfiniBand's; they are not in order.
    Rate, "IBV_RATE_";
    /// No limit.
    MAX = 0;
    /// 2.5 Gbit/s.
    GBPS_2_5 = 2 => "2_5_GBPS";
    /// 10 Gbit/s.
    GBPS_10 = 3 => "10_GBPS";
    /// 30 Gbit/s.
    GBPS_30 = 4 => "30_GBPS";
    /// 5 Gbit/s.
    GBPS_5 = 5 => "5_GBPS";
    /// 20 Gbit/s.
    GBPS_20 = 6 => "20_GBPS";
    /// 40 Gbit/s.
    GBPS_40 = 7 => "40_GBPS";
    /// 60 Gbit/s.
    GBPS_60 = 8 => "60_GBPS";
    /// 80 Gbit/s.
    GBPS_80 = 9 => "80_GBPS";
    /// 120 Gbit/s.
    GBPS_120 = 10 => "120_GBPS";
    /// 14 Gbit/s.
    GBPS_14 = 11 => "14_GBPS";
    /// 56 Gbit/s.
    GBPS_56 = 12 => "56_GBPS";
    /// 112 Gbit/s.
    GBPS_112 = 13 => "112_GBPS";
    /// 168 Gbit/s.
    GBPS_168 = 14 => "168_GBPS";
    /// 25 Gbit/s.
    GBPS_25 = 15 => "25_GBPS";
    /// 100 Gbit/s.
    GBPS_100 = 16 => "100_GBPS";
    /// 200 Gbit/s.
    GBPS_200 = 17 => "200_GBPS";
    /// 300 Gbit/s.
    GBPS_300 = 18 => "300_GBPS";
    /// 28 Gbit/s.
    GBPS_28 = 19 => "28_GBPS";
    /// 50 Gbit/s.
    GBPS_50 = 20 => "50_GBPS";
    /// 400 Gbit/s.
    GBPS_400 = 21 => "400_GBPS";
    /// 600 Gbit/s.
    GBPS_600 = 22 => "600_GBPS";
    /// 800 Gbit/s.
    GBPS_800 = 23 => "800_GBPS";
    /// 1200 Gbit/s.
    GBPS_1200 = 24 => "1200_GBPS";
}
