//! What soft-RoCE does not have: the driver refuses it by name, or the kernel does and its refusal says what
//! is missing, and nothing is left behind or broken. Where a kernel's rxe has learnt it, the test fails and
//! is to be made a real one. And what the adapter has, or may have, and this library's mlx5 driver not yet:
//! it is refused by name.

use std::fs::File;
use std::os::fd::AsFd;

use libtest_mimic::Trial;
use support::{Device, Pair, Result, device, fail, open, same, skip, test, until};
use uverbs::{
    Access, Caps, Cause, Error, Inline, Rc, Ud,
    error::Errno,
    qp::{Ece, QpCreateFlags, QpType},
    query::DeviceCapFlags,
    transport::{Dc, Xrc},
    xrcd::XrcdFile,
};

/// A test, not yet held back from other devices.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let on_rxe: [Named; 8] = [
        ("lacking::device_memory", device_memory),
        ("lacking::null_mr", null_mr),
        ("lacking::xrc", xrc),
        ("lacking::dynamic_connections", dynamic_connections),
        ("lacking::raw_packets", raw_packets),
        ("lacking::cq_flags", cq_flags),
        ("lacking::clock", clock),
        ("lacking::ece", ece),
    ];
    let mut trials = vec![
        test("lacking::implicit_on_demand", implicit_on_demand),
        test("lacking::options_of_an_efa", options_of_an_efa),
        test("lacking::raw_packets_on_mlx5", || {
            match device().is_mlx5() {
                true => raw_packets_on_mlx5(),
                false => skip("soft-RoCE lacks other things than the adapter's driver"),
            }
        }),
    ];
    trials.extend(on_rxe.map(|(name, run)| {
        test(name, move || match device().is_rxe() {
            true => run(),
            false => skip("the adapter has, or lacks, other things than soft-RoCE"),
        })
    }));
    trials
}

/// Fails unless the kernel has refused because something is missing, by one of its errnos for that.
#[track_caller]
fn refused<T>(result: uverbs::Result<T>, what: &str) -> Result {
    let errno = missing(result, what)?.errno();
    let known = [Errno::OPNOTSUPP, Errno::PROTONOSUPPORT, Errno::NOSYS];
    match errno {
        Some(errno) if known.contains(&errno) => Ok(()),
        other => fail(format!("{what}: the kernel said {other:?}")),
    }
}

/// Fails unless it was refused because something is missing.
#[track_caller]
fn missing<T>(result: uverbs::Result<T>, what: &str) -> Result<Error> {
    let Err(error) = result else {
        return fail(format!("the device has {what} here"));
    };
    println!("{what}: {error}");
    match error.cause() {
        Cause::Unsupported(_) => Ok(error),
        _ => fail(format!("{what}: {error}")),
    }
}

/// Catches an initiator or a target that is asked of a kernel which takes its type for another.
fn dynamic_connections() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(8)?;
    let srq = pd.srq(8).create()?;
    not_in_driver(
        pd.qp(&cq).create_any(QpType::DCI),
        "an initiator of dynamic connections",
    )?;
    not_in_driver(
        pd.create_qp::<Dc>(&cq, Caps::default()),
        "an initiator of dynamic connections by its type",
    )?;
    not_in_driver(
        pd.dc_target(&cq, &srq, 1).create(),
        "a target of dynamic connections",
    )?;
    // Nothing is left that would keep them busy.
    srq.destroy()?;
    cq.destroy()?;
    Ok(pd.dealloc()?)
}

/// Catches options that a driver takes and does nothing about.
fn options_of_an_efa() -> Result {
    if device() == Device::Efa {
        return skip("an EFA has them");
    }
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(8)?;
    let level = pd.qp(&cq).service_level(3).create::<Rc>();
    not_in_driver(level, "a service level of the queue pair")?;
    // SAFETY: it is refused.
    let unsolicited = unsafe { pd.qp(&cq).unsolicited_writes() };
    not_in_driver(unsolicited.create::<Rc>(), "unsolicited WRITEs")
}

/// Catches a domain that opens on a device without XRC, and a file that is taken along or closed.
fn xrc() -> Result {
    let context = open()?;
    let has = context
        .query_device()?
        .capabilities
        .contains(DeviceCapFlags::XRC);
    same(has, false, "the capability")?;
    refused(context.open_xrcd(), "a private XRC domain")?;
    let file = File::open("/dev/null")?;
    for how in [XrcdFile::Existing, XrcdFile::Create, XrcdFile::CreateNew] {
        refused(
            context.open_xrcd_of(file.as_fd(), how),
            "an XRC domain of a file",
        )?;
    }
    file.metadata()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(8)?;
    not_in_driver(
        pd.qp(&cq).create_any(QpType::XRC_SEND),
        "the initiator of XRC",
    )?;
    not_in_driver(
        pd.create_qp::<Xrc>(&cq, Caps::default()),
        "the initiator of XRC by its type",
    )?;
    // Nothing is left that would keep them busy.
    cq.destroy()?;
    Ok(pd.dealloc()?)
}

/// Catches a raw packet queue pair without the driver's consent, and flags that are dropped on the way.
fn raw_packets() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(8)?;
    not_in_driver(
        pd.qp(&cq).create_any(QpType::RAW_PACKET),
        "raw packet queue pairs",
    )?;
    let flags = QpCreateFlags::BLOCK_MULTICAST_LOOPBACK;
    refused(
        pd.qp(&cq).flags(flags).create::<Ud>(),
        "queue pairs without their own multicast",
    )?;
    pd.qp(&cq).create::<Ud>()?.destroy()?;
    cq.destroy()?;
    Ok(pd.dealloc()?)
}

/// Catches device memory where there is none.
fn device_memory() -> Result {
    let context = open()?;
    same(context.query_device()?.max_dm_size, 0, "max_dm_size")?;
    not_in_driver(context.alloc_dm(4096, 3), "device memory")
}

/// Catches flags that are dropped on the way, so that a user would wait for timestamps that never come.
fn cq_flags() -> Result {
    let context = open()?;
    // SAFETY: nothing ever reports to the queue.
    let no_overrun = unsafe { context.cq(8).ignore_overrun(true) }.create();
    for (error, flag) in [
        (
            missing(context.cq(8).timestamps(true).create(), "timestamps")?,
            "TIMESTAMP_COMPLETION",
        ),
        (missing(no_overrun, "ignored overrun")?, "IGNORE_OVERRUN"),
    ] {
        same(error.errno(), Some(Errno::OPNOTSUPP), "the errno")?;
        let said = error.to_string();
        same(said.contains(flag), true, &said)?;
    }
    context.cq(8).timestamps(false).create()?;
    Ok(())
}

/// Catches a clock that stands still, and timestamps out of nowhere.
fn clock() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    same(
        pair.context.query_device()?.hca_core_clock,
        0,
        "the clock's frequency",
    )?;
    missing(pair.context.raw_clock(), "a clock")?;
    let mut inbox = pair.pd.register(vec![0u8; 8], Access::LOCAL_WRITE)?;
    inbox.write_at(0, b"x")?;
    let mut batch = pair.a.qp.batch();
    batch.signaled(1).send(Inline(b"x"))?;
    let mut recv = pair.b.qp.recv_batch();
    recv.post(1, inbox.slice(..)?)?;
    recv.ring();
    batch.ring()?;
    let timestamp = until("a completion", || {
        let mut completions = pair.a.cq.poll()?;
        let first = completions.iter().next();
        Ok(first.map(|completion| completion.timestamp()))
    })?;
    same(timestamp, None, "a timestamp")
}

/// Catches a key that stands for somebody's memory.
fn null_mr() -> Result {
    let pd = open()?.alloc_pd()?;
    missing(pd.null_mr(), "a null MR")?;
    Ok(pd.dealloc()?)
}

/// Catches a region of everything where there can be none, and an errno that looks like a wrong argument.
fn implicit_on_demand() -> Result {
    let pd = open()?.alloc_pd()?;
    // SAFETY: without remote access only this process's requests use it, and it posts none.
    let everything = unsafe { pd.register_everything(Access::LOCAL_WRITE) };
    missing(everything, "implicit paging on demand")?;
    Ok(pd.dealloc()?)
}

/// Catches options that are taken and not used.
fn ece() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    missing(pair.a.qp.query_ece(), "ECE")?;
    missing(pair.a.qp.set_ece(Ece::default()), "ECE")?;
    Ok(())
}

/// Fails unless it was refused by this library, because its driver lacks something.
fn not_in_driver<T>(result: uverbs::Result<T>, what: &str) -> Result {
    let error = missing(result, what)?;
    same(error.errno(), None, "the kernel's errno")?;
    let said = error.to_string();
    same(said.contains("this library's driver for"), true, &said)
}

/// Catches a queue pair whose receives would lie where nobody looks.
fn raw_packets_on_mlx5() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(8)?;
    let queue_pair = pd.qp(&cq).create_any(QpType::RAW_PACKET);
    not_in_driver(queue_pair, "raw packet queue pairs")?;
    cq.destroy()?;
    Ok(pd.dealloc()?)
}
