//! The numbers of RDMA netlink and of the kernel's drivers.

/// The netlink client that knows the devices (`RDMA_NL_NLDEV`).
pub(super) const NLDEV: u16 = 5;

/// Devices, one or all.
pub(super) const CMD_GET: u16 = 1;
/// Ports of a device, one or all.
pub(super) const CMD_PORT_GET: u16 = 5;
/// The character device of a kind that belongs to a device.
pub(super) const CMD_GET_CHARDEV: u16 = 15;

pub(super) const ATTR_DEV_INDEX: u16 = 1;
pub(super) const ATTR_DEV_NAME: u16 = 2;
pub(super) const ATTR_PORT_INDEX: u16 = 3;
pub(super) const ATTR_FW_VERSION: u16 = 5;
pub(super) const ATTR_NODE_GUID: u16 = 6;
pub(super) const ATTR_SYS_IMAGE_GUID: u16 = 7;
pub(super) const ATTR_LID: u16 = 9;
pub(super) const ATTR_PORT_STATE: u16 = 12;
pub(super) const ATTR_PORT_PHYS_STATE: u16 = 13;
pub(super) const ATTR_DEV_NODE_TYPE: u16 = 14;
pub(super) const ATTR_NDEV_INDEX: u16 = 50;
pub(super) const ATTR_NDEV_NAME: u16 = 51;
pub(super) const ATTR_CHARDEV_TYPE: u16 = 69;
pub(super) const ATTR_CHARDEV_NAME: u16 = 70;
pub(super) const ATTR_CHARDEV_ABI: u16 = 71;
pub(super) const ATTR_CHARDEV: u16 = 72;
pub(super) const ATTR_UVERBS_DRIVER_ID: u16 = 73;
