//! What the kernel reports about a region.

use super::{Memory, Mr};
use crate::command::QueryMr;
use crate::error::Result;
use crate::work::{Interconnects, LocalKey, RemoteKey};

/// What the kernel reports about a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MrInfo {
    /// The key for work requests of this side.
    pub lkey: LocalKey,
    /// The key for a peer.
    pub rkey: RemoteKey,
    /// Bytes.
    pub length: u64,
    /// The address by which work requests and peers name the first byte.
    pub iova: u64,
}

impl<M: Memory> Mr<M> {
    /// Queries by which of its connections with the host's memory the device reaches the region.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver does not support it: only EFA's does,
    /// and not with Linux 6.1. Manual page: `efadv_query_mr(3)`.
    pub fn interconnects(&self) -> Result<Interconnects> {
        let region = &self.held.region;
        let context = region.pd.context();
        context.driver().interconnects(context.fd(), region.handle)
    }

    /// Asks the kernel for the region's keys and range, as a process does that has received the handle from
    /// another.
    ///
    /// # Errors
    ///
    /// The kernel is older than Linux 5.8, or the device has been removed.
    pub fn query(&self) -> Result<MrInfo> {
        let region = &self.held.region;
        let reply = region.pd.context().fd().execute(&QueryMr(region.handle))?;
        Ok(MrInfo {
            lkey: LocalKey(reply.lkey),
            rkey: RemoteKey(reply.rkey),
            length: reply.length,
            iova: reply.iova,
        })
    }
}
