//! Attributes of mlx5's flow steering.

/// Attributes of [`crate::mlx5::method::flow_matcher::CREATE`].
pub mod flow_matcher_create {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_FLOW_MATCHER_";
        /// Answer: handle of the new matcher.
        HANDLE = DRIVER_NS => "CREATE_HANDLE";
        /// The bits to match.
        MATCH_MASK = DRIVER_NS + 1;
        /// [`crate::mlx5::FlowType`] (enumeration) with the priority (`u16`).
        FLOW_TYPE = DRIVER_NS + 2;
        /// The groups of fields in the mask (`u8`).
        MATCH_CRITERIA = DRIVER_NS + 3;
        /// [`crate::flags::FlowAttrFlags`].
        FLOW_FLAGS = DRIVER_NS + 4;
        /// [`crate::mlx5::FlowTableType`] (constant).
        FT_TYPE = DRIVER_NS + 5;
        /// Port, counted from 1 (`u32`). Since Linux 6.15.
        IB_PORT = DRIVER_NS + 6;
    }
}

/// Attributes of [`crate::mlx5::method::flow_matcher::DESTROY`].
pub mod flow_matcher_destroy {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_FLOW_MATCHER_DESTROY_";
        /// Handle of the matcher.
        HANDLE = DRIVER_NS;
    }
}

/// Attributes of [`crate::mlx5::method::steering_anchor::CREATE`].
pub mod steering_anchor_create {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_STEERING_ANCHOR_";
        /// Answer: handle of the new anchor.
        HANDLE = DRIVER_NS => "CREATE_HANDLE";
        /// [`crate::mlx5::FlowTableType`] (constant).
        FT_TYPE = DRIVER_NS + 1;
        /// Priority (`u16`).
        PRIORITY = DRIVER_NS + 2;
        /// Answer: number of the flow table (`u32`).
        FT_ID = DRIVER_NS + 3;
    }
}

/// Attributes of [`crate::mlx5::method::steering_anchor::DESTROY`].
pub mod steering_anchor_destroy {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_STEERING_ANCHOR_DESTROY_";
        /// Handle of the anchor.
        HANDLE = DRIVER_NS;
    }
}

/// Attributes of [`crate::mlx5::method::flow::CREATE`].
pub mod create_flow {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_CREATE_FLOW_";
        /// Answer: handle of the new rule.
        HANDLE = DRIVER_NS;
        /// What to match, see [`crate::mlx5::MatchParams`].
        MATCH_VALUE = DRIVER_NS + 1;
        /// QP that gets the packets.
        DEST_QP = DRIVER_NS + 2;
        /// DEVX object that gets the packets.
        DEST_DEVX = DRIVER_NS + 3;
        /// Handle of the matcher.
        MATCHER = DRIVER_NS + 4;
        /// Handles of flow actions.
        ARR_FLOW_ACTIONS = DRIVER_NS + 5;
        /// Mark for the completions (`u32`).
        TAG = DRIVER_NS + 6;
        /// Handles of DEVX counters.
        ARR_COUNTERS_DEVX = DRIVER_NS + 7;
        /// Offset within each (`u32`).
        ARR_COUNTERS_DEVX_OFFSET = DRIVER_NS + 8;
        /// [`crate::mlx5::CreateFlowFlags`].
        FLAGS = DRIVER_NS + 9;
    }
}

/// Attributes of [`crate::mlx5::method::flow::DESTROY`].
pub mod destroy_flow {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_DESTROY_FLOW_";
        /// Handle of the rule.
        HANDLE = DRIVER_NS;
    }
}

/// Attributes of [`crate::method::flow_action::ESP_CREATE`].
pub mod create_flow_action {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_CREATE_FLOW_ACTION_";
        /// [`crate::mlx5::FlowActionFlags`].
        FLAGS = DRIVER_NS;
    }
}

/// Attributes of [`crate::mlx5::method::flow_action::CREATE_MODIFY_HEADER`].
pub mod create_modify_header {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_CREATE_MODIFY_HEADER_";
        /// Answer: handle of the new action.
        HANDLE = DRIVER_NS;
        /// Changes to make, in the device's own layout.
        ACTIONS_PRM = DRIVER_NS + 1;
        /// [`crate::mlx5::FlowTableType`] (constant).
        FT_TYPE = DRIVER_NS + 2;
    }
}

/// Attributes of [`crate::mlx5::method::flow_action::CREATE_PACKET_REFORMAT`].
pub mod create_packet_reformat {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_";
        /// Answer: handle of the new action.
        HANDLE = DRIVER_NS;
        /// [`crate::mlx5::PacketReformatType`] (constant).
        TYPE = DRIVER_NS + 1;
        /// [`crate::mlx5::FlowTableType`] (constant).
        FT_TYPE = DRIVER_NS + 2;
        /// Header to add.
        DATA_BUF = DRIVER_NS + 3;
    }
}
