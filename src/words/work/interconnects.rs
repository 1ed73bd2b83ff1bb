//! The connections with the host's memory by which a device reaches a region.

/// The numbers of the connections by which a device reaches a region's memory, as far as it reports them. A
/// device with several connections uses the one that is near to the memory, for each kind of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interconnects {
    /// For messages that are received into the region.
    pub receive: Option<u16>,
    /// For READs by peers.
    pub read: Option<u16>,
    /// For WRITEs by peers, and for the data of this side's READs.
    pub rdma_receive: Option<u16>,
}
