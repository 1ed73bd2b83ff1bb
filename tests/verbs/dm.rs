//! Device memory: what the processor copies there, what devices read and write there, each byte of it, and
//! how it ends. Soft-RoCE has none (`lacking::device_memory`).

use std::os::fd::AsFd;

use libtest_mimic::Trial;
use support::{
    ALL, Pair, Result, Setup, completion, device, fail, open, pattern, same, says, skip, test,
};
use uverbs::dm::{CopyError, Dm};
use uverbs::mr::DmMr;
use uverbs::uapi::handle::DmHandle;
use uverbs::{Access, Cause, Context, Error, Inline, Rc, WcOpcode, WcStatus, error::Errno};

/// A test, not yet held back from soft-RoCE.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 10] = [
        ("dm::copies", copies),
        ("dm::refused", refused),
        ("dm::refused_copies", refused_copies),
        ("dm::until_it_is_full", until_it_is_full),
        ("dm::every_byte", every_byte),
        ("dm::atomics", atomics),
        ("dm::beyond_the_region", beyond_the_region),
        ("dm::busy", busy),
        ("dm::stays_while_posted", stays_while_posted),
        ("dm::import", import),
    ];
    let on_the_adapter = |run: fn() -> Result| {
        move || match device().is_rxe() {
            true => skip("soft-RoCE has no device memory"),
            false => run(),
        }
    };
    let trial = |(name, run)| test(name, on_the_adapter(run));
    tests.into_iter().map(trial).collect()
}

/// Bytes of a piece: more than a page, and no whole number of the device's units.
const LENGTH: usize = 4500;
/// The part of it that is registered.
const REGION: std::ops::Range<usize> = 100..4300;

fn bytes(dm: &Dm) -> Result<Vec<u8>> {
    let mut bytes = vec![0; dm.length() as usize];
    dm.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Catches copies to another place than the one named, pieces that overlap, and an alignment that matters.
fn copies() -> Result {
    let context = open()?;
    let most = context.query_device()?.max_dm_size;
    if most == 0 {
        return skip("it has no device memory");
    }
    same(most >= 1 << 16, true, "that there is device memory")?;
    let shapes = [(4, 0), (64, 6), (68, 12), (4096, 12), (4500, 3), (128, 7)];
    let mut pieces = Vec::new();
    for (seed, (length, log_align)) in (0..).zip(shapes) {
        let dm = context.alloc_dm(length, log_align)?;
        same(dm.length(), length, "the length")?;
        let content = pattern(seed, length as usize);
        dm.write_at(0, &content)?;
        pieces.push((dm, content));
    }
    for (dm, content) in &mut pieces {
        same(bytes(dm)? == *content, true, "what was written to it")?;
        let middle = content.len() / 8 * 4;
        dm.write_at(middle as u64, &[7; 4])?;
        content[middle..middle + 4].fill(7);
    }
    for (dm, content) in &pieces {
        same(bytes(dm)? == *content, true, "what was changed in it")?;
    }
    for (dm, _) in pieces {
        dm.free()?;
    }
    Ok(())
}

/// Catches a length that Linux cuts to 32 bits and then grants, and a refusal that does not say what it is
/// about.
fn refused() -> Result {
    let context = open()?;
    let most = context.query_device()?.max_dm_size;
    for (length, log_align) in [
        (0, 0),
        (most + 1, 0),
        (64, 40),
        (1 << 32, 0),
        ((1 << 44) + 64, 0),
        (u64::MAX, 0),
    ] {
        let Err(error) = context.alloc_dm(length, log_align) else {
            return fail(format!("{length} bytes were allocated"));
        };
        println!("{error}");
        says(&error, &["alloc_dm", "DM"])?;
        let invalid = error.errno() == Some(Errno::INVAL);
        let known = invalid || matches!(error.cause(), Cause::Invalid(_));
        same(known, true, "that it is invalid")?;
    }
    same(context.dm_handles()?, vec![], "what is left of it")
}

/// Catches a copy beyond the memory, and one of bytes that the device cannot name.
fn refused_copies() -> Result {
    let context = open()?;
    let dm = context.alloc_dm(100, 0)?;
    dm.write_at(0, &[1; 100])?;
    for (offset, length) in [(100, 4), (96, 8), (0, 104), (u64::MAX - 3, 8), (1 << 40, 4)] {
        let written = dm.write_at(offset, &vec![9; length]);
        let read = dm.read_at(offset, &mut vec![0; length]);
        same(written, read, "the same refusal")?;
        let Err(CopyError::OutOfBounds(error)) = written else {
            return fail(format!("{length} bytes at {offset}: {written:?}"));
        };
        says(&error, &["100 bytes"])?;
    }
    for (offset, length) in [(0, 3), (2, 4), (97, 1), (98, 2)] {
        let written = dm.write_at(offset, &vec![9; length]);
        let read = dm.read_at(offset, &mut vec![0; length]);
        same(written, read, "the same refusal")?;
        let Err(error @ CopyError::Unaligned { word: 4, .. }) = written else {
            return fail(format!("{length} bytes at {offset}: {written:?}"));
        };
        says(&error, &["whole words of 4"])?;
    }
    same(bytes(&dm)?, vec![1; 100], "what stands there")
}

/// Catches memory that is not given back when it is freed, or when it is dropped.
fn until_it_is_full() -> Result {
    let context = open()?;
    let fill = || -> Result<Vec<Dm>> {
        let mut pieces = Vec::new();
        loop {
            match context.alloc_dm(1 << 15, 0) {
                Ok(dm) => pieces.push(dm),
                Err(error) if error.errno() == Some(Errno::NOMEM) => return Ok(pieces),
                Err(error) => return Err(error.into()),
            }
        }
    };
    let first = fill()?;
    same(first.len() >= 2, true, "that there are some pieces")?;
    let count = first.len();
    for dm in first {
        dm.free()?;
    }
    let second = fill()?;
    same(second.len(), count, "pieces the second time")?;
    drop(second);
    same(fill()?.len(), count, "pieces the third time")
}

/// A pair, and a region in device memory of its context whose bytes are `b'.'`.
fn pair() -> Result<(Pair<Rc>, Dm, DmMr)> {
    let pair = Pair::<Rc>::with(&Setup {
        length: LENGTH,
        ..Setup::default()
    })?;
    let dm = pair.context.alloc_dm(LENGTH as u64, 6)?;
    dm.write_at(0, &[b'.'; LENGTH])?;
    let range = REGION.start as u64..REGION.end as u64;
    let mr = pair.pd.register_dm(&dm, range, ALL | Access::LOCAL_WRITE)?;
    Ok((pair, dm, mr))
}

/// Fails unless the region has these bytes, and those around it are as they were.
fn has(dm: &Dm, expected: &[u8]) -> Result {
    let mut whole = vec![b'.'; LENGTH];
    whole[REGION].copy_from_slice(expected);
    same(bytes(dm)? == whole, true, "what the memory has")
}

/// Catches bytes beside the region, a region that is good for one direction only, and copies that do not see
/// what the device did, or are not seen by it.
fn every_byte() -> Result {
    let (mut pair, dm, mr) = pair()?;
    let remote = mr.remote();
    same((remote.address, remote.length), (0, 4200), "the region")?;
    let length = REGION.len();
    let first = pattern(1, length);
    pair.a.mr.write_at(0, &first)?;
    pair.a
        .post_own(|request, own| request.write(own.slice(..length)?, remote))?
        .is(WcOpcode::RDMA_WRITE)?;
    has(&dm, &first)?;
    pair.a.mr.write_at(0, &vec![0; length])?;
    pair.a
        .post_own(|request, own| request.read(own.slice(..length)?, remote))?
        .is(WcOpcode::RDMA_READ)?;
    same(pair.a.bytes(0, length)? == first, true, "what was read")?;
    // What a peer sends lands there.
    let second = pattern(2, length);
    pair.a.mr.write_at(0, &second)?;
    let mut batch = pair.b.qp.recv_batch();
    batch.post(1, mr.slice(..)?)?;
    batch.ring();
    pair.a
        .post_own(|request, own| request.send(own.slice(..length)?))?
        .is(WcOpcode::SEND)?;
    completion(&mut pair.b.cq)?.is(WcOpcode::RECV)?;
    has(&dm, &second)?;
    // What the processor writes is sent from there, at once.
    let third = pattern(3, length);
    dm.write_at(REGION.start as u64, &third)?;
    pair.a.post_recv(2, 0..length)?;
    let mut batch = pair.b.qp.batch();
    batch.signaled(3).send(mr.slice(..)?)?;
    batch.ring()?;
    completion(&mut pair.b.cq)?.is(WcOpcode::SEND)?;
    completion(&mut pair.a.cq)?.is(WcOpcode::RECV)?;
    same(pair.a.bytes(0, length)? == third, true, "what was sent")?;
    // And what is read, from a byte in a word on.
    let fourth = pattern(4, length);
    pair.a.mr.write_at(0, &fourth)?;
    let mut batch = pair.b.qp.batch();
    let from = pair.a.mr.remote().slice(3..length)?;
    batch.signaled(4).read(mr.slice(3..)?, from)?;
    batch.ring()?;
    completion(&mut pair.b.cq)?.is(WcOpcode::RDMA_READ)?;
    has(&dm, &[&third[..3], &fourth[3..]].concat())?;
    mr.deregister()?;
    Ok(dm.free()?)
}

/// Catches an atomic operation that does nothing there, or whose result does not come there.
fn atomics() -> Result {
    let (mut pair, dm, _) = pair()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let mr = pair.pd.register_dm(&dm, 64..128, access)?;
    let word = |offset: u64| -> Result<u64> {
        let mut bytes = [0; 8];
        dm.read_at(64 + offset, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    };
    dm.write_at(64, &u64::MAX.to_ne_bytes())?;
    let counter = mr.remote().slice(..8)?;
    for before in [u64::MAX, 4, 9] {
        let mut batch = pair.a.qp.batch();
        batch.signaled(1).fetch_add(mr.slice(16..24)?, counter, 5)?;
        batch.ring()?;
        completion(&mut pair.a.cq)?.is(WcOpcode::FETCH_ADD)?;
        let found = (word(0)?, word(16)?);
        same(found, (before.wrapping_add(5), before), "the counter")?;
    }
    let mut batch = pair.a.qp.batch();
    batch
        .signaled(2)
        .compare_swap(mr.slice(24..32)?, counter, 14, 77)?;
    batch
        .signaled(3)
        .compare_swap(mr.slice(32..40)?, counter, 14, 78)?;
    batch.ring()?;
    for _ in 0..2 {
        completion(&mut pair.a.cq)?.is(WcOpcode::COMP_SWAP)?;
    }
    same([word(0)?, word(24)?, word(32)?], [77, 14, 77], "swaps")
}

/// Catches a region that is longer than it was asked for, or has rights that it was not given.
fn beyond_the_region() -> Result {
    for (offset, what) in [(-8, "before"), (REGION.len() as i64 - 7, "behind")] {
        let (mut pair, dm, mr) = pair()?;
        let mut to = mr.remote().slice(..8)?;
        to.address = to.address.wrapping_add_signed(offset);
        let wc = pair
            .a
            .post(|request| request.write(Inline(b"too far!"), to))?;
        same(wc.status, WcStatus::REM_ACCESS_ERR, what)?;
        has(&dm, &[b'.'; REGION.end - REGION.start])?;
    }
    let (mut pair, dm, _) = pair()?;
    let mr = pair.pd.register_dm(&dm, 0..64, Access::REMOTE_READ)?;
    let to = mr.remote();
    let wc = pair.a.post(|request| request.write(Inline(&[1; 64]), to))?;
    same(wc.status, WcStatus::REM_ACCESS_ERR, "without the right")?;
    has(&dm, &[b'.'; REGION.end - REGION.start])?;
    let other = open()?.alloc_dm(64, 0)?;
    for (dm, range, words) in [
        (&dm, 0..LENGTH as u64 + 1, ["reg_dm_mr", "within the DM"]),
        (&dm, 8..8, ["reg_dm_mr", "no bytes"]),
        (&other, 0..64, ["reg_dm_mr", "the DM"]),
    ] {
        match pair.pd.register_dm(dm, range.clone(), Access::LOCAL_WRITE) {
            Ok(_) => return fail(format!("{range:?} was registered")),
            Err(error) => says(&error, &words)?,
        }
    }
    Ok(())
}

/// Catches memory that goes under a region, and one that is lost when it could not be freed.
fn busy() -> Result {
    let (mut pair, dm, mr) = pair()?;
    let Err(refused) = dm.free() else {
        return fail("memory was freed under a region");
    };
    is_busy(&refused.error, &["free_dm", "1 MR is"])?;
    let dm = refused.object;
    dm.write_at(0, &[b'x'; 4])?;
    let handle = dm.handle();
    // The region keeps it.
    drop(dm);
    same(pair.context.dm_handles()?, vec![handle], "what is there")?;
    let to = mr.remote().slice(..4)?;
    pair.a
        .post(|request| request.write(Inline(b"late"), to))?
        .is(WcOpcode::RDMA_WRITE)?;
    let from = mr.remote().slice(..4)?;
    pair.a
        .post_own(|request, own| request.read(own.slice(..4)?, from))?
        .is(WcOpcode::RDMA_READ)?;
    same(pair.a.bytes(0, 4)?, b"late".to_vec(), "what was read")?;
    mr.deregister()?;
    same(pair.context.dm_handles()?, vec![], "what is left")
}

#[track_caller]
fn is_busy(error: &Error, words: &[&str]) -> Result {
    println!("{error}");
    match error.cause() {
        Cause::Busy(_) => says(error, words),
        _ => fail(format!("another error: {error}")),
    }
}

/// Catches memory that goes while a request in flight names a region in it.
fn stays_while_posted() -> Result {
    let (mut pair, dm, mr) = pair()?;
    let mut batch = pair.b.qp.recv_batch();
    batch.post(1, mr.slice(..100)?)?;
    batch.ring();
    let Err(refused) = mr.deregister() else {
        return fail("a region was deregistered under a receive");
    };
    is_busy(&refused.error, &["dereg_mr", "in flight"])?;
    drop(refused.object);
    same(pair.pd.reclaim(), 1, "regions that wait")?;
    let Err(refused) = dm.free() else {
        return fail("memory was freed under a region that waits");
    };
    is_busy(&refused.error, &["1 MR is"])?;
    pair.a
        .post(|request| request.send(Inline(&[5; 100])))?
        .is(WcOpcode::SEND)?;
    completion(&mut pair.b.cq)?.is(WcOpcode::RECV)?;
    let dm = refused.object;
    let mut expected = vec![b'.'; REGION.len()];
    expected[..100].fill(5);
    has(&dm, &expected)?;
    // The region that was dropped has nothing left to wait for.
    dm.free()?;
    same(pair.pd.reclaim(), 0, "regions that wait")
}

/// Catches an import of other memory, one that frees what it was lent, and handles of something else.
fn import() -> Result {
    let (mut pair, dm, mr) = pair()?;
    let other = Context::import(pair.context.as_fd().try_clone_to_owned()?)?;
    same(other.dm_handles()?, vec![dm.handle()], "what is there")?;
    let imported = other.import_dm(dm.handle())?;
    same(imported.length(), LENGTH as u64, "the length")?;
    same(bytes(&imported)?, bytes(&dm)?, "what it has")?;
    imported.write_at(0, b"from one")?;
    dm.write_at(8, b"the other")
        .expect_err("nine bytes are no words");
    dm.write_at(8, b"from two")?;
    let mut start = [0; 16];
    imported.read_at(0, &mut start)?;
    same(&start, b"from onefrom two", "what both have written")?;
    // A region in what was imported, beside that of its owner.
    let pd = other.import_pd(pair.pd.handle())?;
    let beside = pd.register_dm(&imported, 0..16, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let to = beside.remote();
    pair.a
        .post(|request| request.write(Inline(b"from a peer here"), to))?
        .is(WcOpcode::RDMA_WRITE)?;
    dm.read_at(0, &mut start)?;
    same(&start, b"from a peer here", "what came by it")?;
    drop(beside);
    imported.unimport();
    let to = mr.remote().slice(..4)?;
    pair.a
        .post(|request| request.write(Inline(b"here"), to))?
        .is(WcOpcode::RDMA_WRITE)?;
    for (handle, words) in [
        (DmHandle(pair.pd.handle().0), "a PD"),
        (DmHandle(u32::MAX), "no object with this handle"),
    ] {
        let Err(error) = other.import_dm(handle) else {
            return fail(format!("{handle:?} was imported"));
        };
        says(&error, &[words])?;
    }
    // Freed by others: its former owner hears of it, and his mapping is still good.
    let lent = dm.disown();
    let Err(refused) = lent else {
        return fail("it was disowned with a region of its own in it");
    };
    mr.deregister()?;
    let lent = refused.object.disown()?;
    let handle = lent.handle();
    other.import_dm(handle)?.free_for_everyone()?;
    same(bytes(&lent)?.len(), LENGTH, "what can be read of it")?;
    let Err(refused) = lent.free_for_everyone() else {
        return fail("it was freed twice");
    };
    same(refused.error.errno(), Some(Errno::NOENT), "that it is gone")
}
