//! Copies of requests to write-combining registers.
//!
//! A CPU sends what it has combined as one write if it has the whole of a block by then. Newer arm64 cores
//! give up early unless the stores come one right behind the other (`memcpy_toio_64` in `linux/io.h` of the
//! kernel), and a device takes pieces for a doorbell without a copy. So all of a block is loaded first, and
//! then stored by as few instructions as there are for 16 bytes each; they are written down here, for the
//! compiler would put loads, or anything else, between them.
//!
//! The stores of 64 bytes that some CPUs have (MOVDIR64B, ST64B) are not used: asking for them at each copy
//! costs those that do not have them.

use std::ptr::NonNull;

use super::format::BLOCK;

/// Copies blocks to a register.
///
/// # Safety
///
/// So many blocks, at least one, can be read and written; both are aligned to a block.
#[inline(always)]
pub(super) unsafe fn copy_blocks(from: NonNull<u8>, to: NonNull<u8>, blocks: usize) {
    for block in 0..blocks {
        // SAFETY: by this function's contract.
        unsafe { copy_block(from.add(block * BLOCK), to.add(block * BLOCK)) };
    }
}

/// Copies a block to a register.
///
/// # Safety
///
/// A block can be read and written; both are aligned to it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn copy_block(from: NonNull<u8>, to: NonNull<u8>) {
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
pub(super) unsafe fn copy_block(from: NonNull<u8>, to: NonNull<u8>) {
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
pub(super) unsafe fn copy_block(from: NonNull<u8>, to: NonNull<u8>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Blocks([u8; 4 * BLOCK]);

    /// Would catch bytes that are left out, change places, or go beyond.
    #[test]
    fn all_bytes_go_where_they_belong() {
        let from = Blocks(std::array::from_fn(|at| at as u8));
        for blocks in 1..=3 {
            let mut to = Blocks([0xee; 4 * BLOCK]);
            // SAFETY: both have so many blocks.
            unsafe {
                copy_blocks(
                    NonNull::from(&from).cast(),
                    NonNull::from(&mut to).cast(),
                    blocks,
                )
            };
            let (copied, rest) = to.0.split_at(blocks * BLOCK);
            assert_eq!(copied, &from.0[..blocks * BLOCK]);
            assert!(rest.iter().all(|byte| *byte == 0xee));
        }
    }
}
