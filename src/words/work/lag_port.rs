//! Where a queue pair's packets leave a device whose ports are bonded.

/// The physical port of a queue pair on a device with link aggregation (LAG). Manual page:
/// `mlx5dv_query_qp_lag_port(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LagPort {
    /// The port that it was given, from 1 on; `None` if it was given none.
    pub configured: Option<u8>,
    /// The port that its packets leave by: another one while the configured one has no link. `None` if the
    /// device does not say.
    pub active: Option<u8>,
}
