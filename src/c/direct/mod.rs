//! Direct verbs: what programs ask a certain kind of device beyond the verbs of all. The libraries in
//! `providers/` export them; most of their names fail with `EOPNOTSUPP`.

pub mod mlx5;
