//! Order between this CPU's accesses to memory and to the device's registers, and the device's to memory.
//!
//! A device is not a thread: the language's fences order memory that CPUs share, and say nothing about
//! devices or registers. So each function names the accesses that it orders and uses the architecture's
//! instruction for that. x86 keeps stores in order, and loads, except to write-combining memory; otherwise
//! only the compiler must be held back. arm64 needs a barrier for the outer shareable domain, where devices
//! are.

use core::sync::atomic::{Ordering, compiler_fence};

/// Orders writes to a ring before the next write, to a doorbell record: a device that reads the record then
/// finds the ring's contents.
#[inline(always)]
pub fn ring_before_record() {
    store_store();
    compiler_fence(Ordering::Release);
}

/// Orders writes to a doorbell record before the next store, to a register: a device that sees the register
/// then finds the record. It also orders earlier write-combining stores.
#[inline(always)]
pub fn record_before_register() {
    store_register();
    compiler_fence(Ordering::SeqCst);
}

/// Orders the read of an entry's owner bit before later reads, such as those of the rest: the device wrote
/// the owner bit last.
#[inline(always)]
pub fn owner_before_entry() {
    load_load();
    compiler_fence(Ordering::Acquire);
}

/// Orders the reads of an entry before the next write, to a doorbell record or a register: a device that
/// reads the record, or gets the register's new value, then may write over the entry.
#[inline(always)]
pub fn entry_before_record() {
    load_store();
    compiler_fence(Ordering::Release);
}

/// Flushes write-combining stores now: without it they may stay in this CPU's buffers until something else
/// evicts them. It also orders them before all later stores, such as those of the next request to the same
/// register.
#[inline(always)]
pub fn flush_write_combining() {
    flush();
    compiler_fence(Ordering::SeqCst);
}

/// Orders all earlier accesses, such as the load of a completion, before loads from device memory: the CPU
/// may make those early, since the mapping combines writes.
#[inline(always)]
pub fn memory_before_device_loads() {
    device_load();
    compiler_fence(Ordering::SeqCst);
}

#[cfg(target_arch = "x86_64")]
mod arch {
    #[inline(always)]
    pub(super) fn store_store() {}

    #[inline(always)]
    pub(super) fn load_load() {}

    #[inline(always)]
    pub(super) fn load_store() {}

    #[inline(always)]
    pub(super) fn store_register() {
        // Stores to uncached registers stay after earlier stores by themselves; write-combining ones do not.
        // SAFETY: every CPU of this architecture has the instruction.
        unsafe { core::arch::x86_64::_mm_sfence() };
    }

    #[inline(always)]
    pub(super) fn flush() {
        // SAFETY: as above.
        unsafe { core::arch::x86_64::_mm_sfence() };
    }

    #[inline(always)]
    pub(super) fn device_load() {
        // SAFETY: as above.
        unsafe { core::arch::x86_64::_mm_mfence() };
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use core::arch::asm;

    #[inline(always)]
    pub(super) fn store_store() {
        // SAFETY: a barrier touches neither registers nor memory of the program.
        unsafe { asm!("dmb oshst", options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    pub(super) fn load_load() {
        // SAFETY: as above.
        unsafe { asm!("dmb oshld", options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    pub(super) fn load_store() {
        // SAFETY: as above. It orders loads before stores too.
        unsafe { asm!("dmb oshld", options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    pub(super) fn store_register() {
        // SAFETY: as above.
        unsafe { asm!("dmb oshst", options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    pub(super) fn flush() {
        // SAFETY: as above. Only a `dsb` makes the CPU give up its merge buffer.
        unsafe { asm!("dsb st", options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    pub(super) fn device_load() {
        // SAFETY: as above.
        unsafe { asm!("dmb osh", options(nostack, preserves_flags)) };
    }
}

#[cfg(target_arch = "riscv64")]
mod arch {
    use core::arch::asm;

    #[inline(always)]
    pub(super) fn store_store() {
        // SAFETY: a barrier touches neither registers nor memory of the program.
        unsafe { asm!("fence w, w", options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    pub(super) fn load_load() {
        // SAFETY: as above.
        unsafe { asm!("fence r, r", options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    pub(super) fn load_store() {
        // SAFETY: as above. Registers are outputs.
        unsafe { asm!("fence r, ow", options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    pub(super) fn store_register() {
        // SAFETY: as above. Registers are outputs.
        unsafe { asm!("fence w, ow", options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    pub(super) fn flush() {
        // SAFETY: as above.
        unsafe { asm!("fence ow, ow", options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    pub(super) fn device_load() {
        // SAFETY: as above. Device memory is input.
        unsafe { asm!("fence iorw, ir", options(nostack, preserves_flags)) };
    }
}

/// The strongest fence that the language has, if there is no other. It is a full barrier for registers too
/// (`sync` on POWER, `dbar 0` on LoongArch, a serialising instruction on z).
#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64"
)))]
mod arch {
    use core::sync::atomic::{Ordering, fence};

    #[inline(always)]
    pub(super) fn store_store() {
        fence(Ordering::SeqCst);
    }

    #[inline(always)]
    pub(super) fn load_load() {
        fence(Ordering::SeqCst);
    }

    #[inline(always)]
    pub(super) fn load_store() {
        fence(Ordering::SeqCst);
    }

    #[inline(always)]
    pub(super) fn store_register() {
        fence(Ordering::SeqCst);
    }

    #[inline(always)]
    pub(super) fn flush() {
        fence(Ordering::SeqCst);
    }

    #[inline(always)]
    pub(super) fn device_load() {
        fence(Ordering::SeqCst);
    }
}

use arch::{device_load, flush, load_load, load_store, store_register, store_store};
