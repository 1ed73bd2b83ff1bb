//! The connection manager's ABI: what crosses between a process and `/dev/infiniband/rdma_cm`
//! (`include/uapi/rdma/rdma_user_cm.h`, `ib_user_sa.h`).
//!
//! A command is one `write()` of [`CmdHdr`] and its payload; the kernel writes the answer to the address
//! that the payload names. The numbers of events and reasons are in no header of the kernel's: events are
//! librdmacm's, reasons are those of the InfiniBand specification.

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

/// The version of the ABI that is described here.
pub const ABI_VERSION: u32 = 4;

/// Bytes of the field for data of the user. Each message takes fewer.
pub const MAX_PRIVATE_DATA: usize = 256;

/// Bytes of the name of a service.
pub const IB_SERVICE_NAME_SIZE: usize = 64;

/// Commands.
pub mod cmd {
    ids! { u32, "RDMA_USER_CM_CMD_";
        /// Make an identifier.
        CREATE_ID = 0;
        /// Destroy it.
        DESTROY_ID = 1;
        /// Bind it to an IP address. Old: [`BIND`].
        BIND_IP = 2;
        /// Look for the way to an IP address. Old: [`RESOLVE_ADDR`].
        RESOLVE_IP = 3;
        /// Look for the path to the peer.
        RESOLVE_ROUTE = 4;
        /// Ask for addresses and paths. Old: [`QUERY`].
        QUERY_ROUTE = 5;
        /// Ask the peer for a connection.
        CONNECT = 6;
        /// Await requests.
        LISTEN = 7;
        /// Accept a request, or confirm a connection.
        ACCEPT = 8;
        /// Refuse a request.
        REJECT = 9;
        /// End a connection.
        DISCONNECT = 10;
        /// Ask for the attributes of a transition of the queue pair.
        INIT_QP_ATTR = 11;
        /// Take the next event.
        GET_EVENT = 12;
        /// No kernel has it.
        GET_OPTION = 13;
        /// Set an option.
        SET_OPTION = 14;
        /// Tell of an event of the queue pair.
        NOTIFY = 15;
        /// Join a group by an IP address. Old: [`JOIN_MCAST`].
        JOIN_IP_MCAST = 16;
        /// Leave a group.
        LEAVE_MCAST = 17;
        /// Take an identifier over from another file.
        MIGRATE_ID = 18;
        /// Ask for addresses or paths.
        QUERY = 19;
        /// Bind an identifier.
        BIND = 20;
        /// Look for the way to an address.
        RESOLVE_ADDR = 21;
        /// Join a group.
        JOIN_MCAST = 22;
        /// Ask who has a service. Since Linux 6.18.
        RESOLVE_IB_SERVICE = 23;
        /// Put an event into the queue. Since Linux 6.18.
        WRITE_CM_EVENT = 24;
    }
}
