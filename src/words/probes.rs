//! Points at which tools such as bpftrace, perf and GDB can watch a program (USDT, provider `uverbs`).
//!
//! Each is one `nop`, and a note in the program's file that says where it is and which registers hold its
//! arguments. Posts and polls have none: the compiler keeps the state of a batch in registers, but could not
//! if the assembly of a point might read memory. docs/running.md says what each reports;
//! `tests/verbs/probes.rs` watches them with the kernel's uprobes.

use probe::probe;

/// The kernel has carried out a command (`errno` is 0), or refused it with this errno.
#[inline(always)]
pub(crate) fn command(verb: &'static str, errno: i32) {
    probe!(uverbs, command, verb.as_ptr(), verb.len(), errno);
}

/// A queue pair can send from now on.
#[inline(always)]
pub(crate) fn connected(qpn: u32) {
    probe!(uverbs, connected, qpn);
}

/// The program has been notified that a request failed.
#[inline(always)]
pub(crate) fn completion_error(qpn: u32, wr_id: u64, status: u32, vendor: u32) {
    probe!(uverbs, completion_error, qpn, wr_id, status, vendor);
}

/// A region has been registered.
#[inline(always)]
pub(crate) fn region(lkey: u32, address: usize, length: usize) {
    probe!(uverbs, region, lkey, address, length);
}

/// A region has been deregistered.
#[inline(always)]
pub(crate) fn region_gone(lkey: u32) {
    probe!(uverbs, region_gone, lkey);
}

/// The program has been notified of an asynchronous event, of this type and with the kernel's number of its
/// source.
#[inline(always)]
pub(crate) fn event(kind: u32, element: u64) {
    probe!(uverbs, event, kind, element);
}
