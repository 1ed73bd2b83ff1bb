//! What is known about a device before the search for its character device.

use super::node_type::NodeType;
use crate::guid::Guid;

/// A device as a listing shows it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Info {
    pub(super) name: String,
    pub(super) index: Option<u32>,
    pub(super) ports: Option<u32>,
    pub(super) firmware: Option<String>,
    pub(super) node_guid: Option<Guid>,
    pub(super) system_image_guid: Option<Guid>,
    pub(super) node_type: Option<NodeType>,
}

/// True if the name stays within a directory when it is joined to the directory's path.
pub(super) fn is_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}
