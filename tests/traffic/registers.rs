//! The adapter's registers for doorbells: which requests are copied there, as the adapter sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::thread;

use libtest_mimic::Trial;
use object::{File, Object, ObjectSection, ObjectSymbol, Symbol};
use serde_json::{Value, json};
use support::hca::{NO_COPIES, registers};
use support::role::{self, Role};
use support::{Control, Result, completion, device, fail, open, same, says, skip, test, until};
use uverbs::{Access, Caps, Context, Inline, Mr, Notify, OpenOptions, Pd, Qp, Rc, WcOpcode};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "registers::every_queue_pair_copies",
            every_queue_pair_copies,
        ),
        test(
            "registers::a_block_is_stored_in_one_go",
            a_block_is_stored_in_one_go,
        ),
        test("registers::nothing_is_copied", nothing_is_copied),
        test("registers::without_uncached_page", without_uncached_page),
        test("registers::without_any_page", without_any_page),
    ]
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

/// Posts writes on so many queue pairs of one context from several threads, and tells what the adapter saw of
/// each.
fn post_on(context: &Context, queue_pairs: usize) -> Result<Vec<Seen>> {
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq((queue_pairs * REQUESTS) as u32)?;
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
    let mut qps = (0..queue_pairs).map(make).collect::<Result<Vec<_>>>()?;
    let (source, target) = (numbers(&pd, queue_pairs, 1)?, numbers(&pd, queue_pairs, 0)?);
    let mut control = Control::open()?;
    control.ask("tap_start", json!({}))?;
    thread::scope(|scope| {
        let post = |first: usize, qps: &mut [Qp<Rc>]| -> Result {
            for request in 0..REQUESTS {
                for (index, qp) in qps.iter_mut().enumerate() {
                    let at = ((first + index) * REQUESTS + request) * WORD;
                    let to = target.remote().slice(at..at + WORD)?;
                    let mut batch = qp.batch();
                    batch.signaled(0).write(source.slice(at..at + WORD)?, to)?;
                    batch.ring()?;
                }
            }
            Ok(())
        };
        let share = queue_pairs / THREADS;
        let threads: Vec<_> = qps
            .chunks_mut(share)
            .zip((0..).step_by(share))
            .map(|(qps, first)| scope.spawn(move || post(first, qps)))
            .collect();
        let mut ends = threads.into_iter().map(thread::ScopedJoinHandle::join);
        ends.try_for_each(|end| end.unwrap_or_else(|_| fail("a thread panicked")))
    })?;
    for _ in 0..queue_pairs * REQUESTS {
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
fn numbers(pd: &Pd, queue_pairs: usize, times: u64) -> Result<Mr<Vec<u8>>> {
    let words = (1..).take(queue_pairs * REQUESTS);
    let bytes = words.flat_map(|number: u64| (number * times).to_ne_bytes());
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    Ok(pd.register(bytes.collect::<Vec<u8>>(), access)?)
}

/// Catches queue pairs whose requests are not copied since all registers are taken, and copies that lie in
/// one another where queue pairs of several threads have the same register.
fn every_queue_pair_copies() -> Result {
    if !device().is_mlx5() {
        return skip("it has no registers that are shared out");
    }
    let context = open()?;
    let seen = post_on(&context, QUEUE_PAIRS)?;
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

/// Catches requests that are copied though the program, or the environment, does not want it.
fn nothing_is_copied() -> Result {
    if !device().is_mlx5() {
        return skip("it has no registers that are shared out");
    }
    context_copies_nothing(&without_blue_flame()?)?;
    let mut child = role::command(SHUT_UP.0, &[device().name()])?;
    role::finish(child.env("MLX5_SHUT_UP_BF", "1"))?;
    // As with libmlx5, this is as if it were not set.
    let mut child = role::command(SPEAK.0, &[device().name()])?;
    role::finish(child.env("MLX5_SHUT_UP_BF", "0")).map(drop)
}

fn without_blue_flame() -> Result<Context> {
    let device = uverbs::device::find(device().name())?;
    Ok(OpenOptions::new().blue_flame(false).open(&device)?)
}

fn context_copies_nothing(context: &Context) -> Result {
    let seen = post_on(context, THREADS)?;
    let sum = |count: fn(&Seen) -> usize| seen.iter().map(count).sum::<usize>();
    same(sum(|of| of.doorbells), THREADS * REQUESTS, "doorbells")?;
    same(sum(|of| of.copies), 0, "copies")?;
    same(registers(context)?, 1, "pages of registers")
}

pub(crate) const ROLES: [Role; 2] = [SHUT_UP, SPEAK];

const SHUT_UP: Role = ("shut_up_blue_flame", || {
    context_copies_nothing(&uverbs::open(&role::device()?)?)
});

const SPEAK: Role = ("blue_flame", || {
    let context = uverbs::open(&role::device()?)?;
    let seen = post_on(&context, THREADS)?;
    // It does not work here if there is no page for it, whatever the environment says.
    let works = registers(&context)? > 1;
    same(seen.iter().any(|of| of.copies > 0), works, "copies")
});

/// Lets the adapter have no UAR so many times.
fn refuse_uars(count: u32) -> Result {
    let fields = json!({"function": 0, "command": "ALLOC_UAR", "count": count});
    Control::open()?.ask("fail_command", fields).map(drop)
}

/// Catches a context that does not work without a page that is not cached, where one that combines stores can
/// be had: its completion queues are armed there, and its queue pairs have all their doorbells there.
fn without_uncached_page() -> Result {
    if !device().is_mlx5() {
        return skip("it has no registers that are shared out");
    }
    if registers(&with_queues()?)? == 1 {
        return skip(NO_COPIES);
    }
    let context = without_blue_flame()?;
    refuse_uars(1)?;
    let channel = context.create_channel()?;
    let pd = context.alloc_pd()?;
    let mut cq = context.cq(16).channel(&channel).create()?;
    same(registers(&context)?, 1, "pages of registers")?;
    let mr = pd.register(vec![0_u8; WORD], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let mut qps = [
        pd.create_qp::<Rc>(&cq, Caps::default())?,
        pd.create_qp(&cq, Caps::default())?,
    ];
    for qp in &mut qps {
        qp.connect(&qp.endpoint()?)?;
    }
    for number in 1..=8_u64 {
        cq.arm(Notify::Next)?;
        let mut batch = qps[number as usize % 2].batch();
        let bytes = number.to_ne_bytes();
        batch.signaled(number).write(Inline(&bytes), mr.remote())?;
        batch.ring()?;
        let event = until("an event", || Ok(channel.try_next()?))?;
        same(event.cq, cq.id(), "whose event it is")?;
        same(completion(&mut cq)?.ok()?.wr_id, number, "the request")?;
        let mut found = [0; WORD];
        mr.read_at(0, &mut found)?;
        same(found, bytes, "what was written")?;
    }
    same(registers(&context)?, 1, "pages of registers")
}

/// A context with a queue pair.
fn with_queues() -> Result<Context> {
    let context = open()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(1)?);
    pd.create_qp::<Rc>(&cq, Caps::default())?.destroy()?;
    Ok(context)
}

/// Catches a context that cannot be opened, or not be used for what needs no register, where the device has
/// no page of registers left; and one that does not go on when there is one again.
fn without_any_page() -> Result {
    if !device().is_mlx5() {
        return skip("it has no registers that are shared out");
    }
    refuse_uars(u32::MAX)?;
    let tried = || -> Result<_> {
        let context = open()?;
        context.query_device()?;
        let pd = context.alloc_pd()?;
        let mr = pd.register(vec![0_u8; WORD], Access::LOCAL_WRITE)?;
        match context.create_cq(1) {
            Ok(_) => fail("a completion queue without a register to arm it"),
            Err(error) => says(&error, &["UAR"]),
        }?;
        mr.deregister()?;
        Ok(context)
    };
    let tried = tried();
    refuse_uars(0)?;
    let context = tried?;
    context.create_cq(1)?.destroy()?;
    Ok(())
}

/// Catches loads, or anything else, between the stores of a block: then CPUs send it in pieces. In the
/// program that runs here, whatever made it.
fn a_block_is_stored_in_one_go() -> Result {
    let program = fs::read("/proc/self/exe")?;
    let file = File::parse(&*program)?;
    // `Register::copy` of the driver's `uar`, or what it has been put into, in either of the compiler's
    // forms.
    let copies = |symbol: &Symbol| {
        let name = symbol.name().unwrap_or_default();
        let users = ["3uar", "20ring_shared_register"];
        name.contains("4mlx5") && users.iter().any(|user| name.contains(user))
    };
    let (mut found, mut at_once) = (Vec::new(), false);
    for symbol in file.symbols().filter(copies) {
        let Some(section) = symbol.section_index() else {
            continue;
        };
        let section = file.section_by_index(section)?;
        let code = section.data_range(symbol.address(), symbol.size())?;
        let code = code.unwrap_or_default();
        found.push(stores_a_block(code));
        at_once |= stores_at_once(code);
    }
    // Whether the CPU that runs this has the store or not.
    same(
        at_once,
        cfg!(target_arch = "x86_64"),
        "a block by one store",
    )?;
    match found.as_slice() {
        [] => fail("no function that copies to registers"),
        [None, ..] => skip("this architecture has no stores that are looked for"),
        found => same(found.contains(&Some(true)), true, "a block in one go"),
    }
}

/// Whether code has MOVDIR64B.
fn stores_at_once(code: &[u8]) -> bool {
    code.windows(4)
        .any(|code| *code == [0x66, 0x0f, 0x38, 0xf8])
        || code
            .windows(5)
            .any(|code| matches!(code, [0x66, 0x40..=0x4f, 0x0f, 0x38, 0xf8]))
}

/// Whether code has four stores of 16 bytes, one behind the other in the program and in memory.
#[cfg(target_arch = "x86_64")]
fn stores_a_block(code: &[u8]) -> Option<bool> {
    /// The base and offset of a MOVAPS to memory, and what follows.
    fn store(code: &[u8]) -> Option<((u8, u8), &[u8])> {
        let (rex, code) = match code {
            [rex @ 0x40..=0x4f, code @ ..] => (*rex, code),
            code => (0, code),
        };
        let [0x0f, 0x29, modes, code @ ..] = code else {
            return None;
        };
        let base = modes & 7;
        // RSP and R12 take a byte more.
        let code = if base == 4 { code.get(1..)? } else { code };
        let base = (rex & 1) << 3 | base;
        match (modes >> 6, code) {
            (0, code) => Some(((base, 0), code)),
            (1, [offset, code @ ..]) => Some(((base, *offset), code)),
            _ => None,
        }
    }
    let block = |mut code: &[u8]| {
        let mut bases = [0; 4];
        for (offset, base) in [0, 16, 32, 48].into_iter().zip(&mut bases) {
            let ((at, from), rest) = store(code)?;
            if from != offset {
                return None;
            }
            (*base, code) = (at, rest);
        }
        Some(bases.iter().all(|base| *base == bases[0]))
    };
    Some((0..code.len()).any(|at| block(&code[at..]) == Some(true)))
}

/// Whether code has two stores of 32 bytes, one behind the other in the program and in memory.
#[cfg(target_arch = "aarch64")]
fn stores_a_block(code: &[u8]) -> Option<bool> {
    /// The base and offset, in units of 16 bytes, of a STP of two Q registers.
    fn store(word: &[u8]) -> Option<(u32, u32)> {
        let word = u32::from_le_bytes(word.try_into().ok()?);
        (word & 0xffc0_0000 == 0xad00_0000).then_some((word >> 5 & 0x1f, word >> 15 & 0x7f))
    }
    let is_block = |words: &[u8]| match (store(&words[..4]), store(&words[4..])) {
        (Some((base, 0)), Some((other, 2))) => base == other,
        _ => false,
    };
    Some(code.windows(8).step_by(4).any(is_block))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn stores_a_block(_: &[u8]) -> Option<bool> {
    None
}
