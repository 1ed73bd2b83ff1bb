//! A queue pair is handed over to a process that has neither this library nor std.
//!
//! `device_queue AGENT [DEVICE]`: this process owns a queue pair whose rings lie in a dma-buf, and starts
//! AGENT (`agent/`), which gets three descriptors and a value of plain bytes. The agent posts a thousand
//! WRITEs and polls their completions; no byte of it passes through this process. Then the queue is taken
//! back, and this process posts to it itself.
//!
//! It needs an mlx5 adapter, Linux 7.2, and the right to open `/dev/udmabuf`.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use memmap2::MmapRaw;
use uverbs::alloc::Udmabuf;
use uverbs::handover::Region;
use uverbs::qp::Reclaimed;
use uverbs::{Access, Caps, Cq, Pd, Qp, Rc};
use zerocopy::IntoBytes;

mod order;

use order::{Order, SLOT, SLOTS, contents};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (agent, device) = match arguments.as_slice() {
        [agent] => (agent, None),
        [agent, device] => (agent, Some(device)),
        _ => {
            println!("usage: device_queue AGENT [DEVICE]");
            return Ok(());
        }
    };
    let context = match device {
        Some(name) => uverbs::open(name)?,
        None => uverbs::devices()?.first().ok_or("no device")?.open()?,
    };

    // The agent's domain: rings in a dma-buf, and one region, whose memory the agent maps too.
    let domain = context
        .alloc_pd()?
        .parent_domain()
        .allocator(Udmabuf::new(1 << 20)?)
        .create()?;
    let cq = context.cq(256).domain(&domain).create()?;
    let mut qp = domain.qp(&cq).for_agent().create::<Rc>()?;
    let memory = File::from(memfd(SLOT * SLOTS)?);
    let region = domain.register(MmapRaw::map_raw(&memory)?, Access::LOCAL_WRITE)?;

    // Its peer has a domain of its own: the agent reaches what the peer allows.
    let (mut peer, _peers_cq, pd) = peer(&context)?;
    let target = pd.register(
        vec![0u8; SLOT * SLOTS],
        Access::LOCAL_WRITE | Access::REMOTE_WRITE,
    )?;
    connect(&mut qp, &mut peer)?;

    // SAFETY: the domain has no other region than the one that the agent may name.
    let queue = unsafe { qp.into_device(cq, vec![region]) }.map_err(|refused| refused.error)?;
    let [rings] = queue.dmabufs() else {
        return Err("the rings lie in several dma-bufs".into());
    };
    let command = inheritable(&context)?;
    // SAFETY: the dma-buf has the rings of this queue alone, which this process leaves alone.
    let rings = inheritable(unsafe { rings.file() })?;
    let remote = target.remote();
    let data = inheritable(&memory)?;
    let order = Order {
        queue: *queue.handover(),
        target: Region {
            address: remote.address,
            length: remote.length,
            lkey: 0,
            rkey: remote.rkey.0,
        },
        command: command.as_raw_fd() as u32,
        rings: rings.as_raw_fd() as u32,
        memory: data.as_raw_fd() as u32,
        page: rustix::param::page_size() as u32,
    };
    println!(
        "the agent writes {SLOTS} slots, {} bytes of orders",
        order.as_bytes().len()
    );
    let done = run(agent, &order)?;
    println!("the agent has done {done} requests");
    let mut bytes = [0; SLOT];
    for slot in 0..SLOTS {
        target.read_at(slot * SLOT, &mut bytes)?;
        if bytes != contents(slot) {
            return Err(format!("slot {slot} has {bytes:x?}").into());
        }
    }
    println!("every byte has come");

    // SAFETY: the agent has ended, and nobody else has the descriptors.
    let back = unsafe { queue.reclaim() }.map_err(|refused| refused.error)?;
    let Reclaimed {
        mut qp,
        mut cq,
        regions,
    } = back;
    peer.reset()?;
    connect(&mut qp, &mut peer)?;
    qp.one(1).write(
        regions[0].slice(..SLOT)?,
        target.remote().slice(SLOT..2 * SLOT)?,
    )?;
    while cq
        .poll()?
        .iter()
        .map(|done| done.result())
        .next()
        .transpose()?
        .is_none()
    {}
    target.read_at(SLOT, &mut bytes)?;
    assert_eq!(bytes, contents(0));
    println!("the queue is back: its owner has posted to it");
    Ok(())
}

/// Starts the agent, gives it its order, and waits until it has done it.
fn run(agent: &str, order: &Order) -> Result<u64> {
    let mut child = Command::new(agent)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child
        .stdin
        .take()
        .ok_or("no input")?
        .write_all(order.as_bytes())?;
    let mut done = Vec::new();
    child
        .stdout
        .take()
        .ok_or("no output")?
        .read_to_end(&mut done)?;
    let status = child.wait()?;
    match <[u8; 8]>::try_from(done) {
        Ok(done) if status.success() => Ok(u64::from_le_bytes(done)),
        _ => Err(format!("the agent ended with {status}").into()),
    }
}

fn peer(context: &uverbs::Context) -> Result<(Qp<Rc>, Cq, Pd)> {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    Ok((pd.create_qp(&cq, Caps::default())?, cq, pd))
}

fn connect(one: &mut Qp<Rc>, other: &mut Qp<Rc>) -> Result {
    let (at_one, at_other) = (one.endpoint()?, other.endpoint()?);
    one.connect(&at_other)?;
    Ok(other.connect(&at_one)?)
}

fn memfd(bytes: usize) -> Result<OwnedFd> {
    let memfd = rustix::fs::memfd_create("slots", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memfd, bytes as u64)?;
    Ok(memfd)
}

/// A duplicate that a program which is executed inherits.
fn inheritable(file: impl AsFd) -> Result<OwnedFd> {
    Ok(rustix::io::dup(file)?)
}
