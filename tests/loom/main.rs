//! Posters against pollers, in every order in which threads can see each other's stores.
//!
//! What the two share is in files of the mlx5 driver and of the kit below it: the ledgers of the queues, the
//! directory of a completion queue, and the gate that pollers close who post again. What posters share among
//! them is the turn at a register. A region that goes meets queues that start, are reset or end
//! (`src/objects/flight.rs`). It asks the ledgers how far its requests have come
//! (`src/words/work/progress.rs`), and so it asks the counts of rxe's shared receive queues
//! (`src/driver/rxe/counts.rs`). What awaits an operation meets what completes it
//! in a slot (`src/aio/slot.rs`), and who waits for a block of a pool meets who gives one back
//! (`src/buf/free.rs`). They are compiled here once more, with loom's types where the library has
//! those of the standard one. loom runs each model again and again until it has seen all orders, and fails
//! where one of them breaks an assertion or lets two threads at a place at once that one of them writes.
//!
//! A device is played by an atomic: what the poster stores with release at its doorbell, the poller loads
//! with acquire from the completion. That is what the barriers of the driver make of a real one
//! (`src/driver/queue/src/barrier.rs`).

#[path = "../../src/driver/mlx5/again.rs"]
#[allow(dead_code, reason = "no completion of the models has fields")]
mod again;
mod agains;
mod backings;
mod barrier;
mod blocks;
#[path = "../../src/words/callbacks.rs"]
#[allow(unused_imports, reason = "the models do not need its unit tests")]
mod callbacks;
#[path = "../../src/driver/rxe/counts.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the models do not need all of it, nor its unit tests"
)]
mod counts;
mod device;
mod directories;
#[path = "../../src/driver/kit/directory/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the models do not need all of it, nor its unit tests"
)]
mod directory;
mod driver;
mod entries;
mod error;
#[path = "../../src/objects/flight.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the models do not need all of it, nor its unit tests"
)]
mod flight;
mod flights;
#[path = "../../src/driver/kit/gate.rs"]
mod gate;
mod gates;
#[path = "../../src/buf/growing.rs"]
#[allow(unused_imports, reason = "the models do not need its unit tests")]
mod growing;
mod inline;
#[path = "../../src/driver/kit/ledger/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the models do not need all of it, nor its unit tests"
)]
mod ledger;
mod ledgers;
mod memory;
#[path = "../../src/buf/free.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the models do not need all of it, nor its unit tests"
)]
mod numbers;
#[path = "../../src/words/work/progress.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the models do not need all of it, nor its unit tests"
)]
mod progress;
mod recv;
mod regions;
#[path = "../../src/driver/mlx5/reporter.rs"]
#[allow(dead_code, reason = "the models do not need all of it")]
mod reporter;
#[path = "../../src/aio/slot.rs"]
#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "the models do not need all of it, nor its unit tests"
)]
mod slot;
mod slots;
mod srq;
mod sync;
#[path = "../../src/driver/kit/turn.rs"]
mod turn;
mod turns;
mod work;

use uverbs_queue::mlx5::format;

use libtest_mimic::{Arguments, Trial};

fn main() {
    let mut tests = ledgers::tests();
    tests.extend(directories::tests());
    tests.extend(regions::tests());
    tests.extend(flights::tests());
    tests.extend(agains::tests());
    tests.extend(gates::tests());
    tests.extend(turns::tests());
    tests.extend(slots::tests());
    tests.extend(blocks::tests());
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}

/// A model as a test. It ends by a panic if an order breaks it, which the test runner reports.
fn test(name: &str, model: fn()) -> Trial {
    Trial::test(name, move || {
        let mut builder = loom::model::Builder::new();
        // Threads are stopped where they need not stop at most this often in one run. More finds little and
        // takes hours.
        builder.preemption_bound = Some(3);
        builder.check(model);
        Ok(())
    })
}
