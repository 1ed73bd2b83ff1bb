//! Buffers that travel and operations that are awaited, on the device under test: what they give, and what
//! becomes of them when tasks are cancelled, panic, or leak, when peers are killed, and when nothing gets
//! through.

mod cancel;
mod channel;
mod compio;
mod connections;
mod count;
mod datagrams;
mod dynamic;
mod ground;
mod hostile;
mod killed;
mod ops;
mod pool;
mod runtime;
mod shared;
mod soak;
mod subscriber;
mod trouble;

use std::process::ExitCode;

/// Counts what each thread allocates, for the tests that say that nothing is.
#[global_allocator]
static COUNTED: count::Counted = count::Counted;

fn main() -> ExitCode {
    let roles = [&killed::ROLES[..], &compio::ROLES].concat();
    if let Some(status) = support::role::play(&roles) {
        return status;
    }
    support::run_all([
        pool::tests(),
        ops::tests(),
        cancel::tests(),
        runtime::tests(),
        compio::tests(),
        connections::tests(),
        channel::tests(),
        hostile::tests(),
        killed::tests(),
        shared::tests(),
        soak::tests(),
        subscriber::tests(),
        trouble::tests(),
        datagrams::tests(),
        dynamic::tests(),
    ])
}
