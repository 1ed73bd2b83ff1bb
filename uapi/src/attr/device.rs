//! Attributes of the methods of the device.

/// Attributes of [`crate::method::device::INVOKE_WRITE`].
pub mod invoke_write {
    ids! { u16, "UVERBS_ATTR_";
        /// Request of the command, without any header.
        CORE_IN = 0;
        /// Room for its response.
        CORE_OUT = 1;
        /// Number of the command, see [`crate::cmd`] (constant).
        WRITE_CMD = 2;
    }
}

/// Attributes of [`crate::method::device::QUERY_PORT`].
pub mod query_port {
    ids! { u16, "UVERBS_ATTR_QUERY_PORT_";
        /// Port, counted from 1 (constant).
        PORT_NUM = 0;
        /// Answer: [`crate::types::QueryPortRespEx`].
        RESP = 1;
    }
}

/// Attributes of [`crate::method::device::QUERY_PORT_SPEED`]. Since Linux 7.0.
pub mod query_port_speed {
    ids! { u16, "UVERBS_ATTR_QUERY_PORT_SPEED_";
        /// Port, counted from 1 (constant).
        PORT_NUM = 0;
        /// Answer: speed in units of 100 Mbit/s (`u64`).
        RESP = 1;
    }
}

/// Attributes of [`crate::method::device::QUERY_COMP_CNTR_CAPS`]. Since Linux 7.3.
pub mod query_comp_cntr_caps {
    ids! { u16, "UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_";
        /// Answer: number of completion counters of the device.
        MAX_COUNTERS = 0;
        /// Answer: largest value of a counter.
        MAX_VALUE = 1;
        /// Answer: [`crate::flags::QpAttachCompCntrOps`] that counters can count.
        SUPPORTED_QP_ATTACH_OPS = 2;
    }
}

/// Attributes of [`crate::method::device::GET_CONTEXT`].
pub mod get_context {
    ids! { u16, "UVERBS_ATTR_GET_CONTEXT_";
        /// Answer: completion vectors (`u32`).
        NUM_COMP_VECTORS = 0;
        /// Answer: [`crate::flags::CoreSupport`] (`u64`).
        CORE_SUPPORT = 1;
        /// File descriptors of capability files that grant privileged use. Since Linux 6.15.
        FD_ARR = 2;
    }
}

/// Attributes of [`crate::method::device::QUERY_CONTEXT`].
pub mod query_context {
    ids! { u16, "UVERBS_ATTR_QUERY_CONTEXT_";
        /// Answer: completion vectors (`u32`).
        NUM_COMP_VECTORS = 0;
        /// Answer: [`crate::flags::CoreSupport`] (`u64`).
        CORE_SUPPORT = 1;
    }
}

/// Attributes of [`crate::method::device::INFO_HANDLES`].
pub mod info_handles {
    ids! { u16, "UVERBS_ATTR_INFO_";
        /// Object type to list (constant).
        OBJECT_ID = 0;
        /// Answer: number of handles (`u32`).
        TOTAL_HANDLES = 1;
        /// Answer: the handles (`u32` each), as many as fit.
        HANDLES_LIST = 2;
    }
}

/// Attributes of [`crate::method::device::QUERY_GID_TABLE`].
pub mod query_gid_table {
    ids! { u16, "UVERBS_ATTR_QUERY_GID_TABLE_";
        /// Size of an entry in user space (constant).
        ENTRY_SIZE = 0;
        /// 0 (`u32`).
        FLAGS = 1;
        /// Answer: array of [`crate::types::GidEntry`].
        RESP_ENTRIES = 2;
        /// Answer: number of entries (`u64`).
        RESP_NUM_ENTRIES = 3;
    }
}

/// Attributes of [`crate::method::device::QUERY_GID_ENTRY`].
pub mod query_gid_entry {
    ids! { u16, "UVERBS_ATTR_QUERY_GID_ENTRY_";
        /// Port, counted from 1 (constant).
        PORT = 0;
        /// Index in the port's table (constant).
        GID_INDEX = 1;
        /// 0 (`u32`).
        FLAGS = 2;
        /// Answer: [`crate::types::GidEntry`].
        RESP_ENTRY = 3;
    }
}

/// Attributes of [`crate::method::async_event::ALLOC`].
pub mod async_event_alloc {
    ids! { u16, "UVERBS_ATTR_ASYNC_EVENT_ALLOC_";
        /// Answer: the file descriptor.
        FD_HANDLE = 0;
    }
}
