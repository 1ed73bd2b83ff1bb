//! Direct verbs: what programs ask a certain kind of device beyond the verbs of all. The libraries in
//! `providers/` export them; most of their names fail with `EOPNOTSUPP`.

#[cfg(feature = "efa")]
pub mod efa;
pub mod mlx5;
