//! An agent's operations in functions that callgrind counts: those of a queue pair that was handed over, here
//! to the same process.

use std::os::fd::AsRawFd;
use std::ptr;
use std::thread::sleep;

use anyhow::{Context as _, Result, bail, ensure};
use uverbs::alloc::Udmabuf;
use uverbs::handover::{File, Handover, Piece};
use uverbs::qp::DeviceQueue;
use uverbs::{Access, Caps, Mr, Rc};
use uverbs_queue::mlx5::agent::{
    Action, CompletionQueue, Kind, Local, Mapped, Options, Poller, Poster, Remote, SendQueue,
};

use crate::instructions::{READY, SETTLE, WRITE, row};
use crate::pair::{DEPTH, connect};

type Posts = Poster<Mapped, Mapped, Mapped>;
type Polls = Poller<Mapped, Mapped>;

const SIGNALED: Options = Options {
    signaled: true,
    solicited: false,
    fenced: false,
};

/// Posts one signaled WRITE.
#[inline(never)]
#[unsafe(export_name = "op_agent_write")]
fn write(poster: &mut Posts, local: Local, remote: Remote) -> bool {
    let is_written = poster.write(Action::Write(remote), local, SIGNALED).is_ok();
    poster.ring();
    is_written
}

/// Polls one completion, frees its request's room, and gives its entry back.
#[inline(never)]
#[unsafe(export_name = "op_agent_poll")]
fn poll(poller: &mut Polls, poster: &mut Posts) -> bool {
    let Some(entry) = poller.poll() else {
        return false;
    };
    poller.pass();
    entry.kind() == Kind::Sent && poster.done(entry.counter())
}

/// The rows of an agent, with the names of the owner's. There are none where queues cannot be handed over;
/// why is printed to standard error.
///
/// # Errors
/// If an operation fails.
pub fn run(device: &str) -> Result<()> {
    let context = uverbs::open(device)?;
    let rings = match Udmabuf::new(1 << 20) {
        Ok(rings) => rings,
        Err(error) => {
            eprintln!("no rows of an agent: {error}");
            return Ok(());
        }
    };
    let domain = context
        .alloc_pd()?
        .parent_domain()
        .allocator(rings)
        .create()?;
    let caps = Caps {
        max_send_wr: DEPTH,
        ..Caps::default()
    };
    let made = context.cq(2 * DEPTH).domain(&domain).create();
    let made = made.and_then(|cq| Ok((domain.qp(&cq).caps(caps).for_agent().create::<Rc>()?, cq)));
    let (mut qp, cq) = match made {
        Ok(made) => made,
        Err(error) if error.is_unsupported() => {
            eprintln!("no rows of an agent: {error}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let peers_cq = context.create_cq(1)?;
    let mut peer = domain.create_qp::<Rc>(&peers_cq, caps)?;
    connect(&mut qp, &mut peer)?;
    let memory = domain.register(
        vec![1u8; 2 * WRITE],
        Access::LOCAL_WRITE | Access::REMOTE_WRITE,
    )?;
    let target = memory.remote().slice(WRITE..2 * WRITE)?;
    let remote = Remote {
        address: target.address,
        rkey: target.rkey.0,
    };
    let source = memory.slice(..WRITE)?;
    let local = Local {
        address: source.address(),
        length: WRITE as u32,
        lkey: source.lkey().0,
    };
    // SAFETY: the agent below names this memory alone, to which nobody has references meanwhile.
    let queue = unsafe { qp.into_device(cq, vec![memory]) }.map_err(|refused| refused.error)?;
    rows(&queue, local, remote)
}

/// Does the operations as the agent of this queue.
fn rows(queue: &DeviceQueue<Rc, Mr<Vec<u8>>>, local: Local, remote: Remote) -> Result<()> {
    let value: &Handover = queue.handover();
    let [dmabuf] = queue.dmabufs() else {
        bail!("the rings lie in several dma-bufs");
    };
    let length = dmabuf.length() as usize;
    // SAFETY: a new mapping, which stays until the process ends. The rings in it are the agent's, and nothing
    // else lies in the dma-buf.
    let base = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let file = dmabuf.file().as_raw_fd();
        libc::mmap(ptr::null_mut(), length, access, libc::MAP_SHARED, file, 0)
    };
    ensure!(base != libc::MAP_FAILED, std::io::Error::last_os_error());
    let piece = |piece: &Piece| -> Result<Mapped> {
        let (offset, bytes) = (piece.offset as usize, piece.length as usize);
        ensure!(
            piece.file == File::dmabuf(0) && offset + bytes <= length,
            "a piece that lies elsewhere"
        );
        // SAFETY: it lies in the mapping, and nobody has references to it.
        Ok(unsafe { Mapped::new(base.cast::<u8>().add(offset), bytes) })
    };
    // SAFETY: it is mapped as long as the queue lives, and nobody else rings there.
    let register = unsafe { Mapped::new(queue.register(), 8) };
    let send = SendQueue::of(value).context("no queue of an mlx5")?;
    let poster = Poster::new(
        piece(&value.send.piece)?,
        piece(&value.record)?,
        register,
        send,
    );
    let mut poster = poster.context("no such send queue")?;
    let completions = CompletionQueue::of(value).context("no queue of an mlx5")?;
    let poller = Poller::new(
        piece(&value.completions.piece)?,
        piece(&value.completion_record)?,
        completions,
    );
    let mut poller = poller.context("no such completion queue")?;
    row("one_write", || {
        ensure!(write(&mut poster, local, remote), "posting a WRITE");
        while poster.in_flight() > 0 {
            if let Some(entry) = poller.poll() {
                poller.pass();
                ensure!(poster.done(entry.counter()), "a completion of no request");
            }
        }
        Ok(())
    })?;
    let mut ready = 0;
    row("poll_one", || {
        if ready == 0 {
            for _ in 0..READY {
                let written = poster.write(Action::Write(remote), local, SIGNALED);
                ensure!(written.is_ok(), "posting a WRITE");
            }
            poster.ring();
            sleep(SETTLE);
            ready = READY;
        }
        ready -= 1;
        ensure!(poll(&mut poller, &mut poster), "no completion");
        Ok(())
    })?;
    while poster.in_flight() > 0 {
        if let Some(entry) = poller.poll() {
            poster.done(entry.counter());
        }
    }
    Ok(())
}
