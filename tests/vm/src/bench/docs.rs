//! The pages `docs/benchmarks.md` and `docs/transfer.md`, and those of the adapter.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::{Measured, Record, plot, table};

const INTRODUCTION: &str = "\
# Measurements

uverbs and rdma-core in the same guest and the same run, on {device}. The programs are in `benches/`: they do
the same work with this library, in C with libibverbs, and in C with bare system calls. They take turns, and
the one that goes first changes.

What the numbers are worth: instructions (callgrind, user space only, around the calls only) and system calls
(strace) are exact, and the same on any machine with these compilers and libraries. Times come from an
emulated machine, where a system call costs ten times what it does natively: only ratios of paired runs mean
anything, and a few percent mean nothing.

Latency, rate and the cost of many objects are on [a page of their own]({transfer}).
";

const TRANSFER: &str = "\
# Latency, rate and scale

uverbs and libibverbs in the same guest and the same run, on {device}. Two programs do the same work,
`benches/src/transfer.rs` and `benches/rdma_core.c`. One thread has two queue pairs, connected over the
device's loopback; it posts on one side and waits for completions of both. The programs take turns, and the
one that goes first changes.

The guest's clock counts instructions: QEMU runs one processor with `-icount`, and each instruction takes a
nanosecond, the kernel's included. So a microsecond here is a thousand instructions from posting to the
completion, and the numbers hardly differ between runs. They tell what the software costs, not how fast a
network is: soft-RoCE does in the kernel what an adapter does in silicon.

`polling`: the process polls until the completions have arrived. It runs at idle priority (SCHED_IDLE), so
that the kernel's own work comes first; otherwise the numbers would show when the scheduler gets to that work.
`events`: the process sleeps on a completion channel, then polls. It has real-time priority (SCHED_FIFO), so
it runs until it sleeps, and it sleeps each time.

In the plots, lines are uverbs and circles are libibverbs.
";

/// Names of devices for the page.
const SOFT_ROCE: &str = "soft-RoCE";
const MLX5: &str = "the ConnectX made of software (mlx5)";

/// A page and the device that it is about.
struct Page {
    introduction: &'static str,
    file: &'static str,
    device: &'static str,
}

/// Whether a group's rows are on the page about latency, rate and scale.
fn is_transfer(group: &str) -> bool {
    ["latency, ", "rate, ", "scale"]
        .iter()
        .any(|name| group.starts_with(name))
}

/// Writes the pages that there are records for, with their plots.
///
/// # Errors
/// If a plot cannot be drawn or a file cannot be written.
pub(crate) fn write(workspace: &Path, measured: &Measured, has_adapter: bool) -> Result<()> {
    let (transfer, others): (Vec<_>, Vec<_>) =
        (measured.records.iter().cloned()).partition(|record: &Record| is_transfer(&record.group));
    let pages = match has_adapter {
        true => [
            (INTRODUCTION, "benchmarks-mlx5", others),
            (TRANSFER, "transfer-mlx5", transfer),
        ],
        false => [
            (INTRODUCTION, "benchmarks", others),
            (TRANSFER, "transfer", transfer),
        ],
    };
    for (introduction, file, records) in pages {
        if records.is_empty() {
            continue;
        }
        let page = Page {
            introduction,
            file,
            device: if has_adapter { MLX5 } else { SOFT_ROCE },
        };
        page.write(
            &workspace.join("docs"),
            &Measured {
                records,
                ..measured.clone()
            },
        )?;
    }
    Ok(())
}

/// The text under each table's name.
fn about(group: &str) -> &'static str {
    match group {
        "c-abi" => {
            "The same C program on this project's `libibverbs.so.1` and on rdma-core's libraries, locks \
             included. Rows of `ibv_wr_*` poll by `ibv_start_poll`."
        }
        "instructions" => {
            "User-space instructions for each call, including the wrapper around it, which is the same on \
             all sides. A poll reads the status and the id of every completion. libibverbs gets prepared \
             work requests; ours are made in the call. The kernel's part is not counted: a system call is \
             one instruction. In the column `uverbs, arena`, all rings lie in an arena, by the allocator of \
             a parent domain: that costs nothing on this path."
        }
        "awaited" => {
            "User-space instructions for an operation of `uverbs::aio`: its future is polled once before it \
             completes and once after, by a task whose waker does nothing, and the pump takes one \
             completion. `uverbs` is posting and polling without it."
        }
        "start-up" => "From exec on, until the named point, where the program exits.",
        "control" => {
            "Each object is created and destroyed. The bare calls send the same attributes from the same \
             process, alternating, and map and unmap rings where there are any. Instructions are those of \
             user space. On soft-RoCE the ring of a completion queue is twice as large as requested, and \
             the kernel clears it: so none is lost when completions arrive faster than they are read."
        }
        group if group.starts_with("latency, ") => {
            "From posting a message to its completion, in microseconds of a thousand instructions each: the \
             median and the 99th percentile. The timer interrupts every 4 ms, which accounts for part of \
             the last 1%. The ratio is that of the medians."
        }
        group if group.starts_with("rate, ") => {
            "32 messages posted with one doorbell, the last one signaled, until all are done: messages per \
             10⁹ instructions. The ratio is that of the times."
        }
        "scale" => {
            "Queue pairs for 64 sends and 16 receives, each connected to itself, all on one completion \
             queue; regions of one page. Set-up is creation, and for queue pairs also the way to RTS. \
             Resident memory is that of the process (`smaps_rollup`), rings included. A post is a signaled \
             WRITE of 8 bytes with its own doorbell, on one queue pair after the other; 64 completions are \
             polled together."
        }
        _ => "",
    }
}

impl Page {
    /// Writes the page, and its plots to a directory of its name.
    fn write(&self, docs: &Path, measured: &Measured) -> Result<()> {
        let plots = plot::plots(&measured.records)?;
        let directory = docs.join(self.file);
        for plot in &plots {
            fs::create_dir_all(&directory)
                .with_context(|| format!("making {}", directory.display()))?;
            let path = directory.join(format!("{}.svg", plot.name));
            fs::write(&path, &plot.svg).with_context(|| format!("writing {}", path.display()))?;
        }
        let path = docs.join(format!("{}.md", self.file));
        fs::write(&path, self.text(measured, &plots))
            .with_context(|| format!("writing {}", path.display()))
    }

    fn text(&self, measured: &Measured, plots: &[plot::Plot]) -> String {
        let mut page = self.introduction.replace("{device}", self.device);
        page = page.replace(
            "{transfer}",
            &format!("{}.md", self.file.replace("benchmarks", "transfer")),
        );
        page += &format!(
            "\nMade by `cargo vm {}`, on Linux {}, QEMU with {}.\n",
            measured.command.join(" "),
            measured.kernel,
            measured.accelerator
        );
        for (name, records) in table::groups(&measured.records) {
            let title = name[..1].to_uppercase() + &name[1..];
            page += &format!("\n## {title}\n\n{}\n", about(name));
            for plot in plots.iter().filter(|plot| plot.group == name) {
                page += &format!("\n![{title}]({}/{}.svg)\n", self.file, plot.name);
            }
            page += &format!("\n{}\n", table::markdown(&records));
        }
        page
    }
}
