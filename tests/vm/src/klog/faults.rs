//! Faults of kernels that are understood: how each shows in the log, and why it is the kernel's own.
//!
//! A report that fits is counted and does not fail a run. It fits only as a whole: on a kernel of that
//! series, with that text, in those functions. A row goes when the last kernel that has the fault is tested
//! no more, or when this project no longer does what brings it out.

use super::stack::stack;

/// A fault of a kernel.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Fault {
    /// What it is called in reports.
    pub(crate) name: &'static str,
    /// The kernels that have it, by series: `6.1` is all of 6.1.y.
    series: &'static [&'static str],
    /// How it shows first: each of these tells the fault.
    first: &'static [Report],
    /// What follows from it. These are known only after a first one.
    then: &'static [Report],
    /// What the kernel does wrong, and where this can be read.
    pub(crate) why: &'static str,
}

/// How one report of a fault looks.
#[derive(Debug, Eq, PartialEq)]
struct Report {
    /// A part of one of its first lines.
    text: &'static str,
    /// The functions on top of the stack, the innermost first, without those that the kernel is not sure of.
    functions: &'static [&'static str],
}

/// What the kernel says of a count that is let go more often than it was taken.
const UNDERFLOW: &str = "refcount_t: underflow; use-after-free.";

/// What it says of such a count when it is taken again.
const SATURATED: &str = "refcount_t: saturated; leaking memory.";

/// All that are known.
pub(crate) const FAULTS: [Fault; 1] = [Fault {
    name: "soft-RoCE lets go twice of a packet that arrives during a reset",
    series: &["6.1"],
    first: &[
        Report {
            text: UNDERFLOW,
            functions: &["refcount_warn_saturate", "__rxe_cleanup", "rxe_destroy_qp"],
        },
        Report {
            text: UNDERFLOW,
            functions: &[
                "refcount_warn_saturate",
                "__rxe_put",
                "rxe_responder",
                "rxe_do_task",
            ],
        },
        Report {
            text: UNDERFLOW,
            functions: &[
                "refcount_warn_saturate",
                "__rxe_put",
                "rxe_completer",
                "rxe_do_task",
            ],
        },
    ],
    // The kernel tells a saturated count once, for whichever of the three tasks takes it first.
    then: &[
        Report {
            text: SATURATED,
            functions: &[
                "refcount_warn_saturate",
                "__rxe_get",
                "rxe_requester",
                "__rxe_do_task",
                "rxe_qp_do_cleanup",
            ],
        },
        Report {
            text: SATURATED,
            functions: &[
                "refcount_warn_saturate",
                "__rxe_get",
                "rxe_completer",
                "__rxe_do_task",
                "rxe_qp_do_cleanup",
            ],
        },
        Report {
            text: SATURATED,
            functions: &[
                "refcount_warn_saturate",
                "__rxe_get",
                "rxe_requester",
                "rxe_do_task",
            ],
        },
        Report {
            text: SATURATED,
            functions: &[
                "refcount_warn_saturate",
                "__rxe_get",
                "rxe_completer",
                "rxe_do_task",
            ],
        },
        Report {
            text: SATURATED,
            functions: &[
                "refcount_warn_saturate",
                "__rxe_get",
                "rxe_responder",
                "rxe_do_task",
            ],
        },
        Report {
            text: "drivers/infiniband/core/device.c:",
            functions: &["ib_dealloc_device", "__ib_unregister_device"],
        },
        Report {
            text: "drivers/infiniband/core/device.c:",
            functions: &["ib_device_release", "device_release"],
        },
    ],
    why: "rxe_qp_reset (rxe_qp.c) disables the tasklets and drains the packet queues by __rxe_do_task, which takes no \
              lock. A packet that arrives then runs the same responder or completer in the receiving context all the same: \
              rxe_resp_queue_pkt and rxe_comp_queue_pkt call rxe_run_task, which does not ask whether the tasklet is \
              disabled. Both let go of one packet, and with it of one reference to the queue pair and one to the device \
              too many. The queue pair's count underflows when it is destroyed, or in the second of the two at once, and \
              then stays saturated, which the next task of the queue pair tells; the device's is wrong when the device is removed. Linux 6.4 mended it (960ebe97e523, \
              \"RDMA/rxe: Remove __rxe_do_task()\", and d94671632572, \"RDMA/rxe: Rewrite rxe_task.c\"); 6.1.y has neither.",
}];

/// Says which known fault a report tells, if any. `earlier` are the faults told before in the same log.
pub(crate) fn known(
    release: &str,
    lines: &[String],
    earlier: &[&'static Fault],
) -> Option<&'static Fault> {
    let stack = stack(lines);
    FAULTS.iter().find(|fault| {
        let then = earlier.contains(fault).then_some(fault.then);
        let mut reports = fault.first.iter().chain(then.into_iter().flatten());
        fault.series.iter().any(|series| is_of(release, series))
            && reports.any(|report| report.fits(lines, &stack))
    })
}

/// How many lines a report may have before the text that says what is wrong: `refcount_t:` has a line of its
/// own.
const HEAD: usize = 2;

impl Report {
    fn fits(&self, lines: &[String], stack: &[&str]) -> bool {
        lines.iter().take(HEAD).any(|line| line.contains(self.text))
            && stack.starts_with(self.functions)
    }
}

/// Whether a kernel release (`6.1.0-50-amd64`) belongs to a series (`6.1`).
fn is_of(release: &str, series: &str) -> bool {
    release
        .strip_prefix(series)
        .is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_of_one_series() {
        assert!(is_of("6.1.0-50-amd64", "6.1"));
        assert!(is_of("6.1", "6.1"));
        assert!(!is_of("6.12.95+deb12-amd64", "6.1"));
        assert!(!is_of("7.2.12+deb13-amd64", "6.1"));
    }

    #[test]
    fn each_fault_names_a_function_and_says_why() {
        for fault in &FAULTS {
            assert!(!fault.series.is_empty(), "{}", fault.name);
            assert!(fault.why.len() > 100, "{}", fault.name);
            assert!(!fault.first.is_empty(), "{}", fault.name);
            for report in fault.first.iter().chain(fault.then) {
                assert!(!report.text.is_empty(), "{}", fault.name);
                assert!(!report.functions.is_empty(), "{}", fault.name);
            }
        }
    }
}
