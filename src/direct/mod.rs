//! Direct verbs: what devices of one kind take beyond the verbs of all, one module for each kind.
#![cfg(feature = "mlx5-direct")]

pub mod mlx5;
