//! Addresses that are tried in turn, and what happens between a resolution and the attempt to connect.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libtest_mimic::Trial;
use rustix::event::{Timespec, epoll};
use support::{LIMIT, OwnDevice, Result, fail, only_on_rxe, same, says, test_without_leaks, until};
use uverbs::cm::{self, Params, Pending, Step};
use uverbs::error::Errno;
use uverbs::{Cause, Rc, Ud};

use crate::ground::{Side, both, listener, own_address, request};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("resolve::the_next_address", the_next_address),
        test_without_leaks("resolve::no_address_is_left", no_address_is_left),
        test_without_leaks(
            "resolve::a_timeout_that_cannot_be",
            a_timeout_that_cannot_be,
        ),
    ]
}

/// An address of this host on a network interface without an RDMA device, which the kernel finds out in the
/// course of the resolution. It goes with the interface.
fn dead_end() -> Result<(OwnDevice, SocketAddr)> {
    let device = OwnDevice::new()?;
    let table = device.open()?.gid_table()?;
    let ip = table.iter().find_map(|entry| entry.gid.as_ipv4());
    device.remove()?;
    until("the device to be gone", || match device.open() {
        Ok(_) => Ok(None),
        Err(_) => Ok(Some(())),
    })?;
    Ok((device, SocketAddr::new(ip.ok_or("no address")?.into(), 7)))
}

/// Catches a resolution that goes on with another file, of which an epoll set does not learn, when the kernel
/// has reported that the first address leads nowhere.
fn the_next_address() -> Result {
    only_on_rxe("the interface of a device that is deleted stays")?;
    let (_interface, nowhere) = dead_end()?;
    let listener = listener()?;
    let peers = [nowhere, listener.local_addr()];
    let mut resolving = cm::resolve::<Rc>(&peers[..])?.start()?;
    let number = resolving.as_fd().as_raw_fd();
    let set = epoll_of(&resolving)?;
    let way = loop {
        resolving = match resolving.try_finish()? {
            Step::Done(way) => break way,
            Step::Pending(still) => still,
        };
        same(resolving.as_fd().as_raw_fd(), number, "the file")?;
        await_one(&set)?;
    };
    same(way.as_fd().as_raw_fd(), number, "the file of the result")?;
    same(way.peer_addr(), listener.local_addr(), "the peer")?;
    let side = Side::new()?;
    let connecting = way.connect(side.qp()?, &Params::default(), b"")?;
    let accepting = request(&listener)?.accept(side.qp()?, &Params::default(), b"")?;
    both(connecting, accepting).map(drop)
}

fn epoll_of(file: &impl AsFd) -> Result<OwnedFd> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(0);
    epoll::add(&set, file, data, epoll::EventFlags::IN)?;
    Ok(set)
}

/// Waits until the file in a set is readable.
fn await_one(set: &OwnedFd) -> Result {
    let mut events = Vec::with_capacity(1);
    let limit = Timespec::try_from(LIMIT)?;
    rustix::io::retry_on_intr(|| {
        let room = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(set, room, Some(&limit))
    })?;
    same(events.len(), 1, "readable files")
}

/// Catches an error that names the last of several addresses, whether the kernel refuses one at once or
/// later.
fn no_address_is_left() -> Result {
    only_on_rxe("the interface of a device that is deleted stays")?;
    let (_interface, nowhere) = dead_end()?;
    let mut other = nowhere;
    other.set_port(8);
    let no_route: SocketAddr = "192.0.2.9:7".parse()?;
    for peers in [[nowhere, other], [nowhere, no_route], [no_route, nowhere]] {
        let error = match cm::resolve::<Rc>(&peers[..])?.start() {
            Err(error) => error,
            Ok(resolving) => match resolving.within(LIMIT) {
                Err(failed) => failed.error,
                Ok(way) => return fail(format!("there is a way: {way:?}")),
            },
        };
        let first = format!("on connection to {}", peers[0]);
        says(&error, &[&first])?;
        let expected = match peers[0] == nowhere {
            true => Errno::NODEV,
            false => Errno::NETUNREACH,
        };
        same(error.errno(), Some(expected), &error.to_string())?;
    }
    Ok(())
}

/// Catches a timeout that the kernel refuses with a complaint in its log.
fn a_timeout_that_cannot_be() -> Result {
    let Err(refused) = cm::resolve::<Ud>(own_address())?.ack_timeout(14).start() else {
        return fail("an acknowledgement timeout for datagrams");
    };
    says(
        &refused,
        &["set_option on connection to", "only RC and XRC"],
    )?;
    let Err(refused) = cm::resolve::<Rc>(own_address())?.ack_timeout(32).start() else {
        return fail("an exponent of 6 bits");
    };
    says(&refused, &["below 32"])?;
    let invalid = matches!(refused.cause(), Cause::Invalid(_));
    same(invalid, true, &refused.to_string())
}
