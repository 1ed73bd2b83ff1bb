//! The connection manager's ABI: what a process and `/dev/infiniband/rdma_cm` exchange
//! (`include/uapi/rdma/rdma_user_cm.h`, `ib_user_sa.h`).
//!
//! A command is one `write()` of [`CmdHdr`] and its payload; the kernel writes the answer to the address in
//! the payload. No header of the kernel has the numbers of events and reasons: events have librdmacm's,
//! reasons those of the InfiniBand specification.

mod connect;
mod event;
mod fields;
mod id;
mod multicast;
mod numbers;
mod option;
mod query;

pub use connect::*;
pub use event::*;
pub use fields::*;
pub use id::*;
pub use multicast::*;
pub use numbers::*;
pub use option::*;
pub use query::*;

/// The version of the ABI described here.
pub const ABI_VERSION: u32 = 4;

/// Bytes of the field for private data of the user. Each message takes fewer.
pub const MAX_PRIVATE_DATA: usize = 256;

/// Bytes of the name of a service.
pub const IB_SERVICE_NAME_SIZE: usize = 64;

/// Commands.
pub mod cmd {
    ids! { u32, "RDMA_USER_CM_CMD_";
        /// Create an identifier.
        CREATE_ID = 0;
        /// Destroy an identifier.
        DESTROY_ID = 1;
        /// Bind an identifier to an IP address. Old: [`BIND`].
        BIND_IP = 2;
        /// Find the route to an IP address. Old: [`RESOLVE_ADDR`].
        RESOLVE_IP = 3;
        /// Find the path to the peer.
        RESOLVE_ROUTE = 4;
        /// Query addresses and paths. Old: [`QUERY`].
        QUERY_ROUTE = 5;
        /// Request a connection from the peer.
        CONNECT = 6;
        /// Listen for requests.
        LISTEN = 7;
        /// Accept a request, or confirm a connection.
        ACCEPT = 8;
        /// Refuse a request.
        REJECT = 9;
        /// End a connection.
        DISCONNECT = 10;
        /// Query the attributes for a transition of the queue pair.
        INIT_QP_ATTR = 11;
        /// Take the next event.
        GET_EVENT = 12;
        /// No kernel implements it.
        GET_OPTION = 13;
        /// Set an option.
        SET_OPTION = 14;
        /// Notify the kernel of an event of the queue pair.
        NOTIFY = 15;
        /// Join a group by an IP address. Old: [`JOIN_MCAST`].
        JOIN_IP_MCAST = 16;
        /// Leave a group.
        LEAVE_MCAST = 17;
        /// Move an identifier from another file to this one.
        MIGRATE_ID = 18;
        /// Query addresses or paths.
        QUERY = 19;
        /// Bind an identifier.
        BIND = 20;
        /// Find the route to an address.
        RESOLVE_ADDR = 21;
        /// Join a group.
        JOIN_MCAST = 22;
        /// Query the providers of a service. Since Linux 6.18.
        RESOLVE_IB_SERVICE = 23;
        /// Put an event into the queue. Since Linux 6.18.
        WRITE_CM_EVENT = 24;
    }
}
