//! Attributes of the methods of mlx5's mappable pages and of packet pacing.

/// Attributes of [`crate::mlx5::method::var::ALLOC`].
pub mod var_obj_alloc {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_VAR_OBJ_ALLOC_";
        /// Answer: handle of the new doorbell page for virtio.
        HANDLE = DRIVER_NS;
        /// Answer: file offset for `mmap()` (`u64`).
        MMAP_OFFSET = DRIVER_NS + 1;
        /// Answer: length in bytes (`u32`).
        MMAP_LENGTH = DRIVER_NS + 2;
        /// Answer: number of the page (`u32`).
        PAGE_ID = DRIVER_NS + 3;
        /// [`crate::mlx5::VarAllocFlags`]. Since Linux 7.1.
        FLAGS = DRIVER_NS + 4;
    }
}

/// Attributes of [`crate::mlx5::method::var::DESTROY`].
pub mod var_obj_destroy {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_VAR_OBJ_DESTROY_";
        /// Handle of the page.
        HANDLE = DRIVER_NS;
    }
}

/// Attributes of [`crate::mlx5::method::uar::ALLOC`].
pub mod uar_obj_alloc {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_UAR_OBJ_ALLOC_";
        /// Answer: handle of the new UAR.
        HANDLE = DRIVER_NS;
        /// [`crate::mlx5::UarAllocType`] (constant).
        TYPE = DRIVER_NS + 1;
        /// Answer: file offset for `mmap()` (`u64`).
        MMAP_OFFSET = DRIVER_NS + 2;
        /// Answer: length in bytes (`u32`).
        MMAP_LENGTH = DRIVER_NS + 3;
        /// Answer: number of the UAR (`u32`).
        PAGE_ID = DRIVER_NS + 4;
    }
}

/// Attributes of [`crate::mlx5::method::uar::DESTROY`].
pub mod uar_obj_destroy {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_UAR_OBJ_DESTROY_";
        /// Handle of the UAR.
        HANDLE = DRIVER_NS;
    }
}

/// Attributes of [`crate::mlx5::method::pp::ALLOC`].
pub mod pp_obj_alloc {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_PP_OBJ_ALLOC_";
        /// Answer: handle of the new pacing entry.
        HANDLE = DRIVER_NS;
        /// The entry, in the device's own layout.
        CTX = DRIVER_NS + 1;
        /// [`crate::mlx5::PpAllocFlags`].
        FLAGS = DRIVER_NS + 2;
        /// Answer: its index (`u16`).
        INDEX = DRIVER_NS + 3;
    }
}

/// Attributes of [`crate::mlx5::method::pp::DESTROY`].
pub mod pp_obj_destroy {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_PP_OBJ_DESTROY_";
        /// Handle of the entry.
        HANDLE = DRIVER_NS;
    }
}
