//! Owned buffers: registered memory that belongs exclusively to its holder.
//!
//! A [`Pool`] registers memory in chunks and cuts it into blocks of a few sizes. A [`Buf`] is a block or part
//! of one; its holder reads and writes it as bytes, without copying. It goes by value into a request of
//! [`aio`](crate::aio) and comes back with the completion, so program and device never have it at the same
//! time.
//!
//! ```no_run
//! use uverbs::buf::Pool;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = uverbs::open("rxe0")?;
//! let pd = context.alloc_pd()?;
//! let pool = Pool::on(&pd).sizes([4096, 1 << 20]).limit(64 << 20).build()?;
//! let mut buf = pool.try_get(100)?;               // of 4096 bytes, none of which is filled
//! buf.extend_from_slice(b"hello")?;
//! assert_eq!(&*buf, b"hello");
//! let rest = buf.split_off(1024);                 // two buffers of one block
//! assert_eq!((buf.capacity(), rest.capacity()), (1024, 3072));
//! # Ok(()) }
//! ```
//!
//! Taking and returning a buffer takes no lock and allocates nothing: the free blocks of a size are a stack
//! of numbers, changed by one compare-and-swap. Only a pool that must grow, or that a task waits for, does
//! more.
//!
//! Peers cannot reach the memory, unless the pool allows reading ([`PoolBuilder::remote_read`]). For memory
//! that peers write to, use regions ([`Mr`](crate::Mr)), which lend out no references.

mod chunk;
mod error;
mod filled;
pub(crate) mod free;
mod frozen;
mod growing;
mod home;
mod pool;
mod sync;

pub use error::{BufferFull, GetError};
pub use filled::Buf;
pub use frozen::Frozen;
pub(crate) use pool::Wanted;
pub use pool::{ClassStats, Pool, PoolBuilder, PoolStats};
