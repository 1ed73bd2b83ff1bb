//! Attributes of EFA's own methods, and attributes that it adds to core methods.

/// Attributes of [`crate::efa::method::mr::QUERY`].
pub mod query_mr {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "EFA_IB_ATTR_QUERY_MR_";
        /// The MR (handle).
        HANDLE = DRIVER_NS;
        /// [`crate::efa::QueryMrValidity`] (output, `u16`).
        RESP_IC_ID_VALIDITY = DRIVER_NS + 1;
        /// Interconnect for receives (output, `u16`).
        RESP_RECV_IC_ID = DRIVER_NS + 2;
        /// Interconnect for RDMA READs (output, `u16`).
        RESP_RDMA_READ_IC_ID = DRIVER_NS + 3;
        /// Interconnect for WRITEs of peers (output, `u16`).
        RESP_RDMA_RECV_IC_ID = DRIVER_NS + 4;
    }
}

/// Attributes of [`crate::method::comp_cntr::CREATE`]. Since Linux 7.3.
pub mod create_comp_cntr {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "EFA_IB_ATTR_CREATE_COMP_CNTR_";
        /// [`crate::types::BufferDesc`] for the count of completions.
        COMP_BUFFER = DRIVER_NS;
        /// [`crate::types::BufferDesc`] for the count of errors.
        ERR_BUFFER = DRIVER_NS + 1;
    }
}
