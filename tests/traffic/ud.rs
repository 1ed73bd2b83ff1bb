//! Datagrams: who they come from, what keeps them out, and groups of receivers.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use support::{LIMIT, QKEY, QUIET, Result, completion, device, fail, open, same, skip, test};
use uverbs::{
    Access, AddressVector, Caps, ConnectOptions, Context, Cq, Gid, Inline, Mr, Pd, Qp, QpState, Ud,
    WcOpcode,
    error::Errno,
    gid::GidType,
    grh::{GRH_LENGTH, Grh, GrhNetwork},
    qp::{IpGroup, MULTICAST_QPN},
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("ud::answered_over_ipv4", || answered(GrhNetwork::Ipv4)),
        test("ud::answered_over_ipv6", || answered(GrhNetwork::Ipv6)),
        test("ud::answered_over_lids", answered_over_lids),
        test("ud::a_wrong_key_stays_out", a_wrong_key_stays_out),
        test("ud::multicast_over_ipv4", || multicast(GrhNetwork::Ipv4)),
        test("ud::multicast_over_ipv6", || multicast(GrhNetwork::Ipv6)),
        test("ud::a_group_is_a_multicast_gid", a_group_is_a_multicast_gid),
        test("ud::in_a_group_it_stays", in_a_group_it_stays),
        test(
            "ud::in_a_group_it_receives_nothing_once_dropped",
            in_a_group_dropped,
        ),
    ]
}

/// Bytes of a receive.
const SLOT: usize = GRH_LENGTH + 24;

/// A queue pair that has eight receives posted.
struct Node {
    qp: Qp<Ud>,
    cq: Cq,
    inbox: Mr<Vec<u8>>,
}

/// What a node has received.
struct Datagram {
    header: [u8; GRH_LENGTH],
    payload: Vec<u8>,
    src_qp: u32,
    back: AddressVector,
}

impl Node {
    fn new(pd: &Pd) -> Result<Self> {
        let cq = pd.context().create_cq(64)?;
        let caps = Caps {
            max_inline_data: device().inline(),
            ..Caps::default()
        };
        let mut qp = pd.create_qp::<Ud>(&cq, caps)?;
        qp.activate(QKEY, &ConnectOptions::default())?;
        let inbox = pd.register(vec![0; 8 * SLOT], Access::LOCAL_WRITE)?;
        let mut batch = qp.recv_batch();
        for id in 0..8 {
            let start = id as usize * SLOT;
            batch.post(id, inbox.slice(start..start + SLOT)?)?;
        }
        batch.ring();
        Ok(Self { qp, cq, inbox })
    }

    /// Sends a datagram and waits until it is sent.
    fn send(&mut self, pd: &Pd, path: &AddressVector, to: (u32, u32), bytes: &[u8]) -> Result {
        let ah = pd.create_ah(path)?;
        let mut batch = self.qp.batch();
        batch
            .signaled(99)
            .to(ah.to(to.0, to.1))
            .send(Inline(bytes))?;
        batch.ring()?;
        completion(&mut self.cq)?.is(WcOpcode::SEND)
    }

    /// The next datagram within a time; the path back goes from the GID at `index`.
    fn receive(&mut self, index: u8, within: Duration) -> Result<Option<Datagram>> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(completion) = self.cq.poll()?.iter().next() {
                completion.result()?;
                same(completion.opcode(), WcOpcode::RECV, "opcode")?;
                let mut bytes = vec![0; completion.byte_len() as usize];
                let at = completion.wr_id() as usize * SLOT;
                self.inbox.read_at(at, &mut bytes)?;
                let Some((header, payload)) = bytes.split_first_chunk() else {
                    return fail("shorter than a header");
                };
                return Ok(Some(Datagram {
                    header: *header,
                    payload: payload.to_vec(),
                    src_qp: completion.src_qp(),
                    back: AddressVector::reply_to(&completion, header, 1, index),
                }));
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// A datagram that must come.
    fn expect(&mut self, index: u8, payload: &[u8]) -> Result<Datagram> {
        match self.receive(index, LIMIT)? {
            Some(datagram) => {
                same(&datagram.payload[..], payload, "the payload")?;
                Ok(datagram)
            }
            None => fail(format!("{payload:?} did not come")),
        }
    }

    /// Nothing may come.
    fn nothing(&mut self, why: &str) -> Result {
        match self.receive(0, QUIET)? {
            Some(datagram) => fail(format!("{why}: {:?}", datagram.payload)),
            None => Ok(()),
        }
    }
}

/// A GID of this network, with its index: for RoCE v2, or InfiniBand's, whose header is one of IPv6.
fn gid_of(context: &Context, network: GrhNetwork) -> Result<(u8, Gid)> {
    let table = context.gid_table()?;
    let mut suited = table.iter().filter(|entry| {
        matches!(entry.gid_type, GidType::RoceV2 | GidType::Ib)
            && entry.gid.as_ipv4().is_some() == (network == GrhNetwork::Ipv4)
    });
    match suited.next() {
        Some(entry) => Ok((entry.index as u8, entry.gid)),
        None => skip(format!("the device has no GID for {network:?}")),
    }
}

/// The path to one's own GID.
fn to_gid(context: &Context, index: u8, gid: Gid) -> Result<AddressVector> {
    Ok(AddressVector {
        // 0 on Ethernet.
        dlid: context.query_port(1)?.lid,
        ..AddressVector::global(1, index, gid)
    })
}

/// The LID of the groups: 0 where there are none.
fn group_lid() -> u16 {
    if device().has_gids() { 0 } else { 0xc123 }
}

/// Catches a header that is read from the wrong place, addresses that are swapped, and a path back that leads
/// elsewhere.
fn answered(network: GrhNetwork) -> Result {
    if !device().tells_headers() {
        return skip("nobody says what is in the header before a datagram");
    }
    let context = open()?;
    let pd = context.alloc_pd()?;
    let (index, gid) = gid_of(&context, network)?;
    let (mut a, mut b) = (Node::new(&pd)?, Node::new(&pd)?);
    let path = AddressVector {
        traffic_class: 0x28,
        ..to_gid(&context, index, gid)?
    };
    a.send(&pd, &path, (b.qp.qpn(), QKEY), b"who is there?")?;
    let asked = b.expect(index, b"who is there?")?;
    same(asked.src_qp, a.qp.qpn(), "the sender")?;
    let expected = Grh {
        sgid: gid,
        dgid: gid,
        traffic_class: 0x28,
        flow_label: 0,
        hop_limit: 64,
        network,
    };
    same(Grh::parse(&asked.header), Some(expected), "the header")?;
    same(asked.back.dgid, Some(gid), "the GID to answer to")?;
    same(asked.back.sgid_index, index, "the GID to answer from")?;
    same(asked.back.traffic_class, 0x28, "the traffic class back")?;
    b.send(&pd, &asked.back, (asked.src_qp, QKEY), b"me")?;
    let answer = a.expect(index, b"me")?;
    same(answer.src_qp, b.qp.qpn(), "who answered")
}

/// Catches a sender's LID that is read from the wrong place, and a header where none was sent.
fn answered_over_lids() -> Result {
    if device().has_gids() {
        return skip("an Ethernet port has no LID");
    }
    let context = open()?;
    let pd = context.alloc_pd()?;
    let lid = context.query_port(1)?.lid;
    let (mut a, mut b) = (Node::new(&pd)?, Node::new(&pd)?);
    let path = AddressVector {
        sl: 3,
        ..AddressVector::local(1, lid)
    };
    a.send(&pd, &path, (b.qp.qpn(), QKEY), b"who is there?")?;
    let asked = b.expect(0, b"who is there?")?;
    same(asked.src_qp, a.qp.qpn(), "the sender")?;
    same(&asked.back, &path, "the path back")?;
    b.send(&pd, &asked.back, (asked.src_qp, QKEY), b"me")?;
    let answer = a.expect(0, b"me")?;
    same(answer.src_qp, b.qp.qpn(), "who answered")
}

/// Catches a key that nobody looks at, and a queue pair that is broken by a datagram which is not for it.
fn a_wrong_key_stays_out() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let network = match device().has_gids() {
        true => GrhNetwork::Ipv4,
        false => GrhNetwork::Ipv6,
    };
    let (index, gid) = gid_of(&context, network)?;
    let (mut a, mut b) = (Node::new(&pd)?, Node::new(&pd)?);
    let path = to_gid(&context, index, gid)?;
    let qpn = b.qp.qpn();
    a.send(&pd, &path, (qpn, QKEY ^ 1), b"wrong")?;
    b.nothing("a datagram with the wrong key")?;
    a.send(&pd, &path, (qpn, QKEY), b"right")?;
    b.expect(index, b"right")?;
    same(b.qp.query()?.state, QpState::RTS, "state")
}

/// The IP stack's membership, without which Linux does not loop a group's packets back. InfiniBand has none.
fn join(context: &Context, group: Gid) -> Result<Option<IpGroup>> {
    match device().has_gids() {
        true => Ok(Some(context.join_ip_group(1, group)?)),
        false => Ok(None),
    }
}

/// Catches a group whose datagrams reach one member only, those who have not joined, or those who have left.
fn multicast(network: GrhNetwork) -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let (index, gid) = gid_of(&context, network)?;
    let group: Gid = match network {
        GrhNetwork::Ipv4 => "239.9.8.7".parse()?,
        GrhNetwork::Ipv6 => "ff12::9:8:7".parse()?,
    };
    let _membership = join(&context, group)?;
    let (mut a, mut b) = (Node::new(&pd)?, Node::new(&pd)?);
    let (mut c, mut other) = (Node::new(&pd)?, Node::new(&pd)?);
    let lid = group_lid();
    b.qp.attach_mcast(group, lid)?;
    c.qp.attach_mcast(group, lid)?;
    let path = AddressVector {
        dlid: lid,
        ..AddressVector::global(1, index, group)
    };
    a.send(&pd, &path, (MULTICAST_QPN, QKEY), b"to all")?;
    for member in [&mut b, &mut c] {
        let datagram = member.expect(index, b"to all")?;
        let Some(header) = Grh::parse(&datagram.header) else {
            return fail("no header");
        };
        same((header.sgid, header.dgid), (gid, group), "the addresses")?;
        same(datagram.back.dgid, Some(gid), "the GID to answer to")?;
    }
    other.nothing("a datagram to a group that it is not in")?;
    b.qp.detach_mcast(group, lid)?;
    a.send(&pd, &path, (MULTICAST_QPN, QKEY), b"to the rest")?;
    c.expect(index, b"to the rest")?;
    b.nothing("a datagram to a group that it has left")?;
    same(
        b.qp.detach_mcast(group, lid).is_err(),
        true,
        "leaving twice",
    )?;
    c.qp.detach_mcast(group, lid)?;
    a.send(&pd, &path, (MULTICAST_QPN, QKEY), b"to nobody")?;
    c.nothing("a datagram to a group without members")
}

/// Catches a group that nobody could send to.
fn a_group_is_a_multicast_gid() -> Result {
    if !device().has_multicast() {
        return skip("it has no multicast groups");
    }
    let pd = open()?.alloc_pd()?;
    let mut node = Node::new(&pd)?;
    for gid in ["10.9.0.1", "fe80::1", "::"] {
        let Err(error) = node.qp.attach_mcast(gid.parse()?, 0) else {
            return fail(format!("{gid} was taken for a group"));
        };
        same(error.errno(), Some(Errno::INVAL), gid)?;
    }
    Ok(())
}

/// Catches an error that does not give the queue pair back.
fn in_a_group_it_stays() -> Result {
    let pd = open()?.alloc_pd()?;
    let Node { mut qp, .. } = Node::new(&pd)?;
    let (group, lid) = match device().has_gids() {
        true => ("239.9.8.6".parse()?, 0),
        false => ("ff12::9:8:6".parse()?, group_lid()),
    };
    qp.attach_mcast(group, lid)?;
    let Err(failed) = qp.destroy() else {
        return fail("a member of a group was destroyed");
    };
    same(failed.error.errno(), Some(Errno::BUSY), "the errno")?;
    let mut qp = failed.object;
    qp.detach_mcast(group, lid)?;
    Ok(qp.destroy()?)
}

/// Catches a queue pair that the kernel keeps, since it is in a group, and that goes on receiving: into
/// memory that is somebody else's, by the key of a region that is gone.
fn in_a_group_dropped() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let (network, group): (_, Gid) = match device().has_gids() {
        true => (GrhNetwork::Ipv4, "239.9.8.5".parse()?),
        false => (GrhNetwork::Ipv6, "ff12::9:8:5".parse()?),
    };
    let (index, _) = gid_of(&context, network)?;
    let lid = group_lid();
    let _membership = join(&context, group)?;
    let (mut sender, mut stays) = (Node::new(&pd)?, Node::new(&pd)?);
    stays.qp.attach_mcast(group, lid)?;
    let Node { mut qp, cq, inbox } = Node::new(&pd)?;
    qp.attach_mcast(group, lid)?;
    drop(inbox);
    same(pd.reclaim(), 1, "regions that wait under receives")?;
    drop(qp);
    same(pd.reclaim(), 0, "regions that wait, with it dropped")?;
    // One of them may have the key.
    let next: Vec<_> = (0..32)
        .map(|_| pd.register(vec![5; 8 * SLOT], Access::LOCAL_WRITE))
        .collect::<std::result::Result<_, _>>()?;
    let path = AddressVector {
        dlid: lid,
        ..AddressVector::global(1, index, group)
    };
    sender.send(&pd, &path, (MULTICAST_QPN, QKEY), b"to all")?;
    stays.expect(index, b"to all")?;
    for region in next {
        same(region.deregister()?, vec![5; 8 * SLOT], "the next region")?;
    }
    drop(cq);
    Ok(())
}
