//! Enhanced connection establishment: options that two devices of a vendor agree on beyond the standard.

/// A device's options for a connection. They are exchanged with the endpoint, and only devices of the same
/// vendor understand them. Manual page: `ibv_query_ece(3)`.
#[doc(alias = "ibv_query_ece")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ece {
    /// The vendor whose devices understand the options, by its number on the PCI bus: 0x15b3 for mlx5.
    pub vendor_id: u32,
    /// The options; 0 means none.
    pub options: u32,
}
