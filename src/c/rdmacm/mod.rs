//! The C ABI of librdmacm: connections by address for C programs, over the kernel's connection manager.
//!
//! The functions have the names, the signatures and the contracts of the manual pages `rdma_*(3)`, and the
//! structs in [`abi`] the layout of `<rdma/rdma_cma.h>`. The package in `library/` makes `librdmacm.so.1`
//! from them, a library separate from `libibverbs.so.1`: a program's queue pairs are objects of the
//! libibverbs that the process has loaded, and only its functions (`verbs`) access them.
//!
//! A failure is -1 or NULL, with the number in `errno`. `docs/c-abi.md` says what is missing.

pub mod abi;
mod addrinfo;
mod channel;
mod command;
mod connect;
mod device;
mod endpoint;
mod event;
mod id;
mod lookup;
mod multicast;
mod names;
mod qp;
mod resolve;
mod srq;
mod verbs;

pub use super::missing;
pub use addrinfo::{rdma_freeaddrinfo, rdma_getaddrinfo};
pub use channel::{rdma_create_event_channel, rdma_destroy_event_channel};
pub use connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_listen, rdma_notify,
    rdma_reject, rdma_reject_ece,
};
pub use device::{rdma_free_devices, rdma_get_devices};
pub use endpoint::{rdma_create_ep, rdma_destroy_ep, rdma_get_request};
pub use event::{rdma_ack_cm_event, rdma_get_cm_event};
pub use id::{rdma_create_id, rdma_destroy_id, rdma_migrate_id};
pub use lookup::{rdma_query_addrinfo, rdma_resolve_addrinfo, rdma_write_cm_event};
pub use multicast::{rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast};
pub use names::rdma_event_str;
pub use qp::{
    rdma_create_qp, rdma_create_qp_ex, rdma_destroy_qp, rdma_get_remote_ece, rdma_init_qp_attr,
    rdma_set_local_ece,
};
pub use resolve::{
    rdma_bind_addr, rdma_get_dst_port, rdma_get_src_port, rdma_resolve_addr, rdma_resolve_route,
    rdma_set_option,
};
pub use srq::{rdma_create_srq, rdma_create_srq_ex, rdma_destroy_srq};

use super::failure::Failure;
use crate::error::Errno;

/// The failure that a function of libibverbs or libc has stored in `errno`. Providers may forget to.
fn last_errno() -> Failure {
    Failure(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
