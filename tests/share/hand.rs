//! An agent: a process that posts to a queue pair and polls its completions by what it was handed over, and
//! does as it is told. Of the library it uses the package of formats alone.

use std::io::BufRead;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::param::page_size;
use support::random::Random;
use support::{Result, fail, pattern, same};
use uverbs_queue::handover::{File, Handover, Overrun, Piece, Region};
use uverbs_queue::mlx5::agent::{
    Action, CompletionQueue, Kind, Local, Mapped, Options, Poller, Poster, ReceiveQueue, Receiver,
    Refused, Remote, SendQueue, Space, Watcher,
};
use zerocopy::FromBytes;

use crate::roles::{inherited, say};

/// Bytes that a request writes, each to a slot of its own.
pub(crate) const SLOT: usize = 64;
/// More than there are blocks in the ring, so that a slot is done with when it is used again.
pub(crate) const SLOTS: usize = 1000;

/// What was handed over.
struct Files {
    command: OwnedFd,
    dmabuf: OwnedFd,
    data: OwnedFd,
}

/// The queue's memory, and the data's.
struct Hand {
    value: Handover,
    send: Mapped,
    receive: Mapped,
    record: Mapped,
    completions: Mapped,
    completion_record: Mapped,
    register: Mapped,
    /// All that is mapped with it.
    page: Mapped,
    data: *mut u8,
    target: Region,
}

/// Plays an agent until nobody has orders any more.
pub(crate) fn play(command: &str, dmabuf: &str, data: &str) -> Result {
    let files = Files {
        command: inherited(command)?,
        dmabuf: inherited(dmabuf)?,
        data: inherited(data)?,
    };
    let mut lines = std::io::stdin().lock().lines();
    let mut line = || -> Result<Vec<u8>> { bytes(&lines.next().ok_or("no value")??) };
    let value = Handover::read(&line()?).ok_or("a value of another form")?;
    let target = Region::read_from_bytes(&line()?).map_err(|_| "no region")?;
    let hand = Hand::new(&files, value, target)?;
    // The mappings are enough.
    drop(files);
    let send = SendQueue::of(&value).ok_or("no queue of an mlx5")?;
    let poster = Poster::new(&hand.send, &hand.record, &hand.register, send);
    let mut poster = poster.ok_or("no such send queue")?;
    let completions = CompletionQueue::of(&value).ok_or("no queue of an mlx5")?;
    let poller = Poller::new(&hand.completions, &hand.completion_record, completions);
    let mut poller = poller.ok_or("no such completion queue")?;
    let receives = ReceiveQueue::of(&value).ok_or("no queue of an mlx5")?;
    let receiver = Receiver::new(&hand.receive, &hand.record, receives);
    let mut receiver = receiver.ok_or("no such receive queue")?;
    let watcher = Watcher::new(&hand.completions, completions);
    let watcher = watcher.ok_or("no such completion queue")?;
    say("ready");
    for line in lines {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let done = match words.as_slice() {
            ["write", first, count] => {
                let first: u64 = first.parse()?;
                hand.write(&mut poster, &mut poller, first, count.parse()?)
            }
            ["receive", first, count] => {
                let first: u64 = first.parse()?;
                hand.receive(&mut receiver, &mut poller, first, count.parse()?)
            }
            ["watch", first, count] => {
                let first: u64 = first.parse()?;
                hand.watch(&mut poster, &watcher, first, count.parse()?)
            }
            ["page"] => {
                hand.ring_everywhere();
                Ok(())
            }
            ["nonsense", seed] => {
                hand.nonsense(&mut Random::new(seed.parse()?));
                Ok(())
            }
            _ => fail(format!("no such order: {line}")),
        };
        match done {
            Ok(()) => say("done"),
            Err(error) => say(&format!("failed: {error}")),
        }
    }
    Ok(())
}

/// The bytes of a line.
fn bytes(line: &str) -> Result<Vec<u8>> {
    let pairs = line.as_bytes().chunks(2);
    let byte = |pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?);
    pairs.map(byte).collect()
}

impl Hand {
    fn new(files: &Files, value: Handover, target: Region) -> Result<Self> {
        let [region] = value.regions() else {
            return fail("not one region");
        };
        let data = mapped(files.data.as_fd(), 0, region.length as usize)?;
        let piece = |piece: &Piece| -> Result<Mapped> {
            let file = match piece.file {
                File::COMMAND => files.command.as_fd(),
                file if file == File::dmabuf(0) => files.dmabuf.as_fd(),
                file => return fail(format!("a piece of {file:?}")),
            };
            let pages = piece
                .pages(page_size())
                .ok_or("a piece that cannot be mapped")?;
            let base = mapped(file, pages.offset, pages.length)?;
            // SAFETY: the piece lies in the pages, which stay mapped; nobody has references to them. Pieces
            // begin at multiples of 8.
            Ok(unsafe { Mapped::new(base.add(pages.start), piece.length as usize) })
        };
        let pages = value.register.pages(page_size()).ok_or("no register")?;
        let base = mapped(files.command.as_fd(), pages.offset, pages.length)?;
        // SAFETY: as above.
        let page = unsafe { Mapped::new(base, pages.length) };
        Ok(Self {
            send: piece(&value.send.piece)?,
            receive: piece(&value.receive.piece)?,
            record: piece(&value.record)?,
            completions: piece(&value.completions.piece)?,
            completion_record: piece(&value.completion_record)?,
            register: piece(&value.register)?,
            page,
            data,
            target,
            value,
        })
    }

    /// Writes so many slots, each with bytes of its number, and waits for all of them.
    fn write(
        &self,
        poster: &mut Poster<&Mapped, &Mapped, &Mapped>,
        poller: &mut Poller<&Mapped, &Mapped>,
        first: u64,
        count: u64,
    ) -> Result {
        let tells = self.value.overrun == Overrun::FAILS;
        self.write_by(poster, first, count, |poster| take(poster, poller, tells))
    }

    /// As [`Self::write`], of which the newest completion alone is looked at.
    fn watch(
        &self,
        poster: &mut Poster<&Mapped, &Mapped, &Mapped>,
        watcher: &Watcher<&Mapped>,
        first: u64,
        count: u64,
    ) -> Result {
        self.write_by(poster, first, count, |poster| {
            let Some(newest) = watcher.newest() else {
                return Ok(());
            };
            if newest.has_failed() {
                return fail(format!("{:?}", watcher.entry().kind()));
            }
            // That of what was done before is no news.
            poster.done(newest.counter());
            Ok(())
        })
    }

    /// Writes so many slots; `take` looks for completions.
    fn write_by(
        &self,
        poster: &mut Poster<&Mapped, &Mapped, &Mapped>,
        first: u64,
        count: u64,
        mut take: impl FnMut(&mut Poster<&Mapped, &Mapped, &Mapped>) -> Result,
    ) -> Result {
        let signaled = Options {
            signaled: true,
            ..Options::default()
        };
        for number in first..first + count {
            let (local, slot) = self.slot(number)?;
            // SAFETY: the slot lies in the data, and its last request is done, as there are more slots than
            // blocks in the ring. Only the device looks there.
            unsafe {
                let to = self.data.add(slot).cast::<[u8; SLOT]>();
                to.write_volatile(pattern(number, SLOT).try_into().map_err(|_| "no slot")?);
            }
            let remote = Remote {
                address: self.target.address + slot as u64,
                rkey: self.target.rkey,
            };
            while let Err(refused) = poster.write(Action::Write(remote), local, signaled) {
                if refused != Refused::Full {
                    return fail(format!("{refused:?}"));
                }
                take(poster)?;
            }
            poster.ring();
        }
        while poster.in_flight() > 0 {
            take(poster)?;
        }
        Ok(())
    }

    /// Receives so many messages, each to a slot of its own, and compares each with the bytes of its number.
    fn receive(
        &self,
        receiver: &mut Receiver<&Mapped, &Mapped>,
        poller: &mut Poller<&Mapped, &Mapped>,
        first: u64,
        count: u64,
    ) -> Result {
        let (end, mut posted, mut came) = (first + count, first, first);
        while came < end {
            while posted < end && receiver.write(self.slot(posted)?.0).is_ok() {
                posted += 1;
            }
            receiver.tell();
            let Some(entry) = poller.poll() else {
                std::hint::spin_loop();
                continue;
            };
            poller.pass();
            if entry.kind() != Kind::Received || entry.length() as usize != SLOT {
                return fail(format!("{:?} of {} bytes", entry.kind(), entry.length()));
            }
            if !receiver.done(entry.counter()) {
                return fail(format!("a completion of no receive: {entry:?}"));
            }
            let (_, slot) = self.slot(came)?;
            // SAFETY: the slot lies in the data, and the device has written it and given it back.
            let bytes = unsafe { self.data.add(slot).cast::<[u8; SLOT]>().read_volatile() };
            same(&bytes[..], &pattern(came, SLOT)[..], "what was received")?;
            came += 1;
        }
        Ok(())
    }

    /// The slot of a number in the region, and where it is in the data.
    fn slot(&self, number: u64) -> Result<(Local, usize)> {
        let slot = number as usize % SLOTS * SLOT;
        let region = self.value.regions()[0];
        let local = Local::of(&region, slot as u64, SLOT as u32).ok_or("no such slot")?;
        Ok((local, slot))
    }

    /// Stores a doorbell of the own queue pair at every place of the register's page.
    fn ring_everywhere(&self) {
        let doorbell = u64::from(self.value.qpn << 8).to_be_bytes();
        for at in (0..self.page.length()).step_by(8) {
            self.page.store_u64(at, doorbell);
            self.page.flush_register();
        }
    }

    /// Writes bytes that nobody thought of to the rings and the records, and rings.
    fn nonsense(&self, random: &mut Random) {
        let mut word = || {
            let mut bytes = [0; 8];
            bytes.fill_with(|| random.below(256) as u8);
            bytes
        };
        for _ in 0..64 {
            for piece in [&self.send, &self.receive, &self.completions] {
                for _ in 0..piece.length() / 8 {
                    let (at, bytes) = (word(), word());
                    let at = u64::from_ne_bytes(at) as usize % (piece.length() / 8);
                    piece.store_u64(at * 8, bytes);
                }
            }
            self.record.store_u64(0, word());
            self.completion_record.store_u64(0, word());
            self.record.record_before_register();
            // Of its own queue pair: the model knows no other on this page.
            let [a, b, c, d, .., units] = word();
            let [_, high, middle, low] = self.value.qpn.to_be_bytes();
            self.register
                .store_u64(0, [a, b, c, d, high, middle, low, units]);
            self.register.flush_register();
        }
    }
}

/// Takes a completion, if there is one, and tells the device if it wants to know.
fn take(
    poster: &mut Poster<&Mapped, &Mapped, &Mapped>,
    poller: &mut Poller<&Mapped, &Mapped>,
    tells: bool,
) -> Result {
    let Some(entry) = poller.poll() else {
        std::hint::spin_loop();
        return Ok(());
    };
    if tells {
        poller.pass();
    }
    if !poster.done(entry.counter()) {
        return fail(format!("a completion of no request: {entry:?}"));
    }
    match entry.kind() {
        Kind::Sent => Ok(()),
        // `MLX5_CQE_SYNDROME_WR_FLUSH_ERR`.
        Kind::Failed { syndrome: 5, .. } => fail("flushed"),
        kind => fail(format!("{kind:?}")),
    }
}

/// Maps a part of a file, until the process ends.
pub(crate) fn mapped(file: BorrowedFd<'_>, offset: u64, length: usize) -> Result<*mut u8> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping touches no memory of ours.
    let base = unsafe {
        mmap(
            ptr::null_mut(),
            length,
            access,
            MapFlags::SHARED,
            file,
            offset,
        )?
    };
    Ok(base.cast())
}
