//! Addresses of InfiniBand itself: connections that take no IP address.

use libtest_mimic::Trial;
use support::{LIMIT, Result, device, fail, open, same, says, skip, test_without_leaks};
use uverbs::cm::{self, IbAddr, Listener, Params, Pending, RejectReason, Resolve, Resolved};
use uverbs::transport::Xrc;
use uverbs::xrcd::XrcTarget;
use uverbs::{Rc, Uc, Ud};

use crate::connect::write_and_send;
use crate::datagrams::ask_and_send;
use crate::ground::{Side, Two, own_address, request};
use crate::listen::reason_of;
use crate::programs::{PORT, Program, UCMATOSE, await_client, connect_to, pingpong_by};

type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 11] = [
        ("infiniband::and_talk", and_talk),
        ("infiniband::unreliably", unreliably),
        ("infiniband::datagrams", datagrams),
        ("infiniband::initiators_of_xrc", initiators_of_xrc),
        ("infiniband::from_a_source", from_a_source),
        ("infiniband::to_another_port", to_another_port),
        ("infiniband::on_every_port", on_every_port),
        ("infiniband::private_data", private_data),
        ("infiniband::pingpong", pingpong),
        ("infiniband::ucmatose_server", ucmatose_server),
        ("infiniband::ucmatose_client", ucmatose_client),
    ];
    let mut trials: Vec<_> = tests
        .map(|(name, run)| {
            test_without_leaks(name, move || match device().has_gids() {
                false => run(),
                true => skip("the device's port is none of InfiniBand"),
            })
        })
        .into();
    trials.push(test_without_leaks(
        "infiniband::what_is_refused",
        what_is_refused,
    ));
    trials
}

/// The device's own address, with a port that the kernel chooses.
fn own() -> Result<IbAddr> {
    Ok(IbAddr::new(open()?.query_gid(1, 0)?.gid, 0))
}

fn listener() -> Result<Listener<Rc>> {
    Ok(cm::listen_ib::<Rc>(own()?).start()?)
}

/// The address that a listener is found at.
fn of<T: cm::Listens>(listener: &Listener<T>) -> Result<IbAddr> {
    Ok(listener.local_ib().ok_or("an address of another kind")?)
}

fn way_to<T: cm::Initiates>(peer: IbAddr) -> Result<Resolved<T>> {
    Ok(cm::resolve_ib(peer).start()?.within(LIMIT)?)
}

/// Catches addresses that are not found, or told as another, and connections between the wrong queue pairs.
fn and_talk() -> Result {
    let listener = listener()?;
    let at = of(&listener)?;
    same(at.gid, own()?.gid, "the listener's GID")?;
    same(at.port == 0, false, "a port of 0")?;
    let none = Params::default();
    let mut two = Two::by(way_to(at)?, listener, [&open()?; 2], &none, &none)?;
    same(
        two.active.link().peer_ib(),
        Some(at),
        "the active side's peer",
    )?;
    same(two.active.peer_addr().port(), at.port, "the peer's port")?;
    let from = two
        .active
        .link()
        .local_ib()
        .ok_or("no address of InfiniBand")?;
    same(from.gid, at.gid, "the active side's own GID")?;
    let asked = two
        .passive
        .link()
        .peer_ib()
        .ok_or("no address of InfiniBand")?;
    let found = IbAddr { port: 0, ..from };
    same(asked, found, "the passive side's peer")?;
    two.talk()
}

/// Catches paths that the subnet's administrator is asked for in vain, and messages to the wrong port: the
/// peer is another port of the fabric.
fn to_another_port() -> Result {
    let (here, devices) = (open()?, uverbs::devices()?);
    let other = devices
        .iter()
        .find(|device| device.name() != here.device().name());
    let Some(other) = other else {
        return skip("needs two functions");
    };
    let there = other.open()?;
    let at = IbAddr::new(there.query_gid(1, 0)?.gid, 0);
    let listener = cm::listen_ib::<Rc>(at).start()?;
    let way = way_to(of(&listener)?)?;
    same(way.device()?.name(), here.device().name(), "the own device")?;
    let none = Params::default();
    let mut two = Two::by(way, listener, [&here, &there], &none, &none)?;
    two.talk()
}

/// Catches unreliable connections that are asked for as reliable ones.
fn unreliably() -> Result {
    let listener = cm::listen_ib::<Uc>(own()?).start()?;
    write_and_send(way_to(of(&listener)?)?, &listener, b"\0 request")
}

/// Catches a path to somebody else, and a question that is cut off: it has room for what takes the place of
/// IP addresses.
fn datagrams() -> Result {
    let listener = cm::listen_ib::<Ud>(own()?).start()?;
    let question = (&b"\0 who is there?"[..], 216);
    ask_and_send(way_to(of(&listener)?)?, &listener, question)
}

/// Catches initiators that find no target.
fn initiators_of_xrc() -> Result {
    let listener = cm::listen_ib::<XrcTarget>(own()?).start()?;
    let (context, side) = (open()?, Side::new()?);
    let domain = context.open_xrcd()?;
    let way = way_to::<Xrc>(of(&listener)?)?;
    let connecting = way.connect(side.qp()?, &Params::default(), b"")?;
    let request = listener.next_within(LIMIT)?.ok_or("no request came")?;
    let accepting = request.accept(domain.create_target()?, &Params::default(), b"")?;
    let initiator = connecting.within(LIMIT)?;
    let target = accepting.within(LIMIT)?;
    same(
        initiator.link().peer_ib().is_some(),
        true,
        "an address of InfiniBand",
    )?;
    drop((initiator, target));
    Ok(())
}

/// Catches a source that is not used.
fn from_a_source() -> Result {
    let listener = listener()?;
    let mut source = own()?;
    // A port that was free a moment ago.
    source.port = of(&cm::listen_ib::<Rc>(source).start()?)?.port;
    let resolving = cm::resolve_ib::<Rc>(of(&listener)?).source_ib(source);
    let way = resolving.start()?.within(LIMIT)?;
    same(way.local_ib(), Some(source), "the source")
}

/// Catches a listener on all ports that does not listen on one, or that does not tell where it was asked.
fn on_every_port() -> Result {
    let any = IbAddr::new(uverbs::Gid::default(), 0);
    let listener = cm::listen_ib::<Rc>(any).start()?;
    let port = of(&listener)?.port;
    let at = IbAddr { port, ..own()? };
    let none = Params::default();
    let mut two = Two::by(way_to(at)?, listener, [&open()?; 2], &none, &none)?;
    let asked = two
        .passive
        .link()
        .local_ib()
        .ok_or("no address of InfiniBand")?;
    same(
        (asked.gid, asked.port),
        (at.gid, port),
        "where it was asked",
    )?;
    two.talk()
}

/// Catches data that are cut off, that do not come as they were, and more than the message has room for.
fn private_data() -> Result {
    let (listener, side) = (listener()?, Side::new()?);
    let data: Vec<u8> = (0..92).collect();
    let way = way_to::<Rc>(of(&listener)?)?;
    let too_many = [&data[..], b"!"].concat();
    let Err(failed) = way.connect(side.qp()?, &Params::default(), &too_many) else {
        return fail("93 bytes in a request");
    };
    says(&failed, &["93 bytes of private data, a request takes 92"])?;
    let (mut way, mut qp) = failed.back;
    // The kernel puts a zero over the first byte. The peer's drops the request if the second looks like a
    // version of IP.
    for taken in [&b"\x01"[..], b"\0\x41", b"\0\x6f", b"request"] {
        let Err(failed) = way.connect(qp, &Params::default(), taken) else {
            return fail(format!("{taken:?} in a request"));
        };
        says(&failed, &["the kernel has the first byte"])?;
        (way, qp) = failed.back;
    }
    let connecting = way.connect(qp, &Params::default(), &data)?;
    let request = request(&listener)?;
    same(request.private_data().to_vec(), data, "the request's data")?;
    request.reject(b"seen")?;
    let Err(refused) = connecting.within(LIMIT) else {
        return fail("it was refused");
    };
    same(
        reason_of(&refused.error)?,
        RejectReason::Consumer,
        "the reason",
    )
}

/// Catches a command line that takes GIDs for IPv6 addresses, and questions about queue pairs for datagrams
/// that the kernel drops.
fn pingpong() -> Result {
    pingpong_by("--cm=gid", &own()?.gid.to_string())
}

/// Catches another wire than librdmacm's: its client finds ours by the GID.
fn ucmatose_client() -> Result {
    let at = IbAddr {
        port: PORT,
        ..own()?
    };
    let listener = cm::listen_ib::<Rc>(at).start()?;
    let program = Program::on_any(&format!("ucmatose -f gid -s {} -C 4 -S 100", at.gid))?;
    await_client(program, &listener, UCMATOSE)
}

/// Catches another wire than librdmacm's: its server is found by the GID.
fn ucmatose_server() -> Result {
    let at = IbAddr {
        port: PORT,
        ..own()?
    };
    let program = Program::on_any(&format!("ucmatose -f gid -b {} -C 4 -S 100", at.gid))?;
    connect_to(program, || way_to(at), UCMATOSE)
}

/// Catches addresses that lead nowhere and are waited for, and errors that do not say which address it was.
fn what_is_refused() -> Result {
    let nobody = IbAddr::new("fec0::1:2:3:4".parse()?, 7);
    let refused = |resolve: Resolve<Rc>, words: &[&str]| match resolve.start() {
        Ok(resolving) => match resolving.within(LIMIT) {
            Ok(_) => fail("a way to nobody"),
            Err(failed) => says(&failed, words),
        },
        Err(error) => says(&error, words),
    };
    refused(
        cm::resolve_ib(nobody),
        &["[fec0::1:2:3:4]:7 in partition 0xffff"],
    )?;
    refused(
        cm::resolve_ib(IbAddr::new("::".parse()?, 7)),
        &["all zeros"],
    )?;
    refused(
        cm::resolve_ib(IbAddr::new("::1".parse()?, 7)),
        &["loopback"],
    )?;
    let everywhere = cm::listen_ib::<Ud>(IbAddr::new("::".parse()?, 0)).start();
    let Err(error) = everywhere else {
        return fail("a listener for datagrams on all ports, which the kernel lets nobody reach");
    };
    says(&error, &["datagrams", "listen on a port's GID"])?;
    let of_ip = cm::resolve_ib(nobody).source(own_address());
    refused(of_ip, &["one is of IP and the other of InfiniBand"])?;
    let Err(error) = cm::listen_ib::<Rc>(nobody).start() else {
        return fail("a listener on a GID that nobody has");
    };
    says(&error, &["[fec0::1:2:3:4]:7"])?;
    if !device().has_gids() {
        let elsewhere = own()?.in_partition(0x8123);
        refused(cm::resolve_ib(elsewhere), &["in partition 0x8123"])?;
        let (gone, side) = (of(&listener()?)?, Side::new()?);
        let connecting = way_to::<Rc>(gone)?.connect(side.qp()?, &Params::default(), b"")?;
        let Err(failed) = connecting.within(LIMIT) else {
            return fail("a connection with a listener that is gone");
        };
        same(
            reason_of(&failed.error)?,
            RejectReason::NoListener,
            "the reason",
        )?;
    }
    Ok(())
}
