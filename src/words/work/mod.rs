//! The vocabulary of work requests: keys and slices, what a request does, how it can fail, options of a
//! connection.
//!
//! Drivers and objects both use it, so it is below both and uses neither.

mod copy_error;
mod data_order;
mod ece;
mod error;
mod interconnects;
mod key;
mod lag_port;
mod operations;
mod progress;
mod request;
mod wall_clock;

pub use copy_error::CopyError;
pub use data_order::DataOrder;
pub use ece::Ece;
pub use error::{CompletionError, PollError, PostError};
pub use interconnects::Interconnects;
pub(crate) use key::LONGEST;
pub use key::{LocalKey, LocalSlice, OutOfBounds, RemoteKey, RemoteSlice};
pub(crate) use key::{PdTag, slot};
pub use lag_port::LagPort;
pub(crate) use operations::Operations;
pub(crate) use progress::Progress;
#[cfg(feature = "c-abi")]
pub(crate) use request::Pieces;
pub use request::Placement;
pub(crate) use request::{
    Bind, Bounds, DatagramTo, Destination, Element, Operation, Payload, Remote, TargetAt,
    WorkRequest,
};
pub use wall_clock::WallClock;
