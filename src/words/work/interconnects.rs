//! By which of its connections with the host's memory a device reaches a region.

/// The numbers of the connections by which a device reaches a region's memory, as far as it tells them. A
/// device with several reaches memory that is near to one of them by that one, for each kind of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interconnects {
    /// For messages that are received into the region.
    pub receive: Option<u16>,
    /// For READs by peers.
    pub read: Option<u16>,
    /// For what peers write, and what comes by READs of this side.
    pub rdma_receive: Option<u16>,
}
