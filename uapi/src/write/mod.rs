//! Requests and responses of the write interface (`include/uapi/rdma/ib_user_verbs.h`).
//!
//! A legacy request starts with the address of its response, if it has one; an extended one has
//! that address in [`ExCmdHdr`]. Driver data follow the core struct on either side. Responses that
//! several commands share are in [`crate::types`].

mod ah;
mod cq;
mod device;
mod flow;
mod header;
mod mr;
mod mw;
mod pd;
mod post;
mod qp;
mod srq;
mod wq;
mod xrcd;

pub use ah::*;
pub use cq::*;
pub use device::*;
pub use flow::*;
pub use header::*;
pub use mr::*;
pub use mw::*;
pub use pd::*;
pub use post::*;
pub use qp::*;
pub use srq::*;
pub use wq::*;
pub use xrcd::*;
