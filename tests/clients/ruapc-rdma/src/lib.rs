//! The interface of the crate `ruapc-rdma` on [`uverbs`]: no libibverbs, no C.
//!
//! ruapc, the library for remote procedure calls, drives RDMA devices by the crate `ruapc-rdma`. This one
//! takes its place by `[patch.crates-io]`, and ruapc stays as it is. See README.md for what is different and
//! what is missing.
//!
//! | file | what is in it |
//! |---|---|
//! | `types`, `header` | values: what JSON has of devices, and what C programs have in `verbs.h` |
//! | `device`, `memory` | devices, contexts, protection domains, regions |
//! | `completion` | completion queues, channels, and who a completion belongs to |
//! | `queue_pair`, `connect` | queue pairs, and what connects them |
//! | `held` | the buffers of requests in flight |
//! | `read` | READs that own where they write to |
//! | `wait` | poll(2) for two descriptors |

mod completion;
mod connect;
mod device;
mod error;
mod header;
mod held;
mod memory;
mod queue_pair;
mod read;
mod types;
mod wait;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use completion::{
    CompChannel, Completion, CompletionBatch, CompletionIdentity, CompletionQueue, Completions,
    QpRegistryStats,
};
pub use connect::QpConnectionConfig;
pub use device::{ActiveDevice, Context, Device, DeviceList};
pub use error::{Error, ErrorKind, Result};
pub use header::{
    ibv_access_flags, ibv_ah_attr, ibv_atomic_cap, ibv_device_attr, ibv_device_cap_flags, ibv_gid,
    ibv_gid_global, ibv_global_route, ibv_mig_state, ibv_mtu, ibv_port_attr, ibv_port_cap_flags,
    ibv_port_cap_flags2, ibv_port_state, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_send_flags, ibv_transport_type, ibv_wc,
    ibv_wc_flags, ibv_wc_opcode, ibv_wc_status,
};
pub use memory::{MemoryRegion, ProtectionDomain};
pub use queue_pair::{CompletedWork, CompletionCursor, MAX_GATHER_SGE, QueuePair, WrBuffers};
pub use read::{
    ReadCompletion, ReadFailure, ReadHandle, ReadObservation, ReadPosting, ReadRequest, ReadSegment,
};
pub use types::{DeviceInfo, FwVer, Gid, GidType, Guid, LinkLayer, Port, WRID, WRType};
pub use wait::poll_readable2;

/// Locks, also what a thread that panicked has locked: every value here is whole after each statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
