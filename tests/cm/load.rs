//! Many connections, made, used and ended at once, again and again.

use libtest_mimic::Trial;
use rustix::thread::disable_transparent_huge_pages;
use support::{
    LIMIT, Objects, Result, completion, completions, fail, is_full, is_sanitized, same,
    test_without_leaks,
};
use uverbs::cm::{self, Connection, Event, Listener, Params, Pending};
use uverbs::{Access, Caps, Cq, Inline, Mr, Pd, Qp, Rc, WcOpcode};

use crate::ground::{own_address, request, way_to};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test_without_leaks("load::a_thousand", a_thousand)]
}

/// Connections at a time.
const CROWD: usize = 64;

/// How often: 1,024 connections in all in a full run. Four rounds show what stays behind as well.
fn rounds() -> usize {
    if is_full() { 16 } else { 4 }
}

/// Bytes of a message.
const MESSAGE: usize = 8;

/// What all connections of a side have in common.
struct Side {
    mr: Mr<Vec<u8>>,
    cq: Cq,
    pd: Pd,
}

impl Side {
    fn new() -> Result<Self> {
        let context = support::open()?;
        let pd = context.alloc_pd()?;
        Ok(Self {
            mr: pd.register(vec![0; CROWD * MESSAGE], Access::LOCAL_WRITE)?,
            cq: context.create_cq(2 * CROWD as u32)?,
            pd,
        })
    }

    fn qp(&self) -> Result<Qp<Rc>> {
        let caps = Caps {
            max_send_wr: 2,
            max_recv_wr: 2,
            ..Caps::default()
        };
        Ok(self.pd.create_qp(&self.cq, caps)?)
    }

    /// Posts the receive of the connection with this number.
    fn receive(&self, qp: &mut Qp<Rc>, number: u8) -> Result {
        let at = usize::from(number) * MESSAGE;
        let mut batch = qp.recv_batch();
        batch.post(number.into(), self.mr.slice(at..at + MESSAGE)?)?;
        batch.ring();
        Ok(())
    }
}

/// Catches identifiers, files and memory that stay behind, and messages that are lost when many connect at
/// once.
fn a_thousand() -> Result {
    // Else the kernel may put one of 2 MiB in the place of a few that are in use.
    disable_transparent_huge_pages(true)?;
    let listener = cm::listen::<Rc>(own_address())?.backlog(256).start()?;
    let (mut here, mut there) = (Side::new()?, Side::new()?);
    let before = (Objects::of_all_devices()?, files()?);
    let mut resident = 0;
    for round in 0..rounds() {
        let mut connections = connect(&listener, &here, &there)?;
        for (number, (active, _)) in connections.iter_mut().enumerate() {
            send(active, number, message(round, number))?;
        }
        arrived(round, &mut here, &mut there)?;
        end(connections)?;
        // What is allocated once is there after the second round.
        if round == 1 {
            resident = resident_bytes()?;
        }
    }
    before.0.await_back()?;
    same(files()?, before.1, "open files")?;
    let grown = resident_bytes()?.saturating_sub(resident);
    // A sanitizer keeps what was freed.
    same(
        grown < 1 << 20 || is_sanitized(),
        true,
        &format!("memory, {grown} bytes more"),
    )
}

/// Both sides of a connection, the active one first.
type Both = (Connection<Qp<Rc>>, Connection<Qp<Rc>>);

/// As many connections as there may be at a time. All requests are under way before the first is accepted.
fn connect(listener: &Listener<Rc>, here: &Side, there: &Side) -> Result<Vec<Both>> {
    let mut connecting = Vec::new();
    for number in 0..CROWD as u8 {
        let way = way_to(listener.local_addr())?;
        connecting.push(way.connect(here.qp()?, &Params::default(), &[number])?);
    }
    // Requests may overtake each other.
    let mut accepting: Vec<_> = (0..CROWD).map(|_| None).collect();
    for _ in 0..CROWD {
        let request = request(listener)?;
        let number = request.private_data()[0];
        let mut qp = there.qp()?;
        request.init(&mut qp)?;
        there.receive(&mut qp, number)?;
        let accepted = request.accept(qp, &Params::default(), b"")?;
        if accepting[usize::from(number)].replace(accepted).is_some() {
            return fail(format!("two requests with the number {number}"));
        }
    }
    let both = connecting.into_iter().zip(accepting);
    both.map(|(active, passive)| {
        let passive = passive.ok_or("a request is missing")?;
        Ok((active.within(LIMIT)?, passive.within(LIMIT)?))
    })
    .collect()
}

fn message(round: usize, number: usize) -> [u8; MESSAGE] {
    ((round * CROWD + number) as u64).to_ne_bytes()
}

fn send(qp: &mut Qp<Rc>, number: usize, message: [u8; MESSAGE]) -> Result {
    qp.post(|batch| {
        batch.signaled(number as u64).send(Inline(&message))?;
        Ok(())
    })?;
    Ok(())
}

fn arrived(round: usize, here: &mut Side, there: &mut Side) -> Result {
    for wc in completions(&mut here.cq, CROWD)? {
        wc.is(WcOpcode::SEND)?;
    }
    for _ in 0..CROWD {
        let wc = completion(&mut there.cq)?;
        wc.is(WcOpcode::RECV)?;
        let mut bytes = [0; MESSAGE];
        let number = wc.wr_id as usize;
        there.mr.read_at(number * bytes.len(), &mut bytes)?;
        same(bytes, message(round, number), "the message")?;
    }
    Ok(())
}

/// One side ends them, the other one is told.
fn end(connections: Vec<Both>) -> Result {
    let mut ending = Vec::new();
    for (active, passive) in connections {
        ending.push((active.disconnect()?, passive));
    }
    for (ending, passive) in ending {
        let told = passive.link().event_within(LIMIT)?;
        same(
            told,
            Some(Event::Disconnected { timed_out: false }),
            "the end",
        )?;
        drop(passive);
        ending.within(LIMIT)?;
    }
    Ok(())
}

fn files() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

/// Bytes of this process in memory, without those of files: the program is read as it is needed.
fn resident_bytes() -> Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let words = line.ok_or("no RssAnon")?.trim().trim_end_matches(" kB");
    Ok(words.parse::<usize>()? * 1024)
}
