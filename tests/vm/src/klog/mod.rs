//! Finds what is wrong in a guest kernel's log: oopses, warnings, hung tasks, leaks.
//!
//! Only what a kernel says about itself counts. Messages of drivers about their devices do not: they are for
//! people. Faults of a kernel that are understood are in a table ([`faults`]): they are reported, and fail no
//! run.

mod faults;
mod stack;

pub(crate) use faults::Fault;

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

/// What stock kernels log on their own in this machine. What a kernel does wrong is no matter for this list,
/// but for [`faults`].
const ALLOWED: [Allowed; 2] = [
    Allowed {
        text: "kmemleak: Kernel memory leak detector disabled",
        reason: "a debug kernel that ran out of room for its early log; it says that it looks for no leaks",
    },
    Allowed {
        text: "general protection fault ip:",
        reason: "a program's fault and not the kernel's: its test sees the signal that ended it",
    },
];

/// Lines of this program's agent, which mark in the log what ran when.
pub(crate) const MARK: &str = "vm: running ";

/// The line with which a kernel says at boot which one it is; the release follows.
const RELEASE: &str = "Linux version ";

/// How many lines after a bad one belong to its report, at most. A report has some 20 lines of registers
/// before its trace.
const REPORT_LINES: usize = 80;

/// Something wrong in the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Finding {
    /// What ran in the guest when it was logged.
    pub(crate) during: Option<String>,
    /// The bad line and the report that follows it.
    pub(crate) lines: Vec<String>,
    /// The kernel's fault that it tells, if it is a known one.
    pub(crate) fault: Option<&'static Fault>,
}

/// Finds all that is wrong in the log of a kernel, which begins with the boot: there the kernel says which
/// one it is, and of a kernel that does not say so no fault is known.
pub(crate) fn scan<'a>(log: impl IntoIterator<Item = &'a str>) -> Vec<Finding> {
    let (findings, release) = find(log);
    let mut told = Vec::new();
    findings
        .into_iter()
        .map(|mut finding| {
            finding.fault = faults::known(&release, &finding.lines, &told);
            told.extend(finding.fault);
            finding
        })
        .collect()
}

/// Finds all that is wrong, and the kernel's release.
fn find<'a>(log: impl IntoIterator<Item = &'a str>) -> (Vec<Finding>, String) {
    let mut findings: Vec<Finding> = Vec::new();
    let mut release = String::new();
    let mut during = None;
    // How many more lines belong to the report that was found last.
    let mut open = 0;
    // Whether that report has come to its trace: what is bad after it is another report.
    let mut traced = false;
    for line in log {
        if let Some((_, what)) = line.split_once(MARK) {
            during = Some(what.to_owned());
        } else if open > 0 && !(traced && is_bad(line)) {
            open -= 1;
            traced |= line.contains("Call Trace:");
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
                fault: None,
            });
            open = if has_report(line) { REPORT_LINES } else { 0 };
            traced = false;
        } else if let (true, Some(version)) =
            (release.is_empty(), stack::text(line).strip_prefix(RELEASE))
        {
            release = version.split(' ').next().unwrap_or_default().to_owned();
        }
    }
    (findings, release)
}

/// What fails a run: all that is no known fault. As text; empty if there is nothing.
pub(crate) fn complaints(findings: &[Finding]) -> String {
    let unknown = findings.iter().filter(|finding| finding.fault.is_none());
    unknown.map(ToString::to_string).collect()
}

/// A known fault that showed, and how many reports told of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) fault: &'static Fault,
    reports: usize,
}

impl std::fmt::Display for Known {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reports = match self.reports {
            1 => "report",
            _ => "reports",
        };
        write!(to, "{} ({} {reports})", self.fault.name, self.reports)
    }
}

/// The known faults that showed, each once.
pub(crate) fn known_faults(findings: &[Finding]) -> Vec<Known> {
    let mut all: Vec<Known> = Vec::new();
    for fault in findings.iter().filter_map(|finding| finding.fault) {
        match all.iter_mut().find(|known| known.fault == fault) {
            Some(known) => known.reports += 1,
            None => all.push(Known { fault, reports: 1 }),
        }
    }
    all
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
        if let Some(fault) = self.fault {
            writeln!(to, "  a known fault of this kernel: {}", fault.name)?;
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
[    5.957138] infiniband rxe0: set active
[    6.012000] efa: loading out-of-tree module taints kernel.
[    6.012100] efa: module verification failed: signature and/or required key missing - tainting kernel";

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
        let lines = [
            "[ 0.5] kmemleak: Kernel memory leak detector disabled",
            "[ 9.1] traps: rping[77] general protection fault ip:7f6c632ac472 sp:7ffc8ae3a5a0 error:0 in librdmacm.so.1",
        ];
        for line in lines {
            assert_eq!(scan([line]), []);
            assert!(allowed(line).is_some_and(|reason| reason.len() > 20));
        }
        let oops = "[ 9.1] Oops: general protection fault, probably for non-canonical address 0x1: 0000 [#1]";
        assert_eq!(scan([oops]).len(), 1);
    }

    /// The log of a run of the soak on 6.1.176, without the lines of registers.
    const DROPPED_TWICE: &str = include_str!("recorded/6.1-packet-dropped-twice.log");

    /// Which known fault each report in a log tells.
    fn faults_in(log: &str) -> Vec<Option<&'static str>> {
        let findings = scan(log.lines());
        let name = |finding: &Finding| finding.fault.map(|fault| fault.name);
        findings.iter().map(name).collect()
    }

    #[test]
    fn a_known_fault_is_counted_with_what_follows_from_it() {
        let findings = scan(DROPPED_TWICE.lines());
        assert_eq!(findings.len(), 4);
        assert_eq!(complaints(&findings), "");
        let told: Vec<String> = known_faults(&findings)
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected =
            "soft-RoCE lets go twice of a packet that arrives during a reset (4 reports)";
        assert_eq!(told, [expected]);
    }

    /// The same fault in another run: the second of the two responders sees the count underflow.
    const IN_THE_RESPONDER: &str = include_str!("recorded/6.1-packet-dropped-twice-responder.log");

    const SATURATED: &str = "refcount_t: saturated";

    #[test]
    fn a_known_fault_may_show_first_in_another_function() {
        let findings = scan(IN_THE_RESPONDER.lines());
        assert_eq!(findings.len(), 4);
        assert_eq!(complaints(&findings), "");
        let log = IN_THE_RESPONDER.replace("rxe_responder", "rxe_other");
        assert_eq!(faults_in(&log), [None; 4]);
    }

    /// As another run had it: the completer's task, which ran while the queue pair's were ended, told that
    /// the count is saturated.
    #[test]
    fn what_follows_may_show_in_any_task() {
        for task in ["rxe_requester", "rxe_completer", "rxe_responder"] {
            let (before, saturated) = IN_THE_RESPONDER.split_once(SATURATED).unwrap();
            let saturated = saturated.replace("rxe_responder", task);
            let log = format!("{before}{SATURATED}{saturated}");
            assert_eq!(complaints(&scan(log.lines())), "", "{task}");
        }
    }

    #[test]
    fn on_another_kernel_it_is_not_known() {
        for other in ["6.12.95", "7.2.12+deb13-amd64", "6.10.1"] {
            let log = DROPPED_TWICE.replacen("6.1.0-50-amd64", other, 1);
            assert_eq!(faults_in(&log), [None; 4], "{other}");
        }
        // Nor where the log does not say which kernel it is.
        let (_, headless) = DROPPED_TWICE.split_once('\n').unwrap_or_default();
        assert_eq!(faults_in(headless), [None; 4]);
    }

    #[test]
    fn in_another_function_it_is_not_known() {
        let log = DROPPED_TWICE.replace("__rxe_cleanup", "rxe_other");
        assert_eq!(faults_in(&log), [None; 4]);
        let log = DROPPED_TWICE.replace("__ib_unregister_device", "ib_other");
        let faults = faults_in(&log);
        assert!(faults[2].is_none(), "{faults:?}");
        let (first, last) = (faults[0], faults[3]);
        assert!(first.is_some() && last == first, "{faults:?}");
    }

    #[test]
    fn with_another_text_it_is_not_known() {
        let log =
            DROPPED_TWICE.replace("underflow; use-after-free", "addition on 0; use-after-free");
        assert_eq!(faults_in(&log), [None; 4]);
    }

    #[test]
    fn what_follows_from_a_fault_is_not_known_without_it() {
        let (boot, rest) = DROPPED_TWICE.split_once('\n').unwrap_or_default();
        let Some(second) = rest.find("refcount_t: saturated") else {
            panic!("the recorded log has changed");
        };
        let log = format!("{boot}\n[   50.6] {}", &rest[second..]);
        assert_eq!(faults_in(&log), [None; 3]);
    }

    #[test]
    fn an_unknown_report_within_a_known_one_is_found() {
        let end = "[   50.564552]  </TASK>\n";
        let oops = format!(
            "{end}[   50.6] BUG: kernel NULL pointer dereference, address: 0000000000000000\n"
        );
        let log = DROPPED_TWICE.replacen(end, &oops, 1);
        assert_ne!(log, DROPPED_TWICE);
        let complaints = complaints(&scan(log.lines()));
        assert!(complaints.contains("NULL pointer"), "{complaints}");
        assert!(!complaints.contains("underflow"), "{complaints}");
    }

    /// The log of another run of the soak on 6.1.176.
    const NO_STATUS_6_1: &str = include_str!("recorded/6.1-no-status.log");

    /// The same warning as Linux 7.2 writes it: the function is in the first line too.
    const NO_STATUS: &str = "[    0.000000] Linux version 7.2.12+deb13-amd64 (debian-kernel@lists.debian.org)
[   40.200000] ------------[ cut here ]------------
[   40.200001] WARNING: drivers/infiniband/sw/rxe/rxe_comp.c:827 at rxe_completer+0x8f3/0xee0 [rdma_rxe], CPU#1: kworker/u8:3/61
[   40.200002] Workqueue: rxe_wq do_work [rdma_rxe]
[   40.200003] RIP: 0010:rxe_completer+0x8f3/0xee0 [rdma_rxe]
[   40.200004] Call Trace:
[   40.200005]  <TASK>
[   40.200006]  rxe_sender+0x12/0x40 [rdma_rxe]
[   40.200007]  </TASK>
[   40.200008] ---[ end trace 0000000000000000 ]---";

    /// A fault that was known: nothing here brings it out any more.
    #[test]
    fn a_warning_tells_its_function_in_either_form() {
        for log in [NO_STATUS_6_1, NO_STATUS] {
            let findings = scan(log.lines());
            assert_eq!(findings.len(), 1);
            assert_eq!(findings[0].fault, None);
            let stack = stack::stack(&findings[0].lines);
            assert_eq!(stack.first(), Some(&"rxe_completer"));
        }
    }
}
