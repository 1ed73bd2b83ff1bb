//! Queue pairs that take packets in whatever order they come.

use libtest_mimic::Trial;
use support::{
    Pair, Result, Setup, completion, completions, device, fail, kernel, open, same, says, skip,
    test,
};
use uverbs::qp::DataOrder;
use uverbs::{
    Caps, Context, Inline, Rc, Uc, WcOpcode, WcStatus,
    transport::{Connected, Peer, Reaches, StaticTransport, Xrc},
};

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 5] = [
        ("loose::rc", every_message::<Rc>),
        ("loose::uc", every_message::<Uc>),
        ("loose::regions_of_requests_left_behind", left_behind),
        ("loose::flushed", flushed),
        ("loose::what_is_refused", what_is_refused),
    ];
    tests.map(|(name, run)| test(name, run)).into()
}

type Named = (&'static str, fn() -> Result);

/// Receive requests.
const REQUESTS: u32 = 8;
const SLOT: usize = 64;

fn setup() -> Setup {
    let caps = Caps {
        max_send_wr: 64,
        max_recv_wr: REQUESTS,
        ..Caps::default()
    };
    Setup::with_caps(caps)
}

/// A pair like that; none where it has been refused as it should be.
fn pair<T: StaticTransport + Connected + Reaches<Peer>>(
    context: &Context,
) -> Result<Option<Pair<T>>> {
    let setup = setup();
    let lacks = device().is_rxe() || kernel() < (6, 13);
    match Pair::create(context, &setup, |qp| qp.out_of_order().create::<T>()) {
        Ok(_) if lacks => fail("there are none here"),
        Ok(mut pair) => {
            pair.connect(&setup.options)?;
            Ok(Some(pair))
        }
        Err(error) if lacks => {
            let told = error.to_string();
            match told.contains("out of order") {
                true => Ok(None),
                false => fail(told),
            }
        }
        Err(error) => Err(error),
    }
}

fn message(number: u64) -> [u8; 16] {
    let mut bytes = [0x5a; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn post<T: StaticTransport + Connected + Reaches<Peer>>(pair: &mut Pair<T>, id: u64) -> Result {
    let at = id as usize % REQUESTS as usize * SLOT;
    pair.b.post_recv(id, at..at + SLOT)
}

fn send<T: StaticTransport + Connected + Reaches<Peer>>(pair: &mut Pair<T>, number: u64) -> Result {
    let wc = pair
        .a
        .post(|request| request.send(Inline(&message(number))))?;
    wc.is(WcOpcode::SEND)
}

/// The next message must be this, in the request of that id.
#[track_caller]
fn received<T: StaticTransport + Connected + Reaches<Peer>>(
    pair: &mut Pair<T>,
    number: u64,
    id: u64,
) -> Result {
    let wc = completion(&mut pair.b.cq)?;
    wc.is(WcOpcode::RECV)?;
    same(wc.wr_id, id, "the request")?;
    let at = id as usize % REQUESTS as usize * SLOT;
    same(
        pair.b.bytes(at, 16)?,
        message(number).to_vec(),
        "the message",
    )
}

/// Catches an id of another request than the one with the data, a request whose place is written again before
/// it is used, and a ring that does not go round. The adapter uses the second of two requests first.
fn every_message<T: StaticTransport + Connected + Reaches<Peer>>() -> Result {
    let Some(mut pair) = pair::<T>(&open()?)? else {
        return skip("rxe and kernels before 6.13 cannot take packets in any order");
    };
    same(pair.b.qp.data_order()?, DataOrder::Any, "data in order")?;
    let mut id = 0;
    for round in 0..6 {
        for next in id..id + u64::from(REQUESTS) {
            post(&mut pair, next)?;
        }
        same(pair.b.qp.halves().1.in_flight(), REQUESTS, "in flight")?;
        for number in 0..u64::from(REQUESTS) {
            send(&mut pair, number + round)?;
            received(&mut pair, number + round, id + (number ^ 1))?;
        }
        id += u64::from(REQUESTS);
    }
    // One that is left behind, while the others go on.
    post(&mut pair, 0)?;
    post(&mut pair, 1)?;
    send(&mut pair, 7)?;
    received(&mut pair, 7, 1)?;
    // A reset forgets it.
    pair.b.qp.reset()?;
    pair.a.qp.reset()?;
    pair.connect(&setup().options)?;
    post(&mut pair, 2)?;
    post(&mut pair, 3)?;
    for (number, id) in [(8, 3), (9, 2)] {
        send(&mut pair, number)?;
        received(&mut pair, number, id)?;
    }
    Ok(())
}

/// Catches a region that goes while a request names it that others have overtaken, and one that has to wait
/// for a request which does not name it.
fn left_behind() -> Result {
    let Some(mut pair) = pair::<Rc>(&open()?)? else {
        return skip("rxe and kernels before 6.13 cannot take packets in any order");
    };
    let region = || pair.pd.register(vec![0u8; SLOT], support::ALL);
    let regions = [region()?, region()?];
    let mut batch = pair.b.qp.recv_batch();
    for (region, id) in regions.iter().zip(0..) {
        batch.post(id, region.slice(..SLOT)?)?;
    }
    batch.ring();
    let [left, overtook] = regions;
    send(&mut pair, 1)?;
    same(completion(&mut pair.b.cq)?.wr_id, 1, "the request")?;
    let Err(stays) = left.deregister() else {
        return fail("a region went that a request names");
    };
    // From the first that is not finished on.
    says(&stays.error, &["2 receives"])?;
    overtook.deregister()?;
    send(&mut pair, 2)?;
    same(completion(&mut pair.b.cq)?.wr_id, 0, "the request")?;
    stays.object.deregister()?;
    Ok(())
}

/// Catches requests that are flushed under the ids of others, or not at all, where one was left behind.
fn flushed() -> Result {
    let Some(mut pair) = pair::<Rc>(&open()?)? else {
        return skip("rxe and kernels before 6.13 cannot take packets in any order");
    };
    for id in 0..5 {
        post(&mut pair, id)?;
    }
    send(&mut pair, 1)?;
    received(&mut pair, 1, 1)?;
    pair.b.qp.fail()?;
    let mut ids = Vec::new();
    for wc in completions(&mut pair.b.cq, 4)? {
        same(wc.status, WcStatus::WR_FLUSH_ERR, "the status")?;
        ids.push(wc.wr_id);
    }
    ids.sort_unstable();
    same(ids, vec![0, 2, 3, 4], "the requests")?;
    same(pair.b.qp.halves().1.in_flight(), 0, "in flight")
}

/// Catches a queue pair that is promised what the library does not have together.
fn what_is_refused() -> Result {
    let pd = open()?.alloc_pd()?;
    let cq = pd.context().create_cq(8)?;
    let refused = |error: Option<uverbs::Error>, what: &str| match (error, device().is_rxe()) {
        (Some(error), true) => says(&error, &["out of order"]),
        (Some(error), false) => says(&error, &[what]),
        (None, _) => fail(what),
    };
    if device().is_rxe() {
        // Of XRC it lacks more: the type is refused first.
        let error = pd.qp(&cq).out_of_order().create::<Xrc>().err();
        let error = error.ok_or("out of order with XRC")?;
        says(&error, &["queue pairs of type"])?;
        refused(pd.qp(&cq).out_of_order().create::<Rc>().err(), "RC")?;
    } else {
        let error = pd.qp(&cq).out_of_order().create::<Xrc>().err();
        refused(error, "out of order with XRC")?;
    }
    // SAFETY: nothing is received.
    let builder = unsafe { pd.qp(&cq).inline_scatter() };
    match builder.out_of_order().create::<Rc>().err() {
        // What it says of inline scatter comes first.
        Some(_) if device().is_rxe() => Ok(()),
        error => refused(error, "out of order with inline scatter"),
    }
}
