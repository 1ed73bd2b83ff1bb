//! Copies to and from memory that others may be writing: a device, a peer through it, or the kernel.
//!
//! Such writers are not threads of this program, and the compiler does not know about them: it may keep what
//! a plain copy has read and never read again. So each copy here is performed every time, by the C library's
//! memcpy(3), called from assembly, which is opaque to the compiler. Its effect on the region's memory is
//! that of relaxed atomic loads or stores of each byte, in any order and some of them twice. Bytes that
//! change meanwhile come out old or new.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Copies bytes out of a region.
///
/// # Safety
/// At `from`, as many bytes as `into` has are mapped, readable and initialised. No thread of this program
/// writes them meanwhile except by [`store`], and `into` is no part of them.
#[inline]
pub(super) unsafe fn load(from: *const u8, into: &mut [u8]) {
    // SAFETY: by this function's contract.
    unsafe { copy(into.as_mut_ptr(), from, into.len()) };
}

/// Copies bytes into a region.
///
/// # Safety
///
/// There is room for all of them at `to`, mapped and writable. No thread of this program reads or writes it
/// meanwhile except by [`load`] and this, and `bytes` are no part of it.
#[inline]
pub(super) unsafe fn store(to: *mut u8, bytes: &[u8]) {
    // SAFETY: by this function's contract.
    unsafe { copy(to, bytes.as_ptr(), bytes.len()) };
}

/// Loads an aligned word, whole, before all later accesses.
///
/// # Safety
///
/// The word is mapped and readable, initialised and aligned to 8. No thread of this program writes it
/// meanwhile except by [`store_u64`].
#[inline]
pub(super) unsafe fn load_u64(from: *const u8) -> u64 {
    // SAFETY: by this function's contract. A relaxed load is allowed on memory that is mapped read-only.
    let word = unsafe { AtomicU64::from_ptr(from.cast_mut().cast()) }.load(Ordering::Relaxed);
    // Acquire: the data that the word announces were stored before it. Pairs with the release in `store_u64`;
    // a device writes in this order.
    fence(Ordering::Acquire);
    device_stores_before();
    word
}

/// Stores an aligned word, whole, after all earlier accesses.
///
/// # Safety
///
/// The word is mapped and writable, and aligned to 8. No thread of this program accesses it meanwhile except
/// by [`load_u64`] and this.
#[inline]
pub(super) unsafe fn store_u64(to: *mut u8, word: u64) {
    device_loads_after();
    // SAFETY: by this function's contract. Release: pairs with the acquire in `load_u64`; a device sees the
    // order by its next read of memory.
    unsafe { AtomicU64::from_ptr(to.cast()) }.store(word, Ordering::Release);
}

/// Devices are in the outer shareable domain, which the language's fences do not cover.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
fn device_stores_before() {
    // SAFETY: a barrier touches neither registers nor memory of the program.
    unsafe { std::arch::asm!("dmb oshld", options(nostack, preserves_flags)) };
}

/// As [`device_stores_before`].
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
fn device_loads_after() {
    // SAFETY: as above.
    unsafe { std::arch::asm!("dmb osh", options(nostack, preserves_flags)) };
}

#[cfg(not(all(target_arch = "aarch64", not(miri))))]
#[inline(always)]
fn device_stores_before() {}

#[cfg(not(all(target_arch = "aarch64", not(miri))))]
#[inline(always)]
fn device_loads_after() {}

/// Copies bytes out of the compiler's sight, by memcpy(3).
///
/// # Safety
///
/// `length` bytes can be read and written, and the two ranges do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    let memcpy: unsafe extern "C" fn(_, _, _) -> _ = libc::memcpy;
    // SAFETY: by this function's contract; the call is that of the C ABI, whose stack is aligned and whose
    // clobbered registers are declared.
    unsafe {
        std::arch::asm!(
            "call {memcpy}",
            memcpy = in(reg) memcpy,
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rdx") length => _,
            clobber_abi("C"),
        );
    }
}

/// As on x86.
///
/// # Safety
///
/// As on x86.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    let memcpy: unsafe extern "C" fn(_, _, _) -> _ = libc::memcpy;
    // SAFETY: as on x86.
    unsafe {
        std::arch::asm!(
            "blr {memcpy}",
            memcpy = in(reg) memcpy,
            inout("x0") to => _,
            inout("x1") from => _,
            inout("x2") length => _,
            clobber_abi("C"),
        );
    }
}

/// Byte by byte, by the atomics of the language: slow, and right everywhere.
///
/// # Safety
///
/// `length` bytes can be read and written, and the two ranges do not overlap.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    use std::sync::atomic::AtomicU8;
    for at in 0..length {
        // SAFETY: by this function's contract.
        let (to, from) = unsafe {
            (
                AtomicU8::from_ptr(to.add(at)),
                AtomicU8::from_ptr(from.add(at).cast_mut()),
            )
        };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::ptr;
    use std::sync::atomic::AtomicPtr;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn every_length_and_place_is_copied_and_nothing_else() {
        let source: Vec<u8> = (0..=255).collect();
        for at in 0..17 {
            for length in 0..200 {
                let mut into = [0xee; 256];
                // SAFETY: the bytes lie in the vector and the array.
                unsafe {
                    load(source.as_ptr().add(at), &mut into[3..3 + length]);
                }
                assert_eq!(into[3..3 + length], source[at..at + length]);
                assert!(
                    into[..3]
                        .iter()
                        .chain(&into[3 + length..])
                        .all(|&byte| byte == 0xee)
                );
                let mut target = [0xee; 256];
                // SAFETY: as above.
                unsafe { store(target.as_mut_ptr().add(at), &source[..length]) };
                assert_eq!(target[at..at + length], source[..length]);
                assert!(
                    target[..at]
                        .iter()
                        .chain(&target[at + length..])
                        .all(|&byte| byte == 0xee)
                );
            }
        }
    }

    /// Would catch a copy that the compiler makes once and keeps: the loop would not end. A thread in a
    /// device's place writes without the compiler's knowledge.
    #[test]
    fn a_flag_that_somebody_else_sets_is_seen() {
        let mut flag = Box::new([0_u8; 8]);
        let address = AtomicPtr::new(flag.as_mut_ptr());
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                let at = address.load(Ordering::Relaxed);
                // SAFETY: the flag outlives the scope, and is only accessed by copies.
                unsafe { store(at, &[1; 8]) };
            });
            let at = address.load(Ordering::Relaxed);
            let mut seen = [0; 1];
            while seen[0] == 0 {
                // SAFETY: as above.
                unsafe { load(at, &mut seen) };
            }
        });
    }

    /// The bound of 10 % that docs/safety.md states, as the median of paired runs.
    #[test]
    #[ignore = "it measures: cargo test --release --package uverbs --lib -- --ignored --nocapture as_fast_as"]
    fn a_copy_is_as_fast_as_memcpy() {
        const ROUNDS: usize = 301;
        let source = vec![1_u8; 1 << 20];
        let mut target = vec![2_u8; 1 << 20];
        for (length, calls) in [(8, 20_000), (64, 20_000), (4 << 10, 4_000), (1 << 20, 20)] {
            let mut timed = |copy: &dyn Fn(*mut u8, *const u8, usize)| {
                let start = Instant::now();
                for _ in 0..calls {
                    copy(target.as_mut_ptr(), source.as_ptr(), black_box(length));
                }
                start.elapsed().as_secs_f64()
            };
            // SAFETY: both vectors have that many bytes.
            let ours = |to, from, length| unsafe { copy(to, from, length) };
            // SAFETY: as above.
            let plain = |to, from, length| unsafe { ptr::copy_nonoverlapping(from, to, length) };
            let mut ratios: Vec<_> = (0..ROUNDS).map(|_| timed(&ours) / timed(&plain)).collect();
            ratios.sort_by(f64::total_cmp);
            let median = ratios[ROUNDS / 2];
            println!("{length} bytes: {median:.2} of memcpy(3)");
            assert!(median < 1.1, "{length} bytes take {median:.2} of memcpy(3)");
        }
    }

    #[test]
    fn words_are_in_the_hosts_order() {
        let mut words = [0_u64; 2];
        let base = words.as_mut_ptr().cast::<u8>();
        // SAFETY: both words are the array's, aligned.
        unsafe {
            store_u64(base.add(8), 0x0102_0304_0506_0708);
            assert_eq!(load_u64(base.add(8)), 0x0102_0304_0506_0708);
            assert_eq!(load_u64(base), 0);
        }
        assert_eq!(
            words[1].to_ne_bytes(),
            0x0102_0304_0506_0708_u64.to_ne_bytes()
        );
    }
}
