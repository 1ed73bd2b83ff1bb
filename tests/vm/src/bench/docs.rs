//! The page `docs/benchmarks.md`.

use super::{Measured, table};

const INTRODUCTION: &str = "\
# Measurements

uverbs next to rdma-core, in one guest, in one run, on {device}. The programs are in `benches/`: the same work by this library, by
a C program on libibverbs, and by a C program that makes the bare system calls. They take turns, and who goes first
changes.

What the numbers are worth: instructions (callgrind, user space alone, around the calls alone) and system calls (strace)
are exact and the same on any machine with these compilers and libraries. Times were taken on an emulated machine, where a system call costs ten times
what it does natively: only ratios of paired runs mean anything, and a few percent mean nothing.
";

/// Names of devices for the page.
pub(crate) const SOFT_ROCE: &str = "soft-RoCE";
pub(crate) const MLX5: &str = "the ConnectX made of software (mlx5)";

/// The text under each table's name.
fn about(group: &str) -> &'static str {
    match group {
        "c-abi" => {
            "The same C program on this project's `libibverbs.so.1` and on rdma-core's libraries, locks included. Rows of `ibv_wr_*` poll by \
             `ibv_start_poll`."
        }
        "instructions" => {
            "User-space instructions for each call, including that of the wrapper around it, which is alike on all sides. \
             A poll reads the status and the id of every completion. libibverbs is given work requests that are \
             made already; ours makes them in the call. The kernel's part is not counted: a system call is one instruction. In the column `uverbs, arena` all rings \
             lie in an arena, by the allocator of a parent domain: that costs nothing on this path."
        }
        "awaited" => {
            "User-space instructions for an operation by `uverbs::aio`: its future is polled once before it ends and once after, by a \
             task whose waker does nothing, and the pump takes one completion. `uverbs` is posting and polling without it."
        }
        "start-up" => "From exec on; the program ends at that very point.",
        "control" => {
            "Each object is made and destroyed. The bare calls send the same attributes from the same process, turn about, and map \
             and unmap rings where there are such. The instructions are those of user space."
        }
        "latency" => {
            "From posting to the completion, between two queue pairs of a process; the median of all, and the ratio of what the \
             quickest tenth of each turn kept to, the median over pairs of turns: on an emulated machine most samples are of waits \
             for the scheduler. The records (`--json`) have the distribution."
        }
        "throughput" => {
            "32 messages posted with one doorbell until all are done; numbers and ratio as above. The records (`--json`) have rates and bandwidths."
        }
        _ => "",
    }
}

/// The page.
pub(crate) fn page(measured: &Measured, device: &str) -> String {
    let mut page = INTRODUCTION.replace("{device}", device);
    page += &format!(
        "\nMade by `cargo vm {}`, on Linux {}, QEMU with {}.\n",
        measured.command.join(" "),
        measured.kernel,
        measured.accelerator
    );
    for (name, records) in table::groups(&measured.records) {
        let title = name[..1].to_uppercase() + &name[1..];
        page += &format!(
            "\n## {title}\n\n{}\n\n{}\n",
            about(name),
            table::markdown(&records)
        );
    }
    page
}
