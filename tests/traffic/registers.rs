//! The adapter's registers for doorbells: which requests are copied there, as the adapter sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use libtest_mimic::Trial;
use serde_json::{Value, json};
use support::hca::{NO_COPIES, registers};
use support::{Control, Result, completion, device, fail, open, same, skip, test};
use uverbs::{Access, Caps, Context, Mr, Pd, Qp, Rc, WcOpcode};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test(
        "registers::every_queue_pair_copies",
        every_queue_pair_copies,
    )]
}

/// Queue pairs of a context: more than an adapter has registers for.
const QUEUE_PAIRS: usize = 40;
const THREADS: usize = 4;
/// Requests of each.
const REQUESTS: usize = 12;
const WORD: usize = size_of::<u64>();

/// What the adapter saw of a queue pair: the registers where its doorbells came, and how many requests were
/// copied there.
#[derive(Debug, Default)]
struct Seen {
    registers: BTreeSet<(u64, u64)>,
    doorbells: usize,
    copies: usize,
}

/// Bytes of a register, which has two halves.
const REGISTER: u64 = 512;

/// Sorts the tap's records.
fn seen(records: &Value) -> Result<BTreeMap<u32, Seen>> {
    let mut seen: BTreeMap<u32, Seen> = BTreeMap::new();
    for record in records.as_array().ok_or("no records")? {
        let number = |name: &str| record[name].as_u64().ok_or(format!("no {name}: {record}"));
        match record["kind"].as_str() {
            Some("doorbell") => {
                let of = seen.entry(number("qpn")? as u32).or_default();
                let register = number("register")? & !(REGISTER - 1);
                of.registers.insert((number("uar")?, register));
                of.doorbells += 1;
            }
            // Pieces of a copy come one behind the other; this one is the first behind the doorbell.
            Some("blue_flame") if number("at")? == WORD as u64 => {
                seen.entry(number("qpn")? as u32).or_default().copies += 1;
            }
            _ => {}
        }
    }
    Ok(seen)
}

/// Posts writes on queue pairs of one context from several threads, and tells what the adapter saw of each.
fn post_on_all(context: &Context) -> Result<Vec<Seen>> {
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq((QUEUE_PAIRS * REQUESTS) as u32)?;
    let caps = Caps {
        max_send_wr: REQUESTS as u32,
        max_recv_wr: 1,
        ..Caps::default()
    };
    let make = |_| -> Result<Qp<Rc>> {
        let mut qp = pd.create_qp::<Rc>(&cq, caps)?;
        let own = qp.endpoint()?;
        qp.connect(&own)?;
        Ok(qp)
    };
    let mut qps = (0..QUEUE_PAIRS).map(make).collect::<Result<Vec<_>>>()?;
    let (source, target) = (numbers(&pd, 1)?, numbers(&pd, 0)?);
    let mut control = Control::open()?;
    control.ask("tap_start", json!({}))?;
    thread::scope(|scope| {
        let post = |first: usize, qps: &mut [Qp<Rc>]| -> Result {
            for request in 0..REQUESTS {
                for (index, qp) in qps.iter_mut().enumerate() {
                    let at = ((first + index) * REQUESTS + request) * WORD;
                    let to = target.remote().slice(at..at + WORD)?;
                    let mut batch = qp.send();
                    batch.write(source.slice(at..at + WORD)?, to)?.signaled(0);
                    batch.ring()?;
                }
            }
            Ok(())
        };
        let share = QUEUE_PAIRS / THREADS;
        let threads: Vec<_> = qps
            .chunks_mut(share)
            .zip((0..).step_by(share))
            .map(|(qps, first)| scope.spawn(move || post(first, qps)))
            .collect();
        let mut ends = threads.into_iter().map(thread::ScopedJoinHandle::join);
        ends.try_for_each(|end| end.unwrap_or_else(|_| fail("a thread panicked")))
    })?;
    for _ in 0..QUEUE_PAIRS * REQUESTS {
        completion(&mut cq)?.is(WcOpcode::RDMA_WRITE)?;
    }
    // A request may be carried out before its doorbell has come, by that of the one before. The adapter takes
    // all that is written to its registers in order, so it has had all when a command is done.
    context.create_cq(1)?.destroy()?;
    let mut seen = seen(&control.ask("tap_take", json!({}))?)?;
    let (mut expected, mut bytes) = (vec![0; target.len()], vec![0; target.len()]);
    source.read_at(0, &mut expected)?;
    target.read_at(0, &mut bytes)?;
    same(bytes, expected, "what was written")?;
    let all = qps.iter().map(|qp| seen.remove(&qp.qpn()));
    Ok(all
        .collect::<Option<_>>()
        .ok_or("a queue pair without doorbells")?)
}

/// A word for each request: its number, times that.
fn numbers(pd: &Pd, times: u64) -> Result<Mr<Vec<u8>>> {
    let words = (1..).take(QUEUE_PAIRS * REQUESTS);
    let bytes = words.flat_map(|number: u64| (number * times).to_ne_bytes());
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    Ok(pd.register(bytes.collect::<Vec<u8>>(), access)?)
}

/// Catches queue pairs whose requests are not copied since all registers are taken, and copies that lie in
/// one another where queue pairs of several threads have the same register.
fn every_queue_pair_copies() -> Result {
    if device().is_rxe() {
        return skip("soft-RoCE has no registers");
    }
    let context = open()?;
    let seen = post_on_all(&context)?;
    if registers(&context)? == 1 {
        return skip(NO_COPIES);
    }
    let mut users: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    for of in &seen {
        same((of.doorbells, of.copies), (REQUESTS, REQUESTS), "copies")?;
        same(of.registers.len(), 1, "registers of a queue pair")?;
        for register in &of.registers {
            *users.entry(*register).or_default() += 1;
        }
    }
    let alone = users.values().filter(|users| **users == 1).count();
    same(
        (users.len(), alone),
        (28, 16),
        "registers, and unshared ones",
    )
}
