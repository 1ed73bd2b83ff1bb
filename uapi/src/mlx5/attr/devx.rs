//! Attributes of the DEVX methods: the device's own commands, objects and events.

/// Attributes of [`crate::mlx5::method::devx::OTHER`].
pub mod devx_other {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DEVX_OTHER_";
        /// The command.
        CMD_IN = DRIVER_NS;
        /// Answer: the device's output.
        CMD_OUT = DRIVER_NS + 1;
    }
}

/// Attributes of [`crate::mlx5::method::devx::QUERY_UAR`].
pub mod devx_query_uar {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DEVX_QUERY_UAR_";
        /// Index of the UAR in this context (`u32`).
        USER_IDX = DRIVER_NS;
        /// Answer: its index in the device (`u32`).
        DEV_IDX = DRIVER_NS + 1;
    }
}

/// Attributes of [`crate::mlx5::method::devx::QUERY_EQN`].
pub mod devx_query_eqn {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DEVX_QUERY_EQN_";
        /// Completion vector (`u32`).
        USER_VEC = DRIVER_NS;
        /// Answer: number of its event queue (`u32`).
        DEV_EQN = DRIVER_NS + 1;
    }
}

/// Attributes of [`crate::mlx5::method::devx::SUBSCRIBE_EVENT`].
pub mod devx_subscribe_event {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_";
        /// The event file that gets the events.
        FD_HANDLE = DRIVER_NS;
        /// Handle of the object; left out for events of the device.
        OBJ_HANDLE = DRIVER_NS + 1;
        /// Numbers of the events (`u16` each).
        TYPE_NUM_LIST = DRIVER_NS + 2;
        /// eventfd to signal instead (`u32`).
        FD_NUM = DRIVER_NS + 3;
        /// Value that each event carries (`u64`).
        COOKIE = DRIVER_NS + 4;
    }
}

/// Attributes of [`crate::mlx5::method::devx_obj::CREATE`].
pub mod devx_obj_create {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DEVX_OBJ_CREATE_";
        /// Answer: handle of the new object.
        HANDLE = DRIVER_NS;
        /// The command.
        CMD_IN = DRIVER_NS + 1;
        /// Answer: the device's output.
        CMD_OUT = DRIVER_NS + 2;
    }
}

/// Attributes of [`crate::mlx5::method::devx_obj::DESTROY`].
pub mod devx_obj_destroy {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DEVX_OBJ_DESTROY_";
        /// Handle of the object.
        HANDLE = DRIVER_NS;
    }
}

/// Attributes of [`crate::mlx5::method::devx_obj::MODIFY`].
pub mod devx_obj_modify {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DEVX_OBJ_MODIFY_";
        /// Handle of the object.
        HANDLE = DRIVER_NS;
        /// The command.
        CMD_IN = DRIVER_NS + 1;
        /// Answer: the device's output.
        CMD_OUT = DRIVER_NS + 2;
    }
}

/// Attributes of [`crate::mlx5::method::devx_obj::QUERY`].
pub mod devx_obj_query {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_";
        /// Handle of the object.
        HANDLE = DRIVER_NS;
        /// The command.
        CMD_IN = DRIVER_NS + 1;
        /// Answer: the device's output.
        CMD_OUT = DRIVER_NS + 2;
    }
}

/// Attributes of [`crate::mlx5::method::devx_obj::ASYNC_QUERY`].
pub mod devx_obj_query_async {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_";
        /// Handle of the object.
        HANDLE = DRIVER_NS;
        /// The command.
        CMD_IN = DRIVER_NS + 1;
        /// The file on which the answer arrives.
        FD = DRIVER_NS + 2;
        /// Id that the answer carries (`u64`).
        WR_ID = DRIVER_NS + 3;
        /// Requested bytes of output (constant).
        OUT_LEN = DRIVER_NS + 4;
    }
}

/// Attributes of [`crate::mlx5::method::devx_umem::REG`].
pub mod devx_umem_reg {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DEVX_UMEM_REG_";
        /// Answer: handle of the new registration.
        HANDLE = DRIVER_NS;
        /// Address of the memory in this process (`u64`).
        ADDR = DRIVER_NS + 1;
        /// Length in bytes (`u64`).
        LEN = DRIVER_NS + 2;
        /// [`crate::flags::Access`].
        ACCESS = DRIVER_NS + 3;
        /// Answer: number of the registration in the device (`u32`).
        OUT_ID = DRIVER_NS + 4;
        /// Page sizes that may be used (`u64`).
        PGSZ_BITMAP = DRIVER_NS + 5;
        /// dma-buf instead of an address (plain file descriptor).
        DMABUF_FD = DRIVER_NS + 6;
    }
}

/// Attributes of [`crate::mlx5::method::devx_umem::DEREG`].
pub mod devx_umem_dereg {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DEVX_UMEM_DEREG_";
        /// Handle of the registration.
        HANDLE = DRIVER_NS;
    }
}

/// Attributes of [`crate::mlx5::method::devx_async_cmd_fd::ALLOC`].
pub mod devx_async_cmd_fd_alloc {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_";
        /// Answer: the file descriptor.
        HANDLE = DRIVER_NS;
    }
}

/// Attributes of [`crate::mlx5::method::devx_async_event_fd::ALLOC`].
pub mod devx_async_event_fd_alloc {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_";
        /// Answer: the file descriptor.
        HANDLE = DRIVER_NS;
        /// [`crate::mlx5::DevxEventChannelFlags`].
        FLAGS = DRIVER_NS + 1;
    }
}
