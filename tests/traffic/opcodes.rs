//! The send requests beyond the classic ones, with payloads and keys checked.

use libtest_mimic::Trial;
use support::{ALL, Pair, Result, Setup, completion, device, fail, has, open, same, skip, test};
use uverbs::{
    Access, Inline, Mr, PostError, QpState, Rc, Uc, WcOpcode, WcStatus,
    mr::RemoteKey,
    mw::Type2,
    qp::{Placement, QpType},
    query::DeviceCapFlags,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "opcodes::send_inv_takes_the_peers_key",
            send_inv_takes_the_peers_key,
        ),
        test(
            "opcodes::local_inv_takes_the_own_key",
            local_inv_takes_the_own_key,
        ),
        test(
            "opcodes::local_inv_of_nothing_fails",
            local_inv_of_nothing_fails,
        ),
        test(
            "opcodes::local_inv_is_refused_on_uc",
            local_inv_is_refused_on_uc,
        ),
        test("opcodes::atomic_write", atomic_write),
        test("opcodes::flush_global", flush_global),
        test("opcodes::flush_needs_the_access", flush_needs_the_access),
        test("opcodes::flush_persistent", flush_persistent),
        test(
            "opcodes::missing_is_refused_before_posting",
            missing_is_refused_before_posting,
        ),
        test("opcodes::each_has_its_transports", each_has_its_transports),
    ]
}

/// Why a test of these is ignored.
const LACKS_ATOMIC_WRITE: &str = "the device has no ATOMIC WRITE (rxe: since Linux 6.2)";
const LACKS_FLUSH: &str = "the device has no FLUSH (rxe: since Linux 6.2)";

/// A region of 64 bytes that windows can be bound to, filled with `fill`.
fn region(pair: &Pair<Rc>, fill: u8) -> Result<Mr<Vec<u8>>> {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    Ok(pair.pd.register(vec![fill; 64], access)?)
}

/// Catches a key that travels in the wrong byte order, a completion that does not tell the key, and a window
/// that stays open after its invalidation.
fn send_inv_takes_the_peers_key() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = region(&pair, 0)?;
    let inbox = pair.pd.register(vec![0u8; 64], Access::LOCAL_WRITE)?;
    let mut mw = pair.pd.alloc_mw::<Type2>()?;
    let window = target.window(8..40, Access::REMOTE_WRITE)?;
    pair.b
        .post(|request| request.bind_mw_as(&mut mw, 0x5a, window))?
        .is(WcOpcode::BIND_MW)?;
    same(mw.rkey().tag(), 0x5a, "the tag that was asked for")?;
    let open = window.remote(mw.rkey());
    pair.a
        .post(|request| request.write(Inline(b"through"), open.slice(..7).map_err(none)?))?
        .is(WcOpcode::RDMA_WRITE)?;

    let mut recv = pair.b.qp.recv_batch();
    recv.post(1, inbox.slice(..)?)?;
    recv.ring();
    pair.a
        .post(|request| request.send_inv(Inline(b"take it back"), mw.rkey()))?
        .is(WcOpcode::SEND)?;
    let received = completion(&mut pair.b.cq)?;
    received.is(WcOpcode::RECV)?;
    same(
        received.invalidated,
        Some(mw.rkey()),
        "the key in the completion",
    )?;
    same(received.byte_len, 12, "bytes received")?;
    let mut text = [0; 12];
    inbox.read_at(0, &mut text)?;
    same(&text, b"take it back", "the message")?;

    pair.a
        .post(|request| request.write(Inline(b"too late"), open.slice(..8).map_err(none)?))?
        .failed(WcStatus::REM_ACCESS_ERR)?;
    let mut bytes = [0; 16];
    target.read_at(8, &mut bytes)?;
    same(&bytes, b"through\0\0\0\0\0\0\0\0\0", "the target")
}

/// Slices within a window always exist here.
fn none(_: uverbs::mr::OutOfBounds) -> PostError {
    PostError::Destination
}

/// Catches an invalidation of the wrong key, and a window that cannot be bound again afterwards.
fn local_inv_takes_the_own_key() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = region(&pair, b'.')?;
    let source = pair.pd.register(vec![0u8; 64], Access::LOCAL_WRITE)?;
    let mut mw = pair.pd.alloc_mw::<Type2>()?;
    let window = target.window(.., Access::REMOTE_READ)?;
    for tag in [1, 200] {
        pair.b
            .post(|request| request.bind_mw_as(&mut mw, tag, window))?
            .is(WcOpcode::BIND_MW)?;
        let open = window.remote(mw.rkey());
        let into = source.slice(..)?;
        pair.a
            .post(|request| request.read(into, open))?
            .is(WcOpcode::RDMA_READ)?;
        let mut bytes = [0; 64];
        source.read_at(0, &mut bytes)?;
        same(bytes, [b'.'; 64], "what was read through the window")?;
        pair.b
            .post(|request| request.local_inv(mw.rkey()))?
            .is(WcOpcode::LOCAL_INV)?;
    }
    let closed = window.remote(mw.rkey());
    let into = source.slice(..)?;
    pair.a
        .post(|request| request.read(into, closed))?
        .failed(WcStatus::REM_ACCESS_ERR)
}

/// Catches an error that is reported as a success.
fn local_inv_of_nothing_fails() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let wc = pair
        .a
        .post(|request| request.local_inv(RemoteKey(0xffff_ff01)))?;
    if wc.status == WcStatus::SUCCESS {
        return fail("a key that does not exist was invalidated");
    }
    pair.a.await_state(QpState::ERR)
}

/// Catches a request that would break the queue pair on soft-RoCE.
fn local_inv_is_refused_on_uc() -> Result {
    let mut pair = Pair::<Uc>::new()?;
    if device().is_mlx5() {
        return local_inv_on_uc(&mut pair);
    }
    let refused = pair.a.qp.one(1).local_inv(RemoteKey(1));
    let transport = pair.a.qp.transport();
    same(
        refused,
        Err(PostError::NotInTransport { transport }),
        "local_inv",
    )?;
    same(pair.a.qp.query()?.state, QpState::RTS, "state")
}

/// Adapters have it on both: a window of a UC queue pair is bound, used and taken back.
fn local_inv_on_uc(pair: &mut Pair<Uc>) -> Result {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let target = pair.pd.register(vec![0u8; 64], access)?;
    let mut mw = pair.pd.alloc_mw::<Type2>()?;
    let window = target.window(.., Access::REMOTE_WRITE)?;
    for tag in [1, 200] {
        pair.b
            .post(|request| request.bind_mw_as(&mut mw, tag, window))?
            .is(WcOpcode::BIND_MW)?;
        pair.b
            .post(|request| request.local_inv(mw.rkey()))?
            .is(WcOpcode::LOCAL_INV)?;
    }
    same(pair.b.qp.query()?.state, QpState::RTS, "state")
}

/// Catches a word that lands in the wrong place, torn or swapped, and rules that the library lets through.
fn atomic_write() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    if !has(&pair.context, DeviceCapFlags::ATOMIC_WRITE)? {
        return skip(LACKS_ATOMIC_WRITE);
    }
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let target = pair.pd.register(vec![0u64; 8], access)?;
    let at = target.remote().slice(16..)?;
    let word = *b"\x01234567\xff";
    pair.a
        .post(|request| request.atomic_write(word, at))?
        .is(WcOpcode::ATOMIC_WRITE)?;
    let mut all = [0; 64];
    target.read_at(0, &mut all)?;
    let mut expected = [0; 64];
    expected[16..24].copy_from_slice(&word);
    same(all, expected, "the target")?;

    let mut batch = pair.a.qp.batch();
    let askew = target.remote().slice(4..)?;
    let refused = batch.unsignaled(0).atomic_write(word, askew).map(drop);
    let (address, length) = (askew.address, 8);
    same(
        refused,
        Err(PostError::NotAtomic { address, length }),
        "an address between",
    )?;
    let short = target.remote().slice(56..60)?;
    let refused = batch.unsignaled(0).atomic_write(word, short).map(drop);
    let (local, remote) = (8, 4);
    same(
        refused,
        Err(PostError::BeyondRemote { local, remote }),
        "4 bytes",
    )
}

/// Catches a flush of a range or of a region that is encoded wrongly: the device then refuses it or breaks.
fn flush_global() -> Result {
    if !has(&open()?, DeviceCapFlags::FLUSH_GLOBAL)? {
        return skip(LACKS_FLUSH);
    }
    let mut pair = Pair::<Rc>::with(&Setup::with_access(ALL | Access::FLUSH_GLOBAL))?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::FLUSH_GLOBAL;
    let target = pair.pd.register(vec![0u8; 16384], access)?;
    let all = target.remote();
    let piece = all.slice(5000..5007)?;
    pair.a.qp.post(|batch| {
        batch.unsignaled(6).write(Inline(b"flushed"), piece)?;
        batch.signaled(7).flush(all, Placement::Global)
    })?;
    completion(&mut pair.a.cq)?.is(WcOpcode::FLUSH)?;
    let mut text = [0; 7];
    target.read_at(5000, &mut text)?;
    same(&text, b"flushed", "what was written before the flush")?;
    pair.a
        .post(|request| request.flush_region(target.rkey(), Placement::Global))?
        .is(WcOpcode::FLUSH)?;
    // One byte more than the region has.
    let beyond = uverbs::RemoteSlice {
        length: all.length + 1,
        ..all
    };
    pair.a
        .post(|request| request.flush(beyond, Placement::Global))?
        .failed(WcStatus::REM_ACCESS_ERR)
}

/// Catches a placement that does not reach the wire: the region gives none.
fn flush_needs_the_access() -> Result {
    if !has(&open()?, DeviceCapFlags::FLUSH_GLOBAL)? {
        return skip(LACKS_FLUSH);
    }
    let mut pair = Pair::<Rc>::with(&Setup::with_access(ALL | Access::FLUSH_GLOBAL))?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let target = pair.pd.register(vec![0u8; 64], access)?;
    pair.a
        .post(|request| request.flush(target.remote(), Placement::Global))?
        .failed(WcStatus::REM_ACCESS_ERR)
}

/// Catches an access flag that is dropped on its way: ordinary memory is not persistent, which the kernel
/// notices.
fn flush_persistent() -> Result {
    let context = open()?;
    if !has(&context, DeviceCapFlags::FLUSH_PERSISTENT)? {
        return skip(LACKS_FLUSH);
    }
    let pd = context.alloc_pd()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::FLUSH_PERSISTENT;
    match pd.register(vec![0u8; 4096], access) {
        Ok(_) => fail("ordinary memory was registered as persistent"),
        Err(refused) => {
            same(
                refused.error.errno(),
                Some(uverbs::error::Errno::INVAL),
                "errno",
            )?;
            same(refused.memory.len(), 4096, "the memory that came back")
        }
    }
}

/// Catches a request that reaches a device that does not have it: on Linux 6.1 it breaks the queue pair.
fn missing_is_refused_before_posting() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let all = DeviceCapFlags::ATOMIC_WRITE | DeviceCapFlags::FLUSH_GLOBAL;
    if has(&pair.context, all)? {
        return skip("the device has FLUSH and ATOMIC WRITE");
    }
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let target = pair.pd.register(vec![0u64; 8], access)?;
    let lacks = |capability| Err(PostError::MissingCapability { capability });
    let mut batch = pair.a.qp.batch();
    let refused = batch
        .unsignaled(0)
        .atomic_write([1; 8], target.remote())
        .map(drop);
    same(refused, lacks(DeviceCapFlags::ATOMIC_WRITE), "atomic_write")?;
    let refused = batch
        .unsignaled(0)
        .flush(target.remote(), Placement::Global)
        .map(drop);
    same(refused, lacks(DeviceCapFlags::FLUSH_GLOBAL), "flush")?;
    same(batch.ring()?, 0, "requests in the batch")?;
    match pair
        .pd
        .register(vec![0u8; 64], access | Access::FLUSH_GLOBAL)
    {
        Ok(_) => return fail("a region was registered for FLUSH"),
        Err(refused) => same(refused.error.is_unsupported(), true, "the access")?,
    }
    pair.a
        .post(|request| request.write(Inline(b"alive"), target.remote()))?
        .is(WcOpcode::RDMA_WRITE)
}

/// Catches a request that a transport lacks and that is let through because the transport is chosen at run
/// time.
fn each_has_its_transports() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(8)?;
    let target = pd.register(vec![0u64; 8], Access::LOCAL_WRITE | Access::MW_BIND)?;
    let at = target.remote();
    for transport in [QpType::UC, QpType::UD] {
        let mut qp = pd.qp(&cq).create_any(transport)?;
        if transport == QpType::UC {
            let own = qp.endpoint()?;
            qp.connect(&own)?;
        }
        let mut mw = pd.alloc_mw::<Type2>()?;
        let mut batch = qp.batch();
        // A datagram's queue pair misses the destination before anything else.
        let lacks = match transport {
            QpType::UD => PostError::Destination,
            transport => PostError::NotInTransport { transport },
        };
        let sent = batch.unsignaled(0).send_inv(Inline(b"x"), RemoteKey(1));
        same(sent, Err(lacks), "send_inv")?;
        if has(
            &context,
            DeviceCapFlags::ATOMIC_WRITE | DeviceCapFlags::FLUSH_GLOBAL,
        )? {
            let written = batch.unsignaled(0).atomic_write([0; 8], at);
            same(written, Err(lacks), "atomic_write")?;
            let flushed = batch.unsignaled(0).flush(at, Placement::Global);
            same(flushed, Err(lacks), "flush")?;
        }
        let window = target.window(.., Access::REMOTE_READ)?;
        let key = mw.rkey();
        let bound = batch.unsignaled(0).bind_mw_as(&mut mw, 1, window);
        let binds = transport == QpType::UC;
        same(bound.is_ok(), binds, "bind_mw_as")?;
        let expected = if binds { key.with_tag(1) } else { key };
        same(mw.rkey(), expected, "the window's key")?;
    }
    Ok(())
}
