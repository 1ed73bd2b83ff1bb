//! The device or its network goes away while it is in use.
//!
//! Up to Linux 7.2, rxe has no way to take a device from its users (`disassociate_ucontext`): the kernel
//! makes whoever removes it wait until the last user has closed it, and it works until then. So what is
//! tested is that users can go on and go away, and that the removal comes to its end. From 7.3 on the device
//! goes at once, and users get errors.

use std::process::{Child, Command, Stdio};

use libtest_mimic::Trial;
use support::pair::options;
use support::{
    OwnDevice, Pair, Result, Setup, completion, kernel, only_on_rxe, role, run, same, says, talk,
    test, until,
};
use uverbs::{
    CompletionChannel, ConnectOptions, Context, Inline, PostError, QpState, Rc, WcStatus,
    device::Discovery,
    error::Errno,
    event::{AsyncEventType, AsyncEvents},
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "removal::the_device_is_removed_in_use",
            the_device_is_removed_in_use,
        ),
        test(
            "removal::the_network_goes_down_and_comes_back",
            the_network_goes_down_and_comes_back,
        ),
        test("removal::the_address_goes_away", the_address_goes_away),
        test("removal::the_device_is_renamed", the_device_is_renamed),
    ]
}

/// Catches tables that are read by the name that the device had when it was found.
fn the_device_is_renamed() -> Result {
    only_on_rxe("here a device of the test's own is renamed")?;
    let mut device = OwnDevice::new()?;
    let context = device.open()?;
    let name = format!("{}r", device.name);
    run(&format!("rdma dev set {} name {name}", device.name))?;
    device.name = name;
    same(context.query_pkey(1, 0)?, 0xffff, "the P_Key")?;
    let found = context.device();
    same(found.pkeys(1)?, vec![(0, 0xffff)], "the P_Keys")?;
    same(found.ports()?.len(), 1, "the ports")?;
    same(found.gid_table(1)?, context.gid_table()?, "the GIDs")?;
    let first = context.query_gid(1, 0)?;
    same(found.gid_entry(1, 0)?, first, "the first GID")?;
    let by_sysfs = Discovery::Sysfs("/sys".into()).find(&device.name)?;
    let name = device.name.clone();
    device.name = format!("{name}r");
    run(&format!("rdma dev set {name} name {}", device.name))?;
    same(by_sysfs.pkey(1, 0)?, 0xffff, "the P_Key by sysfs")?;
    same(by_sysfs.ports()?.len(), 1, "the ports by sysfs")
}

/// Starts to remove a device.
fn start_removal(device: &OwnDevice) -> Result<Child> {
    Ok(Command::new("rdma")
        .args(["link", "del", &device.name])
        .stdin(Stdio::null())
        .spawn()?)
}

/// Whether the kernel takes soft-RoCE's devices from their users.
fn takes_devices() -> bool {
    kernel() >= (7, 3)
}

/// Waits until a removal is done, which must be well.
fn ends_well(mut removal: Child) -> Result {
    role::await_end(&mut removal)?;
    same(
        removal.wait()?.success(),
        true,
        "whether the removal succeeded",
    )
}

/// Catches a call or a drop that hangs while the device is going, and a descriptor that stays open and blocks
/// the removal.
fn the_device_is_removed_in_use() -> Result {
    only_on_rxe("here soft-RoCE's device or its network interface goes")?;
    let device = OwnDevice::new()?;
    let context = device.open()?;
    let channel = context.create_channel()?;
    let mut pair = Pair::<Rc>::on(&context, &Setup::default())?;
    let events = context.async_events()?;
    let mut removal = start_removal(&device)?;
    // Removal has begun when the device cannot be opened any more.
    let open = || uverbs::open(&device.name).map(drop).err();
    let error = until("the removal", || Ok(open()))?;
    println!("opening a device that is going: {error}");
    if error.is_unsupported() {
        // Nothing is missing in this library or the kernel.
        says(&error, &["it is being removed"])?;
    }
    if takes_devices() {
        ends_well(removal)?;
        is_gone(&context, &channel, &mut pair, &events)?;
        drop((pair, events, channel, context));
    } else {
        // What is open goes on, or fails with an error that says so. Nothing waits.
        match talk::writes(&mut pair) {
            Ok(()) => {}
            Err(error) => println!("while the device goes: {error}"),
        }
        while events.try_next()?.is_some() {}
        same(channel.try_next()?, None, "an event")?;
        drop((pair, events, channel));
        same(
            removal.try_wait()?,
            None,
            "the removal's end, with a context open",
        )?;
        drop(context);
        ends_well(removal)?;
    }
    let error = open().ok_or("the device is still there")?;
    same(error.io_kind(), std::io::ErrorKind::NotFound, "the kind")
}

/// Fails unless whatever needs the device says that it is gone, and the event of it has come.
fn is_gone(
    context: &Context,
    channel: &CompletionChannel,
    pair: &mut Pair<Rc>,
    events: &AsyncEvents,
) -> Result {
    let mut fatal = false;
    let last = loop {
        match events.try_next() {
            Ok(Some(event)) => fatal |= event.kind == AsyncEventType::DEVICE_FATAL,
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    same(fatal, true, "whether the event came")?;
    let mut batch = pair.a.qp.batch();
    batch
        .unsignaled(0)
        .write(Inline(b"to nobody"), pair.b.mr.remote())?;
    match batch.ring() {
        Err(PostError::Doorbell(Errno::IO)) => {}
        other => return Err(format!("a doorbell without a device: {other:?}").into()),
    }
    let errors = [
        ("events", last),
        ("a channel", channel.try_next().err()),
        ("a query", context.query_device().err()),
        ("a PD", context.alloc_pd().err()),
        ("a state", pair.a.qp.query().err()),
    ];
    for (what, error) in errors {
        match error {
            Some(error) if error.is_device_gone() => {}
            // Events that are all read may also just stop.
            None if what == "events" => {}
            other => return Err(format!("{what} without a device: {other:?}").into()),
        }
    }
    Ok(())
}

/// Catches a request that never completes while the network is down, and a queue pair that is of no use
/// afterwards.
fn the_network_goes_down_and_comes_back() -> Result {
    only_on_rxe("here soft-RoCE's device or its network interface goes")?;
    let device = OwnDevice::new()?;
    let mut pair = Pair::<Rc>::on(&device.open()?, &Setup::default())?;
    talk::sends(&mut pair)?;
    // What follows is given up soon if it does not arrive. With 7 retries rxe would go on for ever.
    let impatient = ConnectOptions {
        timeout: 12,
        retry_cnt: 1,
        ..options()
    };
    connect_anew(&mut pair, &impatient)?;
    run(&format!("ip link set {} down", device.netdev))?;
    let mut batch = pair.a.qp.batch();
    batch
        .signaled(1)
        .write(Inline(b"into the void"), pair.b.mr.remote())?;
    batch.ring()?;
    // The kernel may find its way within itself, run out of retries, or fail what it could not send: with an
    // operation error on 6.1, flushed later.
    let wc = completion(&mut pair.a.cq)?;
    let known = [
        WcStatus::SUCCESS,
        WcStatus::RETRY_EXC_ERR,
        WcStatus::WR_FLUSH_ERR,
        WcStatus::LOC_QP_OP_ERR,
    ];
    if !known.contains(&wc.status) {
        return Err(format!("with the network down: {wc:?}").into());
    }
    run(&format!("ip link set {} up", device.netdev))?;
    until("the port", || {
        Ok((pair.context.query_port(1)?.state == uverbs::device::PortState::Active).then_some(()))
    })?;
    connect_anew(&mut pair, &options())?;
    talk::sends(&mut pair)
}

/// Resets both queue pairs and connects them.
fn connect_anew(pair: &mut Pair<Rc>, options: &ConnectOptions) -> Result {
    for side in [&mut pair.a, &mut pair.b] {
        side.qp.reset()?;
        same(side.qp.query()?.state, QpState::RESET, "the state")?;
    }
    pair.connect(options)
}

/// Catches an error without words if the port has lost the address that peers know.
fn the_address_goes_away() -> Result {
    only_on_rxe("here soft-RoCE's device or its network interface goes")?;
    let device = OwnDevice::new()?;
    let context = device.open()?;
    let pair = Pair::<Rc>::unconnected(&context, &Setup::default())?;
    let before = pair.a.qp.endpoint()?;
    run(&format!("ip addr flush dev {}", device.netdev))?;
    until("the GID to go", || {
        let gone = context
            .gid_table()?
            .iter()
            .all(|entry| Some(entry.gid) != before.gid);
        Ok(gone.then_some(()))
    })?;
    match pair.a.qp.endpoint() {
        // Some kernels keep the link-local address or the default GID.
        Ok(endpoint) => same(endpoint.gid == before.gid, false, "the GID has gone"),
        Err(error) => says(&error, &["no address"]),
    }
}
