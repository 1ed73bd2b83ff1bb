//! Methods of each object type of the ioctl interface, one module for each object type.
//!
//! Methods from [`crate::ioctl::DRIVER_NS`] on belong to the driver; for mlx5's see [`crate::mlx5::method`].

/// Methods of [`crate::object::DEVICE`].
pub mod device {
    ids! { u16, "UVERBS_METHOD_";
        /// Carry a command of the write interface.
        INVOKE_WRITE = 0;
        /// List the handles of one object type that this file has.
        INFO_HANDLES = 1;
        /// Attributes of a port.
        QUERY_PORT = 2;
        /// Make this open file a verbs context.
        GET_CONTEXT = 3;
        /// Attributes of a context; few drivers have it.
        QUERY_CONTEXT = 4;
        /// All GIDs of all ports.
        QUERY_GID_TABLE = 5;
        /// One GID.
        QUERY_GID_ENTRY = 6;
        /// Effective speed of a port. Since Linux 7.0.
        QUERY_PORT_SPEED = 7;
        /// Bounds of completion counters. Since Linux 7.3.
        QUERY_COMP_CNTR_CAPS = 8;
    }
}

/// Methods of [`crate::object::PD`].
pub mod pd {
    ids! { u16, "UVERBS_METHOD_PD_";
        /// Destroy a PD.
        DESTROY = 0;
    }
}

/// Methods of [`crate::object::CQ`].
pub mod cq {
    ids! { u16, "UVERBS_METHOD_CQ_";
        /// Create a CQ.
        CREATE = 0;
        /// Destroy a CQ.
        DESTROY = 1;
    }
}

/// Methods of [`crate::object::QP`].
pub mod qp {
    ids! { u16, "UVERBS_METHOD_QP_";
        /// Create a QP.
        CREATE = 0;
        /// Destroy a QP.
        DESTROY = 1;
        /// Let a completion counter count on a QP. Since Linux 7.3.
        ATTACH_COMP_CNTR = 2;
    }
}

/// Methods of [`crate::object::SRQ`].
pub mod srq {
    ids! { u16, "UVERBS_METHOD_SRQ_";
        /// Create an SRQ.
        CREATE = 0;
        /// Destroy an SRQ.
        DESTROY = 1;
    }
}

/// Methods of [`crate::object::AH`].
pub mod ah {
    ids! { u16, "UVERBS_METHOD_AH_";
        /// Destroy an AH.
        DESTROY = 0;
    }
}

/// Methods of [`crate::object::MR`].
pub mod mr {
    ids! { u16, "UVERBS_METHOD_";
        /// Register device memory.
        DM_REG = 0 => "DM_MR_REG";
        /// Deregister a memory region.
        DESTROY = 1 => "MR_DESTROY";
        /// Give advice about paging.
        ADVISE = 2 => "ADVISE_MR";
        /// Keys, length and address of a memory region.
        QUERY = 3 => "QUERY_MR";
        /// Register a dma-buf.
        REG_DMABUF = 4 => "REG_DMABUF_MR";
        /// Register memory of any kind. Since Linux 6.17.
        REG = 5 => "REG_MR";
    }
}

/// Methods of [`crate::object::MW`].
pub mod mw {
    ids! { u16, "UVERBS_METHOD_MW_";
        /// Destroy a memory window.
        DESTROY = 0;
    }
}

/// Methods of [`crate::object::FLOW`].
pub mod flow {
    ids! { u16, "UVERBS_METHOD_FLOW_";
        /// Destroy a flow rule.
        DESTROY = 0;
    }
}

/// Methods of [`crate::object::XRCD`].
pub mod xrcd {
    ids! { u16, "UVERBS_METHOD_XRCD_";
        /// Close an XRC domain.
        DESTROY = 0;
    }
}

/// Methods of [`crate::object::RWQ_IND_TBL`].
pub mod rwq_ind_tbl {
    ids! { u16, "UVERBS_METHOD_RWQ_IND_TBL_";
        /// Destroy an indirection table.
        DESTROY = 0;
    }
}

/// Methods of [`crate::object::WQ`].
pub mod wq {
    ids! { u16, "UVERBS_METHOD_WQ_";
        /// Create a WQ.
        CREATE = 0;
        /// Destroy a WQ.
        DESTROY = 1;
    }
}

/// Methods of [`crate::object::FLOW_ACTION`]; the kernel has removed the ESP methods again.
pub mod flow_action {
    ids! { u16, "UVERBS_METHOD_FLOW_ACTION_";
        /// Create an ESP action.
        ESP_CREATE = 0;
        /// Destroy an action.
        DESTROY = 1;
        /// Modify an ESP action.
        ESP_MODIFY = 2;
    }
}

/// Methods of [`crate::object::DM`].
pub mod dm {
    ids! { u16, "UVERBS_METHOD_DM_";
        /// Allocate device memory.
        ALLOC = 0;
        /// Free device memory.
        FREE = 1;
    }
}

/// Methods of [`crate::object::COUNTERS`].
pub mod counters {
    ids! { u16, "UVERBS_METHOD_COUNTERS_";
        /// Create a set of counters.
        CREATE = 0;
        /// Destroy a set of counters.
        DESTROY = 1;
        /// Read a set of counters.
        READ = 2;
    }
}

/// Methods of [`crate::object::ASYNC_EVENT`].
pub mod async_event {
    ids! { u16, "UVERBS_METHOD_ASYNC_EVENT_";
        /// Open a file that delivers asynchronous events.
        ALLOC = 0;
    }
}

/// Methods of [`crate::object::DMAH`]. Since Linux 6.17.
pub mod dmah {
    ids! { u16, "UVERBS_METHOD_DMAH_";
        /// Allocate a DMA handle.
        ALLOC = 0;
        /// Free a DMA handle.
        FREE = 1;
    }
}

/// Methods of [`crate::object::DMABUF`]. Since Linux 7.0.
pub mod dmabuf {
    ids! { u16, "UVERBS_METHOD_DMABUF_";
        /// Export pages of the device as a dma-buf.
        ALLOC = 0;
    }
}

/// Methods of [`crate::object::COMP_CNTR`]. Since Linux 7.3.
pub mod comp_cntr {
    ids! { u16, "UVERBS_METHOD_COMP_CNTR_";
        /// Create a completion counter.
        CREATE = 0;
        /// Destroy a completion counter.
        DESTROY = 1;
        /// Set or add to a completion counter.
        MODIFY = 2;
        /// Read a completion counter.
        READ = 3;
    }
}
