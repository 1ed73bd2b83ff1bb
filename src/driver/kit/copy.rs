//! Copies of requests to write-combining registers.
//! A CPU sends combined stores as one write if it has a whole block by then. Newer arm64 cores give up early
//! unless the stores follow each other immediately (`memcpy_toio_64` in `linux/io.h` of the kernel), and a
//! device takes a piece of a block for a doorbell without a copy. So all of a block is loaded first, and then
//! stored by the fewest instructions that there are. They are written in assembly, because the compiler would
//! put loads, or anything else, between them.
//!
//! CPUs of x86 that say so have a store of the whole block (MOVDIR64B), which nothing tears apart; it is not
//! used in virtual machines ([`stores_at_once`]). CPUID is asked once, when a context is opened; each
//! register keeps the answer.
//!
//! That of arm64 (ST64B) is not used. It faults where the device's memory, or what lies in front of it, does
//! not take such stores, and Linux reports only what the CPU can do: `HWCAP3_LS64` "implies the support of
//! CPU" (`Documentation/arch/arm64/elf_hwcaps.rst`, since 7.0); the program must know about the memory. A
//! program that dies of a signal when it posts would be a high price for two stores less.

use std::ptr::NonNull;

/// Bytes of a block, which a CPU sends as one write.
pub(crate) const BLOCK: usize = 64;

/// Copies blocks to a register, each by one store if `at_once` says so.
///
/// # Safety
/// `blocks` blocks, at least one, can be read and written; both ranges are aligned to a block. `at_once` is
/// what [`stores_at_once`] says, or false.
#[inline(always)]
pub(crate) unsafe fn copy_blocks(from: NonNull<u8>, to: NonNull<u8>, blocks: usize, at_once: bool) {
    for at in (0..blocks).map(|block| block * BLOCK) {
        // SAFETY: by this function's contract.
        unsafe {
            match at_once {
                true => store_block(from.add(at), to.add(at)),
                false => copy_block(from.add(at), to.add(at)),
            }
        }
    }
}

/// Copies a block to a register.
///
/// # Safety
///
/// A block can be read and written; both are aligned to it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_block(from: NonNull<u8>, to: NonNull<u8>) {
    // SAFETY: by this function's contract; every CPU of this architecture has the instructions, which leave
    // stack and flags alone.
    unsafe {
        std::arch::asm!(
            "movaps {a}, xmmword ptr [{from}]",
            "movaps {b}, xmmword ptr [{from} + 16]",
            "movaps {c}, xmmword ptr [{from} + 32]",
            "movaps {d}, xmmword ptr [{from} + 48]",
            "movaps xmmword ptr [{to}], {a}",
            "movaps xmmword ptr [{to} + 16], {b}",
            "movaps xmmword ptr [{to} + 32], {c}",
            "movaps xmmword ptr [{to} + 48], {d}",
            from = in(reg) from.as_ptr(),
            to = in(reg) to.as_ptr(),
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies a block to a register.
///
/// # Safety
///
/// A block can be read and written; both are aligned to it.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn copy_block(from: NonNull<u8>, to: NonNull<u8>) {
    // SAFETY: by this function's contract; every CPU that runs Linux has the instructions, which leave stack
    // and flags alone.
    unsafe {
        std::arch::asm!(
            "ldp {a:q}, {b:q}, [{from}]",
            "ldp {c:q}, {d:q}, [{from}, #32]",
            "stp {a:q}, {b:q}, [{to}]",
            "stp {c:q}, {d:q}, [{to}, #32]",
            from = in(reg) from.as_ptr(),
            to = in(reg) to.as_ptr(),
            a = out(vreg) _,
            b = out(vreg) _,
            c = out(vreg) _,
            d = out(vreg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies a block to a register, by the largest stores that the language has.
///
/// # Safety
///
/// A block can be read and written; both are aligned to it.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
unsafe fn copy_block(from: NonNull<u8>, to: NonNull<u8>) {
    type Words = [u64; BLOCK / size_of::<u64>()];
    let to = to.cast::<u64>();
    // SAFETY: by this function's contract. Volatile, so that each word is stored, once and in order.
    unsafe {
        let words = from.cast::<Words>().read();
        for (index, word) in words.into_iter().enumerate() {
            to.add(index).write_volatile(word);
        }
    }
}

/// Whether this CPU stores a block at once, by [`store_block`], and whoever gets the store takes it so.
///
/// A virtual machine's CPU may have the instruction, and its registers may be nobody's: those of a device
/// that is a program of the host. Each store to such a register is carried out by the hypervisor, and that of
/// KVM does not know this instruction (`arch/x86/kvm/emulate.c`), although it shows the guest that there is
/// one: the first post would end the program. Whether a register is a real one the guest cannot see. So under
/// a hypervisor blocks are stored in pieces, which all take.
pub(crate) fn stores_at_once() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        // Older compilers call these unsafe.
        #[allow(unused_unsafe)]
        // SAFETY: every CPU of this architecture has the instruction, and the first two leaves.
        let (highest, leaf_1, leaf_7) = unsafe {
            let leaf_7 = || __cpuid_count(7, 0).ecx;
            (__cpuid(0).eax, __cpuid(1).ecx, leaf_7)
        };
        has_movdir64b(highest, leaf_1, leaf_7)
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether the CPU whose highest leaf of CPUID this is, and whose leaves 1 and 7 say this in ECX, is no
/// virtual one and has MOVDIR64B.
#[cfg(target_arch = "x86_64")]
fn has_movdir64b(highest_leaf: u32, leaf_1_ecx: u32, leaf_7_ecx: impl FnOnce() -> u32) -> bool {
    const HYPERVISOR: u32 = 1 << 31;
    const MOVDIR64B: u32 = 1 << 28;
    let has = highest_leaf >= 7 && leaf_7_ecx() & MOVDIR64B != 0;
    has && leaf_1_ecx & HYPERVISOR == 0
}

/// Copies a block to a register by one store.
///
/// # Safety
///
/// As for [`copy_block`], and [`stores_at_once`] says so. (In unit tests it does not matter.)
#[inline(always)]
unsafe fn store_block(from: NonNull<u8>, to: NonNull<u8>) {
    #[cfg(test)]
    if !stores_at_once() {
        // SAFETY: by this function's contract.
        return unsafe { copy_block(from, to) };
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by this function's contract; the instruction leaves stack and flags alone.
    unsafe {
        std::arch::asm!(
            "movdir64b {to}, [{from}]",
            from = in(reg) from.as_ptr(),
            to = in(reg) to.as_ptr(),
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: by this function's contract.
    unsafe {
        copy_block(from, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a CPU that is given an instruction which it does not have, or not the one that it has; and
    /// a virtual one that is given one which its registers may not take.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_cpu_is_believed() {
        // Sapphire Rapids, the same in a virtual machine, Zen 3, all others but for the one, and what a CPU
        // without the leaf has there.
        let (real, virtual_) = (0x7ffe_fbff, 0xfffe_fbff);
        for (highest, leaf_1, leaf_7, has) in [
            (0x20, real, 0xfb41_5f7e, true),
            (0x20, virtual_, 0xfb41_5f7e, false),
            (0x10, real, 0x0040_069c, false),
            (7, real, !(1 << 28), false),
            (7, real, 1 << 28, true),
            (7, 1 << 31, 1 << 28, false),
            (6, real, u32::MAX, false),
        ] {
            let found = has_movdir64b(highest, leaf_1, || leaf_7);
            assert_eq!(found, has, "{highest:#x} {leaf_1:#x} {leaf_7:#x}");
        }
        let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let kernel = |name| flags.split_whitespace().any(|flag| flag == name);
        assert_eq!(
            stores_at_once(),
            kernel("movdir64b") && !kernel("hypervisor")
        );
    }

    #[test]
    fn a_block_is_stored_at_once() {
        let from = Blocks(std::array::from_fn(|at| at as u8));
        let mut to = Blocks([0xee; 4 * BLOCK]);
        let [source, target] = [NonNull::from(&from).cast(), NonNull::from(&mut to).cast()];
        // SAFETY: both have a block.
        unsafe { store_block(source, target) };
        assert_eq!(to.0[..BLOCK], from.0[..BLOCK]);
        assert!(to.0[BLOCK..].iter().all(|byte| *byte == 0xee));
    }

    #[repr(align(64))]
    struct Blocks([u8; 4 * BLOCK]);

    /// Would catch bytes that are left out, swapped, or written beyond the end.
    #[test]
    fn all_bytes_go_where_they_belong() {
        let from = Blocks(std::array::from_fn(|at| at as u8));
        for blocks in 1..=3 {
            let mut to = Blocks([0xee; 4 * BLOCK]);
            // SAFETY: both have that number of blocks.
            unsafe {
                copy_blocks(
                    NonNull::from(&from).cast(),
                    NonNull::from(&mut to).cast(),
                    blocks,
                    false,
                )
            };
            let (copied, rest) = to.0.split_at(blocks * BLOCK);
            assert_eq!(copied, &from.0[..blocks * BLOCK]);
            assert!(rest.iter().all(|byte| *byte == 0xee));
        }
    }
}
