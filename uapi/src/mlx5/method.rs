//! mlx5's own methods, on core objects and on its own, one module for each object type.

/// Methods of [`crate::object::DEVICE`].
pub mod device {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_";
        /// Switch attributes of a port.
        QUERY_PORT = DRIVER_NS;
        /// sysfs path of the data-direct device. Since Linux 6.12.
        GET_DATA_DIRECT_SYSFS_PATH = DRIVER_NS + 1;
    }
}

/// Methods of [`crate::object::PD`].
pub mod pd {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_PD_";
        /// Number of a PD in the device.
        QUERY = DRIVER_NS;
    }
}

/// Methods of [`crate::object::DM`].
pub mod dm {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_DM_";
        /// Map the address of an operation on device memory.
        MAP_OP_ADDR = DRIVER_NS;
        /// The address of a piece of device memory.
        QUERY = DRIVER_NS + 1;
    }
}

/// Methods of [`crate::object::FLOW`].
pub mod flow {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_";
        /// Create a flow rule.
        CREATE = DRIVER_NS => "CREATE_FLOW";
        /// Destroy a flow rule.
        DESTROY = DRIVER_NS + 1 => "DESTROY_FLOW";
    }
}

/// Methods of [`crate::object::FLOW_ACTION`].
pub mod flow_action {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_FLOW_ACTION_";
        /// Create an action that changes headers.
        CREATE_MODIFY_HEADER = DRIVER_NS;
        /// Create an action that adds or removes headers.
        CREATE_PACKET_REFORMAT = DRIVER_NS + 1;
    }
}

/// Methods of [`crate::mlx5::object::DEVX`].
pub mod devx {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_DEVX_";
        /// Send a command to the device.
        OTHER = DRIVER_NS;
        /// Number of a UAR in the device.
        QUERY_UAR = DRIVER_NS + 1;
        /// Event queue of a completion vector.
        QUERY_EQN = DRIVER_NS + 2;
        /// Subscribe to events.
        SUBSCRIBE_EVENT = DRIVER_NS + 3;
    }
}

/// Methods of [`crate::mlx5::object::DEVX_OBJ`].
pub mod devx_obj {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_DEVX_OBJ_";
        /// Create an object.
        CREATE = DRIVER_NS;
        /// Destroy an object.
        DESTROY = DRIVER_NS + 1;
        /// Change an object.
        MODIFY = DRIVER_NS + 2;
        /// Query an object.
        QUERY = DRIVER_NS + 3;
        /// Query an object; the answer comes later.
        ASYNC_QUERY = DRIVER_NS + 4;
    }
}

/// Methods of [`crate::mlx5::object::DEVX_UMEM`].
pub mod devx_umem {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_DEVX_UMEM_";
        /// Register memory.
        REG = DRIVER_NS;
        /// Deregister memory.
        DEREG = DRIVER_NS + 1;
    }
}

/// Methods of [`crate::mlx5::object::FLOW_MATCHER`].
pub mod flow_matcher {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_FLOW_MATCHER_";
        /// Create a matcher.
        CREATE = DRIVER_NS;
        /// Destroy a matcher.
        DESTROY = DRIVER_NS + 1;
    }
}

/// Methods of [`crate::mlx5::object::DEVX_ASYNC_CMD_FD`].
pub mod devx_async_cmd_fd {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_";
        /// Open a file for answers.
        ALLOC = DRIVER_NS;
    }
}

/// Methods of [`crate::mlx5::object::DEVX_ASYNC_EVENT_FD`].
pub mod devx_async_event_fd {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_";
        /// Open a file for events.
        ALLOC = DRIVER_NS;
    }
}

/// Methods of [`crate::mlx5::object::VAR`].
pub mod var {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_VAR_OBJ_";
        /// Allocate a page.
        ALLOC = DRIVER_NS;
        /// Free a page.
        DESTROY = DRIVER_NS + 1;
    }
}

/// Methods of [`crate::mlx5::object::PP`].
pub mod pp {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_PP_OBJ_";
        /// Allocate an entry.
        ALLOC = DRIVER_NS;
        /// Free an entry.
        DESTROY = DRIVER_NS + 1;
    }
}

/// Methods of [`crate::mlx5::object::UAR`].
pub mod uar {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_UAR_OBJ_";
        /// Allocate a UAR.
        ALLOC = DRIVER_NS;
        /// Free a UAR.
        DESTROY = DRIVER_NS + 1;
    }
}

/// Methods of [`crate::mlx5::object::STEERING_ANCHOR`].
pub mod steering_anchor {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_METHOD_STEERING_ANCHOR_";
        /// Create an anchor.
        CREATE = DRIVER_NS;
        /// Destroy an anchor.
        DESTROY = DRIVER_NS + 1;
    }
}
