//! Object types of the ioctl interface (`enum uverbs_default_objects`).
//!
//! Types from [`crate::ioctl::DRIVER_NS`] on belong to the driver; for mlx5's see [`crate::mlx5::object`].

ids! { u16, "UVERBS_OBJECT_";
    /// The device itself; there are no instances.
    DEVICE = 0;
    /// Protection domain.
    PD = 1;
    /// Completion channel, a file descriptor.
    COMP_CHANNEL = 2;
    /// Completion queue.
    CQ = 3;
    /// Queue pair.
    QP = 4;
    /// Shared receive queue.
    SRQ = 5;
    /// Address handle.
    AH = 6;
    /// Memory region.
    MR = 7;
    /// Memory window.
    MW = 8;
    /// Flow rule.
    FLOW = 9;
    /// XRC domain.
    XRCD = 10;
    /// Table that spreads packets over receive work queues.
    RWQ_IND_TBL = 11;
    /// Receive work queue.
    WQ = 12;
    /// Flow action.
    FLOW_ACTION = 13;
    /// Device memory.
    DM = 14;
    /// Counters.
    COUNTERS = 15;
    /// Asynchronous event file, a file descriptor.
    ASYNC_EVENT = 16;
    /// DMA handle: steering hints for memory access. Since Linux 6.17.
    DMAH = 17;
    /// Device memory exported as a dma-buf. Since Linux 7.0.
    DMABUF = 18;
    /// Completion counter. Since Linux 7.3.
    COMP_CNTR = 19;
}
