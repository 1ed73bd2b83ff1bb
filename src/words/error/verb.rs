//! The verbs by name, for errors and traces.

use std::fmt;

/// Declares the verbs with their names in one list, so that neither can be forgotten.
macro_rules! verbs {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A verb: one operation of the kernel or of this library.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Verb {
            $($(#[$doc])* $variant,)*
        }

        impl Verb {
            /// Every verb.
            pub const ALL: &'static [Verb] = &[$(Verb::$variant),*];

            /// The verb's name, as the manual pages spell it without the prefix `ibv_` or `rdma_`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Verb::$variant => $name,)*
                }
            }
        }
    };
}

verbs! {
    /// Lists the RDMA devices.
    ListDevices = "get_device_list",
    /// Cuts a slice of registered memory.
    Slice = "slice",
    /// Finds a device by its name.
    FindDevice = "find_device",
    /// Opens a device.
    OpenDevice = "open_device",
    /// Obtains the user context of an open device.
    GetContext = "get_context",
    /// Queries an imported context's properties.
    QueryContext = "query_context",
    /// Imports a context by its command file descriptor.
    ImportDevice = "import_device",
    /// Lists the handles of a context's objects.
    InfoHandles = "info_handles",
    /// Queries the device's attributes.
    QueryDevice = "query_device",
    /// Queries a port's attributes.
    QueryPort = "query_port",
    /// Queries a port's speed.
    QueryPortSpeed = "query_port_speed",
    /// Queries the whole GID table.
    QueryGidTable = "query_gid_table",
    /// Queries one entry of the GID table.
    QueryGid = "query_gid_ex",
    /// Queries one entry of the partition key table.
    QueryPkey = "query_pkey",
    /// Allocates the file descriptor that asynchronous events arrive on.
    AllocAsyncFd = "alloc_async_fd",
    /// Reads an asynchronous event.
    GetAsyncEvent = "get_async_event",
    /// Allocates a protection domain.
    AllocPd = "alloc_pd",
    /// Frees a protection domain.
    DeallocPd = "dealloc_pd",
    /// Allocates a thread domain.
    AllocTd = "alloc_td",
    /// Frees a thread domain.
    DeallocTd = "dealloc_td",
    /// Builds a parent domain over a protection domain.
    AllocParentDomain = "alloc_parent_domain",
    /// Requests a buffer from a parent domain's allocator.
    AllocBuffer = "alloc_buf",
    /// Imports a protection domain by its handle.
    ImportPd = "import_pd",
    /// Registers a memory region.
    RegMr = "reg_mr",
    /// Registers a memory region that lies in a dma-buf.
    RegDmabufMr = "reg_dmabuf_mr",
    /// Changes a memory region.
    ReregMr = "rereg_mr",
    /// Deregisters a memory region.
    DeregMr = "dereg_mr",
    /// Queries a memory region by its handle.
    QueryMr = "query_mr",
    /// Imports a memory region by its handle.
    ImportMr = "import_mr",
    /// Gives advice about memory regions.
    AdviseMr = "advise_mr",
    /// Allocates a memory window.
    AllocMw = "alloc_mw",
    /// Frees a memory window.
    DeallocMw = "dealloc_mw",
    /// Creates a completion channel.
    CreateCompChannel = "create_comp_channel",
    /// Waits for or reads a completion event.
    GetCqEvent = "get_cq_event",
    /// Creates a completion queue.
    CreateCq = "create_cq",
    /// Resizes a completion queue.
    ResizeCq = "resize_cq",
    /// Changes a completion queue's moderation.
    ModifyCq = "modify_cq",
    /// Destroys a completion queue.
    DestroyCq = "destroy_cq",
    /// Polls a completion queue.
    PollCq = "poll_cq",
    /// Requests an event for the next completion.
    ReqNotifyCq = "req_notify_cq",
    /// Creates a queue pair.
    CreateQp = "create_qp",
    /// Changes a queue pair's attributes or state.
    ModifyQp = "modify_qp",
    /// Queries a queue pair.
    QueryQp = "query_qp",
    /// Hands a queue pair over to an agent that posts without this library.
    IntoDevice = "into_device",
    /// Takes a queue pair back from an agent.
    Reclaim = "reclaim",
    /// Destroys a queue pair.
    DestroyQp = "destroy_qp",
    /// Posts a work request, to a queue of sends or of receives: the error does not say which.
    Post = "post",
    /// Posts send work requests.
    PostSend = "post_send",
    /// Posts receive work requests.
    PostRecv = "post_recv",
    /// Attaches a queue pair to a multicast group.
    AttachMcast = "attach_mcast",
    /// Detaches a queue pair from a multicast group.
    DetachMcast = "detach_mcast",
    /// Creates a shared receive queue.
    CreateSrq = "create_srq",
    /// Changes a shared receive queue.
    ModifySrq = "modify_srq",
    /// Queries a shared receive queue.
    QuerySrq = "query_srq",
    /// Destroys a shared receive queue.
    DestroySrq = "destroy_srq",
    /// Posts receives to a shared receive queue.
    PostSrqRecv = "post_srq_recv",
    /// Creates an address handle.
    CreateAh = "create_ah",
    /// Destroys an address handle.
    DestroyAh = "destroy_ah",
    /// Opens an XRC domain.
    OpenXrcd = "open_xrcd",
    /// Closes an XRC domain.
    CloseXrcd = "close_xrcd",
    /// Opens a target of an XRC domain.
    OpenQp = "open_qp",
    /// Allocates device memory.
    AllocDm = "alloc_dm",
    /// Frees device memory.
    FreeDm = "free_dm",
    /// Imports device memory by its handle.
    ImportDm = "import_dm",
    /// Exports device memory as a dma-buf.
    ExportDmabuf = "dm_export_dmabuf_fd",
    /// Registers device memory.
    RegDmMr = "reg_dm_mr",
    /// Allocates the null memory region, which discards writes.
    AllocNullMr = "alloc_null_mr",
    /// Reads the device's clock.
    QueryRtValues = "query_rt_values_ex",
    /// Queries the relation of the device's clock to the time of day.
    GetClockInfo = "get_clock_info",
    /// Queries a queue pair's options of enhanced connection establishment.
    QueryEce = "query_ece",
    /// Sets a queue pair's options of enhanced connection establishment.
    SetEce = "set_ece",
    /// Sets a queue pair's UDP source port.
    ModifyQpUdpSport = "modify_qp_udp_sport",
    /// Makes a DC initiator continue with a stream that has failed.
    DciStreamIdReset = "dci_stream_id_reset",
    /// Queries the physical port of a queue pair on a device with bonded ports.
    QueryQpLagPort = "query_qp_lag_port",
    /// Sets the physical port of a queue pair on a device with bonded ports.
    ModifyQpLagPort = "modify_qp_lag_port",
    /// Queries the function by which mlx5's device reaches memory past the processor.
    GetDataDirectSysfsPath = "get_data_direct_sysfs_path",
    /// Queries the role of a port of mlx5's device at the switch in it.
    QueryPortSwitch = "dv_query_port",
    /// Gives mlx5's device a command that concerns no object of the kernel.
    DevxGeneralCmd = "devx_general_cmd",
    /// Queries the context of a queue pair from mlx5's device.
    DevxQpQuery = "devx_qp_query",
    /// Makes mlx5's device change a queue pair.
    DevxQpModify = "devx_qp_modify",
    /// Queries the context of a completion queue from mlx5's device.
    DevxCqQuery = "devx_cq_query",
    /// Makes mlx5's device create an object, with a command of the user.
    DevxObjCreate = "devx_obj_create",
    /// Destroys an object that a command of the user created.
    DevxObjDestroy = "devx_obj_destroy",
    /// Changes an object, with a command of the user.
    DevxObjModify = "devx_obj_modify",
    /// Queries an object's state, with a command of the user.
    DevxObjQuery = "devx_obj_query",
    /// Gives memory a number for commands of the user.
    DevxUmemReg = "devx_umem_reg",
    /// Removes such a number.
    DevxUmemDereg = "devx_umem_dereg",
    /// Frees a page of the device's registers.
    DevxFreeUar = "devx_free_uar",
    /// Queries the event queue of a completion vector.
    DevxQueryEqn = "devx_query_eqn",
    /// Opens a channel for events of objects that the user created.
    DevxCreateEventChannel = "devx_create_event_channel",
    /// Subscribes to such events.
    DevxSubscribeEvent = "devx_subscribe_devx_event",
    /// Reads such an event.
    DevxGetEvent = "devx_get_event",
    /// Queries an object's numbers in the device.
    InitObj = "init_obj",
    /// Lists the objects of all processes on a device.
    QueryResources = "query_resources",
    /// Makes a device on a network device.
    AddLink = "add_link",
    /// Deletes a device that was made on a network device.
    DeleteLink = "delete_link",
    /// Allocates a page of the device's registers.
    AllocUar = "alloc_uar",
    /// Maps a ring or a register page of the device.
    MapQueue = "map_queue",
    /// Offers a protection domain to other processes.
    AllocShpd = "alloc_shpd",
    /// Joins a protection domain that another process offers.
    SharePd = "share_pd",
    /// Makes an identifier of the connection manager.
    CreateId = "create_id",
    /// Destroys an identifier of the connection manager.
    DestroyId = "destroy_id",
    /// Binds an identifier of the connection manager to an address.
    BindAddr = "bind_addr",
    /// Finds the device and the neighbour on the route to a peer.
    ResolveAddr = "resolve_addr",
    /// Finds the path to a peer.
    ResolveRoute = "resolve_route",
    /// Queries the subnet administrator for the provider of a service.
    ResolveService = "resolve_service",
    /// Queries the addresses of an identifier of the connection manager.
    QueryId = "query_id",
    /// Sets an option of an identifier of the connection manager.
    SetOption = "set_option",
    /// Requests a connection from a peer.
    Connect = "connect",
    /// Awaits requests for connections.
    Listen = "listen",
    /// Takes a request from a listener.
    GetRequest = "get_request",
    /// Accepts a request for a connection.
    Accept = "accept",
    /// Refuses a request for a connection.
    Reject = "reject",
    /// Ends a connection.
    Disconnect = "disconnect",
    /// Queries the attributes that connect a queue pair.
    InitQpAttr = "init_qp_attr",
    /// Notifies the connection manager of an event of a queue pair.
    Notify = "notify",
    /// Reads an event of the connection manager.
    GetCmEvent = "get_cm_event",
    /// Writes an event of the connection manager.
    WriteCmEvent = "write_cm_event",
    /// Joins a multicast group by its address.
    JoinMulticast = "join_multicast",
    /// Leaves a multicast group.
    LeaveMulticast = "leave_multicast",
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
