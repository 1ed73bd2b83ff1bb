//! Attributes that mlx5 adds to core methods.

/// Attributes of [`crate::method::cq::CREATE`].
pub mod create_cq {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_CREATE_CQ_";
        /// UAR whose doorbell arms the CQ (`u32`). Since Linux 6.8.
        UAR_INDEX = DRIVER_NS + 2;
        /// [`crate::types::BufferDesc`] of the doorbell record. Since Linux 7.2.
        DBR_BUF_UMEM = DRIVER_NS + 3;
    }
}

/// Attributes of [`crate::method::qp::CREATE`]. Since Linux 7.2.
pub mod create_qp {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_CREATE_QP_";
        /// [`crate::types::BufferDesc`] of the doorbell record.
        DBR_BUF_UMEM = DRIVER_NS + 2;
    }
}

/// Attributes of [`crate::method::srq::CREATE`]. Since Linux 7.3.
pub mod create_srq {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_CREATE_SRQ_";
        /// [`crate::types::BufferDesc`] of the doorbell record.
        DBR_BUF_UMEM = DRIVER_NS + 2;
    }
}

/// Attributes of [`crate::method::mr::REG_DMABUF`]. Since Linux 6.12.
pub mod reg_dmabuf_mr {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_REG_DMABUF_MR_";
        /// [`crate::mlx5::RegDmabufFlags`].
        ACCESS_FLAGS = DRIVER_NS;
    }
}

/// Attributes of [`crate::method::dm::ALLOC`].
pub mod alloc_dm {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_ALLOC_DM_";
        /// Answer: address of the piece in the device (`u64`).
        RESP_START_OFFSET = DRIVER_NS;
        /// Answer: page to map (`u16`).
        RESP_PAGE_INDEX = DRIVER_NS + 1;
        /// [`crate::mlx5::DmType`] (constant).
        REQ_TYPE = DRIVER_NS + 2;
    }
}

/// Attributes of [`crate::method::device::QUERY_CONTEXT`].
pub mod query_context {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_QUERY_CONTEXT_";
        /// Answer: [`crate::mlx5::AllocUcontextResp`].
        RESP_UCTX = DRIVER_NS;
    }
}

/// Attributes of [`crate::mlx5::method::device::QUERY_PORT`].
pub mod query_port {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_";
        /// Port, counted from 1 (`u32`).
        PORT_NUM = DRIVER_NS => "QUERY_PORT_PORT_NUM";
        /// Answer: [`crate::mlx5::QueryPort`].
        RESP = DRIVER_NS + 1 => "QUERY_PORT";
    }
}

/// Attributes of [`crate::mlx5::method::device::GET_DATA_DIRECT_SYSFS_PATH`]. Since Linux 6.12.
pub mod get_data_direct_sysfs_path {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_";
        /// Answer: sysfs path of the data-direct device, a string.
        PATH = DRIVER_NS => "GET_DATA_DIRECT_SYSFS_PATH";
    }
}

/// Attributes of [`crate::mlx5::method::pd::QUERY`].
pub mod query_pd {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_QUERY_PD_";
        /// Handle of the PD.
        HANDLE = DRIVER_NS;
        /// Answer: number of the PD in the device (`u32`).
        RESP_PDN = DRIVER_NS + 1;
    }
}

/// Attributes of [`crate::mlx5::method::dm::MAP_OP_ADDR`].
pub mod dm_map_op_addr {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DM_MAP_OP_ADDR_";
        /// Handle of the device memory.
        REQ_HANDLE = DRIVER_NS;
        /// Operation to map an address for (`u8`).
        REQ_OP = DRIVER_NS + 1;
        /// Answer: offset within the page (`u16`).
        RESP_START_OFFSET = DRIVER_NS + 2;
        /// Answer: page to map (`u16`).
        RESP_PAGE_INDEX = DRIVER_NS + 3;
    }
}

/// Attributes of [`crate::mlx5::method::dm::QUERY`].
pub mod query_dm {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_QUERY_DM_";
        /// Handle of the device memory.
        REQ_HANDLE = DRIVER_NS;
        /// Answer: address of the piece in the device (`u64`).
        RESP_START_OFFSET = DRIVER_NS + 1;
        /// Answer: page to map (`u16`).
        RESP_PAGE_INDEX = DRIVER_NS + 2;
        /// Answer: length in bytes (`u64`).
        RESP_LENGTH = DRIVER_NS + 3;
    }
}
