//! The page of what works where: capabilities by device and kernel, made from the record of the tests so that
//! it cannot say more than was tried.

use std::fmt::Write;

use crate::suite::{Cell, Device, Record};

/// Text that comes before the table.
const HEAD: &str = "# What works where

Made from [support.txt](support.txt), the record of the tests, by `cargo vm test --support docs/support.md`;
do not edit. `yes`: on all kernels that were tried; numbers: only on those kernels; `no`: on none,
for a reason below the table. The last column names the tests that show it, all of which must have passed;
`verbs mr::prefetch` is the test `mr::prefetch` of the program `tests/verbs`. Where these need connections, an EFA has
tests of its own.

Both mlx5 columns are the kernel's real mlx5 driver over a
[ConnectX modelled in software](../tests/connectx/README.md), and the column EFA is the kernel's real efa driver over an
[EFA modelled in software](../tests/efa/README.md): none of it has run on real hardware.
";

/// Text that comes after the table.
const TAIL: &str = "
Reasons for the gaps: the kernel's rxe has ATOMIC WRITE and FLUSH since Linux 6.2, `rereg_mr` of access and domain
(never of memory) and the event for the last receive since 6.5, and on-demand paging since 6.15. Up to 7.3 it reads and
writes on-demand memory from the start of a page, wherever in the page the data lie (`__rxe_odp_mr_copy`). It has no
XRC, no DC, no inline scatter, no ECE, no out-of-order receive, no null region, no regions in dma-bufs, no memory,
clock or doorbell registers of its own, and neither LIDs nor `AF_IB`; it checks a peer's range against the region under
a window. The modelled adapter waits for no missing page, so on-demand paging of mlx5 has never been tried. The kernel's
mlx5 driver has no transition to SQD and does not resize shared receive queues; mlx5 has neither ATOMIC WRITE nor FLUSH.
On Linux 6.1 the guests have no dma-buf to register, and out-of-order receive needs Linux 6.13. Paths by LID and `AF_IB`
need InfiniBand ports, paths by IPv4 Ethernet ones. SRD is EFA's alone. The removal of a device while it is in use has
tests of its own for each driver (`lifecycle removal`, `lifecycle unplug`). An EFA has no connections, fences or shared
receive queues; what else it lacks is in [efa.md](efa.md).

On arm64 the programs named in `arm64-tests` of [Cargo.toml](../Cargo.toml) run with Linux 7.3, with pages of
4 KiB and of 16 KiB. They show the same, except that the kernel shows the adapter's clock only on pages of 4 KiB.

Not in the table, because the library does not have it: raw packets, work queues and indirection tables (RSS),
tag matching, flow steering, counters, DMA handles, and rate limits.
";

/// What a device may be able to do, and the tests that show it.
struct Capability {
    name: &'static str,
    tests: &'static [&'static str],
    /// Those that show it on an EFA, if they are others.
    on_efa: Option<&'static [&'static str]>,
}

impl Capability {
    const fn new(name: &'static str, tests: &'static [&'static str]) -> Self {
        Self {
            name,
            tests,
            on_efa: None,
        }
    }

    const fn on_efa(self, tests: &'static [&'static str]) -> Self {
        Self {
            on_efa: Some(tests),
            ..self
        }
    }

    fn tests_on(&self, device: Device) -> &[&str] {
        match device {
            Device::Efa => self.on_efa.unwrap_or(self.tests),
            _ => self.tests,
        }
    }
}

const CAPABILITIES: &[Capability] = &[
    Capability::new(
        "RC: SEND, WRITE, READ, atomics, immediate data",
        &["traffic data::rc_has_every_operation"],
    ),
    Capability::new(
        "UC: SEND, WRITE, immediate data",
        &["traffic data::uc_sends_and_writes"],
    ),
    Capability::new("UD: SEND", &["traffic data::ud_sends_datagrams"])
        .on_efa(&["fabric uverbs::pingpong_of_datagrams"]),
    Capability::new(
        "SRD: SEND, WRITE, READ, immediate data",
        &["fabric srd::each_operation", "fabric srd::many_in_no_order"],
    ),
    Capability::new(
        "SRD: WRITEs that consume no receive",
        &["fabric srd::unsolicited_writes"],
    ),
    Capability::new(
        "DC: SEND, WRITE, READ, atomics, immediate data",
        &[
            "traffic dc::has_every_operation",
            "traffic dc::one_reaches_many",
        ],
    ),
    Capability::new(
        "XRC",
        &[
            "traffic xrc::has_every_operation",
            "traffic xrc::messages_go_to_the_queue_they_name",
        ],
    ),
    Capability::new(
        "scatter and gather",
        &["traffic data::lists_are_gathered_and_scattered"],
    )
    .on_efa(&["fabric srd::lists_are_gathered"]),
    Capability::new(
        "inline payloads",
        &["traffic shapes::inline_around_the_end"],
    )
    .on_efa(&["fabric srd::inline_and_empty"]),
    Capability::new("fence", &["traffic data::a_fence_waits_for_the_read"]),
    Capability::new(
        "SEND with invalidate, local invalidate",
        &[
            "traffic opcodes::send_inv_takes_the_peers_key",
            "traffic opcodes::local_inv_takes_the_own_key",
        ],
    ),
    Capability::new("ATOMIC WRITE", &["traffic opcodes::atomic_write"]),
    Capability::new(
        "FLUSH",
        &[
            "traffic opcodes::flush_global",
            "traffic opcodes::flush_persistent",
        ],
    ),
    Capability::new(
        "memory windows, type 1 and type 2",
        &[
            "verbs mw::type_1_opens_a_part",
            "verbs mw::type_2_belongs_to_its_queue_pair",
        ],
    ),
    Capability::new(
        "windows that also check the peer's range",
        &["verbs mw::bounds_are_the_windows"],
    ),
    Capability::new(
        "`rereg_mr`: access and protection domain",
        &["verbs mr::rereg_access", "verbs mr::rereg_pd"],
    ),
    Capability::new("`rereg_mr`: memory", &["verbs mr::rereg_memory"]),
    Capability::new(
        "on-demand paging, prefetch",
        &[
            "verbs mr::on_demand_serves_every_operation",
            "verbs mr::on_demand_follows_the_process",
            "verbs mr::prefetch",
        ],
    ),
    Capability::new("regions in dma-bufs", &["verbs dmabuf::every_byte"]),
    Capability::new(
        "the null region",
        &["traffic null_mr::parts_that_nobody_wants"],
    ),
    Capability::new(
        "device memory",
        &["verbs dm::every_byte", "verbs dm::atomics"],
    ),
    Capability::new(
        "completion channels",
        &[
            "verbs events::poll_or_arm_misses_nothing",
            "verbs events::solicited_only",
        ],
    )
    .on_efa(&["fabric srd::events"]),
    Capability::new("CQ resize", &["verbs cq::resize_under_traffic"]),
    Capability::new(
        "completions with the device's clock",
        &["verbs cq::timestamps_are_of_the_clock"],
    ),
    Capability::new(
        "inline scatter",
        &[
            "traffic inline_scatter::rc",
            "traffic inline_scatter::shared_queue",
        ],
    ),
    Capability::new(
        "SRQ, with limit event",
        &[
            "verbs srq::several_draw_from_one",
            "verbs srq::the_limit_tells_once",
        ],
    ),
    Capability::new("SRQ resize", &["verbs srq::resize_under_traffic"]),
    Capability::new(
        "SQD: draining a send queue",
        &["verbs qp::drained_and_back"],
    ),
    Capability::new(
        "event for the last receive of a failed queue pair",
        &["verbs qp::failed_tells_the_last_receive"],
    ),
    Capability::new(
        "out-of-order receive",
        &["traffic loose::rc", "traffic loose::uc"],
    ),
    Capability::new("ECE", &["verbs ece::rc"]),
    Capability::new(
        "paths by GID: IPv4 (RoCE v2)",
        &["traffic ud::answered_over_ipv4"],
    ),
    Capability::new(
        "paths by GID: IPv6 (RoCE v2), or the subnet's GID",
        &["traffic ud::answered_over_ipv6"],
    )
    .on_efa(&["fabric srd::between_two_functions"]),
    Capability::new("paths by LID", &["traffic ud::answered_over_lids"]),
    Capability::new(
        "multicast",
        &[
            "traffic ud::a_group_is_a_multicast_gid",
            "cm multicast::all_receive",
        ],
    ),
    Capability::new(
        "connections by IP address (`cm`): RC, UC, UD lookup",
        &[
            "cm connect::and_talk",
            "cm connect::unreliably",
            "cm datagrams::look_up_and_send",
        ],
    ),
    Capability::new("connections by IP address: XRC", &["cm xrc::and_talk"]),
    Capability::new(
        "connections by InfiniBand address (`AF_IB`)",
        &["cm infiniband::and_talk"],
    ),
    Capability::new(
        "parent domains with allocators",
        &["domain allocators::rings_lie_where_the_allocator_says"],
    ),
    Capability::new(
        "thread domains",
        &["domain posting::queue_pairs_of_a_domain_take_turns"],
    ),
    Capability::new(
        "a register for each thread domain",
        &["traffic many::a_thread_domain_has_a_register"],
    ),
    Capability::new(
        "import of contexts, PDs and MRs",
        &[
            "share import::after_scm_rights",
            "share import::in_every_verb",
        ],
    ),
    Capability::new(
        "sharing a PD between processes (`share`)",
        &["share share::joined_pd_carries_traffic"],
    ),
    Capability::new(
        "asynchronous operations (`aio`), over connections or SRD",
        &[
            "aio cancel::dropped_at_any_time",
            "aio runtime::a_task_pumps",
        ],
    ),
    Capability::new(
        "asynchronous channels by IP address (`aio`)",
        &["aio ops::messages", "aio channel::by_address"],
    ),
];

/// The page as Markdown.
pub(crate) fn page(record: &Record) -> String {
    let mut text = String::from(HEAD);
    let kernels = record.kernels();
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "\nThe kernels are Linux {}.\n\n\
         | capability | soft-RoCE | mlx5, InfiniBand | mlx5, RoCE | EFA | shown by |\n\
         |---|---|---|---|---|---|\n",
        kernels.join(", ")
    );
    for capability in CAPABILITIES {
        let cells = Device::ALL.map(|device| cell(record, capability.tests_on(device), device));
        let _ = write!(
            text,
            "| {} | {} | {}",
            capability.name,
            cells.join(" | "),
            quoted(capability.tests)
        );
        if let Some(tests) = capability.on_efa {
            let _ = write!(text, "; EFA: {}", quoted(tests));
        }
        text.push_str(" |\n");
    }
    text.push_str(TAIL);
    text
}

/// The names of tests, in a row.
fn quoted(tests: &[&str]) -> String {
    let tests: Vec<String> = tests.iter().map(|test| format!("`{test}`")).collect();
    tests.join(", ")
}

/// The kernels on which all these tests ran on a device.
fn cell(record: &Record, tests: &[&str], device: Device) -> String {
    let kernels = record.kernels();
    let ran_on = |kernel: &usize| {
        let cell = [Cell {
            kernel: *kernel,
            device,
        }];
        tests.iter().all(|test| record.ran_in(test, &cell))
    };
    let shown: Vec<usize> = (0..kernels.len()).filter(ran_on).collect();
    match shown.len() {
        0 => "no".to_owned(),
        all if all == kernels.len() => "yes".to_owned(),
        _ => {
            let shown: Vec<&str> = shown.iter().map(|kernel| &*kernels[*kernel]).collect();
            shown.join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn docs() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
    }

    /// Catches a page that was edited, or not made anew after the record or the capabilities changed.
    #[test]
    fn the_page_is_what_the_record_says() {
        let record = Record::read(&docs().join("support.txt")).expect("the record");
        let page = page(&record);
        let path = docs().join("support.md");
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            fs::write(&path, &page).expect("writing the page");
        }
        let there = fs::read_to_string(&path).expect("the page");
        assert!(
            there == page,
            "docs/support.md is not what docs/support.txt says: run this test with UPDATE_SNAPSHOTS=1"
        );
    }

    /// Catches a capability whose test was renamed: it would be shown as missing everywhere.
    #[test]
    fn each_test_of_a_capability_is_in_the_record() {
        let record = Record::read(&docs().join("support.txt")).expect("the record");
        for Capability {
            name,
            tests,
            on_efa,
        } in CAPABILITIES
        {
            for test in tests.iter().chain(on_efa.unwrap_or_default()) {
                assert!(record.has(test), "{name}: no test is named `{test}`");
            }
        }
    }

    #[test]
    fn a_capability_is_shown_where_all_its_tests_ran() {
        let mut record = Record::new(vec!["6.1".to_owned(), "7.3".to_owned()]);
        let cell_of = |kernel, device| Cell { kernel, device };
        for kernel in [0, 1] {
            record.note("verbs mr::a", cell_of(kernel, Device::SoftRoce), true);
            record.note(
                "verbs mr::b",
                cell_of(kernel, Device::SoftRoce),
                kernel == 1,
            );
        }
        let shown = |tests: &[&str], device| cell(&record, tests, device);
        assert_eq!(shown(&["verbs mr::a"], Device::SoftRoce), "yes");
        assert_eq!(
            shown(&["verbs mr::a", "verbs mr::b"], Device::SoftRoce),
            "7.3"
        );
        assert_eq!(shown(&["verbs mr::a"], Device::Roce), "no");
    }
}
