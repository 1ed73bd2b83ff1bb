//! Posting and polling by an *agent*: a process, or a device, that has a queue's memory and register and
//! nothing else of this library.
//!
//! A [`Poster`], a [`Receiver`] and a [`Poller`] consist of two counters each. They store no ids and never
//! wait. The agent finds its own data about a request by the number that [`Poster::write`] returned.
//!
//! If the device ignores overrun, nobody has to report what was taken, and a [`Watcher`] of one place is
//! enough for a queue of sends: the newest completion stands for all before it.
//!
//! The contents of the memory are not trusted: each entry is copied first, indices are masked, and any bytes
//! are a valid [`Cqe`]. If others write to the memory, the only effect is wrong completions.

use zerocopy::{Immutable, IntoBytes};

use super::super::barrier;
use super::super::handover::{Handover, Region};
use super::DRIVER;
use super::format::{
    AtomicOperands, BLOCK, Be64, Control, Cqe, Data, INDEX_MASK, LONGEST_SLICE, NUMBER, OP_OWN,
    RECORD_CONSUMER, RECORD_RECEIVE, RECORD_SEND, RemoteAddress, TERMINATOR, UNIT, control, cqe,
    lap, opcode,
};

/// A piece of memory as an agent reaches it, and the order of its accesses there. Offsets are in bytes from
/// the start of the piece.
///
/// Others may write to the memory meanwhile, so each access must be one access of the machine, as volatile
/// ones are.
pub trait Space {
    /// Bytes of the piece.
    fn length(&self) -> usize;

    /// The byte at an offset below the length.
    fn load_u8(&self, at: usize) -> u8;

    /// The 8 bytes at an offset that is a multiple of 8, all of them within the length.
    fn load_u64(&self, at: usize) -> [u8; 8];

    /// Stores 4 bytes at an offset that is a multiple of 4, all of them within the length, at once.
    fn store_u32(&self, at: usize, bytes: [u8; 4]);

    /// Stores 8 bytes at an offset that is a multiple of 8, all of them within the length, at once.
    fn store_u64(&self, at: usize, bytes: [u8; 8]);

    /// The 64 bytes at an offset that is a multiple of 8, all of them within the length, by loads of 8 bytes.
    #[inline(always)]
    fn load_block(&self, at: usize) -> [[u8; 8]; BLOCK / 8] {
        core::array::from_fn(|number| self.load_u64(at + number * 8))
    }

    /// Stores bytes from an offset on that is a multiple of 8, all of them within the length, by stores of 8
    /// bytes.
    #[inline(always)]
    fn store_words(&self, at: usize, words: &[[u8; 8]]) {
        for (number, bytes) in words.iter().enumerate() {
            self.store_u64(at + number * 8, *bytes);
        }
    }

    /// Orders writes to a ring before the next write, to a record, as the device sees them.
    #[inline(always)]
    fn ring_before_record(&self) {
        barrier::ring_before_record();
    }

    /// Orders writes to a record before the next store, to a register.
    #[inline(always)]
    fn record_before_register(&self) {
        barrier::record_before_register();
    }

    /// Flushes what was stored to a register.
    #[inline(always)]
    fn flush_register(&self) {
        barrier::flush_write_combining();
    }

    /// Orders the load of an entry's owner bit before the loads of the rest.
    #[inline(always)]
    fn owner_before_entry(&self) {
        barrier::owner_before_entry();
    }

    /// Orders the loads of entries before the next write, to a record.
    #[inline(always)]
    fn entry_before_record(&self) {
        barrier::entry_before_record();
    }
}

impl<S: Space + ?Sized> Space for &S {
    #[inline(always)]
    fn length(&self) -> usize {
        (**self).length()
    }

    #[inline(always)]
    fn load_u8(&self, at: usize) -> u8 {
        (**self).load_u8(at)
    }

    #[inline(always)]
    fn load_u64(&self, at: usize) -> [u8; 8] {
        (**self).load_u64(at)
    }

    #[inline(always)]
    fn store_u32(&self, at: usize, bytes: [u8; 4]) {
        (**self).store_u32(at, bytes);
    }

    #[inline(always)]
    fn store_u64(&self, at: usize, bytes: [u8; 8]) {
        (**self).store_u64(at, bytes);
    }

    #[inline(always)]
    fn load_block(&self, at: usize) -> [[u8; 8]; BLOCK / 8] {
        (**self).load_block(at)
    }

    #[inline(always)]
    fn store_words(&self, at: usize, words: &[[u8; 8]]) {
        (**self).store_words(at, words);
    }

    #[inline(always)]
    fn ring_before_record(&self) {
        (**self).ring_before_record();
    }

    #[inline(always)]
    fn record_before_register(&self) {
        (**self).record_before_register();
    }

    #[inline(always)]
    fn flush_register(&self) {
        (**self).flush_register();
    }

    #[inline(always)]
    fn owner_before_entry(&self) {
        (**self).owner_before_entry();
    }

    #[inline(always)]
    fn entry_before_record(&self) {
        (**self).entry_before_record();
    }
}

/// Memory of this CPU, used by volatile accesses.
#[derive(Debug)]
pub struct Mapped {
    base: *mut u8,
    length: usize,
}

// SAFETY: accesses are volatile, and the contract of `new` covers any thread that has the value.
unsafe impl Send for Mapped {}

impl Mapped {
    /// The memory of `length` bytes from `base` on.
    ///
    /// # Safety
    ///
    /// It is mapped, readable and writable, as long as this value lives, and its address is a multiple of 8.
    /// This program has no reference to any of it.
    pub unsafe fn new(base: *mut u8, length: usize) -> Self {
        Self { base, length }
    }

    /// The address of an offset, at which `count` values of `T` lie in the memory.
    ///
    /// # Panics
    ///
    /// If they do not, or are not aligned to their size.
    #[inline(always)]
    fn at<T>(&self, at: usize, count: usize) -> *mut T {
        let room = self.length.checked_sub(count * size_of::<T>());
        assert!(room.is_some_and(|room| at <= room) && at.is_multiple_of(size_of::<T>()));
        // SAFETY: the bytes lie in the memory, as was just asserted.
        unsafe { self.base.add(at).cast() }
    }
}

impl Space for Mapped {
    #[inline(always)]
    fn length(&self) -> usize {
        self.length
    }

    #[inline(always)]
    fn load_u8(&self, at: usize) -> u8 {
        // SAFETY: `at` has checked that it lies in the memory.
        unsafe { self.at::<u8>(at, 1).read_volatile() }
    }

    #[inline(always)]
    fn load_u64(&self, at: usize) -> [u8; 8] {
        // SAFETY: as above, and it is aligned.
        unsafe { self.at::<u64>(at, 1).read_volatile() }.to_ne_bytes()
    }

    #[inline(always)]
    fn store_u32(&self, at: usize, bytes: [u8; 4]) {
        // SAFETY: as above.
        unsafe {
            self.at::<u32>(at, 1)
                .write_volatile(u32::from_ne_bytes(bytes))
        };
    }

    #[inline(always)]
    fn store_u64(&self, at: usize, bytes: [u8; 8]) {
        // SAFETY: as above.
        unsafe {
            self.at::<u64>(at, 1)
                .write_volatile(u64::from_ne_bytes(bytes))
        };
    }

    // Checks once whether all of them lie there.
    #[inline(always)]
    fn load_block(&self, at: usize) -> [[u8; 8]; BLOCK / 8] {
        let first = self.at::<u64>(at, BLOCK / 8);
        // SAFETY: as above, of each.
        let load = |number| unsafe { first.add(number).read_volatile() }.to_ne_bytes();
        core::array::from_fn(load)
    }

    #[inline(always)]
    fn store_words(&self, at: usize, words: &[[u8; 8]]) {
        let first = self.at::<u64>(at, words.len());
        for (number, bytes) in words.iter().enumerate() {
            // SAFETY: as above.
            unsafe { first.add(number).write_volatile(u64::from_ne_bytes(*bytes)) };
        }
    }
}

/// A piece of local memory in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// The first byte's address, as the region's key defines addresses.
    pub address: u64,
    /// Bytes, at most 2^31.
    pub length: u32,
    /// The region's key.
    pub lkey: u32,
}

impl Local {
    /// A part of a region; `None` if it does not lie in the region.
    pub fn of(region: &Region, offset: u64, length: u32) -> Option<Self> {
        let end = offset.checked_add(length.into())?;
        (end <= region.length).then_some(Self {
            address: region.address.wrapping_add(offset),
            length,
            lkey: region.lkey,
        })
    }
}

/// The peer's memory in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The first byte's address, as the peer's key defines addresses.
    pub address: u64,
    /// The peer's key.
    pub rkey: u32,
}

/// What a request does. Each request fits into a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends the local memory.
    Send,
    /// As [`Action::Send`], with immediate data.
    SendImm(u32),
    /// Writes the local memory to the peer's.
    Write(Remote),
    /// As [`Action::Write`], with immediate data, which consumes a receive of the peer.
    WriteImm(Remote, u32),
    /// Reads the peer's memory into the local one.
    Read(Remote),
    /// Adds to the peer's 8 bytes, and stores the old value in the local ones.
    FetchAdd(Remote, u64),
    /// Replaces the peer's 8 bytes by `swap` if they are `compare`, and stores the old value in the local
    /// ones.
    CompareSwap {
        /// The peer's 8 bytes.
        remote: Remote,
        /// What they are compared with.
        compare: u64,
        /// What they become.
        swap: u64,
    },
}

/// Options of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// A completion is written for it. Otherwise only if it fails.
    pub signaled: bool,
    /// The peer gets an event, if its completion queue asks for such events.
    pub solicited: bool,
    /// Starts only when earlier READs and atomics have come back.
    pub fenced: bool,
}

/// Why a request was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The ring has no free block: the device has given none back, as far as [`Poster::done`] knows.
    Full,
    /// The local memory has no bytes, or more than 2^31; or it is not 8 bytes, for an atomic operation.
    Length(u32),
}

/// Where a send queue lies, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendQueue {
    /// Blocks of 64 bytes in the ring, a power of two, at most 2^15.
    pub blocks: u32,
    /// The queue pair's number.
    pub qpn: u32,
    /// Blocks that were written so far.
    pub written: u64,
}

impl SendQueue {
    /// The send queue of a hand-over; `None` if its device is another one, or its ring has other blocks.
    pub fn of(handover: &Handover) -> Option<Self> {
        let send = &handover.send;
        let is_ours = handover.driver == DRIVER && send.entry_bytes as usize == BLOCK;
        is_ours.then_some(Self {
            blocks: send.entries,
            qpn: handover.qpn,
            written: send.count,
        })
    }
}

/// Posts requests to a send ring to which nobody else posts. Each takes a block of 64 bytes.
///
/// The ring, the doorbell record (8 bytes) and the register (8 bytes) are pieces of memory, each of its own
/// kind.
#[derive(Debug)]
pub struct Poster<Ring, Record, Register> {
    ring: Ring,
    record: Record,
    register: Register,
    mask: u64,
    qpn: u32,
    /// Blocks that were written, that were rung, and that the device has given back.
    written: u64,
    rung: u64,
    done: u64,
    /// The start of the block that was written last.
    last: [u8; 8],
}

impl<Ring: Space, Record: Space, Register: Space> Poster<Ring, Record, Register> {
    /// A poster that continues where the queue is; everything written before is done. `None` if the pieces
    /// are too short for the queue, or no queue of a device is like that.
    pub fn new(ring: Ring, record: Record, register: Register, queue: SendQueue) -> Option<Self> {
        let SendQueue {
            blocks,
            qpn,
            written,
        } = queue;
        // The device counts in 16 bits, and a full ring must look different from an empty one.
        let is_queue = blocks.is_power_of_two() && blocks <= 1 << 15 && qpn <= NUMBER;
        let fits = ring.length() >= blocks as usize * BLOCK
            && record.length() >= 8
            && register.length() >= 8;
        (is_queue && fits).then(|| Self {
            ring,
            record,
            register,
            mask: u64::from(blocks - 1),
            qpn: qpn << 8,
            written,
            rung: written,
            done: written,
            last: [0; 8],
        })
    }

    /// Blocks that were written so far, including those before this poster.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Requests that may be in flight: written, and not known to be done.
    pub fn in_flight(&self) -> u64 {
        self.written.wrapping_sub(self.done)
    }

    /// Writes a request to the ring, and returns the number by which a completion names it
    /// ([`Entry::counter`]). The device sees it when [`Self::ring`] is called.
    ///
    /// # Errors
    ///
    /// There is no room, or the memory's length does not suit the operation.
    #[inline]
    pub fn write(
        &mut self,
        action: Action,
        local: Local,
        options: Options,
    ) -> Result<u16, Refused> {
        let is_atomic = matches!(action, Action::FetchAdd(..) | Action::CompareSwap { .. });
        if local.length == 0 || local.length > LONGEST_SLICE || is_atomic && local.length != 8 {
            return Err(Refused::Length(local.length));
        }
        if self.written.wrapping_sub(self.done) > self.mask {
            return Err(Refused::Full);
        }
        let index = self.written as u16;
        let block = block(index, self.qpn, action, local, options);
        let start = (self.written & self.mask) as usize * BLOCK;
        self.ring.store_words(start, &block.words[..block.used]);
        self.last = block.words[0];
        self.written = self.written.wrapping_add(1);
        Ok(index)
    }

    /// Hands everything that was written to the device.
    #[inline]
    pub fn ring(&mut self) {
        if self.rung == self.written {
            return;
        }
        self.rung = self.written;
        self.ring.ring_before_record();
        let counter = u32::from(self.written as u16);
        self.record
            .store_u32(RECORD_SEND * 4, counter.to_be_bytes());
        self.record.record_before_register();
        self.register.store_u64(0, self.last);
        self.register.flush_register();
    }

    /// Notes that the request with this number has completed, and with it all before it: their blocks are
    /// free. If no request in flight has the number, changes nothing and returns false.
    #[inline]
    pub fn done(&mut self, counter: u16) -> bool {
        let further = u64::from(counter.wrapping_sub(self.done as u16)) + 1;
        if further > self.rung.wrapping_sub(self.done) {
            return false;
        }
        self.done = self.done.wrapping_add(further);
        true
    }
}

/// A request in its block.
struct Block {
    words: [[u8; 8]; BLOCK / 8],
    /// Words that the device reads.
    used: usize,
}

/// The bytes of a segment of one unit.
type Segment = [u8; UNIT];

/// A place without a segment.
const NOTHING: Segment = [0; UNIT];

/// The bytes of a segment.
#[inline(always)]
fn of<T: IntoBytes + Immutable>(segment: T) -> Segment {
    const { assert!(size_of::<T>() == UNIT) };
    let mut bytes = NOTHING;
    bytes.copy_from_slice(segment.as_bytes());
    bytes
}

/// A request in the device's format.
#[inline]
fn block(index: u16, qpn: u32, action: Action, local: Local, options: Options) -> Block {
    let data = Data::new(local.length, local.lkey, local.address);
    let mut flags = 0;
    for (is_set, bit) in [
        (options.signaled, control::CQ_UPDATE),
        (options.solicited, control::SOLICITED),
        (options.fenced, control::FENCE),
    ] {
        flags |= if is_set { bit } else { 0 };
    }
    let address = |remote: Remote| RemoteAddress::new(remote.address, remote.rkey);
    let atomic = |swap_add, compare| AtomicOperands {
        swap_add: Be64::new(swap_add),
        compare: Be64::new(compare),
    };
    // The units are constants, not read from the control segment: if the action is known at compile time, so
    // is the number of bytes to copy.
    let (opcode, imm, units, segments) = match action {
        Action::Send => (opcode::SEND, 0, 2, [of(data), NOTHING, NOTHING]),
        Action::SendImm(imm) => (opcode::SEND_IMM, imm, 2, [of(data), NOTHING, NOTHING]),
        Action::Write(remote) => {
            let segments = [of(address(remote)), of(data), NOTHING];
            (opcode::RDMA_WRITE, 0, 3, segments)
        }
        Action::WriteImm(remote, imm) => {
            let segments = [of(address(remote)), of(data), NOTHING];
            (opcode::RDMA_WRITE_IMM, imm, 3, segments)
        }
        Action::Read(remote) => {
            let segments = [of(address(remote)), of(data), NOTHING];
            (opcode::RDMA_READ, 0, 3, segments)
        }
        Action::FetchAdd(remote, add) => {
            let segments = [of(address(remote)), of(atomic(add, 0)), of(data)];
            (opcode::ATOMIC_FA, 0, 4, segments)
        }
        Action::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            let segments = [of(address(remote)), of(atomic(swap, compare)), of(data)];
            (opcode::ATOMIC_CS, 0, 4, segments)
        }
    };
    let control = Control::new(index, opcode, qpn | units, flags.into(), imm);
    let [first, second, third] = segments;
    Block {
        words: zerocopy::transmute!([of(control), first, second, third]),
        used: units as usize * UNIT / 8,
    }
}

/// Where a receive queue lies, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveQueue {
    /// Elements of the ring, a power of two, at most 2^15.
    pub entries: u32,
    /// Bytes of an element: a power of two, at least 16.
    pub entry_bytes: u32,
    /// Receives that were posted so far.
    pub posted: u64,
}

impl ReceiveQueue {
    /// The receive queue of a hand-over; `None` if its device is another one.
    pub fn of(handover: &Handover) -> Option<Self> {
        let ring = &handover.receive;
        (handover.driver == DRIVER).then_some(Self {
            entries: ring.entries,
            entry_bytes: ring.entry_bytes,
            posted: ring.count,
        })
    }
}

/// Posts receives to a ring to which nobody else posts. There is no register: the device reads the record
/// when a message comes.
#[derive(Debug)]
pub struct Receiver<Ring, Record> {
    ring: Ring,
    record: Record,
    mask: u64,
    size: usize,
    /// Receives that were written, that the device knows of, and that messages have consumed.
    written: u64,
    told: u64,
    done: u64,
}

impl<Ring: Space, Record: Space> Receiver<Ring, Record> {
    /// A receiver that continues where the queue is; everything posted before is done. `None` if the pieces
    /// are too short for the queue, or no queue of a device is like that.
    pub fn new(ring: Ring, record: Record, queue: ReceiveQueue) -> Option<Self> {
        let ReceiveQueue {
            entries,
            entry_bytes,
            posted,
        } = queue;
        let size = entry_bytes as usize;
        let is_queue = entries.is_power_of_two()
            && entries <= 1 << 15
            && size.is_power_of_two()
            && (UNIT..=MOST_RECEIVE).contains(&size);
        let fits = is_queue && ring.length() >= entries as usize * size && record.length() >= 8;
        fits.then(|| Self {
            ring,
            record,
            mask: u64::from(entries - 1),
            size,
            written: posted,
            told: posted,
            done: posted,
        })
    }

    /// Receives that were written, and are not known to be done.
    pub fn in_flight(&self) -> u64 {
        self.written.wrapping_sub(self.done)
    }

    /// Writes a receive to the ring, and returns the number by which its completion names it
    /// ([`Entry::counter`]). The device sees it when [`Self::tell`] is called.
    ///
    /// # Errors
    ///
    /// There is no room, or the memory has no bytes or too many.
    #[inline]
    pub fn write(&mut self, local: Local) -> Result<u16, Refused> {
        if local.length == 0 || local.length > LONGEST_SLICE {
            return Err(Refused::Length(local.length));
        }
        if self.written.wrapping_sub(self.done) > self.mask {
            return Err(Refused::Full);
        }
        let start = (self.written & self.mask) as usize * self.size;
        self.put(start, Data::new(local.length, local.lkey, local.address));
        if self.size > UNIT {
            // More slices could follow.
            self.put(start + UNIT, TERMINATOR);
        }
        let index = self.written as u16;
        self.written = self.written.wrapping_add(1);
        Ok(index)
    }

    #[inline(always)]
    fn put(&self, at: usize, data: Data) {
        let words: [[u8; 8]; 2] = zerocopy::transmute!(data);
        self.ring.store_words(at, &words);
    }

    /// Hands everything that was written to the device.
    #[inline]
    pub fn tell(&mut self) {
        if self.told == self.written {
            return;
        }
        self.told = self.written;
        self.ring.ring_before_record();
        let counter = u32::from(self.written as u16);
        self.record
            .store_u32(RECORD_RECEIVE * 4, counter.to_be_bytes());
    }

    /// The receive with this number has completed, and with it all before it. A number that is of no receive
    /// in flight changes nothing, and gives false. What counts is the element of the ring: a device may count
    /// on behind its end, or begin again.
    #[inline]
    pub fn done(&mut self, counter: u16) -> bool {
        let further = (u64::from(counter).wrapping_sub(self.done) & self.mask) + 1;
        if further > self.told.wrapping_sub(self.done) {
            return false;
        }
        self.done = self.done.wrapping_add(further);
        true
    }
}

/// Bytes of the largest element of a receive ring: its slices are counted in 6 bits.
const MOST_RECEIVE: usize = 64 * UNIT;

/// Where a completion queue lies, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionQueue {
    /// Entries of the ring, a power of two, at most 2^23.
    pub entries: u32,
    /// Bytes of an entry, 64 or 128.
    pub entry_bytes: u32,
    /// Entries that were taken so far.
    pub taken: u32,
}

impl CompletionQueue {
    /// The completion queue of a hand-over; `None` if its device is another one.
    pub fn of(handover: &Handover) -> Option<Self> {
        let ring = &handover.completions;
        (handover.driver == DRIVER).then_some(Self {
            entries: ring.entries,
            entry_bytes: ring.entry_bytes,
            taken: ring.count as u32,
        })
    }
}

/// Entries of the largest ring: the device's index must distinguish two laps.
const MOST_ENTRIES: u32 = 1 << 23;

/// Takes completions from a ring from which nobody else takes them.
#[derive(Debug)]
pub struct Poller<Ring, Record> {
    ring: Ring,
    record: Record,
    entries: u32,
    size: usize,
    taken: u32,
}

impl<Ring: Space, Record: Space> Poller<Ring, Record> {
    /// A poller that continues where the queue is. `None` if the pieces are too short for the queue, or no
    /// queue of a device is like that.
    pub fn new(ring: Ring, record: Record, queue: CompletionQueue) -> Option<Self> {
        let CompletionQueue {
            entries,
            entry_bytes,
            taken,
        } = queue;
        let size = entry_bytes as usize;
        let is_queue = entries.is_power_of_two()
            && entries <= MOST_ENTRIES
            && (size == BLOCK || size == 2 * BLOCK);
        let fits = is_queue && ring.length() >= entries as usize * size && record.length() >= 8;
        fits.then_some(Self {
            ring,
            record,
            entries,
            size,
            taken,
        })
    }

    /// Entries that were taken so far, including those before this poller; it wraps at 2^32.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Takes the next completion, if it has arrived. Its entry is free for the device when [`Self::pass`] is
    /// called.
    #[inline]
    pub fn poll(&mut self) -> Option<Entry> {
        let place = (self.taken & (self.entries - 1)) as usize * self.size + self.size - BLOCK;
        let op_own = self.ring.load_u8(place + OP_OWN);
        if op_own & 1 != lap(self.taken, self.entries) || op_own >> 4 == cqe::INVALID {
            return None;
        }
        self.ring.owner_before_entry();
        let words = self.ring.load_block(place);
        self.taken = self.taken.wrapping_add(1);
        Some(Entry(zerocopy::transmute!(words)))
    }

    /// Reports to the device how many entries were taken.
    #[inline]
    pub fn pass(&self) {
        self.ring.entry_before_record();
        let taken = self.taken & INDEX_MASK;
        self.record
            .store_u32(RECORD_CONSUMER * 4, taken.to_be_bytes());
    }
}

/// Watches the place of a queue's newest completion. The queue is a *collapsed* one: the device writes every
/// entry to the same place. Such a queue ignores overrun, so nothing is reported to the device.
///
/// Requests complete in order, so the newest completion stands for all before it ([`Poster::done`]). A
/// success says nothing about unsignaled requests that were written after the one that it reports.
#[derive(Debug)]
pub struct Watcher<Ring> {
    ring: Ring,
    /// Where the fields of the entry begin.
    place: usize,
}

impl<Ring: Space> Watcher<Ring> {
    /// A watcher of the queue's first place. `None` if the ring is too short, or no queue of a device is like
    /// that.
    pub fn new(ring: Ring, queue: CompletionQueue) -> Option<Self> {
        let size = queue.entry_bytes as usize;
        let fits = (size == BLOCK || size == 2 * BLOCK) && ring.length() >= size;
        fits.then_some(Self {
            ring,
            place: size - BLOCK,
        })
    }

    /// The end of the newest completion; `None` if there has been none yet.
    ///
    /// It is loaded at once, so all of it belongs to one entry, whatever arrives meanwhile.
    #[inline]
    pub fn newest(&self) -> Option<Newest> {
        let newest = Newest(self.ring.load_u64(self.place + NEWEST));
        if newest.op_own() >> 4 == cqe::INVALID {
            return None;
        }
        self.ring.owner_before_entry();
        Some(newest)
    }

    /// The whole entry. If more completions arrive meanwhile, its parts may belong to different ones; after a
    /// failure the later ones are flushed requests.
    pub fn entry(&self) -> Entry {
        Entry(zerocopy::transmute!(self.ring.load_block(self.place)))
    }
}

/// Where the 8 bytes begin in an entry that name its request and say whether it failed.
const NEWEST: usize = 56;

/// The end of an entry: which request it reports, and whether that failed. Any bytes are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest([u8; 8]);

impl Newest {
    fn op_own(self) -> u8 {
        self.0[OP_OWN - NEWEST]
    }

    /// The number of the request, as [`Poster::write`] returned it.
    pub fn counter(self) -> u16 {
        u16::from_be_bytes([self.0[4], self.0[5]])
    }

    /// The queue pair's number.
    pub fn qpn(self) -> u32 {
        u32::from_be_bytes([0, self.0[1], self.0[2], self.0[3]])
    }

    /// Whether the request failed; [`Watcher::entry`] says why.
    pub fn has_failed(self) -> bool {
        self.op_own() & cqe::FAILED != 0
    }
}

/// A completion: a copy of its entry. Any bytes are valid.
#[derive(Clone, Copy, Debug)]
pub struct Entry(pub Cqe);

/// What a completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request of a send queue was done.
    Sent,
    /// A message was received.
    Received,
    /// A message was received, or memory written, with immediate data.
    ReceivedImm,
    /// A message was received that has invalidated a key of this side.
    ReceivedInv,
    /// A send request or a receive failed.
    Failed {
        /// The request was a receive.
        receive: bool,
        /// Why, by one of the numbers in [`super::format::syndrome`].
        syndrome: u8,
        /// The device's own number for the reason.
        vendor: u8,
    },
    /// Something else, by the device's number.
    Other(u8),
}

impl Entry {
    /// What the completion reports.
    pub fn kind(&self) -> Kind {
        let Self(entry) = self;
        match entry.op_own >> 4 {
            cqe::REQ => Kind::Sent,
            cqe::RESP_SEND => Kind::Received,
            cqe::RESP_WR_IMM | cqe::RESP_SEND_IMM => Kind::ReceivedImm,
            cqe::RESP_SEND_INV => Kind::ReceivedInv,
            code @ (cqe::REQ_ERR | cqe::RESP_ERR) => Kind::Failed {
                receive: code == cqe::RESP_ERR,
                syndrome: entry.syndrome,
                vendor: entry.vendor_err_synd,
            },
            code => Kind::Other(code),
        }
    }

    /// The number of the request. For a send request, the one that [`Poster::write`] returned.
    pub fn counter(&self) -> u16 {
        self.0.wqe_counter.get()
    }

    /// The queue pair's number.
    pub fn qpn(&self) -> u32 {
        self.0.sop_drop_qpn.get() & NUMBER
    }

    /// Bytes that were received or read.
    pub fn length(&self) -> u32 {
        self.0.byte_cnt.get()
    }

    /// Immediate data, or a key that was invalidated.
    pub fn immediate(&self) -> u32 {
        u32::from_be_bytes(self.0.imm_inval_pkey)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::vec;
    use std::vec::Vec;

    use super::super::format::cqe;
    use super::*;

    /// Memory that both sides of a test share. It panics if an access is not within it, or not aligned.
    struct Cells(RefCell<Vec<u8>>);

    impl Cells {
        fn new(length: usize) -> Self {
            Self(RefCell::new(vec![0; length]))
        }

        fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
            self.0.borrow()[at..at + length].to_vec()
        }

        fn set(&self, at: usize, bytes: &[u8]) {
            self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    impl Space for Cells {
        fn length(&self) -> usize {
            self.0.borrow().len()
        }

        fn load_u8(&self, at: usize) -> u8 {
            self.0.borrow()[at]
        }

        fn load_u64(&self, at: usize) -> [u8; 8] {
            assert_eq!(at % 8, 0);
            self.bytes(at, 8).try_into().unwrap()
        }

        fn store_u32(&self, at: usize, bytes: [u8; 4]) {
            assert_eq!(at % 4, 0);
            self.set(at, &bytes);
        }

        fn store_u64(&self, at: usize, bytes: [u8; 8]) {
            assert_eq!(at % 8, 0);
            self.set(at, &bytes);
        }
    }

    const QPN: u32 = 0x12_3456;
    const LOCAL: Local = Local {
        address: 0x0102_0304_0506_0708,
        length: 0x1000,
        lkey: 0xaabb_ccdd,
    };
    const REMOTE: Remote = Remote {
        address: 0x1112_1314_1516_1718,
        rkey: 0x2122_2324,
    };
    const SIGNALED: Options = Options {
        signaled: true,
        solicited: false,
        fenced: false,
    };

    fn queue(blocks: u32, written: u64) -> SendQueue {
        SendQueue {
            blocks,
            qpn: QPN,
            written,
        }
    }

    /// Byte by byte, as the device reads it.
    #[test]
    fn a_write_is_as_the_device_wants_it() {
        let (ring, record, register) = (Cells::new(4 * 64), Cells::new(8), Cells::new(8));
        let mut poster = Poster::new(&ring, &record, &register, queue(4, 0x1_0002)).unwrap();
        let number = poster.write(Action::Write(REMOTE), LOCAL, SIGNALED);
        assert_eq!(number, Ok(2));
        let expected = [
            [0x00, 0x00, 0x02, 0x08, 0x12, 0x34, 0x56, 0x03],
            [0, 0, 0, 0x08, 0, 0, 0, 0],
            [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18],
            [0x21, 0x22, 0x23, 0x24, 0, 0, 0, 0],
            [0, 0, 0x10, 0, 0xaa, 0xbb, 0xcc, 0xdd],
            [0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08],
        ];
        assert_eq!(ring.bytes(2 * 64, 48), expected.concat());
        assert_eq!(
            (record.bytes(0, 8), register.bytes(0, 8)),
            (vec![0; 8], vec![0; 8])
        );
        poster.ring();
        assert_eq!(record.bytes(0, 8), [0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(register.bytes(0, 8), expected[0]);
    }

    #[test]
    fn each_action_has_its_segments() {
        let remote_8 = Local { length: 8, ..LOCAL };
        let add = Action::FetchAdd(REMOTE, 7);
        let swap = Action::CompareSwap {
            remote: REMOTE,
            compare: 8,
            swap: 9,
        };
        for (action, code, units, imm) in [
            (Action::Send, 0x0a, 2, 0),
            (Action::SendImm(5), 0x0b, 2, 5),
            (Action::Write(REMOTE), 0x08, 3, 0),
            (Action::WriteImm(REMOTE, 6), 0x09, 3, 6),
            (Action::Read(REMOTE), 0x10, 3, 0),
            (add, 0x12, 4, 0),
            (swap, 0x11, 4, 0),
        ] {
            let fenced = Options {
                signaled: false,
                solicited: true,
                fenced: true,
            };
            let block = block(0, QPN << 8, action, remote_8, fenced);
            let bytes = block.words.concat();
            assert_eq!((bytes[3], bytes[7]), (code, units), "{action:?}");
            assert_eq!((bytes[11], bytes[15]), (0x82, imm), "{action:?}");
            assert_eq!(block.used, usize::from(units) * 2, "{action:?}");
            // The local memory comes last.
            let last = usize::from(units) * UNIT;
            assert_eq!(bytes[last - 8..last], LOCAL.address.to_be_bytes());
        }
        let words = block(0, 0, swap, remote_8, SIGNALED).words;
        assert_eq!(
            (words[4], words[5]),
            (9u64.to_be_bytes(), 8u64.to_be_bytes())
        );
        let words = block(0, 0, add, remote_8, SIGNALED).words;
        assert_eq!((words[4], words[5]), (7u64.to_be_bytes(), [0; 8]));
    }

    #[test]
    fn a_full_ring_is_refused_until_the_device_has_come_on() {
        let (ring, record, register) = (Cells::new(4 * 64), Cells::new(8), Cells::new(8));
        // The device's count of 16 bits wraps on the way.
        let start = 0xfffe;
        let mut poster = Poster::new(&ring, &record, &register, queue(4, start)).unwrap();
        for number in [0xfffe, 0xffff, 0, 1] {
            assert_eq!(poster.write(Action::Send, LOCAL, SIGNALED), Ok(number));
        }
        assert_eq!(
            poster.write(Action::Send, LOCAL, SIGNALED),
            Err(Refused::Full)
        );
        // Requests that the device does not know cannot be done.
        assert!(!poster.done(0xffff));
        poster.ring();
        assert_eq!(record.bytes(4, 4), [0, 0, 0, 2]);
        for nonsense in [0xfffd, 2, 3, 0x8000] {
            assert!(!poster.done(nonsense), "{nonsense:#x}");
        }
        assert!(poster.done(0));
        assert_eq!(poster.in_flight(), 1);
        assert!(!poster.done(0));
        for number in [2, 3, 4] {
            assert_eq!(poster.write(Action::Send, LOCAL, SIGNALED), Ok(number));
        }
        assert_eq!(
            poster.write(Action::Send, LOCAL, SIGNALED),
            Err(Refused::Full)
        );
    }

    #[test]
    fn lengths_that_mean_something_else_are_refused() {
        let (ring, record, register) = (Cells::new(64), Cells::new(8), Cells::new(8));
        let mut poster = Poster::new(&ring, &record, &register, queue(1, 0)).unwrap();
        let mut write = |action, length| {
            let local = Local { length, ..LOCAL };
            poster.write(action, local, SIGNALED)
        };
        for length in [0, (1 << 31) + 1, u32::MAX] {
            assert_eq!(write(Action::Send, length), Err(Refused::Length(length)));
        }
        let add = Action::FetchAdd(REMOTE, 1);
        assert_eq!(write(add, 4), Err(Refused::Length(4)));
        assert_eq!(write(Action::Send, 1 << 31), Ok(0));
        assert_eq!(ring.bytes(16, 4), [0; 4]);
    }

    #[test]
    fn pieces_that_are_too_short_are_refused() {
        let new = |ring, record, register, queue| {
            let cells = [ring, record, register].map(Cells::new);
            let [ring, record, register] = &cells;
            Poster::new(ring, record, register, queue).is_some()
        };
        assert!(new(256, 8, 8, queue(4, 0)));
        assert!(!new(255, 8, 8, queue(4, 0)));
        assert!(!new(256, 7, 8, queue(4, 0)));
        assert!(!new(256, 8, 7, queue(4, 0)));
        assert!(!new(256, 8, 8, queue(3, 0)));
        assert!(!new(256, 8, 8, queue(0, 0)));
        assert!(!new(1 << 23, 8, 8, queue(1 << 16, 0)));
        let new = |ring, record, entries, entry_bytes| {
            let queue = CompletionQueue {
                entries,
                entry_bytes,
                taken: 0,
            };
            Poller::new(&Cells::new(ring), &Cells::new(record), queue).is_some()
        };
        assert!(new(256, 8, 4, 64) && new(256, 8, 2, 128));
        assert!(!new(255, 8, 4, 64) && !new(256, 4, 4, 64));
        assert!(!new(256, 8, 4, 32) && !new(256, 8, 0, 64) && !new(256, 8, 3, 64));
    }

    /// Writes what the device would: the fields, and the owner bit of a lap.
    fn complete(ring: &Cells, size: usize, place: usize, code: u8, lap: u8, counter: u16) {
        let mut entry = [0; BLOCK];
        entry[56..60].copy_from_slice(&QPN.to_be_bytes());
        entry[60..62].copy_from_slice(&counter.to_be_bytes());
        entry[OP_OWN] = code << 4 | lap;
        ring.set(place * size + size - BLOCK, &entry);
    }

    /// Memory that notes the accesses and barriers.
    struct Noted<'a> {
        cells: &'a Cells,
        steps: &'a RefCell<Vec<&'static str>>,
    }

    impl Noted<'_> {
        fn note(&self, step: &'static str) {
            let mut steps = self.steps.borrow_mut();
            if steps.last() != Some(&step) {
                steps.push(step);
            }
        }
    }

    impl Space for Noted<'_> {
        fn length(&self) -> usize {
            self.cells.length()
        }

        fn load_u8(&self, at: usize) -> u8 {
            self.note("owner");
            self.cells.load_u8(at)
        }

        fn load_u64(&self, at: usize) -> [u8; 8] {
            self.note("entry");
            self.cells.load_u64(at)
        }

        fn store_u32(&self, at: usize, bytes: [u8; 4]) {
            self.note("record");
            self.cells.store_u32(at, bytes);
        }

        fn store_u64(&self, at: usize, bytes: [u8; 8]) {
            self.cells.store_u64(at, bytes);
        }

        fn owner_before_entry(&self) {
            self.note("owner_before_entry");
        }

        fn entry_before_record(&self) {
            self.note("entry_before_record");
        }
    }

    /// Would catch a device that writes over an entry while it is read: memory would not show it here.
    #[test]
    fn an_entry_is_read_before_it_is_passed() {
        let (ring, record) = (Cells::new(64), Cells::new(8));
        let steps = RefCell::default();
        let noted = |cells| Noted {
            cells,
            steps: &steps,
        };
        let queue = CompletionQueue {
            entries: 1,
            entry_bytes: 64,
            taken: 0,
        };
        complete(&ring, 64, 0, cqe::REQ, 0, 0);
        let mut poller = Poller::new(noted(&ring), noted(&record), queue).unwrap();
        assert!(poller.poll().is_some());
        poller.pass();
        let expected = [
            "owner",
            "owner_before_entry",
            "entry",
            "entry_before_record",
            "record",
        ];
        assert_eq!(*steps.borrow(), expected);
    }

    #[test]
    fn entries_are_taken_once_in_each_lap() {
        for size in [64, 128] {
            let (ring, record) = (Cells::new(4 * size), Cells::new(8));
            for place in 0..4 {
                complete(&ring, size, place, cqe::INVALID, 1, 0);
            }
            let queue = CompletionQueue {
                entries: 4,
                entry_bytes: size as u32,
                taken: 0,
            };
            let mut poller = Poller::new(&ring, &record, queue).unwrap();
            for number in 0..23u16 {
                assert!(poller.poll().is_none(), "{number}");
                let (place, lap) = (usize::from(number % 4), (number / 4 % 2) as u8);
                complete(&ring, size, place, cqe::REQ, lap, number);
                let entry = poller.poll().unwrap();
                assert_eq!((entry.kind(), entry.counter()), (Kind::Sent, number));
                assert_eq!(entry.qpn(), QPN);
                poller.pass();
                assert_eq!(record.bytes(0, 4), u32::from(number + 1).to_be_bytes());
            }
        }
    }

    /// Catches a ring that is full for good behind its first lap, for a device that tells elements.
    #[test]
    fn receives_are_done_by_their_counts_or_their_elements() {
        for mask in [u16::MAX, 3] {
            let (ring, record) = (Cells::new(4 * 16), Cells::new(8));
            let queue = ReceiveQueue {
                entries: 4,
                entry_bytes: 16,
                posted: 0xfff0,
            };
            let mut receiver = Receiver::new(&ring, &record, queue).unwrap();
            for _ in 0..13 {
                let [first, second] = [(); 2].map(|()| receiver.write(LOCAL).unwrap());
                receiver.tell();
                assert!(receiver.done(first & mask), "{first:#x} {mask:#x}");
                assert!(!receiver.done(first & mask), "{first:#x} {mask:#x}");
                assert!(receiver.done(second & mask), "{second:#x} {mask:#x}");
                assert_eq!(receiver.in_flight(), 0);
            }
        }
    }

    #[test]
    fn receives_are_as_the_device_wants_them() {
        for size in [16, 32, 64] {
            let (ring, record) = (Cells::new(4 * size), Cells::new(8));
            ring.set(0, &vec![0xee; 4 * size]);
            let queue = ReceiveQueue {
                entries: 4,
                entry_bytes: size as u32,
                posted: 0xffff,
            };
            let mut receiver = Receiver::new(&ring, &record, queue).unwrap();
            for number in [0xffff, 0, 1, 2] {
                assert_eq!(receiver.write(LOCAL), Ok(number));
            }
            assert_eq!(receiver.write(LOCAL), Err(Refused::Full));
            assert!(!receiver.done(0xffff));
            assert_eq!(record.bytes(0, 8), [0; 8]);
            receiver.tell();
            assert_eq!(record.bytes(0, 8), [0, 0, 0, 3, 0, 0, 0, 0]);
            let slice = [
                [0, 0, 0x10, 0, 0xaa, 0xbb, 0xcc, 0xdd],
                [0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08],
            ];
            assert_eq!(ring.bytes(3 * size, 16), slice.concat());
            if size > 16 {
                let end = [[0, 0, 0, 0, 0, 0, 1, 0], [0; 8]];
                assert_eq!(ring.bytes(16, 16), end.concat());
            }
            assert!(receiver.done(0) && !receiver.done(0));
            for nonsense in [0xffff, 3, 0x8000] {
                assert!(!receiver.done(nonsense), "{nonsense:#x}");
            }
            assert_eq!(receiver.in_flight(), 2);
            assert_eq!(receiver.write(LOCAL), Ok(3));
        }
        let new = |ring, record, entries, entry_bytes| {
            let queue = ReceiveQueue {
                entries,
                entry_bytes,
                posted: 0,
            };
            Receiver::new(&Cells::new(ring), &Cells::new(record), queue).is_some()
        };
        assert!(new(64, 8, 4, 16) && new(1024, 8, 1, 1024));
        assert!(!new(63, 8, 4, 16) && !new(64, 4, 4, 16) && !new(64, 8, 8, 8));
        assert!(!new(64, 8, 0, 16) && !new(72, 8, 3, 24) && !new(1 << 20, 8, 1 << 16, 16));
        assert!(!new(2048, 8, 1, 2048) && !new(0, 8, 0, 0));
    }

    #[test]
    fn one_place_tells_of_all() {
        for size in [64, 128] {
            let ring = Cells::new(size);
            complete(&ring, size, 0, cqe::INVALID, 1, 0xffff);
            let queue = CompletionQueue {
                entries: 1,
                entry_bytes: size as u32,
                taken: 0,
            };
            let watcher = Watcher::new(&ring, queue).unwrap();
            assert_eq!(watcher.newest(), None);
            // The lap does not matter.
            for lap in [0, 1, 1] {
                complete(&ring, size, 0, cqe::REQ, lap, 0x1234);
                let newest = watcher.newest().unwrap();
                assert_eq!((newest.counter(), newest.qpn()), (0x1234, QPN));
                assert!(!newest.has_failed());
            }
            complete(&ring, size, 0, cqe::REQ_ERR, 0, 7);
            ring.set(size - BLOCK + 55, &[5]);
            assert!(watcher.newest().unwrap().has_failed());
            let failed = Kind::Failed {
                receive: false,
                syndrome: 5,
                vendor: 0,
            };
            assert_eq!(watcher.entry().kind(), failed);
            let short = CompletionQueue {
                entry_bytes: 2 * size as u32,
                ..queue
            };
            assert!(Watcher::new(&ring, short).is_none());
        }
    }

    /// No contents of the memory cause an access beyond it, or a panic: [`Cells`] would fail.
    #[test]
    fn any_bytes_are_entries() {
        let (ring, record) = (Cells::new(8 * 64), Cells::new(8));
        let (send, register) = (Cells::new(4 * 64), Cells::new(8));
        let queue_of = CompletionQueue {
            entries: 8,
            entry_bytes: 64,
            taken: u32::MAX - 100,
        };
        let mut poller = Poller::new(&ring, &record, queue_of).unwrap();
        // A hand-over may say that as many were posted.
        let mut poster = Poster::new(&send, &record, &register, queue(4, u64::MAX)).unwrap();
        let (mut state, mut taken) = (0x9e37_79b9_7f4a_7c15_u64, 0);
        for _ in 0..20_000 {
            for at in (0..ring.length()).step_by(8) {
                // Xorshift.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                ring.store_u64(at, state.to_ne_bytes());
            }
            let _ = poster.write(Action::Send, LOCAL, SIGNALED);
            poster.ring();
            let Some(entry) = poller.poll() else {
                continue;
            };
            taken += 1;
            let _ = (entry.kind(), entry.length(), entry.immediate());
            poster.done(entry.counter());
            assert!(poster.in_flight() <= 4);
            poller.pass();
        }
        assert!(taken > 1000, "{taken}");
    }

    #[test]
    fn memory_of_the_cpu_is_checked() {
        let mut words = [0u64; 2];
        let base = words.as_mut_ptr().cast::<u8>();
        // SAFETY: the words live on, and are only read when it is gone.
        let mapped = unsafe { Mapped::new(base, 16) };
        mapped.store_u64(8, [1, 2, 3, 4, 5, 6, 7, 8]);
        mapped.store_u32(0, [9; 4]);
        assert_eq!((mapped.load_u8(15), mapped.load_u64(0)[0]), (8, 9));
        mapped.store_words(0, &[[9; 8]]);
        for words in [[[0; 8]; 3].as_slice(), &[[0; 8]; 2]] {
            // SAFETY: as above.
            let store = || unsafe { Mapped::new(base, 16) }.store_words(8, words);
            assert!(std::panic::catch_unwind(store).is_err());
        }
        // SAFETY: as above.
        let block = || unsafe { Mapped::new(base, 16) }.load_block(0);
        assert!(std::panic::catch_unwind(block).is_err());
        for at in [4, 9, 16, usize::MAX - 7] {
            // SAFETY: as above.
            let load = || unsafe { Mapped::new(base, 16) }.load_u64(at);
            let beyond = std::panic::catch_unwind(load);
            assert!(beyond.is_err(), "{at}");
        }
        assert_eq!(words[1].to_ne_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
