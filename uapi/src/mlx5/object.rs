//! mlx5's own object types (`enum mlx5_ib_objects`).

use crate::ioctl::DRIVER_NS;

ids! { u16, "MLX5_IB_OBJECT_";
    /// DEVX: commands of the device itself; there are no instances.
    DEVX = DRIVER_NS;
    /// Object made by a DEVX command.
    DEVX_OBJ = DRIVER_NS + 1;
    /// Memory registered for DEVX.
    DEVX_UMEM = DRIVER_NS + 2;
    /// Flow matcher.
    FLOW_MATCHER = DRIVER_NS + 3;
    /// File that delivers answers of asynchronous DEVX queries.
    DEVX_ASYNC_CMD_FD = DRIVER_NS + 4;
    /// File that delivers DEVX events.
    DEVX_ASYNC_EVENT_FD = DRIVER_NS + 5;
    /// Doorbell page for virtio emulation.
    VAR = DRIVER_NS + 6;
    /// Packet pacing entry.
    PP = DRIVER_NS + 7;
    /// User access region: a page of doorbells.
    UAR = DRIVER_NS + 8;
    /// Steering anchor: a flow table for the administrator's rules.
    STEERING_ANCHOR = DRIVER_NS + 9;
}
