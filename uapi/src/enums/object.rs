//! Kinds and states of the remaining objects.

wire_enum! {
    /// Type of a memory window.
    MwType, "IBV_MW_";
    /// Bound by a verb; belongs to its PD.
    TYPE_1 = 1;
    /// Bound by a work request; belongs to a QP.
    TYPE_2 = 2;
}

wire_enum! {
    /// Type of an SRQ (`enum ib_uverbs_srq_type`).
    SrqType, "IBV_SRQT_";
    /// Plain.
    BASIC = 0;
    /// For XRC; has a CQ and a domain.
    XRC = 1;
    /// With tag matching; has a CQ.
    TM = 2;
}

wire_enum! {
    /// Type of a WQ (`enum ib_uverbs_wq_type`).
    WqType, "IBV_WQT_";
    /// Receive.
    RQ = 0;
}

wire_enum! {
    /// State of a WQ.
    WqState, "IBV_WQS_";
    /// New, or reset.
    RESET = 0;
    /// In use.
    RDY = 1;
    /// In error.
    ERR = 2;
    /// Not known.
    UNKNOWN = 3;
}

wire_enum! {
    /// The place of a buffer (`enum ib_uverbs_buffer_type`). Since Linux 7.2.
    BufferType, "IB_UVERBS_BUFFER_TYPE_";
    /// In a dma-buf.
    DMABUF = 0;
    /// In this process.
    VA = 1;
}

wire_enum! {
    /// Advice about paging (`enum ib_uverbs_advise_mr_advice`).
    AdviseMrAdvice, "IBV_ADVISE_MR_ADVICE_";
    /// Map for reading.
    PREFETCH = 0;
    /// Map for writing.
    PREFETCH_WRITE = 1;
    /// Map what is in memory already.
    PREFETCH_NO_FAULT = 2;
}

wire_enum! {
    /// Type of a flow specification; combine it with [`FlowSpecType::INNER`] for headers within a tunnel.
    FlowSpecType, "IBV_FLOW_SPEC_";
    /// Ethernet.
    ETH = 0x20;
    /// IPv4.
    IPV4 = 0x30;
    /// IPv6.
    IPV6 = 0x31;
    /// IPsec ESP.
    ESP = 0x34;
    /// TCP.
    TCP = 0x40;
    /// UDP.
    UDP = 0x41;
    /// VXLAN.
    VXLAN_TUNNEL = 0x50;
    /// GRE.
    GRE = 0x51;
    /// MPLS.
    MPLS = 0x60;
    /// Bit for headers within a tunnel.
    INNER = 0x100;
    /// Mark.
    ACTION_TAG = 0x1000;
    /// Drop.
    ACTION_DROP = 0x1001;
    /// Flow action object.
    ACTION_HANDLE = 0x1002;
    /// Count.
    ACTION_COUNT = 0x1003;
}

wire_enum! {
    /// Type of a flow rule.
    FlowAttrType, "IBV_FLOW_ATTR_";
    /// By its specifications.
    NORMAL = 0;
    /// Everything that no other rule takes.
    ALL_DEFAULT = 1;
    /// Multicast that no other rule takes.
    MC_DEFAULT = 2;
    /// Everything.
    SNIFFER = 3;
}

wire_enum! {
    /// The entry of a completion counter (`enum ib_uverbs_comp_cntr_entry`). Since Linux 7.3.
    CompCntrEntry, "IB_UVERBS_COMP_CNTR_ENTRY_";
    /// Successful completions.
    COMP = 0;
    /// Completions in error.
    ERR = 1;
}

wire_enum! {
    /// How to change a completion counter (`enum ib_uverbs_comp_cntr_modify_op`). Since Linux 7.3.
    CompCntrModifyOp, "IB_UVERBS_COMP_CNTR_MODIFY_OP_";
    /// Set it.
    SET = 0;
    /// Add to it.
    INC = 1;
}

wire_enum! {
    /// Kind of key material (`enum ib_uverbs_flow_action_esp_keymat`).
    FlowActionEspKeymat, "IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_";
    /// AES-GCM.
    AES_GCM = 0;
}

wire_enum! {
    /// How the initialisation vector continues (`enum ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo`).
    FlowActionIvAlgo, "IB_UVERBS_FLOW_ACTION_IV_ALGO_";
    /// As a sequence.
    SEQ = 0;
}

wire_enum! {
    /// Protection against replay (`enum ib_uverbs_flow_action_esp_replay`).
    FlowActionEspReplay, "IB_UVERBS_FLOW_ACTION_ESP_REPLAY_";
    /// None.
    NONE = 0;
    /// A bit map.
    BMP = 1;
}
