//! Datagrams: peers that are looked up by address, and multicast groups.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use libtest_mimic::Trial;
use support::wait::until_so;
use support::{
    Hca, LIMIT, QUIET, Result, completion, completions, device, fail, nothing, open, run, same,
    says, test_on_adapter, test_without_leaks,
};
use uverbs::ah::{AddressVector, UdPeer};
use uverbs::cm::{self, Group, Listener, Membership, Pending, RejectReason, Request, Resolved};
use uverbs::qp::QpAttr;
use uverbs::transport::Dc;
use uverbs::{Caps, ConnectOptions, Inline, Qp, QpState, Ud, WcOpcode, WcStatus};

use crate::ground::{Side, own_address};
use crate::listen::reason_of;
use crate::programs::Program;

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 13] = [
        ("datagrams::look_up_and_send", look_up_and_send),
        ("datagrams::one_in_init", one_in_init),
        ("datagrams::nobody_there", nobody_there),
        ("datagrams::refused", refused),
        ("datagrams::too_much_private_data", too_much_private_data),
        ("datagrams::udaddy_server", udaddy_server),
        ("datagrams::udaddy_client", udaddy_client),
        ("multicast::all_receive", all_receive),
        ("multicast::all_receive_by_ipv6", all_receive_by_ipv6),
        ("multicast::all_receive_on_a_link", all_receive_on_a_link),
        ("multicast::joined_twice", joined_twice),
        ("multicast::send_only", send_only),
        ("multicast::mckey_receives", mckey_receives),
    ];
    let mut tests = Vec::from(tests.map(|(name, run)| test_without_leaks(name, run)));
    tests.push(test_on_adapter("datagrams::targets_too", |_: Hca| {
        targets_too()
    }));
    tests
}

/// The bytes before a received datagram.
const GRH: usize = 40;

const GROUP: &str = "239.9.8.7";

fn listener() -> Result<Listener<Ud>> {
    Ok(cm::listen::<Ud>(own_address())?.start()?)
}

fn way_to(listener: &Listener<Ud>) -> Result<Resolved<Ud>> {
    let resolving = cm::resolve::<Ud>(listener.local_addr())?.start()?;
    Ok(resolving.within(LIMIT)?)
}

fn request(listener: &Listener<Ud>) -> Result<Request<Ud>> {
    Ok(listener.next_within(LIMIT)?.ok_or("no request came")?)
}

fn queue_pair(side: &Side) -> Result<Qp<Ud>> {
    Ok(side.pd.create_qp(&side.cq, uverbs::Caps::default())?)
}

/// Posts a receive of a datagram of 64 bytes.
fn receive(side: &Side, qp: &mut Qp<Ud>) -> Result {
    let slice = side.mr.slice(..GRH + 64)?;
    let mut batch = qp.recv_batch();
    batch.post(1, slice)?;
    batch.ring();
    Ok(())
}

/// What came, without its header.
fn received(side: &mut Side) -> Result<Vec<u8>> {
    let wc = completion(&mut side.cq)?.ok()?;
    same(wc.opcode, WcOpcode::RECV, "the completion")?;
    let mut bytes = vec![0; wc.byte_len as usize - GRH];
    side.mr.read_at(GRH, &mut bytes)?;
    Ok(bytes)
}

/// Catches a path to somebody else, a wrong key, and data that do not come whole.
fn look_up_and_send() -> Result {
    let listener = listener()?;
    ask_and_send(way_to(&listener)?, &listener, (b"who is there?", 180))
}

/// Catches a queue pair in INIT that keeps the key of what it was for before.
fn one_in_init() -> Result {
    let listener = listener()?;
    let side = Side::new()?;
    let way = way_to(&listener)?;
    let mut qp = queue_pair(&side)?;
    qp.modify(&QpAttr {
        state: Some(QpState::INIT),
        pkey_index: Some(0),
        port: Some(way.port()),
        qkey: Some(5),
        ..QpAttr::default()
    })?;
    way.activate(&mut qp)?;
    same(qp.query()?.qkey, 0x0123_4567, "the key")
}

/// Asks a listener for its queue pair with this question, whose field has so many bytes, and sends a datagram
/// there.
pub(crate) fn ask_and_send(
    way: Resolved<Ud>,
    listener: &Listener<Ud>,
    (question, field): (&[u8], usize),
) -> Result {
    let (mut here, mut there) = (Side::new()?, Side::new()?);
    let mut own = queue_pair(&here)?;
    way.activate(&mut own)?;
    let looking = way.look_up(question)?;
    let request = request(listener)?;
    same(
        request.private_data().len(),
        field,
        "the field of the question",
    )?;
    let (asked, rest) = request.private_data().split_at(question.len());
    same(asked, question, "the question")?;
    same(rest[0], 0, "behind the question")?;
    let mut qp = queue_pair(&there)?;
    request.activate(&mut qp)?;
    receive(&there, &mut qp)?;
    request.answer_with(&qp, b"I am")?;
    let found = looking.within(LIMIT)?;
    same(found.qpn(), qp.qpn(), "the queue pair")?;
    same(found.qkey(), 0x0123_4567, "the key")?;
    same(found.private_data().len(), 136, "the field of the answer")?;
    same(&found.private_data()[..5], b"I am\0", "the answer")?;
    let ah = here.pd.create_ah(found.path())?;
    own.post(|batch| {
        batch
            .signaled(2)
            .to(ah.to(found.qpn(), found.qkey()))
            .send(Inline(b"a datagram"))?;
        Ok(())
    })?;
    completion(&mut here.cq)?.is(WcOpcode::SEND)?;
    same(received(&mut there)?, b"a datagram".to_vec(), "what came")
}

/// Catches a target whose number, key or path does not reach who looks it up, also the second one that does;
/// and a key that takes the place of private data.
fn targets_too() -> Result {
    const KEY: u64 = 0xfedc_ba98_7654_3210;
    let listener = cm::listen::<Dc>(own_address())?.start()?;
    let mut there = Side::new()?;
    let mut srq = there.pd.srq(4).create()?;
    let target = there.pd.dc_target(&there.cq, &srq, KEY).create()?;
    for (wr_id, asker) in [(1, "the first"), (2, "the second")] {
        let mut batch = srq.batch();
        batch.post(wr_id, there.mr.slice(..64)?)?;
        batch.ring();
        let way = cm::resolve::<Dc>(listener.local_addr())?
            .start()?
            .within(LIMIT)?;
        let mut here = Side::new()?;
        let mut qp = here.pd.create_qp::<Dc>(&here.cq, Caps::default())?;
        qp.activate_initiator(&ConnectOptions {
            port: way.port(),
            ..ConnectOptions::default()
        })?;
        let looking = way.look_up(asker.as_bytes())?;
        let request = listener.next_within(LIMIT)?.ok_or("no request came")?;
        same(
            &request.private_data()[..asker.len()],
            asker.as_bytes(),
            "the question",
        )?;
        let Err(refused) = request.answer_with(&target, &[0; 129]) else {
            return fail("129 bytes beside a key were taken");
        };
        says(&refused.error.to_string(), &["129", "128"])?;
        refused.back.answer_with(&target, &[7; 128])?;
        let found = looking.within(LIMIT)?;
        same(
            (found.qpn(), found.key()),
            (target.number(), KEY),
            "the target",
        )?;
        same(found.private_data(), &[7; 128][..], "the answer")?;
        let ah = here.pd.create_ah(found.path())?;
        let message = asker.as_bytes();
        qp.one(1)
            .to(ah.to_target(found.qpn(), found.key()))
            .send(Inline(message))?;
        completion(&mut here.cq)?.is(WcOpcode::SEND)?;
        let wc = completion(&mut there.cq)?.ok()?;
        same((wc.wr_id, wc.src_qp), (wr_id, qp.qpn()), "the message")?;
        let mut bytes = vec![0; wc.byte_len as usize];
        there.mr.read_at(0, &mut bytes)?;
        same(&bytes[..], message, "what came")?;
        // The key counts.
        qp.one(2)
            .to(ah.to_target(found.qpn(), found.key() + 1))
            .send(Inline(message))?;
        same(
            completion(&mut here.cq)?.status,
            WcStatus::REM_ACCESS_ERR,
            "another key",
        )?;
    }
    Ok(())
}

/// The port of `udaddy`, and what its client sends and its server answers.
const UDADDY_PORT: u16 = 7174;
const DATAGRAMS: usize = 4;
const DATAGRAM: [u8; 64] = [7; 64];

fn udaddy_address() -> SocketAddr {
    let mut address = own_address();
    address.set_port(UDADDY_PORT);
    address
}

/// Posts receives for all datagrams.
fn receive_all(side: &Side, qp: &mut Qp<Ud>) -> Result {
    const ROOM: usize = GRH + DATAGRAM.len();
    let mut batch = qp.recv_batch();
    for number in 0..DATAGRAMS {
        let slice = side.mr.slice(number * ROOM..(number + 1) * ROOM)?;
        batch.post(number as u64, slice)?;
    }
    batch.ring();
    Ok(())
}

/// Sends all datagrams, with the own number, by which the program answers.
fn send_all(qp: &mut Qp<Ud>, to: UdPeer<'_>) -> Result {
    let number = qp.qpn();
    qp.post(|batch| {
        for id in 0..DATAGRAMS as u64 {
            batch
                .signaled(id)
                .to(to)
                .send_imm(Inline(&DATAGRAM), number)?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Catches an answer of rdma-core's program that is read wrongly: another queue pair, key or path.
fn udaddy_server() -> Result {
    let program = Program::start("udaddy -b 10.9.0.1 -C 4 -S 64")?;
    let mut side = Side::new()?;
    let mut qp = queue_pair(&side)?;
    let mut found = None;
    until_so(LIMIT, "the program listens", || {
        let way = cm::resolve::<Ud>(udaddy_address())?.start()?;
        let way = way.within(LIMIT)?;
        if qp.state() == QpState::RESET {
            way.activate(&mut qp)?;
            receive_all(&side, &mut qp)?;
        }
        match way.look_up(b"")?.within(LIMIT) {
            Ok(peer) => found = Some(peer),
            Err(refused) => same(
                reason_of(&refused.error)?,
                RejectReason::NoListener,
                "the reason",
            )?,
        }
        Ok(found.is_some())
    })?;
    let found = found.ok_or("nobody was found")?;
    let ah = side.pd.create_ah(found.path())?;
    send_all(&mut qp, ah.to(found.qpn(), found.qkey()))?;
    let mut answers = 0;
    for wc in completions(&mut side.cq, 2 * DATAGRAMS)? {
        let wc = wc.ok()?;
        if wc.opcode == WcOpcode::RECV {
            same(wc.imm, Some(found.qpn()), "the number of who answers")?;
            same(wc.byte_len as usize, GRH + DATAGRAM.len(), "an answer")?;
            answers += 1;
        }
    }
    same(answers, DATAGRAMS, "answers")?;
    program.end()
}

/// Catches an answer that rdma-core's program reads another queue pair, key or path of.
fn udaddy_client() -> Result {
    let listener = cm::listen::<Ud>(udaddy_address())?.start()?;
    let program = Program::start("udaddy -s 10.9.0.1 -C 4 -S 64")?;
    let request = request(&listener)?;
    let mut side = Side::new()?;
    let mut qp = queue_pair(&side)?;
    request.activate(&mut qp)?;
    receive_all(&side, &mut qp)?;
    request.answer_with(&qp, b"")?;
    let (own, _) = open()?.best_gid(1)?.ok_or("the port has no GID")?;
    let (mut came, mut peer) = (0, None);
    until_so(LIMIT, "the datagrams of the program", || {
        for completion in &mut side.cq.poll()? {
            completion.result()?;
            let mut grh = [0; GRH];
            side.mr.read_at(0, &mut grh)?;
            let path = AddressVector::reply_to(&completion, &grh, 1, own);
            peer = completion.imm().map(|number| (path, number));
            came += 1;
        }
        Ok(came == DATAGRAMS)
    })?;
    let (path, number) = peer.ok_or("no number came with the datagram")?;
    let ah = side.pd.create_ah(&path)?;
    send_all(&mut qp, ah.to(number, 0x0123_4567))?;
    for wc in completions(&mut side.cq, DATAGRAMS)? {
        same(wc.ok()?.opcode, WcOpcode::SEND, "the completion")?;
    }
    program.end()
}

/// Catches a look-up of nobody that is waited for.
fn nobody_there() -> Result {
    let listener = listener()?;
    let way = way_to(&listener)?;
    drop(listener);
    let Err(refused) = way.look_up(b"")?.within(LIMIT) else {
        return fail("nobody listens");
    };
    same(
        reason_of(&refused.error)?,
        RejectReason::NoListener,
        "the reason",
    )
}

/// Catches a refusal that is not told, or without its data.
fn refused() -> Result {
    let listener = listener()?;
    let looking = way_to(&listener)?.look_up(b"")?;
    request(&listener)?.reject(b"not for you")?;
    let Err(refused) = looking.within(LIMIT) else {
        return fail("it was refused");
    };
    same(
        reason_of(&refused.error)?,
        RejectReason::Consumer,
        "the reason",
    )?;
    let looking = way_to(&listener)?.look_up(b"")?;
    drop(request(&listener)?);
    let Err(refused) = looking.within(LIMIT) else {
        return fail("it was dropped");
    };
    same(
        reason_of(&refused.error)?,
        RejectReason::Consumer,
        "the reason",
    )
}

/// Catches lengths of other messages than these.
fn too_much_private_data() -> Result {
    let listener = listener()?;
    let Err(error) = way_to(&listener)?.look_up(&[1; 181]) else {
        return fail("181 bytes");
    };
    says(&error, &["181 bytes of private data, a look-up takes 180"])?;
    let looking = way_to(&listener)?.look_up(&[1; 180])?;
    let side = Side::new()?;
    let qp = queue_pair(&side)?;
    let request = request(&listener)?;
    same(request.private_data(), &[1; 180], "the question")?;
    let Err(refused) = request.answer_with(&qp, &[2; 137]) else {
        return fail("137 bytes");
    };
    says(
        &refused,
        &["137 bytes of private data, an answer takes 136"],
    )?;
    refused.back.answer_with(&qp, &[2; 136])?;
    same(
        looking.within(LIMIT)?.private_data(),
        &[2; 136],
        "the answer",
    )
}

/// A group, and the own address from which it is joined.
type Addresses = (SocketAddr, SocketAddr);

fn by_ipv4() -> Result<Addresses> {
    Ok((SocketAddr::new(GROUP.parse()?, 0), own_address()))
}

fn group((group, own): Addresses, send_only: bool) -> Result<Group> {
    let join = cm::join(group)?.source(own);
    Ok(join.send_only(send_only).start()?.within(LIMIT)?)
}

/// A queue pair in the group, with a receive posted.
fn member(side: &Side, addresses: Addresses) -> Result<(Qp<Ud>, Membership)> {
    let group = group(addresses, false)?;
    let mut qp = queue_pair(side)?;
    group.activate(&mut qp)?;
    receive(side, &mut qp)?;
    let membership = group.attach(&qp)?;
    Ok((qp, membership))
}

fn send(side: &mut Side, qp: &mut Qp<Ud>, group: &Group, bytes: &[u8]) -> Result {
    let ah = side.pd.create_ah(group.path())?;
    qp.post(|batch| {
        batch
            .signaled(2)
            .to(ah.to(group.qpn(), group.qkey()))
            .send(Inline(bytes))?;
        Ok(())
    })?;
    completion(&mut side.cq)?.is(WcOpcode::SEND)
}

/// Catches members that receive nothing, and former members that still do.
fn all_receive() -> Result {
    of_group(by_ipv4()?)
}

/// Catches groups of IPv6 that are joined as others, or whose datagrams go elsewhere.
fn all_receive_by_ipv6() -> Result {
    let interface = Ipv6::new()?;
    of_ipv6((
        "[ff15::9:8:7]:0".parse()?,
        SocketAddr::new(interface.address.into(), 0),
    ))
}

/// Catches a link that is lost on the way to the kernel: a link-local address leads nowhere then.
fn all_receive_on_a_link() -> Result {
    let netdev = own_netdev()?;
    let index = std::fs::read_to_string(format!("/sys/class/net/{netdev}/ifindex"))?;
    let index = index.trim().parse()?;
    let on_the_link =
        |ip: &str| -> Result<SocketAddrV6> { Ok(SocketAddrV6::new(ip.parse()?, 0, 0, index)) };
    let shown = run(&format!("ip -o -6 addr show dev {netdev} scope link"))?;
    let own = shown.split_whitespace().nth(3);
    let own = own.and_then(|own| own.split_once('/'));
    let (own, _) = own.ok_or("no link-local address")?;
    let (group, own) = (on_the_link("ff12::9:8:7")?, on_the_link(own)?);
    let Err(refused) = cm::join("[ff12::9:8:7]:0")?
        .source((*own.ip(), 0).into())
        .start()
    else {
        return fail("an address on no link");
    };
    says(&refused, &["needs its scope"])?;
    of_ipv6((group.into(), own.into()))
}

fn of_ipv6(addresses: Addresses) -> Result {
    if !device().has_gids() {
        return of_group(addresses);
    }
    let joining = cm::join(addresses.0)?.source(addresses.1).start()?;
    let Err(error) = joining.within(LIMIT) else {
        return fail("the kernel of RoCE v2 has learnt of groups of IPv6");
    };
    same(error.error.is_unsupported(), true, "that it is told so")?;
    says(&error, &["groups with IPv6 addresses"])
}

/// The device's network interface.
fn own_netdev() -> Result<String> {
    let shown = run(&format!("ip -o addr show to {}", own_address().ip()))?;
    let netdev = shown.split_whitespace().nth(1);
    Ok(netdev.ok_or("no interface has the address")?.to_owned())
}

/// An IPv6 address of the device's network interface.
struct Ipv6 {
    netdev: String,
    address: Ipv6Addr,
}

impl Ipv6 {
    /// Adds it, and waits until the device has it among its GIDs, where these are addresses.
    fn new() -> Result<Self> {
        let context = open()?;
        let added = Self {
            netdev: own_netdev()?,
            address: "fd00:9::1".parse()?,
        };
        added.change("add")?;
        if device().has_gids() {
            until_so(LIMIT, "the address is a GID", || {
                let gids = context.gid_table()?;
                Ok(gids.iter().any(|entry| entry.gid == added.address.into()))
            })?;
        }
        Ok(added)
    }

    fn change(&self, how: &str) -> Result {
        let Self { netdev, address } = self;
        run(&format!("ip addr {how} {address}/64 dev {netdev} nodad")).map(drop)
    }
}

impl Drop for Ipv6 {
    fn drop(&mut self) {
        // The test's own result is the one to tell.
        let _ = self.change("del");
    }
}

fn of_group(addresses: Addresses) -> Result {
    let (mut a, mut b, mut c) = (Side::new()?, Side::new()?, Side::new()?);
    let (_qp, first) = member(&a, addresses)?;
    let (mut other, second) = member(&b, addresses)?;
    let group = group(addresses, true)?;
    let mut qp = queue_pair(&c)?;
    group.activate(&mut qp)?;
    send(&mut c, &mut qp, &group, b"to all")?;
    same(received(&mut a)?, b"to all".to_vec(), "the first")?;
    same(received(&mut b)?, b"to all".to_vec(), "the second")?;
    same(first.is_lost()?, false, "the membership")?;
    drop(second);
    receive(&b, &mut other)?;
    send(&mut c, &mut qp, &group, b"to one")?;
    std::thread::sleep(QUIET);
    nothing(&mut b.cq)?;
    other.destroy()?;
    Ok(())
}

/// Catches a membership that ends with another one of the same queue pair, as when a lost one is replaced,
/// and a refusal that does not tell what holds the queue pair.
fn joined_twice() -> Result {
    let (mut side, mut sender) = (Side::new()?, Side::new()?);
    let (mut qp, first) = member(&side, by_ipv4()?)?;
    let second = group(by_ipv4()?, false)?.attach(&qp)?;
    let to = group(by_ipv4()?, true)?;
    let mut from = queue_pair(&sender)?;
    to.activate(&mut from)?;
    send(&mut sender, &mut from, &to, b"twice")?;
    same(received(&mut side)?, b"twice".to_vec(), "with both")?;
    drop(first);
    receive(&side, &mut qp)?;
    send(&mut sender, &mut from, &to, b"once")?;
    same(received(&mut side)?, b"once".to_vec(), "with the other")?;
    let gid = to.gid().to_string();
    let Err(refused) = qp.destroy() else {
        return fail("a member was destroyed");
    };
    says(&refused.error, &["busy", "multicast group", &gid])?;
    drop(second);
    refused.object.destroy()?;
    Ok(())
}

/// Catches a membership to send only that is attached, and an address that is none of a group.
fn send_only() -> Result {
    let side = Side::new()?;
    let group = group(by_ipv4()?, true)?;
    let qp = queue_pair(&side)?;
    let gid = group.gid();
    match device().has_gids() {
        true => same(gid, GROUP.parse()?, "the group's GID")?,
        // The address is a part of the GID (RFC 4391, section 4), whose prefix is the subnet's.
        false => same(gid.raw()[12..].to_vec(), vec![0x0f, 9, 8, 7], "the group")?,
    }
    let membership = group.attach(&qp)?;
    // It would be refused while it is attached.
    qp.destroy()?;
    drop(membership);
    let Err(error) = cm::join("10.9.0.1:0")?.start() else {
        return fail("10.9.0.1 is no group");
    };
    says(&error, &["join_multicast on multicast group 10.9.0.1"])
}

/// Catches another group than the one that rdma-core's programs join by the same address, and another key.
///
/// The program takes four datagrams and ends. Until it has joined nobody gets what is sent, so there is
/// always one more. It is not the one to send: it takes its queue pair away without waiting for its sends.
fn mckey_receives() -> Result {
    let mut program = Program::start("mckey -m 239.9.8.7 -b 10.9.0.1 -C 4 -S 32")?;
    let mut side = Side::new()?;
    let group = group(by_ipv4()?, true)?;
    let mut qp = queue_pair(&side)?;
    group.activate(&mut qp)?;
    until_so(LIMIT, "the program has four datagrams", || {
        send(&mut side, &mut qp, &group, &[7; 32])?;
        program.has_ended()
    })?;
    program.end()
}
