//! Direct verbs: what devices of one kind can do beyond the verbs of all devices, one module for each kind.
#![cfg(feature = "mlx5-direct")]

pub mod mlx5;
