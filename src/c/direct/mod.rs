//! Direct verbs: operations of one kind of device beyond the verbs of all. The libraries in `providers/`
//! export them; most of their names fail with `EOPNOTSUPP`.

#[cfg(feature = "efa")]
pub mod efa;
pub mod mlx5;

/// The data that direct verbs keep with an open device.
#[derive(Debug, Default)]
pub(super) struct Kept {
    #[cfg(feature = "mlx5-direct")]
    pub(super) reserved: mlx5::reserved::Reserved,
    #[cfg(feature = "mlx5-direct")]
    pub(super) uncached: mlx5::devx::CommonUar,
}
