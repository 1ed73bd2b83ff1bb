//! Commands of the write interface, also carried by the ioctl `INVOKE_WRITE`
//! (`enum ib_uverbs_write_cmds`). Their structs are in [`crate::write`].

/// Set in the number of an extended command; the `EX_*` constants include it.
pub const FLAG_EXTENDED: u32 = 0x8000_0000;

/// Version of the ABI; the class attribute `abi_version` must have this value.
pub const ABI_VERSION: u32 = 6;

/// Numbers from this one on belong only to extended commands.
pub const THRESHOLD: u32 = 50;

ids! { u32, "IB_USER_VERBS_CMD_";
    /// Make this open file a verbs context.
    GET_CONTEXT = 0;
    /// Attributes of the device.
    QUERY_DEVICE = 1;
    /// Attributes of a port.
    QUERY_PORT = 2;
    /// Allocate a protection domain.
    ALLOC_PD = 3;
    /// Deallocate a protection domain.
    DEALLOC_PD = 4;
    /// Create an address handle.
    CREATE_AH = 5;
    /// Never implemented.
    MODIFY_AH = 6;
    /// Never implemented.
    QUERY_AH = 7;
    /// Destroy an address handle.
    DESTROY_AH = 8;
    /// Register memory.
    REG_MR = 9;
    /// Never implemented.
    REG_SMR = 10;
    /// Change a memory region.
    REREG_MR = 11;
    /// Never implemented; the ioctl method is [`crate::method::mr::QUERY`].
    QUERY_MR = 12;
    /// Deregister memory.
    DEREG_MR = 13;
    /// Allocate a memory window.
    ALLOC_MW = 14;
    /// Never implemented; windows are bound by a work request.
    BIND_MW = 15;
    /// Deallocate a memory window.
    DEALLOC_MW = 16;
    /// Open a completion channel.
    CREATE_COMP_CHANNEL = 17;
    /// Create a CQ.
    CREATE_CQ = 18;
    /// Resize a CQ.
    RESIZE_CQ = 19;
    /// Destroy a CQ.
    DESTROY_CQ = 20;
    /// Poll a CQ in the kernel.
    POLL_CQ = 21;
    /// Never implemented.
    PEEK_CQ = 22;
    /// Arm a CQ.
    REQ_NOTIFY_CQ = 23;
    /// Create a QP.
    CREATE_QP = 24;
    /// Attributes of a QP.
    QUERY_QP = 25;
    /// Change a QP.
    MODIFY_QP = 26;
    /// Destroy a QP.
    DESTROY_QP = 27;
    /// Post send requests through the kernel; on rxe the doorbell of the send ring.
    POST_SEND = 28;
    /// Post receive requests through the kernel.
    POST_RECV = 29;
    /// Join a multicast group.
    ATTACH_MCAST = 30;
    /// Leave a multicast group.
    DETACH_MCAST = 31;
    /// Create an SRQ of the basic type.
    CREATE_SRQ = 32;
    /// Change an SRQ.
    MODIFY_SRQ = 33;
    /// Attributes of an SRQ.
    QUERY_SRQ = 34;
    /// Destroy an SRQ.
    DESTROY_SRQ = 35;
    /// Post receive requests to an SRQ through the kernel.
    POST_SRQ_RECV = 36;
    /// Open an XRC domain.
    OPEN_XRCD = 37;
    /// Close an XRC domain.
    CLOSE_XRCD = 38;
    /// Create an SRQ of any type.
    CREATE_XSRQ = 39;
    /// Open a shared XRC receive QP.
    OPEN_QP = 40;
    /// Attributes of the device.
    EX_QUERY_DEVICE = FLAG_EXTENDED | 1;
    /// Create a CQ.
    EX_CREATE_CQ = FLAG_EXTENDED | 18;
    /// Create a QP.
    EX_CREATE_QP = FLAG_EXTENDED | 24;
    /// Change a QP.
    EX_MODIFY_QP = FLAG_EXTENDED | 26;
    /// Create a flow rule.
    EX_CREATE_FLOW = FLAG_EXTENDED | 50;
    /// Destroy a flow rule.
    EX_DESTROY_FLOW = FLAG_EXTENDED | 51;
    /// Create a WQ.
    EX_CREATE_WQ = FLAG_EXTENDED | 52;
    /// Change a WQ.
    EX_MODIFY_WQ = FLAG_EXTENDED | 53;
    /// Destroy a WQ.
    EX_DESTROY_WQ = FLAG_EXTENDED | 54;
    /// Create an indirection table.
    EX_CREATE_RWQ_IND_TBL = FLAG_EXTENDED | 55;
    /// Destroy an indirection table.
    EX_DESTROY_RWQ_IND_TBL = FLAG_EXTENDED | 56;
    /// Change the moderation of a CQ.
    EX_MODIFY_CQ = FLAG_EXTENDED | 57;
}
