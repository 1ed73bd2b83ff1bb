//! An agent: it posts WRITEs to a queue that its owner has handed over, and polls their completions.
//!
//! It has neither std nor a C library, let alone `uverbs`: of this project it has the package of formats.
//! What it needs of Linux is three system calls, to read its order, to map what it was handed over, and to
//! say how many requests are done.

#![no_std]
#![no_main]

mod linux;
#[path = "../../order.rs"]
mod order;

use core::hint::spin_loop;

use order::{Order, SLOT, SLOTS, contents};
use uverbs_queue::handover::{File, Piece};
use uverbs_queue::mlx5::agent::{
    Action, CompletionQueue, Kind, Local, Mapped, Options, Poller, Poster, Remote, SendQueue,
};
use zerocopy::{FromZeros, IntoBytes};

/// Why the agent gave up: its exit status.
#[derive(Clone, Copy)]
enum Failure {
    Order = 2,
    Mapping = 3,
    Queue = 4,
    Request = 5,
    Completion = 6,
}

/// What the program does; it ends with this status.
fn run() -> i32 {
    match serve() {
        Ok(()) => 0,
        Err(failure) => failure as i32,
    }
}

fn serve() -> Result<(), Failure> {
    let mut order = Order::new_zeroed();
    linux::read_all(0, order.as_mut_bytes()).ok_or(Failure::Order)?;
    let queue = &order.queue;
    let [region] = queue.regions() else {
        return Err(Failure::Order);
    };
    let map = |piece: &Piece| map(&order, piece).ok_or(Failure::Mapping);
    let (send, record, register) = (
        map(&queue.send.piece)?,
        map(&queue.record)?,
        map(&queue.register)?,
    );
    let (entries, completed) = (
        map(&queue.completions.piece)?,
        map(&queue.completion_record)?,
    );
    let memory = linux::map(order.memory, 0, region.length as usize).ok_or(Failure::Mapping)?;

    let mut poster = SendQueue::of(queue)
        .and_then(|at| Poster::new(&send, &record, &register, at))
        .ok_or(Failure::Queue)?;
    let mut poller = CompletionQueue::of(queue)
        .and_then(|at| Poller::new(&entries, &completed, at))
        .ok_or(Failure::Queue)?;

    let mut done = 0u64;
    for slot in 0..SLOTS {
        let offset = slot * SLOT;
        // SAFETY: the slot lies in the region's memory, and no request has named it yet.
        unsafe {
            memory
                .add(offset)
                .cast::<[u8; SLOT]>()
                .write_volatile(contents(slot))
        };
        let from = Local::of(region, offset as u64, SLOT as u32).ok_or(Failure::Order)?;
        let to = Remote {
            address: order.target.address + offset as u64,
            rkey: order.target.rkey,
        };
        let signaled = Options {
            signaled: true,
            ..Options::default()
        };
        poster
            .write(Action::Write(to), from, signaled)
            .map_err(|_| Failure::Request)?;
        poster.ring();
        // One at a time, for short: up to the ring's length may be in flight.
        let entry = loop {
            match poller.poll() {
                Some(entry) => break entry,
                None => spin_loop(),
            }
        };
        poller.pass();
        if entry.kind() != Kind::Sent || !poster.done(entry.counter()) {
            return Err(Failure::Completion);
        }
        done += 1;
    }
    linux::write(1, &done.to_le_bytes()).ok_or(Failure::Completion)
}

/// Maps a piece of what was handed over.
fn map(order: &Order, piece: &Piece) -> Option<Mapped> {
    let file = match piece.file {
        File::COMMAND => order.command,
        file if file == File::dmabuf(0) => order.rings,
        _ => return None,
    };
    let pages = piece.pages(order.page as usize)?;
    let base = linux::map(file, pages.offset, pages.length)?;
    // SAFETY: the piece lies in these pages, which stay mapped, and nothing here refers to them. Its place is
    // a multiple of 8, as the device has it.
    Some(unsafe { Mapped::new(base.add(pages.start), piece.length as usize) })
}
