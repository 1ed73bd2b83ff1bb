//! What the integration tests share: how a test is declared and ends, the device that it runs on, and queue
//! pairs to try things with.
//!
//! * [`outcome`], [`harness`]: results, tests, test programs. [`check`], [`wait`]: what tests say of values
//!   and of time.
//! * [`mod@device`], [`lacks`], [`own_device`], [`wire`], [`hca`], [`efa`], [`control`]: the device under
//!   test, and others. Where devices differ by right, a test asks [`device::Device`], so that each difference
//!   is told in one place.
//! * [`pair`], [`exchange`]: connected queue pairs. [`talk`]: each operation once. [`mod@completion`]:
//!   completions as values.
//! * [`objects`], [`trace`], [`refused`]: what the kernel counts, what it is asked, and what is kept from
//!   it. [`listener`]: what the library tells of that.
//! * [`program`], [`role`], [`peers`], [`pingpong`]: other programs, and this one again as another process.
//!   [`doctor`]: what the command line finds wrong. [`library`], [`mooncake`]: the distribution's libibverbs
//!   and ours under programs of others, and one of these.
//! * [`sources`]: the library's own files.
//! * [`bytes`], [`random`]: payloads, and numbers that a seed repeats.

pub mod bytes;
pub mod check;
pub mod completion;
pub mod control;
pub mod device;
pub mod doctor;
pub mod efa;
pub mod exchange;
pub mod harness;
pub mod hca;
pub mod lacks;
pub mod library;
pub mod listener;
pub mod mooncake;
pub mod objects;
pub mod outcome;
pub mod own_device;
pub mod pair;
pub mod peers;
pub mod pingpong;
pub mod program;
pub mod random;
pub mod refused;
pub mod role;
pub mod running;
pub mod sources;
pub mod talk;
pub mod trace;
pub mod wait;
pub mod wire;

pub use bytes::pattern;
pub use check::{same, says};
pub use completion::{Wc, completion, completions, nothing};
pub use control::Control;
pub use device::{Device, device, has, kernel, open, own_path};
pub use efa::Efa;
pub use exchange::Exchange;
pub use harness::{
    is_full, is_sanitized, run_all, test, test_on_adapter, test_on_efa, test_without_leaks,
};
pub use hca::Hca;
pub use listener::Listener;
pub use objects::Objects;
pub use outcome::{Result, fail, only_on_rxe, skip};
pub use own_device::OwnDevice;
pub use pair::{ALL, Pair, QKEY, Setup, Side, all_there_is};
pub use program::run;
pub use wait::{LIMIT, QUIET, until};
pub use wire::Wire;
