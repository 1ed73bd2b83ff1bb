//! Memory windows of both types: what they open, what they do not, and how they are taken back.

use libtest_mimic::Trial;
use support::talk::arrived;
use support::{Pair, Result, device, fail, open, same, skip, test};
use uverbs::{
    Access, Cause, Inline, Mr, PostError, QpState, Rc, Uc, WcOpcode, WcStatus,
    mw::{Mw, Type1, Type2, Window},
    transport::{BindWindow, Connected, StaticTransport},
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("mw::type_1_opens_a_part", type_1_opens_a_part),
        test("mw::bounds_are_the_windows", bounds_are_the_windows),
        test(
            "mw::type_1_key_follows_the_last",
            type_1_key_follows_the_last,
        ),
        test("mw::type_1_is_unbound", type_1_is_unbound),
        test("mw::type_1_on_uc", type_1_on_uc),
        test(
            "mw::type_2_belongs_to_its_queue_pair",
            type_2_belongs_to_its_queue_pair,
        ),
        test("mw::access_is_the_windows", access_is_the_windows),
        test(
            "mw::a_region_under_a_window_stays_or_is_closed",
            a_region_under_a_window_stays_or_is_closed,
        ),
        test(
            "mw::a_region_dropped_first_goes_with_its_window",
            a_region_dropped_first_goes_with_its_window,
        ),
        test(
            "mw::what_breaks_a_queue_pair_is_refused",
            what_breaks_a_queue_pair_is_refused,
        ),
        test("mw::counts_on_its_pd", counts_on_its_pd),
        test(
            "mw::bind_of_a_stale_window_fails",
            bind_of_a_stale_window_fails,
        ),
        test("mw::type_2_is_bound_once", type_2_is_bound_once),
    ]
}

fn region<T: StaticTransport>(pair: &Pair<T>) -> Result<Mr<Vec<u8>>> {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    Ok(pair.pd.register(vec![0; 64], access)?)
}

/// Binds a window on the queue pair where the peer's requests arrive.
fn bind<T: BindWindow>(pair: &mut Pair<T>, mw: &mut Mw<Type1>, window: Window<'_>) -> Result {
    let bound = pair.b.post(|request| request.bind_mw(mw, window))?;
    bound.is(WcOpcode::BIND_MW)
}

fn bytes(mr: &Mr<Vec<u8>>) -> Result<Vec<u8>> {
    let mut all = vec![0; mr.len()];
    mr.read_at(0, &mut all)?;
    Ok(all)
}

/// Catches a region that stays registered, with its memory and its PD, because it was dropped before a window
/// that is bound to it.
fn a_region_dropped_first_goes_with_its_window() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let context = pair.pd.context().clone();
    let before = context.mr_handles()?.len();
    for by_drop in [true, false] {
        let target = region(&pair)?;
        let mut mw = pair.pd.alloc_mw::<Type1>()?;
        let window = target.window(16..24, Access::REMOTE_WRITE)?;
        bind(&mut pair, &mut mw, window)?;
        drop(target);
        match by_drop {
            true => drop(mw),
            false => mw.dealloc()?,
        }
        same(context.mr_handles()?.len(), before, "regions")?;
        same(pair.pd.reclaim(), 0, "regions that wait")?;
    }
    Ok(())
}

/// Catches a window with the wrong place or length, and a region that was open all along.
fn type_1_opens_a_part() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = region(&pair)?;
    let mut mw = pair.pd.alloc_mw::<Type1>()?;
    let window = target.window(16..24, Access::REMOTE_WRITE)?;
    bind(&mut pair, &mut mw, window)?;
    let open = window.remote(mw.rkey());
    pair.a
        .post(|request| request.write(Inline(b"in here!"), open))?
        .is(WcOpcode::RDMA_WRITE)?;
    let mut expected = vec![0; 64];
    expected[16..24].copy_from_slice(b"in here!");
    same(bytes(&target)?, expected.clone(), "the target")?;
    let beyond = uverbs::RemoteSlice {
        address: target.iova() + 60,
        ..open
    };
    pair.a
        .post(|request| request.write(Inline(b"out here"), beyond))?
        .failed(WcStatus::REM_ACCESS_ERR)?;
    same(bytes(&target)?, expected, "the target afterwards")
}

/// Catches a kernel that keeps peers within the window: then this is to be asserted, and `Window` documented
/// so.
fn bounds_are_the_windows() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = region(&pair)?;
    let mut mw = pair.pd.alloc_mw::<Type1>()?;
    let window = target.window(16..24, Access::REMOTE_WRITE)?;
    bind(&mut pair, &mut mw, window)?;
    let open = window.remote(mw.rkey());
    let beyond = uverbs::RemoteSlice {
        address: open.address + 8,
        ..open
    };
    let wc = pair
        .a
        .post(|request| request.write(Inline(b"out here"), beyond))?;
    let reached = bytes(&target)?[24..32] == *b"out here";
    same(reached, wc.status == WcStatus::SUCCESS, "told as it was")?;
    if reached {
        return skip(
            "this kernel's rxe checks peers against the region under a window, not against the window",
        );
    }
    wc.failed(WcStatus::REM_ACCESS_ERR)
}

/// Catches a key that is not the next one, and one that still works after the window was bound elsewhere.
fn type_1_key_follows_the_last() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = region(&pair)?;
    let mut mw = pair.pd.alloc_mw::<Type1>()?;
    let mut keys = vec![mw.rkey()];
    // More often than there are tags, so that they wrap.
    for turn in 0..300u64 {
        let start = turn as usize % 56;
        let window = target.window(start..start + 8, Access::REMOTE_WRITE)?;
        bind(&mut pair, &mut mw, window)?;
        same(mw.rkey(), keys[keys.len() - 1].next(), "key")?;
        keys.push(mw.rkey());
        if turn % 100 == 99 {
            let word = turn.to_le_bytes();
            pair.a
                .post(|request| request.write(Inline(&word), window.remote(mw.rkey())))?
                .is(WcOpcode::RDMA_WRITE)?;
            same(&bytes(&target)?[start..start + 8], &word[..], "the word")?;
        }
    }
    let stale = target
        .window(..8, Access::REMOTE_WRITE)?
        .remote(keys[keys.len() - 2]);
    pair.a
        .post(|request| request.write(Inline(b"stale"), stale))?
        .failed(WcStatus::REM_ACCESS_ERR)
}

/// Catches an unbind that leaves the window open or the region held.
fn type_1_is_unbound() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = region(&pair)?;
    let mut mw = pair.pd.alloc_mw::<Type1>()?;
    let window = target.window(.., Access::REMOTE_WRITE)?;
    bind(&mut pair, &mut mw, window)?;
    pair.b
        .post(|request| request.unbind_mw(&mut mw))?
        .is(WcOpcode::BIND_MW)?;
    let closed = window.remote(mw.rkey());
    pair.a
        .post(|request| request.write(Inline(b"closed"), closed))?
        .failed(WcStatus::REM_ACCESS_ERR)?;
    same(target.deregister()?, vec![0; 64], "the memory")
}

/// Catches a bind that only the reliable transport takes.
fn type_1_on_uc() -> Result {
    let mut pair = Pair::<Uc>::new()?;
    let target = region(&pair)?;
    let mut mw = pair.pd.alloc_mw::<Type1>()?;
    let window = target.window(32.., Access::REMOTE_WRITE)?;
    bind(&mut pair, &mut mw, window)?;
    pair.a
        .post(|request| request.write(Inline(b"unreliable"), window.remote(mw.rkey())))?
        .is(WcOpcode::RDMA_WRITE)?;
    // An unreliable write completes when it has been sent: it arrives some time later.
    arrived(&target, 32, b"unreliable")
}

/// Catches a window of type 2 that opens the region on another queue pair than its own.
fn type_2_belongs_to_its_queue_pair() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = region(&pair)?;
    let mut mw = pair.pd.alloc_mw::<Type2>()?;
    let window = target.window(.., Access::REMOTE_WRITE)?;
    // Bound on the sender's queue pair, where the peer's requests do not arrive.
    pair.a
        .post(|request| request.bind_mw_as(&mut mw, 3, window))?
        .is(WcOpcode::BIND_MW)?;
    let open = window.remote(mw.rkey());
    pair.b
        .post(|request| request.write(Inline(b"to its own"), open))?
        .is(WcOpcode::RDMA_WRITE)?;
    same(&bytes(&target)?[..10], b"to its own", "the target")?;
    pair.a
        .post(|request| request.write(Inline(b"to another"), open))?
        .failed(WcStatus::REM_ACCESS_ERR)?;
    same(
        &bytes(&target)?[..10],
        b"to its own",
        "the target afterwards",
    )
}

/// Catches access that comes from the region and not from the window: the region is open for writing by its
/// own key.
fn access_is_the_windows() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let access = Access::LOCAL_WRITE | Access::MW_BIND | Access::REMOTE_WRITE;
    let target = pair.pd.register(vec![b'x'; 64], access)?;
    let mut mw = pair.pd.alloc_mw::<Type1>()?;
    let window = target.window(.., Access::REMOTE_READ)?;
    bind(&mut pair, &mut mw, window)?;
    pair.a
        .post(|request| request.write(Inline(b"by region"), target.remote()))?
        .is(WcOpcode::RDMA_WRITE)?;
    pair.a
        .post(|request| request.write(Inline(b"by window"), window.remote(mw.rkey())))?
        .failed(WcStatus::REM_ACCESS_ERR)?;
    same(&bytes(&target)?[..10], b"by regionx", "the target")
}

/// Catches memory that is freed while a window leads to it. Soft-RoCE keeps the region; an adapter lets it
/// go, and then looks through the window in vain.
fn a_region_under_a_window_stays_or_is_closed() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = region(&pair)?;
    let mut mw = pair.pd.alloc_mw::<Type1>()?;
    let window = target.window(.., Access::REMOTE_WRITE)?;
    bind(&mut pair, &mut mw, window)?;
    let open = window.remote(mw.rkey());
    let held = match (target.deregister(), device().is_rxe()) {
        (Err(held), true) => held,
        (Ok(_), true) => return fail("a region was deregistered under a bound window"),
        (Err(held), false) => return Err(held.error.into()),
        (Ok(memory), false) => {
            pair.a
                .post(|request| request.write(Inline(b"gone"), open))?
                .failed(WcStatus::REM_ACCESS_ERR)?;
            return same(&memory[..4], &[0; 4][..], "the memory afterwards");
        }
    };
    let said = held.error.to_string();
    if !said.contains("windows are") {
        return fail(format!("the error does not name the reason: {said}"));
    }
    let target = held.object;
    pair.a
        .post(|request| request.write(Inline(b"still there"), open))?
        .is(WcOpcode::RDMA_WRITE)?;
    same(&bytes(&target)?[..11], b"still there", "the target")?;
    mw.dealloc()?;
    same(&target.deregister()?[..11], b"still there", "the memory")
}

/// Catches binds that soft-RoCE answers by breaking the queue pair.
fn what_breaks_a_queue_pair_is_refused() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let other = pair.context.alloc_pd()?;
    let bindable = region(&pair)?;
    let closed = pair.pd.register(vec![0u8; 64], Access::LOCAL_WRITE)?;
    let read_only = pair.pd.register(vec![0u8; 64], Access::MW_BIND)?;
    let mut mw = pair.pd.alloc_mw::<Type1>()?;
    let mut foreign = other.alloc_mw::<Type1>()?;
    let read = Access::REMOTE_READ;
    let refused = [
        (
            bindable.window(.., read | Access::ZERO_BASED)?,
            "count from 0",
        ),
        (closed.window(.., read)?, "MW_BIND"),
        (read_only.window(.., Access::REMOTE_WRITE)?, "LOCAL_WRITE"),
        (bindable.window(.., Access::LOCAL_WRITE)?, "no others"),
        (bindable.window(3..3, read)?, "length is 0"),
    ];
    // Hardware has windows that count from 0.
    let refused = &refused[usize::from(device().is_mlx5())..];
    let before = mw.rkey();
    let mut batch = pair.a.qp.batch();
    for &(window, reason) in refused {
        match batch.unsignaled(0).bind_mw(&mut mw, window).map(drop) {
            Err(PostError::Window(why)) if why.contains(reason) => {}
            other => return fail(format!("{reason}: {other:?}")),
        }
    }
    let window = bindable.window(.., read)?;
    let refused = batch.unsignaled(0).bind_mw(&mut foreign, window).map(drop);
    same(refused, Err(PostError::ForeignPd), "a window of another PD")?;
    same(batch.ring()?, 0, "requests in the batch")?;
    same(mw.rkey(), before, "the key of a window that was not bound")?;
    same(pair.a.qp.query()?.state, QpState::RTS, "state")
}

/// Catches a window that its protection domain does not know of.
fn counts_on_its_pd() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let (one, two) = (pd.alloc_mw::<Type1>()?, pd.alloc_mw::<Type2>()?);
    let Err(held) = pd.dealloc() else {
        return fail("a PD was freed under its windows");
    };
    match held.error.cause() {
        Cause::Busy(by) if by.contains("2 MWs") => {}
        other => return fail(format!("{other:?}")),
    }
    one.dealloc()?;
    two.dealloc()?;
    held.object.dealloc()?;
    Ok(())
}

/// Catches a failed bind that is told as a success, and a key that cannot be set right afterwards.
fn bind_of_a_stale_window_fails() -> Result {
    fn failed<T>(pair: &mut Pair<T>, state: QpState) -> Result
    where
        T: StaticTransport + Connected + uverbs::transport::BindWindow,
    {
        let target = region(pair)?;
        let mut mw = pair.pd.alloc_mw::<Type1>()?;
        let before = mw.rkey();
        mw.set_tag(before.tag().wrapping_add(77));
        let window = target.window(.., Access::REMOTE_READ)?;
        let wc = pair.b.post(|request| request.bind_mw(&mut mw, window))?;
        // Since Linux 6.2 or so the failure sends the queue pair into the error state before it is told, and
        // the request comes back as flushed.
        if !matches!(wc.status, WcStatus::MW_BIND_ERR | WcStatus::WR_FLUSH_ERR) {
            return fail(format!("{wc:?}"));
        }
        mw.set_tag(before.tag());
        same(mw.rkey(), before, "the key set right")?;
        pair.b.await_state(state)
    }
    failed(&mut Pair::<Rc>::new()?, QpState::ERR)?;
    // By the specification an unreliable one still receives after an error of its own.
    let unreliable = match device().is_rxe() {
        true => QpState::ERR,
        false => QpState::SQE,
    };
    failed(&mut Pair::<Uc>::new()?, unreliable)
}

/// Catches a window of type 2 that is bound over another bind: it must be invalidated before.
fn type_2_is_bound_once() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = region(&pair)?;
    let mut mw = pair.pd.alloc_mw::<Type2>()?;
    let window = target.window(.., Access::REMOTE_WRITE)?;
    pair.b
        .post(|request| request.bind_mw_as(&mut mw, 1, window))?
        .is(WcOpcode::BIND_MW)?;
    let wc = pair
        .b
        .post(|request| request.bind_mw_as(&mut mw, 2, window))?;
    if wc.status == WcStatus::SUCCESS {
        return fail("bound twice");
    }
    pair.b.await_state(QpState::ERR)
}
