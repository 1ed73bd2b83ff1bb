//! uverbs measured side by side with rdma-core: the work that is measured and the way it is measured.
//!
//! Three programs do the same work: this crate's, `rdma_core.c` through libibverbs (`srd.c` on an EFA, and
//! `dc.c` for dynamic connections), and `bare.c`, which makes the bare system calls by hand. [`measure`]
//! starts them and gives records; `cargo vm bench` shows these as tables. Counts of instructions and system
//! calls are exact. Times mean something only as ratios of runs that took turns.

pub mod agent;
pub mod awaited;
pub mod connections;
pub mod control;
pub mod dc;
pub mod instructions;

pub mod measure;
pub mod pair;
pub mod perf;
pub mod scale;
pub mod serve;
pub mod srd;
pub mod transfer;
pub mod waits;
