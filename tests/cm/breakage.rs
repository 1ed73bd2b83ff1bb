//! What connections stand on breaks: the device, the number of open files, the room for requests.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::process::{Child, Command};
use std::sync::Arc;

use libtest_mimic::Trial;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{
    LIMIT, OwnDevice, QUIET, Result, fail, only_on_rxe, same, test, test_without_leaks, until,
};
use uverbs::cm::{self, Event, Listener, Params, Pending};
use uverbs::error::Errno;
use uverbs::qp::QpState;
use uverbs::{Context, Rc};

use crate::connect::readable;
use crate::ground::{Side, Two, both, listener, request, way_to};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("breakage::the_device_is_removed", device_removed),
        test(
            "breakage::the_device_of_a_request_is_removed",
            device_of_a_request_removed,
        ),
        test_without_leaks("breakage::no_file_is_left", no_file_left),
        test_without_leaks("breakage::more_requests_than_room", more_requests_than_room),
    ]
}

/// A listener on a device of its own.
fn listener_on(context: &Context) -> Result<Listener<Rc>> {
    let address = SocketAddr::new(ip_of(context)?, 0);
    Ok(cm::listen::<Rc>(address)?.start()?)
}

fn ip_of(context: &Context) -> Result<IpAddr> {
    let ips = context.gid_table()?;
    let ip = ips.iter().find_map(|entry| entry.gid.as_ipv4());
    Ok(ip.ok_or("no address")?.into())
}

/// Catches whatever waits for a device that is gone, at each step, and queue pairs that are lost with it.
fn device_removed() -> Result {
    only_on_rxe("here soft-RoCE's device goes")?;
    let device = OwnDevice::new()?;
    // Earlier kernels remove the device when the last user has gone, and so nothing must be left here.
    let mut removal = told_of_removal(&device)?;
    support::role::await_end(&mut removal)?;
    same(removal.wait()?.success(), true, "the removal")
}

/// Removes the device under connections at each step, and gives the program that does it.
fn told_of_removal(device: &OwnDevice) -> Result<Child> {
    let context = device.open()?;
    let params = Params::default();
    let two = Two::at(listener_on(&context)?, &context, &params, &params)?;
    let side = Side::on(&context)?;
    let address = two.listener.local_addr();
    let way = way_to(address)?;
    let connecting = way_to(address)?.connect(side.qp()?, &params, b"")?;
    let request = request(&two.listener)?;
    let numbers = [side.qp()?, side.qp()?];
    let (active, passive) = (two.active, two.passive);
    let listener = Arc::new(two.listener);
    let waits = Arc::clone(&listener);
    let waits = std::thread::spawn(move || waits.next_within(LIMIT).err());
    let removal = Command::new("rdma")
        .args(["link", "del", &device.name])
        .spawn()?;
    for link in [active.link(), passive.link()] {
        let mut event = link.event_within(LIMIT)?;
        if matches!(event, Some(Event::Disconnected { timed_out: false })) {
            // The kernel closed the peer's end first, and the device still carried the peer's goodbye.
            event = link.event_within(LIMIT)?;
        }
        same(event, Some(Event::DeviceRemoved), "the connection")?;
    }
    let told = || listener.next_within(LIMIT).err();
    let (first, again) = (told(), told());
    let other = waits.join().map_err(|_| "the thread panicked")?;
    for told in [first, again, other] {
        let gone = told.ok_or("a listener on an address that is gone")?;
        same(gone.errno(), Some(Errno::IO), &gone.to_string())?;
    }
    let Err(refused) = connecting.within(LIMIT) else {
        return fail("nobody accepted");
    };
    same(refused.back.state(), QpState::INIT, "the queue pair")?;
    let [one, other] = numbers;
    let (one_number, other_number) = (one.qpn(), other.qpn());
    let Err(refused) = way.connect(one, &params, b"") else {
        return fail("connecting over a device that is gone");
    };
    same(refused.back.1.qpn(), one_number, &refused.error.to_string())?;
    let Err(refused) = request.accept(other, &params, b"") else {
        return fail("accepting over a device that is gone");
    };
    same(
        refused.back.1.qpn(),
        other_number,
        &refused.error.to_string(),
    )?;
    for connection in [active, passive] {
        let number = connection.qpn();
        let qp = match connection.disconnect() {
            Ok(ending) => ending.within(LIMIT)?,
            // Later kernels take the queue pair too.
            Err(refused) => {
                same(
                    refused.error.is_device_gone(),
                    true,
                    &refused.error.to_string(),
                )?;
                refused.back.into_parts().0
            }
        };
        same(qp.qpn(), number, "the queue pair")?;
    }
    Ok(removal)
}

/// Catches a listener for all devices that fails because one of them went with a request.
fn device_of_a_request_removed() -> Result {
    only_on_rxe("here soft-RoCE's device goes")?;
    let device = OwnDevice::new()?;
    let listener = cm::listen::<Rc>("0.0.0.0:0")?.start()?;
    let port = listener.local_addr().port();
    let mut removal = removed_with_a_request(&device, &listener)?;
    support::role::await_end(&mut removal)?;
    same(removal.wait()?.success(), true, "the removal")?;
    same(
        readable(&listener)?,
        true,
        "whether the request is still there",
    )?;
    let next = listener.try_next()?;
    same(next.is_none(), true, "a request on a device that is gone")?;
    let mut address = crate::ground::own_address();
    address.set_port(port);
    let side = Side::new()?;
    let connecting = way_to(address)?.connect(side.qp()?, &Params::default(), b"")?;
    let accepting = request(&listener)?.accept(side.qp()?, &Params::default(), b"")?;
    both(connecting, accepting).map(drop)
}

/// Removes a device on which a request has come that nobody has taken, and gives the program that does it.
fn removed_with_a_request(device: &OwnDevice, listener: &Listener<Rc>) -> Result<Child> {
    let context = device.open()?;
    let side = Side::on(&context)?;
    let address = SocketAddr::new(ip_of(&context)?, listener.local_addr().port());
    let connecting = way_to(address)?.connect(side.qp()?, &Params::default(), b"")?;
    until("the request", || Ok(readable(listener)?.then_some(())))?;
    let removal = Command::new("rdma")
        .args(["link", "del", &device.name])
        .spawn()?;
    match connecting.within(LIMIT) {
        Err(_) => Ok(removal),
        Ok(_) => fail("nobody accepted"),
    }
}

/// Runs something with no file descriptor left to this process.
fn without_files<V>(run: impl FnOnce() -> Result<V>) -> Result<V> {
    let before = getrlimit(Resource::Nofile);
    let next = File::open("/dev/null")?.as_raw_fd();
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(next as u64),
            ..before
        },
    )?;
    let ran = run();
    setrlimit(Resource::Nofile, before)?;
    ran
}

/// Catches a request that is refused, or lost, for want of a file, and errors that say something else.
fn no_file_left() -> Result {
    let listener = listener()?;
    let address = listener.local_addr();
    let side = Side::new()?;
    let connecting = way_to(address)?.connect(side.qp()?, &Params::default(), b"")?;
    let failed = without_files(|| {
        let request = listener.next_within(LIMIT).err();
        let resolve = cm::resolve::<Rc>(address)?.start().err();
        let listen = cm::listen::<Rc>("0.0.0.0:0")?.start().err();
        Ok([request, resolve, listen])
    })?;
    for error in failed {
        let error = error.ok_or("a file was left")?;
        same(error.errno(), Some(Errno::MFILE), &error.to_string())?;
    }
    // The request has waited, and the listener goes on.
    let accepting = request(&listener)?.accept(side.qp()?, &Params::default(), b"")?;
    both(connecting, accepting)?;
    // Where there is no request, no file is missed.
    without_files(|| same(listener.try_next()?.is_none(), true, "no request"))?;
    let connecting = way_to(address)?.connect(side.qp()?, &Params::default(), b"")?;
    let accepting = request(&listener)?.accept(side.qp()?, &Params::default(), b"")?;
    both(connecting, accepting).map(drop)
}

/// Catches requests beyond the backlog that are lost for good: their senders try again.
fn more_requests_than_room() -> Result {
    let listener = cm::listen::<Rc>(crate::ground::own_address())?;
    let listener = listener.backlog(1).start()?;
    let side = Side::new()?;
    let mut connecting = Vec::new();
    for number in 0..3 {
        let way = way_to(listener.local_addr())?;
        connecting.push(way.connect(side.qp()?, &Params::default(), &[number])?);
    }
    // So that those that do not fit have come, and gone; those that are late fit.
    std::thread::sleep(QUIET);
    let mut accepting = Vec::new();
    for _ in 0..3 {
        let request = request(&listener)?;
        accepting.push(request.accept(side.qp()?, &Params::default(), b"")?);
    }
    // Requests may overtake each other, so these are no pairs: all that asked stay until all stand.
    let connected = connecting.into_iter().map(|step| step.within(LIMIT));
    let _active = connected.collect::<std::result::Result<Vec<_>, _>>()?;
    for accepting in accepting {
        accepting.within(LIMIT)?;
    }
    same(listener.try_next()?.is_none(), true, "another request")
}
