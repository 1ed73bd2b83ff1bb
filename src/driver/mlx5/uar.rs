//! UARs: pages of the device's registers, for doorbells.
//!
//! A context has one uncached UAR, for arming completion queues and for the doorbells of queue pairs without
//! a better register. A queue pair gets its own *BlueFlame register* while there are some: a place in a
//! write-combining UAR into which a whole small request is copied, so that the device need not fetch it. A
//! register has two halves that are used in turn, since the device may still read one while the next request
//! is written.
//!
//! Only a queue pair's send half rings the queue pair's own register, so there is no lock. The queue pairs of
//! a thread domain share its register; whoever posts has the domain to itself, and with it the [`Own`] of the
//! register. A register that queue pairs share otherwise has a lock ([`Turn`]) for all stores to it: the CPU
//! may merge 8 bytes of one request with the copy of another, and the device would execute the result.
//! Registers without copies, as in the uncached UAR, need none: single stores are atomic.

use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use uverbs_uapi::mlx5::UarAllocType;

use super::barrier;
use super::command::AllocUar;
use super::format::{ARM_DOORBELL, BLOCK, SEND_DOORBELL};
use super::turn::Turn;
use crate::command::CommandFd;
use crate::error::{Error, Result, Subject, Verb};

/// BlueFlame registers in a UAR of 4 KiB.
const PER_UAR: usize = 2;
/// Bytes of a UAR.
const UAR: usize = 4096;
/// The number of registers for queue pairs without a thread domain; further queue pairs get none. libmlx5 has
/// as many.
const MOST: usize = 16;

/// A mapped UAR page. The kernel frees the UAR with the context.
#[derive(Debug)]
pub(super) struct UarPage {
    base: NonNull<u8>,
    length: usize,
    page_id: u32,
}

// SAFETY: the mapping is owned; registers are written by single volatile stores or by the holder of a lease.
unsafe impl Send for UarPage {}
// SAFETY: as above.
unsafe impl Sync for UarPage {}

impl UarPage {
    /// Allocates and maps a UAR page.
    pub(super) fn new(fd: &CommandFd, kind: UarAllocType) -> Result<Self> {
        let uar = fd.execute(&AllocUar { kind })?;
        let length = uar.length as usize;
        if length < UAR {
            let what = format!("a UAR of {length} bytes");
            return Err(Error::malformed(Verb::AllocUar, Subject::the("UAR"), what));
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            mmap(
                ptr::null_mut(),
                length,
                ProtFlags::WRITE,
                MapFlags::SHARED,
                fd.as_fd(),
                uar.offset,
            )
        };
        let base = base.map_err(|errno| Error::os(Verb::MapQueue, Subject::the("UAR"), errno))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| {
            Error::malformed(
                Verb::MapQueue,
                Subject::the("UAR"),
                "mapped at address 0".to_owned(),
            )
        })?;
        Ok(Self {
            base,
            length,
            page_id: uar.page_id,
        })
    }

    /// A page of memory that plays the device.
    #[cfg(test)]
    pub(super) fn of_memory() -> Self {
        use rustix::mm::mmap_anonymous;
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), UAR, flags, MapFlags::PRIVATE) };
        Self {
            base: NonNull::new(base.unwrap().cast()).unwrap(),
            length: UAR,
            page_id: 5,
        }
    }

    /// What was stored at an offset.
    #[cfg(test)]
    pub(super) fn stored<const BYTES: usize>(&self, at: usize) -> [u8; BYTES] {
        assert!(at + BYTES <= self.length);
        // SAFETY: the bytes lie in the page.
        unsafe { self.base.add(at).cast::<[u8; BYTES]>().read_volatile() }
    }

    /// The number that objects name it by.
    pub(super) fn page_id(&self) -> u32 {
        self.page_id
    }

    /// Arms a completion queue: stores the word of its record, and its number, both in the register's format.
    pub(super) fn arm(&self, word: u32, cqn: u32) {
        let doorbell = u64::from(word) << 32 | u64::from(cqn);
        barrier::record_before_register();
        // SAFETY: the register lies in the page and is 8 bytes, aligned; a single store to it is whole.
        unsafe {
            self.base
                .add(ARM_DOORBELL)
                .cast::<u64>()
                .write_volatile(doorbell.to_be());
        }
        barrier::flush_write_combining();
    }
}

impl Drop for UarPage {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and registers keep the page alive. An error would mean that it was
        // not mapped; there is nobody to tell.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// A send doorbell register.
#[derive(Debug)]
pub(super) struct Register {
    page: Arc<UarPage>,
    at: NonNull<u8>,
    /// Bytes of a half; 0 if the register takes no copies.
    half: usize,
    /// The offset of the next half; the holder of the turn stores it.
    next: AtomicUsize,
    /// The lock for those that share it, if it has halves.
    turn: Turn,
}

// SAFETY: the address leads into the page, which the register keeps; who may write when is told at the
// methods.
unsafe impl Send for Register {}
// SAFETY: as above.
unsafe impl Sync for Register {}

impl Register {
    fn new(page: &Arc<UarPage>, index: usize, size: usize) -> Self {
        // SAFETY: both registers lie in the page, for a UAR has room for two of the largest size behind the
        // offset.
        let at = unsafe { page.base.add(SEND_DOORBELL + index * size) };
        Self {
            page: Arc::clone(page),
            at,
            half: size / 2,
            next: AtomicUsize::new(0),
            turn: Turn::new(),
        }
    }

    /// The UAR that it lies in.
    pub(super) fn page_id(&self) -> u32 {
        self.page.page_id
    }

    /// Whether a request of so many blocks can be copied.
    #[inline(always)]
    pub(super) fn takes(&self, blocks: u64) -> bool {
        blocks <= (self.half / BLOCK) as u64
    }

    /// Rings with the first 8 bytes of the last request, from any thread.
    #[inline(always)]
    pub(super) fn ring(&self, first: u64) {
        // A register without halves takes single stores, in any order.
        let _turn = (self.half != 0).then(|| self.turn.take());
        // Relaxed: by the turn, or always 0.
        let at = self.next.load(Ordering::Relaxed);
        barrier::record_before_register();
        // SAFETY: `next` is 0 or `half`, so the 8 bytes lie in the register; a single store to it is whole.
        unsafe { self.at.add(at).cast::<u64>().write_volatile(first) };
        self.next.store(at ^ self.half, Ordering::Relaxed);
        barrier::flush_write_combining();
    }

    /// Rings by copying a whole request.
    ///
    /// # Safety
    ///
    /// `request` is the start of so many blocks, at least one, all readable and aligned to a block, which
    /// [`Self::takes`] lets pass.
    #[inline(always)]
    pub(super) unsafe fn copy_shared(&self, request: NonNull<u8>, blocks: usize) {
        let _turn = self.turn.take();
        // Relaxed: by the turn.
        let at = self.next.load(Ordering::Relaxed);
        barrier::record_before_register();
        // SAFETY: by this function's contract, and `at` is where a half begins; nobody else stores there in
        // our turn.
        unsafe { copy_blocks(request, self.at.add(at), blocks) };
        self.next.store(at ^ self.half, Ordering::Relaxed);
        barrier::flush_write_combining();
    }
}

/// The unit of copies: its size does not matter to a write-combining buffer, as long as there are few stores.
#[cfg(target_arch = "x86_64")]
type Piece = core::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Piece = u64;

/// Copies blocks to a register.
///
/// # Safety
///
/// So many blocks, at least one, can be read and written; both are aligned to a block.
#[inline(always)]
unsafe fn copy_blocks(from: NonNull<u8>, to: NonNull<u8>, blocks: usize) {
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
#[inline(always)]
unsafe fn copy_block(from: NonNull<u8>, to: NonNull<u8>) {
    let (from, to) = (from.cast::<Piece>(), to.cast::<Piece>());
    for piece in 0..BLOCK / size_of::<Piece>() {
        // SAFETY: by this function's contract. Volatile, so that each piece is stored, once and in order.
        unsafe { to.add(piece).write_volatile(from.add(piece).read()) };
    }
}

/// The BlueFlame registers of a context.
#[derive(Debug)]
pub(super) struct Registers {
    /// Bytes of a register; 0 if there are none.
    size: usize,
    pool: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    free: Vec<Register>,
    /// Registers that queue pairs without a thread domain hold.
    held: usize,
}

/// A register that only one queue uses: the queue knows which half is next.
#[derive(Debug)]
pub(crate) struct Own {
    /// Where the half begins that is next.
    next: NonNull<u8>,
    /// Bytes of a half: a power of two that tells one half's address from the other's. 0 if there is no
    /// register.
    half: u64,
    /// See [`Self::block`].
    block: u64,
}

// SAFETY: the address leads into a page that the holder's lease keeps, and only the holder stores there.
unsafe impl Send for Own {}
// SAFETY: shared references store nothing.
unsafe impl Sync for Own {}

impl Default for Own {
    fn default() -> Self {
        Self::NONE
    }
}

impl Own {
    /// No register.
    pub(super) const NONE: Self = Self {
        next: NonNull::dangling(),
        half: 0,
        block: u64::MAX,
    };

    /// # Safety
    ///
    /// Nobody else uses the register, and its lease outlives this.
    pub(super) unsafe fn new(register: &Register) -> Self {
        let half = register.half as u64;
        Self {
            next: register.at,
            half,
            block: if half == 0 { u64::MAX } else { 1 },
        }
    }

    /// No register of the queue's own.
    pub(super) fn is_none(&self) -> bool {
        self.half == 0
    }

    /// Whether a request of so many blocks can be copied.
    pub(super) fn takes(&self, blocks: u64) -> bool {
        blocks <= self.half / BLOCK as u64
    }

    /// 1 if there is a register, so that a block can be copied; else more than there ever are.
    #[inline(always)]
    pub(super) fn block(&self) -> u64 {
        self.block
    }

    #[inline(always)]
    fn turn(&mut self) {
        let other = self
            .next
            .as_ptr()
            .map_addr(|next| next ^ self.half as usize);
        // SAFETY: neither half lies at address 0.
        self.next = unsafe { NonNull::new_unchecked(other) };
    }

    /// Rings with the first 8 bytes of the last request.
    #[inline(always)]
    pub(super) fn ring(&mut self, first: u64) {
        barrier::record_before_register();
        // SAFETY: `next` is where a half begins, so the 8 bytes lie in the register.
        unsafe { self.next.cast::<u64>().write_volatile(first) };
        self.turn();
        barrier::flush_write_combining();
    }

    /// Rings by copying a request of one block.
    ///
    /// # Safety
    ///
    /// There is a register, and `request` is the start of a block, readable and aligned to it.
    #[inline(always)]
    pub(super) unsafe fn copy_block(&mut self, request: NonNull<u8>) {
        barrier::record_before_register();
        // SAFETY: by this function's contract, and `next` is where a half begins, which has a block.
        unsafe { copy_block(request, self.next) };
        self.turn();
        barrier::flush_write_combining();
    }

    /// Rings by copying a whole request.
    ///
    /// # Safety
    ///
    /// `request` is the start of so many blocks, at least one, all readable and aligned to a block, which
    /// [`Self::takes`] lets pass.
    pub(super) unsafe fn copy(&mut self, request: NonNull<u8>, blocks: usize) {
        barrier::record_before_register();
        // SAFETY: by this function's contract, and `next` is where a half begins.
        unsafe { copy_blocks(request, self.next, blocks) };
        self.turn();
        barrier::flush_write_combining();
    }
}

/// The use of a register; dropping it returns the register.
#[derive(Debug)]
pub(crate) struct Lease {
    register: Option<Register>,
    /// The pool that it returns to; `None` for the common register, which takes no copies.
    registers: Option<Arc<Registers>>,
    /// Counts among those of queue pairs without a thread domain.
    counted: bool,
}

impl Lease {
    /// The use of the common register.
    pub(super) fn common(page: &Arc<UarPage>) -> Self {
        Self {
            register: Some(Register::new(page, 0, 0)),
            registers: None,
            counted: false,
        }
    }

    /// The use of a register that nobody else has.
    #[cfg(test)]
    pub(super) fn alone(page: &Arc<UarPage>, size: usize) -> Self {
        Self {
            register: Some(Register::new(page, 0, size)),
            registers: None,
            counted: false,
        }
    }

    /// The register.
    #[inline(always)]
    pub(super) fn register(&self) -> &Register {
        // It is taken out by `drop` alone.
        self.register
            .as_ref()
            .expect("a lease has its register until it is dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(registers) = &self.registers else {
            return;
        };
        let mut pool = registers.lock();
        pool.free.extend(self.register.take());
        if self.counted {
            pool.held -= 1;
        }
    }
}

impl Registers {
    /// Registers of `size` bytes, created on demand; none if it is 0.
    pub(super) fn new(size: u32) -> Self {
        let size = size as usize;
        let fits = SEND_DOORBELL + PER_UAR * size <= UAR;
        // A power of two, so that the halves begin at addresses that differ in one bit, and blocks fill them.
        let usable = fits && size.is_power_of_two() && size >= 2 * BLOCK;
        let size = if usable { size } else { 0 };
        Self {
            size,
            pool: Mutex::default(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pool> {
        // The pool is consistent after every statement, so a panic elsewhere did no harm.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A register for a queue pair, while there are some.
    pub(super) fn for_queue_pair(self: &Arc<Self>, fd: &CommandFd) -> Option<Lease> {
        if self.lock().held >= MOST {
            return None;
        }
        // Without one a queue pair rings in the common UAR, so the reason does not matter.
        let mut lease = self.for_thread_domain(fd).ok()??;
        self.lock().held += 1;
        lease.counted = true;
        Some(lease)
    }

    /// A register for a thread domain; `None` if the device has no BlueFlame.
    pub(super) fn for_thread_domain(self: &Arc<Self>, fd: &CommandFd) -> Result<Option<Lease>> {
        if self.size == 0 {
            return Ok(None);
        }
        let spare = self.lock().free.pop();
        let register = match spare {
            Some(register) => register,
            None => match UarPage::new(fd, UarAllocType::BF) {
                Ok(page) => {
                    let page = Arc::new(page);
                    let second = Register::new(&page, 1, self.size);
                    self.lock().free.push(second);
                    Register::new(&page, 0, self.size)
                }
                // The kernel has found that write combining does not work here.
                Err(error) if error.is_unsupported() => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        Ok(Some(Lease {
            register: Some(register),
            registers: Some(Arc::clone(self)),
            counted: false,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Would catch a thread that stores to a shared register while another is copying there.
    #[test]
    fn a_shared_register_is_rung_by_turns() {
        let page = Arc::new(UarPage::of_memory());
        let shared = Lease::alone(&page, 512);
        let done = AtomicBool::new(false);
        let turn = shared.register().turn.take();
        thread::scope(|scope| {
            scope.spawn(|| {
                shared.register().ring(u64::MAX);
                done.store(true, Ordering::Release);
            });
            thread::sleep(Duration::from_millis(50));
            assert!(!done.load(Ordering::Acquire));
            assert_eq!(page.stored::<8>(SEND_DOORBELL), [0; 8]);
            drop(turn);
        });
        assert_eq!(page.stored::<8>(SEND_DOORBELL), [0xff; 8]);
        // Where nothing is copied to nobody waits.
        let common = Lease::common(&page);
        let _turn = common.register().turn.take();
        common.register().ring(1);
    }
}
