//! Attributes of the methods of device memory, DMA handles and exported pages.

/// Attributes of [`crate::method::dm::ALLOC`].
pub mod alloc_dm {
    ids! { u16, "UVERBS_ATTR_ALLOC_DM_";
        /// Answer: handle of the new piece.
        HANDLE = 0;
        /// Length in bytes (`u64`).
        LENGTH = 1;
        /// Base-2 logarithm of the alignment (`u32`).
        ALIGNMENT = 2;
    }
}

/// Attributes of [`crate::method::dm::FREE`].
pub mod free_dm {
    ids! { u16, "UVERBS_ATTR_FREE_DM_";
        /// Handle of the piece.
        HANDLE = 0;
    }
}

/// Attributes of [`crate::method::dmah::ALLOC`]. Since Linux 6.17.
pub mod alloc_dmah {
    ids! { u16, "UVERBS_ATTR_ALLOC_DMAH_";
        /// Answer: handle of the new DMA handle.
        HANDLE = 0;
        /// CPU whose cache should get the data (`u32`).
        CPU_ID = 1;
        /// Kind of memory: 0 volatile, 1 persistent (enumeration without a value).
        TPH_MEM_TYPE = 2;
        /// PCI processing hint, 2 bits (`u8`); this attribute and the two before it may be left out.
        PH = 3;
    }
}

/// Attributes of [`crate::method::dmah::FREE`]. Since Linux 6.17.
pub mod free_dmah {
    ids! { u16, "UVERBS_ATTR_FREE_DMA_";
        /// Handle of the DMA handle.
        HANDLE = 0;
    }
}

/// Attributes of [`crate::method::dmabuf::ALLOC`]. Since Linux 7.0.
pub mod alloc_dmabuf {
    ids! { u16, "UVERBS_ATTR_ALLOC_DMABUF_";
        /// Answer: the dma-buf.
        HANDLE = 0;
        /// The offset of the pages for `mmap()` of the device file, in bytes (`u64`).
        PGOFF = 1;
    }
}
