//! Points at which tools such as bpftrace, perf and GDB can watch a program (USDT, provider `uverbs`).
//!
//! Each is one `nop`, and a note in the program's file that says where it is and in which registers its
//! arguments are. Posts and polls have none: the compiler keeps what a batch knows in registers, and no
//! longer does where the assembly of a point may read memory. docs/running.md has what they tell;
//! `tests/verbs/probes.rs` watches them by the kernel's uprobes.

use probe::probe;

/// The kernel has carried out a command, or refused it with this error number; 0 for none.
#[inline(always)]
pub(crate) fn command(verb: &'static str, errno: i32) {
    probe!(uverbs, command, verb.as_ptr(), verb.len(), errno);
}

/// A queue pair sends from here on.
#[inline(always)]
pub(crate) fn connected(qpn: u32) {
    probe!(uverbs, connected, qpn);
}

/// A program has been told that a request failed.
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

/// A program has been told of an asynchronous event, of this type and with what the kernel says of its
/// source.
#[inline(always)]
pub(crate) fn event(kind: u32, element: u64) {
    probe!(uverbs, event, kind, element);
}
