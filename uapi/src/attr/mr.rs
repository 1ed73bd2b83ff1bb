//! Attributes of the methods of memory regions and windows.

/// Attributes of [`crate::method::mr::DM_REG`].
pub mod reg_dm_mr {
    ids! { u16, "UVERBS_ATTR_REG_DM_MR_";
        /// Answer: handle of the new MR.
        HANDLE = 0;
        /// Offset within the device memory (`u64`).
        OFFSET = 1;
        /// Length in bytes (`u64`).
        LENGTH = 2;
        /// Handle of the PD.
        PD_HANDLE = 3;
        /// [`crate::flags::Access`].
        ACCESS_FLAGS = 4;
        /// Handle of the device memory.
        DM_HANDLE = 5;
        /// Answer: local key (`u32`).
        RESP_LKEY = 6;
        /// Answer: remote key (`u32`).
        RESP_RKEY = 7;
    }
}

/// Attributes of [`crate::method::mr::DESTROY`].
pub mod destroy_mr {
    ids! { u16, "UVERBS_ATTR_DESTROY_MR_";
        /// Handle of the MR.
        HANDLE = 0;
    }
}

/// Attributes of [`crate::method::mr::ADVISE`].
pub mod advise_mr {
    ids! { u16, "UVERBS_ATTR_ADVISE_MR_";
        /// Handle of the PD.
        PD_HANDLE = 0;
        /// [`crate::enums::AdviseMrAdvice`] (constant).
        ADVICE = 1;
        /// [`crate::flags::AdviseMrFlags`].
        FLAGS = 2;
        /// Array of [`crate::types::Sge`].
        SGE_LIST = 3;
    }
}

/// Attributes of [`crate::method::mr::QUERY`].
pub mod query_mr {
    ids! { u16, "UVERBS_ATTR_QUERY_MR_";
        /// Handle of the MR.
        HANDLE = 0;
        /// Answer: local key (`u32`).
        RESP_LKEY = 1;
        /// Answer: remote key (`u32`).
        RESP_RKEY = 2;
        /// Answer: length in bytes (`u64`).
        RESP_LENGTH = 3;
        /// Answer: address of the first byte for peers (`u64`); may be left out.
        RESP_IOVA = 4;
    }
}

/// Attributes of [`crate::method::mr::REG_DMABUF`].
pub mod reg_dmabuf_mr {
    ids! { u16, "UVERBS_ATTR_REG_DMABUF_MR_";
        /// Answer: handle of the new MR.
        HANDLE = 0;
        /// Handle of the PD.
        PD_HANDLE = 1;
        /// Offset within the dma-buf (`u64`).
        OFFSET = 2;
        /// Length in bytes (`u64`).
        LENGTH = 3;
        /// Address of the first byte for peers (`u64`).
        IOVA = 4;
        /// The dma-buf (`u32`).
        FD = 5;
        /// [`crate::flags::Access`].
        ACCESS_FLAGS = 6;
        /// Answer: local key (`u32`).
        RESP_LKEY = 7;
        /// Answer: remote key (`u32`).
        RESP_RKEY = 8;
    }
}

/// Attributes of [`crate::method::mr::REG`]. Since Linux 6.17.
pub mod reg_mr {
    ids! { u16, "UVERBS_ATTR_REG_MR_";
        /// Answer: handle of the new MR.
        HANDLE = 0;
        /// Handle of the PD.
        PD_HANDLE = 1;
        /// Handle of the DMA handle; may be left out.
        DMA_HANDLE = 2;
        /// Address of the first byte for peers (`u64`).
        IOVA = 3;
        /// Address of the memory in this process (`u64`).
        ADDR = 4;
        /// Length in bytes (`u64`).
        LENGTH = 5;
        /// [`crate::flags::Access`].
        ACCESS_FLAGS = 6;
        /// dma-buf instead of an address (plain file descriptor).
        FD = 7;
        /// Offset within the dma-buf (`u64`).
        FD_OFFSET = 8;
        /// Answer: local key (`u32`).
        RESP_LKEY = 9;
        /// Answer: remote key (`u32`).
        RESP_RKEY = 10;
    }
}

/// Attributes of [`crate::method::mw::DESTROY`].
pub mod destroy_mw {
    ids! { u16, "UVERBS_ATTR_DESTROY_MW_";
        /// Handle of the window.
        HANDLE = 0;
    }
}
