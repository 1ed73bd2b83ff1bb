//! Destruction: in any order, by any end, the kernel has as many objects afterwards as before.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use libtest_mimic::Trial;
use support::{
    ALL, LIMIT, Objects, OwnDevice, Pair, Result, Setup, completion, device, role, same, says,
    talk, test,
};
use uverbs::{Caps, Cause, Inline, Pd, Qp, Rc, Ud};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "resources::handles_go_in_any_order",
            handles_go_in_any_order,
        ),
        test(
            "resources::each_destruction_counts",
            each_destruction_counts,
        ),
        test(
            "resources::a_queue_pair_keeps_what_it_needs",
            a_queue_pair_keeps_what_it_needs,
        ),
        test("resources::a_pd_in_use_stays", a_pd_in_use_stays),
        test("resources::a_cq_in_use_stays", a_cq_in_use_stays),
        test(
            "resources::halves_keep_the_queue_pair",
            halves_keep_the_queue_pair,
        ),
        test(
            "resources::a_killed_process_leaves_nothing",
            a_killed_process_leaves_nothing,
        ),
    ]
}

pub(crate) const ROLES: [role::Role; 1] = [("send_for_ever", send_for_ever)];

/// All orders of the numbers below `count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(count - 1);
    let longer = |order: Vec<usize>| {
        (0..count).map(move |place| {
            let mut order = order.clone();
            order.insert(place, count - 1);
            order
        })
    };
    shorter.into_iter().flat_map(longer).collect()
}

/// Catches an object that is freed while another needs it, freed twice, or never: all orders of dropping a
/// PD, an MR, a CQ, an AH and a QP, with the context and the channel once before and once after them.
fn handles_go_in_any_order() -> Result {
    let device = OwnDevice::new()?;
    let before = Objects::on(&device.name)?;
    for (number, order) in orders(5).into_iter().enumerate() {
        let context = device.open()?;
        let channel = context.create_channel()?;
        let pd = context.alloc_pd()?;
        let mr = pd.register(vec![0_u8; 4096], ALL)?;
        let cq = context.cq(4).channel(&channel).create()?;
        let caps = Caps {
            max_send_wr: 1,
            max_recv_wr: 1,
            ..Caps::default()
        };
        let qp: Qp<Ud> = pd.create_qp(&cq, caps)?;
        let path = context.path_to(&qp.endpoint()?, &Setup::default().options)?;
        let ah = pd.create_ah(&path)?;
        let mut handles: [Option<Box<dyn std::any::Any>>; 5] = [
            Some(Box::new(pd)),
            Some(Box::new(mr)),
            Some(Box::new(cq)),
            Some(Box::new(ah)),
            Some(Box::new(qp)),
        ];
        let others = (context, channel);
        let late = if number % 2 == 0 { Some(others) } else { None };
        for index in order {
            handles[index] = None;
        }
        drop(late);
    }
    before.await_back()
}

/// How many objects of a kind there are on the device.
fn count(device: &OwnDevice, kind: &str) -> Result<usize> {
    Objects::on(&device.name)?.count(kind)
}

/// Catches a destroy call that reports success and destroys nothing.
fn each_destruction_counts() -> Result {
    let device = OwnDevice::new()?;
    let before = Objects::on(&device.name)?;
    let one_less = |kind: &str, destroy: &mut dyn FnMut() -> Result| -> Result {
        let there = count(&device, kind)?;
        destroy()?;
        same(count(&device, kind)?, there - 1, kind)
    };
    let Pair { a, b, pd, context } = Pair::<Rc>::on(&device.open()?, &Setup::default())?;
    drop(b);
    let (mut qp, mut mr, mut cq, mut pd) = (Some(a.qp), Some(a.mr), Some(a.cq), Some(pd));
    let path = context.path_to(
        &qp.as_ref().ok_or("no QP")?.endpoint()?,
        &Setup::default().options,
    )?;
    pd.as_ref().ok_or("no PD")?.create_ah(&path)?.destroy()?;
    one_less("qp", &mut || Ok(qp.take().ok_or("no QP")?.destroy()?))?;
    one_less("cq", &mut || Ok(cq.take().ok_or("no CQ")?.destroy()?))?;
    one_less("mr", &mut || {
        Ok(mr.take().ok_or("no MR")?.deregister().map(drop)?)
    })?;
    one_less("pd", &mut || Ok(pd.take().ok_or("no PD")?.dealloc()?))?;
    drop(context);
    before.await_back()
}

/// Catches a parent that goes with its handle while a child still needs it.
fn a_queue_pair_keeps_what_it_needs() -> Result {
    let device = OwnDevice::new()?;
    let before = Objects::on(&device.name)?;
    let mut pair = Pair::<Rc>::on(&device.open()?, &Setup::default())?;
    let other = Pair::<Rc>::on(&device.open()?, &Setup::default())?;
    // The PD's and the context's handles go; a different PD and context take their place.
    drop(std::mem::replace(&mut pair.pd, other.pd));
    drop(std::mem::replace(&mut pair.context, other.context));
    talk::sends(&mut pair)?;
    talk::writes(&mut pair)?;
    // The queue that receives complete on goes: they complete all the same, where nobody looks.
    pair.b.cq = other.b.cq;
    pair.b.post_recv(1, 0..64)?;
    let mut batch = pair.a.qp.batch();
    batch.signaled(1).send(Inline(b"to nobody"))?;
    batch.ring()?;
    completion(&mut pair.a.cq)?.ok()?;
    talk::arrived(&pair.b.mr, 0, b"to nobody")?;
    drop((pair, other.a, other.b.qp, other.b.mr));
    before.await_back()
}

/// Catches EBUSY without the names of the users, and a PD that is lost with the error.
fn a_pd_in_use_stays() -> Result {
    let device = OwnDevice::new()?;
    let Pair { a, b, pd, context } = Pair::<Rc>::on(&device.open()?, &Setup::default())?;
    let path = context.path_to(&a.qp.endpoint()?, &Setup::default().options)?;
    let ah = pd.create_ah(&path)?;
    let busy = |pd: Pd, users: &str| -> Result<Pd> {
        let failed = pd.dealloc().err().ok_or("a PD in use was freed")?;
        if !matches!(failed.error.cause(), Cause::Busy(_)) {
            return Err(format!("not busy: {}", failed.error).into());
        }
        says(&failed.error, &["dealloc_pd", users])?;
        // It still works.
        failed.object.register(vec![0_u8; 64], ALL)?.deregister()?;
        Ok(failed.object)
    };
    let pd = busy(pd, "2 MRs, 1 AH, 2 QPs")?;
    drop((a, b.qp));
    let pd = busy(pd, "1 MR, 1 AH")?;
    drop(b.mr);
    let pd = busy(pd, "1 AH")?;
    ah.destroy()?;
    pd.dealloc()?;
    Ok(())
}

/// Catches the same of a completion queue: it can be polled after the refusal.
fn a_cq_in_use_stays() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let spare = pair.context.create_cq(1)?;
    let cq = std::mem::replace(&mut pair.a.cq, spare);
    let failed = cq.destroy().err().ok_or("a CQ in use was destroyed")?;
    if !matches!(failed.error.cause(), Cause::Busy(_)) {
        return Err(format!("not busy: {}", failed.error).into());
    }
    says(&failed.error, &["destroy_cq", "QPs"])?;
    let spare = std::mem::replace(&mut pair.a.cq, failed.object);
    spare.destroy()?;
    talk::sends(&mut pair)?;
    let Pair { a, .. } = pair;
    a.qp.destroy()?;
    a.cq.destroy()?;
    Ok(())
}

/// Catches a queue pair that goes with one of its halves, or stays when both are gone.
fn halves_keep_the_queue_pair() -> Result {
    let device = OwnDevice::new()?;
    let before = Objects::on(&device.name)?;
    let Pair {
        a,
        mut b,
        pd,
        context,
    } = Pair::<Rc>::on(&device.open()?, &Setup::default())?;
    b.post_recv(1, 0..64)?;
    let (mut send, recv) = a.qp.split();
    drop(recv);
    let mut batch = send.batch();
    batch.unsignaled(0).send(Inline(b"half"))?;
    batch.ring()?;
    same(completion(&mut b.cq)?.ok()?.byte_len, 4, "the receive")?;
    let there = count(&device, "qp")?;
    drop(send);
    same(count(&device, "qp")?, there - 1, "the queue pairs")?;
    drop((b, a.cq, a.mr, pd, context));
    before.await_back()
}

/// Sends without end: what the process that is killed does.
fn send_for_ever() -> Result {
    let context = uverbs::open(&role::device()?)?;
    let channel = context.create_channel()?;
    let _cq = context.cq(4).channel(&channel).create()?;
    let mut pair = Pair::<Rc>::on(&context, &Setup::default())?;
    let _datagrams = Pair::datagram_on(&context, &Setup::default())?;
    let path = context.path_to(&pair.b.qp.endpoint()?, &Setup::default().options)?;
    let _ah = pair.pd.create_ah(&path)?;
    let to = pair.b.mr.remote();
    for round in 0_u64.. {
        let mut batch = pair.a.qp.batch();
        for _ in 0..16 {
            batch.unsignaled(0).write(Inline(b"on and on"), to)?;
        }
        batch.signaled(round).write(Inline(b"on and on"), to)?;
        batch.ring()?;
        completion(&mut pair.a.cq)?.ok()?;
        if round == 10 {
            println!("under way");
        }
    }
    Ok(())
}

/// Catches an object that outlives its process, such as one that waits for a request in flight.
fn a_killed_process_leaves_nothing() -> Result {
    let device = OwnDevice::new()?;
    let before = Objects::on(&device.name)?;
    for _ in 0..3 {
        let mut child = role::command("send_for_ever", &[&device.name])?
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let out = child.stdout.take().ok_or("no output")?;
        BufReader::new(out).read_line(&mut line)?;
        let there = Objects::on(&device.name)?;
        child.kill()?;
        role::await_end(&mut child)?;
        child.wait()?;
        same(line.trim(), "under way", "what the child said")?;
        if there == before {
            return Err(format!("the child had nothing: {there:?}").into());
        }
        before.await_back()?;
    }
    if device::device().is_mlx5() {
        return Ok(());
    }
    // The device can be removed at once, which waits for whoever still has it open.
    let started = std::time::Instant::now();
    device.remove()?;
    if started.elapsed() > LIMIT {
        return Err("removing the device took too long".into());
    }
    Ok(())
}
