//! Finds what is wrong in a guest kernel's log: oopses, warnings, hung tasks, leaks.
//!
//! Only what a kernel says about itself counts. Messages of drivers about their devices do not: they are for people.

/// A piece of text that no healthy kernel logs.
const BAD: [&str; 26] = [
    "BUG:",
    "Oops:",
    "WARNING:",
    "Kernel panic",
    "general protection fault",
    "divide error:",
    "invalid opcode:",
    "stack segment:",
    "Unable to handle kernel",
    "blocked for more than",
    "rcu_preempt detected stalls",
    "rcu_sched detected stalls",
    "possible circular locking dependency",
    "possible recursive locking",
    "inconsistent lock state",
    "suspicious RCU usage",
    "bad unlock balance",
    "held lock freed",
    "refcount_t:",
    "kmemleak:",
    "list_add corruption",
    "list_del corruption",
    "unregister_netdevice: waiting for",
    "UBSAN:",
    // rxe, when a device goes away and its objects do not.
    "leaked",
    "unfree'd elem",
];

/// A line that looks bad and is not: what it contains, and why it does not count.
struct Allowed {
    text: &'static str,
    reason: &'static str,
}

/// What stock kernels log on their own in this machine.
const ALLOWED: [Allowed; 2] = [
    Allowed {
        text: "kmemleak: Kernel memory leak detector disabled",
        reason: "a debug kernel that ran out of room for its early log; it says that it looks for no leaks",
    },
    Allowed {
        text: "rxe_comp.c:827 at rxe_completer",
        reason: "soft-RoCE of 7.2 found an error with a request and has set no status; the soak counts what comes of it",
    },
];

/// Lines of this program's agent, which mark in the log what ran when.
pub(crate) const MARK: &str = "vm: running ";

/// How many lines after a bad one belong to its report, at most.
const REPORT_LINES: usize = 40;

/// Something wrong in the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Finding {
    /// What ran in the guest when it was logged.
    pub(crate) during: Option<String>,
    /// The bad line and the report that follows it.
    pub(crate) lines: Vec<String>,
}

/// Finds all that is wrong in the log.
pub(crate) fn scan<'a>(log: impl IntoIterator<Item = &'a str>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    let mut during = None;
    // How many more lines belong to the report that was found last.
    let mut open = 0;
    for line in log {
        if let Some((_, what)) = line.split_once(MARK) {
            during = Some(what.to_owned());
        } else if open > 0 {
            open -= 1;
            if let Some(finding) = findings.last_mut() {
                finding.lines.push(line.to_owned());
            }
            if line.contains("---[ end") {
                open = 0;
            }
        } else if is_bad(line) {
            findings.push(Finding {
                during: during.clone(),
                lines: vec![line.to_owned()],
            });
            open = if has_report(line) { REPORT_LINES } else { 0 };
        }
    }
    findings
}

fn is_bad(line: &str) -> bool {
    BAD.iter().any(|bad| line.contains(bad)) && allowed(line).is_none()
}

/// Why a line that looks bad does not count.
fn allowed(line: &str) -> Option<&'static str> {
    ALLOWED
        .iter()
        .find(|allowed| line.contains(allowed.text))
        .map(|allowed| allowed.reason)
}

/// Whether the line is the first of several: registers and a backtrace.
fn has_report(line: &str) -> bool {
    !["leaked", "unfree'd elem", "unregister_netdevice"]
        .iter()
        .any(|alone| line.contains(alone))
}

impl std::fmt::Display for Finding {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(during) = &self.during {
            writeln!(to, "  while running {during}:")?;
        }
        for line in &self.lines {
            writeln!(to, "    {line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEALTHY: &str = "[    0.000000] Linux version 6.1.0-50-amd64
[    1.019316] mtrr: your CPUs had inconsistent fixed MTRR settings
[    1.430734] ACPI: IRQ 4 override to edge(!), high(!)
[    5.936993] d0 speed is unknown, defaulting to 1000
[    5.957138] infiniband rxe0: set active";

    const WARNING: &str = "[    9.000000] vm: running 3: target/debug/deps/pd-1 --exact pd::alloc
[    9.100000] ------------[ cut here ]------------
[    9.100001] WARNING: CPU: 0 PID: 77 at drivers/infiniband/sw/rxe/rxe_pool.c:116 rxe_pool_cleanup+0x1a/0x20
[    9.100002] Call Trace:
[    9.100003] ---[ end trace 0000000000000000 ]---
[    9.200000] infiniband rxe0: set down";

    #[test]
    fn a_healthy_log_has_no_findings() {
        assert_eq!(scan(HEALTHY.lines()), []);
    }

    #[test]
    fn a_warning_is_one_finding_with_its_report_and_what_ran() {
        let findings = scan(HEALTHY.lines().chain(WARNING.lines()));
        assert_eq!(findings.len(), 1);
        assert_eq!(
            findings[0].during.as_deref(),
            Some("3: target/debug/deps/pd-1 --exact pd::alloc")
        );
        assert_eq!(findings[0].lines.len(), 3);
    }

    #[test]
    fn hung_tasks_and_leaks_are_found() {
        let log = "[ 130.1] INFO: task uverbs:90 blocked for more than 120 seconds.\n[ 130.2] Call Trace:";
        assert_eq!(scan(log.lines()).len(), 1);
        let log =
            "[ 12.0] rdma_rxe: rxe-mr: leaked 1 elem\n[ 12.1] rdma_rxe: rxe-pd: leaked 1 elem";
        assert_eq!(scan(log.lines()).len(), 2);
    }

    #[test]
    fn allowed_lines_do_not_count_and_say_why() {
        let line = "[ 0.5] kmemleak: Kernel memory leak detector disabled";
        assert_eq!(scan([line]), []);
        assert!(allowed(line).is_some_and(|reason| reason.len() > 20));
    }
}
