//! The port by which a queue pair's packets leave a device with bonded ports.

/// The physical port of a queue pair on a device with link aggregation (LAG). Manual page:
/// `mlx5dv_query_qp_lag_port(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LagPort {
    /// The port that it was given, from 1 on; `None` if it was given none.
    pub configured: Option<u8>,
    /// The port by which its packets leave: a different one while the configured one has no link. `None` if
    /// the device does not report it.
    pub active: Option<u8>,
}
