//! The order in which a device writes a message.

/// In which order a device writes the bytes of a message to memory. Manual page:
/// `ibv_query_qp_data_in_order(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DataOrder {
    /// In any, as far as is known.
    Any,
    /// In any, but each 128 bytes that begin at a multiple of 128 one after the other.
    Aligned128,
    /// One after the other: the last byte comes when all others are there.
    Whole,
}
