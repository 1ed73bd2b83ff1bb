//! Keys that cover parts of several regions.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use libtest_mimic::Trial;
use serde_json::json;
use support::{
    Control, Pair, Result, Setup, completion, fail, open, pattern, same, says, test_on_adapter,
};
use uverbs::direct::mlx5::layout::{Input, Mkc, QueryMkeyIn, QueryMkeyOut, Structure};
use uverbs::direct::mlx5::{Direct, GatherError, GatheredKey};
use uverbs::mr::RemoteSlice;
use uverbs::{Access, Caps, Mr, Pd, PostError, Rc, WcOpcode, WcStatus};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 10] = [
        ("gathered::peers_write_and_read", peers_write_and_read),
        (
            "gathered::what_a_key_does_not_give",
            what_a_key_does_not_give,
        ),
        ("gathered::regions_stay", regions_stay),
        ("gathered::what_is_refused", what_is_refused),
        ("gathered::by_requests", by_requests),
        ("gathered::rows", rows),
        (
            "gathered::a_key_waits_for_requests",
            a_key_waits_for_requests,
        ),
        ("gathered::requests_refused", requests_refused),
        ("gathered::raw", raw),
        ("gathered::data_read_ahead", data_read_ahead),
    ];
    tests
        .map(|(name, run)| test_on_adapter(name, move |_| run()))
        .into()
}

/// Bytes of a region.
const REGION: usize = 8192;

type Region = Arc<Mr<Vec<u8>>>;

fn region(pd: &Pd, access: Access) -> Result<Region> {
    Ok(Arc::new(pd.register(vec![0; REGION], access)?))
}

/// Three parts, none of which begins or ends at a page: bytes 100 to 5100 of one region, 7 to 8 of another,
/// and 1000 to 2000 of the first again.
fn parts(direct: &Direct, pd: &Pd, access: Access) -> Result<([Region; 2], GatheredKey)> {
    let own = Access::LOCAL_WRITE;
    let regions = [region(pd, own)?, region(pd, own)?];
    let key = direct
        .gather(pd, access)
        .part(&regions[0], 100..5100)?
        .part(&regions[1], 7..8)?
        .part(&regions[0], 6000..7000)?
        .create()?;
    same(key.len(), 6001, "the bytes of all parts")?;
    Ok((regions, key))
}

fn bytes(region: &Region, range: std::ops::Range<usize>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; range.len()];
    region.read_at(range.start, &mut bytes)?;
    Ok(bytes)
}

/// The status of a READ or WRITE of the pair's first queue pair to a place of the key's.
fn status(pair: &mut Pair<Rc>, remote: RemoteSlice, writes: bool) -> Result<WcStatus> {
    let length = remote.length as usize;
    let slice = pair.a.mr.slice(..length)?;
    let request = pair.a.qp.one(5);
    match writes {
        true => request.write(slice, remote)?,
        false => request.read(slice, remote)?,
    }
    Ok(completion(&mut pair.a.cq)?.status)
}

/// Catches parts in another order, at other places, and of another length.
fn peers_write_and_read() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let direct = Direct::of(pair.pd.context())?;
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let (regions, key) = parts(&direct, &pair.pd, access)?;
    let all = pattern(1, 6001);
    pair.a.mr.write_at(0, &all)?;
    same(
        status(&mut pair, key.remote(), true)?,
        WcStatus::SUCCESS,
        "a WRITE of all",
    )?;
    same(
        bytes(&regions[0], 100..5100)?,
        all[..5000].to_vec(),
        "the first part",
    )?;
    same(
        bytes(&regions[1], 7..8)?,
        all[5000..5001].to_vec(),
        "the second part",
    )?;
    same(
        bytes(&regions[0], 6000..7000)?,
        all[5001..].to_vec(),
        "the third part",
    )?;
    same(
        bytes(&regions[0], 0..100)?,
        vec![0; 100],
        "before the first part",
    )?;
    same(
        bytes(&regions[0], 5100..6000)?,
        vec![0; 900],
        "between the parts",
    )?;
    same(
        bytes(&regions[1], 8..REGION)?,
        vec![0; REGION - 8],
        "behind the second",
    )?;

    // From the middle of the first part to the middle of the third.
    let middle = key.remote().slice(4000..5500)?;
    pair.a.mr.write_at(0, &[0; 1500])?;
    same(
        status(&mut pair, middle, false)?,
        WcStatus::SUCCESS,
        "a READ",
    )?;
    let mut read = vec![0; 1500];
    pair.a.mr.read_at(0, &mut read)?;
    same(read, all[4000..5500].to_vec(), "what was read")?;

    // The device has the parts' length and rights in the key's context.
    let mut query = QueryMkeyIn::new();
    query.set(QueryMkeyIn::MKEY_INDEX, u64::from(key.rkey().0 >> 8));
    let told = key.object().query_by(&query)?;
    let context = told.inner(QueryMkeyOut::MEMORY_KEY_MKEY_ENTRY);
    same(context.get(Mkc::LEN), 6001, "the length")?;
    same(
        (context.get(Mkc::RW), context.get(Mkc::A)),
        (1, 0),
        "the rights",
    )?;
    Ok(key.destroy()?)
}

/// Catches rights that nobody gave, and bytes behind the last part.
fn what_a_key_does_not_give() -> Result {
    for (writes, behind) in [(true, false), (false, true)] {
        let mut pair = Pair::<Rc>::new()?;
        let direct = Direct::of(pair.pd.context())?;
        let (regions, key) = parts(&direct, &pair.pd, Access::REMOTE_READ)?;
        let remote = RemoteSlice {
            address: if behind { 6000 } else { 0 },
            length: 2,
            ..key.remote()
        };
        let told = status(&mut pair, remote, writes)?;
        same(told, WcStatus::REM_ACCESS_ERR, "the status")?;
        same(bytes(&regions[0], 100..102)?, vec![0; 2], "the memory")?;
    }
    Ok(())
}

/// Catches a region that goes before the key that names it.
fn regions_stay() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let direct = Direct::of(pair.pd.context())?;
    let (regions, key) = parts(&direct, &pair.pd, Access::REMOTE_READ)?;
    let [first, second] = regions;
    first_is_kept(&first)?;
    drop((first, second));
    let place = key.remote().slice(0..100)?;
    same(
        status(&mut pair, place, false)?,
        WcStatus::SUCCESS,
        "a READ",
    )?;
    // A key that is gone is no key.
    drop(key);
    same(
        status(&mut pair, place, false)?,
        WcStatus::REM_ACCESS_ERR,
        "without the key",
    )
}

fn first_is_kept(region: &Region) -> Result {
    // This test's, and two parts'.
    same(Arc::strong_count(region), 3, "who keeps the region")
}

/// Catches keys that give more than their regions do.
fn what_is_refused() -> Result {
    let context = open()?;
    let direct = Direct::of(&context)?;
    let (pd, other) = (context.alloc_pd()?, context.alloc_pd()?);
    let read_only = region(&pd, Access::empty())?;
    let foreign = region(&other, Access::LOCAL_WRITE)?;
    let gather = |access| direct.gather(&pd, access);
    let refused =
        |result: std::result::Result<GatheredKey, GatherError>, words: &[&str]| match result {
            Err(error) => says(&error, words),
            Ok(key) => fail(format!("{key:?}")),
        };
    let writes = gather(Access::REMOTE_WRITE).part(&read_only, 0..1)?;
    refused(writes.create(), &["LOCAL_WRITE"])?;
    let atomics = gather(Access::REMOTE_ATOMIC).part(&read_only, 0..8)?;
    refused(atomics.create(), &["LOCAL_WRITE"])?;
    gather(Access::REMOTE_READ)
        .part(&read_only, 0..1)?
        .create()?;
    for flag in [Access::RELAXED_ORDERING, Access::MW_BIND, Access::ON_DEMAND] {
        let parts = gather(Access::REMOTE_READ | flag).part(&read_only, 0..1)?;
        refused(parts.create(), &["cannot have", &format!("{flag:?}")])?;
    }
    let of_other = gather(Access::REMOTE_READ).part(&foreign, 0..1)?;
    refused(of_other.create(), &["another protection domain"])?;
    refused(gather(Access::REMOTE_READ).create(), &["1 to 4076 parts"])?;
    for (range, words) in [(0..0, "no bytes"), (0..REGION + 1, "do not lie within")] {
        match gather(Access::REMOTE_READ).part(&read_only, range) {
            Err(error) => says(&error, &[words])?,
            Ok(parts) => return fail(format!("{parts:?}")),
        }
    }
    Ok(())
}

/// A pair whose requests have room for eight parts.
fn roomy() -> Result<Pair<Rc>> {
    Pair::with(&Setup::with_caps(Caps {
        max_send_wr: 8,
        max_inline_data: 240,
        ..Caps::default()
    }))
}

/// Two regions with patterns in them, and a key with room for parts of them.
fn allocated(pd: &Pd, parts: u16) -> Result<([Region; 2], GatheredKey)> {
    let filled = |seed| pd.register(pattern(seed, REGION), Access::LOCAL_WRITE);
    let regions = [Arc::new(filled(0)?), Arc::new(filled(1)?)];
    let key = Direct::of(pd.context())?.alloc_key(pd, parts)?;
    same((key.len(), key.is_empty()), (0, true), "a new key")?;
    Ok((regions, key))
}

/// How often the regions are kept, apart from by the test.
fn kept(regions: &[Region; 2]) -> usize {
    regions.iter().map(|it| Arc::strong_count(it) - 1).sum()
}

/// Catches parts that come late, in another order or not at all; requests behind the change that do not wait
/// for it; and former regions that go too early, or stay.
fn by_requests() -> Result {
    let mut pair = roomy()?;
    let (pd, direct) = (&pair.pd, Direct::of(pair.pd.context())?);
    let (regions, mut key) = allocated(pd, 5)?;
    let texts = [pattern(0, REGION), pattern(1, REGION)];
    let mut before = 0;
    // More often than the ring has places for the largest request.
    for turn in 0..40 {
        let mut parts = direct.gather(pd, Access::LOCAL_WRITE | Access::REMOTE_READ);
        let count = 1 + turn % 5;
        let mut expected = Vec::new();
        for at in 0..count {
            let range = 1000 * at + turn..1000 * at + turn + 90 + at;
            parts = parts.part(&regions[at % 2], range.clone())?;
            expected.extend_from_slice(&texts[at % 2][range]);
        }
        let mut batch = pair.a.qp.batch();
        batch.signaled(1).gather(&key, parts)?;
        same(key.len() as usize, expected.len(), "the bytes of all parts")?;
        same(kept(&regions), before + count, "who keeps the regions")?;
        batch
            .signaled(2)
            .write(key.slice(..)?, pair.b.mr.remote())?;
        batch.ring()?;
        completion(&mut pair.a.cq)?.is(WcOpcode::DRIVER1)?;
        completion(&mut pair.a.cq)?.is(WcOpcode::RDMA_WRITE)?;
        same(
            pair.b.bytes(0, expected.len())?,
            expected,
            "what the peer has",
        )?;
        // SAFETY: the change and all that names the key have completed.
        unsafe { key.forget_former() };
        same(kept(&regions), count, "who keeps the regions then")?;
        before = count;
    }
    // A READ of this side into the parts, and one of the peer from them.
    let text = pattern(99, 200);
    pair.b.mr.write_at(0, &text)?;
    let from = pair.b.mr.remote().slice(..200)?;
    pair.a.qp.one(3).read(key.slice(30..230)?, from)?;
    completion(&mut pair.a.cq)?.is(WcOpcode::RDMA_READ)?;
    let of_key = key.remote().slice(30..230)?;
    pair.b
        .qp
        .one(4)
        .read(pair.b.mr.slice(1000..1200)?, of_key)?;
    completion(&mut pair.b.cq)?.is(WcOpcode::RDMA_READ)?;
    same(pair.b.bytes(1000, 200)?, text, "what went there and back")?;
    key.destroy()?;
    same(kept(&regions), 0, "who keeps the regions at the end")
}

/// Catches requests that nothing holds back behind the change of a key, or behind a READ where that is asked
/// for, on a device that reads the data of the next request ahead as the seed decides.
fn data_read_ahead() -> Result {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let seed = u64::from(now.subsec_nanos());
    let mut control = Control::open()?;
    control.ask("read_ahead", json!({"function": 0, "seed": seed}))?;
    let outcome = by_requests().and_then(|()| fenced());
    control.ask("read_ahead", json!({"function": 0, "seed": null}))?;
    outcome.map_err(|error| format!("with the seed {seed}: {error}").into())
}

/// What a READ brings goes back by a WRITE that waits for it.
fn fenced() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    for turn in 0..40 {
        let text = pattern(turn, 64);
        pair.b.mr.write_at(0, &text)?;
        let (there, back) = (
            pair.b.mr.remote().slice(..64)?,
            pair.b.mr.remote().slice(100..164)?,
        );
        let mut batch = pair.a.qp.batch();
        batch.unsignaled(1).read(pair.a.mr.slice(..64)?, there)?;
        batch
            .signaled(2)
            .fence()
            .write(pair.a.mr.slice(..64)?, back)?;
        batch.ring()?;
        completion(&mut pair.a.cq)?.is(WcOpcode::RDMA_WRITE)?;
        same(pair.b.bytes(100, 64)?, text, "what came back")?;
    }
    Ok(())
}

/// Catches columns of a table that are taken for others: 3 bytes of each row of 16 bytes, 2 from the eighth
/// on, and one that is the same in each row.
fn rows() -> Result {
    let mut pair = roomy()?;
    let (pd, direct) = (&pair.pd, Direct::of(pair.pd.context())?);
    let (_, key) = allocated(pd, 4)?;
    let filled = |bytes| pd.register(bytes, Access::LOCAL_WRITE).map(Arc::new);
    let (table, other) = (filled((b'A'..b'A' + 64).collect())?, filled(vec![b'-'])?);
    let columns = direct
        .gather(pd, Access::LOCAL_WRITE | Access::REMOTE_READ)
        .rows(4)
        .strided(&table, 0..3, 16)?
        .strided(&table, 7..9, 16)?
        .part(&other, 0..1)?;
    pair.a.qp.one(1).gather(&key, columns)?;
    completion(&mut pair.a.cq)?.is(WcOpcode::DRIVER1)?;
    same(key.len(), 24, "the bytes of all rows")?;
    pair.a.qp.one(2).write(key.slice(..)?, pair.b.mr.remote())?;
    completion(&mut pair.a.cq)?.ok()?;
    let all = b"ABCHI-QRSXY-abchi-qrsxy-".to_vec();
    same(pair.b.bytes(0, 24)?, all.clone(), "the columns")?;
    pair.b
        .qp
        .one(3)
        .read(pair.b.mr.slice(100..109)?, key.remote().slice(4..13)?)?;
    completion(&mut pair.b.cq)?.ok()?;
    same(
        pair.b.bytes(100, 9)?,
        all[4..13].to_vec(),
        "from row to row",
    )
}

/// Catches a key, and with it regions, that go under requests in flight: that give it parts, or that name it.
fn a_key_waits_for_requests() -> Result {
    let mut control = Control::open()?;
    let mut pair = roomy()?;
    let direct = Direct::of(pair.pd.context())?;
    let mut stall = |on: bool| control.ask("stall", json!({"function": 0, "on": on}));
    for names in [false, true] {
        let (regions, key) = allocated(&pair.pd, 4)?;
        let describe = || {
            let parts = direct.gather(&pair.pd, Access::LOCAL_WRITE);
            parts.part(&regions[0], 0..64)?.part(&regions[1], 0..64)
        };
        pair.a.mr.write_at(0, &[7; 128])?;
        if names {
            pair.a.qp.one(1).gather(&key, describe()?)?;
            completion(&mut pair.a.cq)?.is(WcOpcode::DRIVER1)?;
        }
        stall(true)?;
        match names {
            true => {
                let from = pair.a.mr.remote().slice(..128)?;
                pair.a.qp.one(2).read(key.slice(..)?, from)?;
            }
            false => pair.a.qp.one(2).gather(&key, describe()?)?,
        }
        let refused = match key.destroy() {
            Err(refused) => refused,
            Ok(()) => return fail("it was destroyed under a request"),
        };
        says(&refused.error, &["requests in flight", "1 send"])?;
        drop(refused);
        same(kept(&regions), 2, "who keeps the regions under a request")?;
        same(pair.pd.reclaim(), 1, "what waits")?;
        stall(false)?;
        completion(&mut pair.a.cq)?.ok()?;
        same((pair.pd.reclaim(), kept(&regions)), (0, 0), "what is left")?;
        if names {
            same(bytes(&regions[1], 0..64)?, vec![7; 64], "what was read")?;
        }
    }
    Ok(())
}

/// Catches requests that break the queue pair, or give more than there is, instead of being refused.
fn requests_refused() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let (pd, direct) = (&pair.pd, Direct::of(pair.pd.context())?);
    let other = pair.context.alloc_pd()?;
    let (regions, key) = allocated(pd, 8)?;
    let read_only = region(pd, Access::empty())?;
    let describe = |pd, region: &Region, count: usize| -> Result<_> {
        let parts = direct.gather(pd, Access::LOCAL_WRITE);
        Ok((0..count).try_fold(parts, |parts, at| parts.part(region, at..at + 1))?)
    };
    let fixed = describe(pd, &regions[0], 1)?.create()?;
    let foreign = region(&other, Access::LOCAL_WRITE)?;
    let rows = |count, stride| -> Result<_> {
        let parts = direct.gather(pd, Access::LOCAL_WRITE).rows(count);
        Ok(parts.strided(&regions[0], 0..100, stride)?)
    };
    let too_far = (REGION as u32 - 100) / 8 + 2;
    let cases = [
        (describe(pd, &regions[0], 0)?, "1 to 8 parts"),
        (describe(pd, &regions[0], 9)?, "1 to 8 parts"),
        (describe(pd, &regions[0], 8)?, "inline"),
        (describe(pd, &read_only, 1)?, "without"),
        (describe(pd, &foreign, 1)?, "another protection domain"),
        (describe(&other, &foreign, 1)?, "another protection domain"),
        (rows(0, 0)?, "there are none"),
        (rows(too_far, 8)?, "8196"),
    ];
    for (parts, words) in cases {
        let refused = pair.a.qp.one(1).gather(&key, parts);
        says(&refused.err().ok_or(words)?, &[words])?;
    }
    for parts in [describe(pd, &regions[0], 1)?, rows(2, 8)?] {
        let words = "the parts that its command gave it";
        let refused = pair.a.qp.one(1).gather(&fixed, parts);
        says(&refused.err().ok_or(words)?, &[words])?;
    }
    match rows(2, 8)?.create() {
        Err(GatherError::Rows(_)) => {}
        other => return fail(format!("{other:?}")),
    }
    same((key.len(), kept(&regions)), (0, 1), "what the key covers")?;
    same(pair.a.qp.halves().0.in_flight(), 0, "what was posted")?;
    // As far as it may go.
    pair.a.qp.one(1).gather(&key, rows(too_far - 1, 8)?)?;
    completion(&mut pair.a.cq)?.is(WcOpcode::DRIVER1)
}

/// Catches a request that is not posted as it was given, and one with another length than it says.
fn raw() -> Result {
    const WRITE: u8 = 8;
    const COMPLETES: u8 = 8;
    let mut pair = Pair::<Rc>::new()?;
    let mut request = [0; 48];
    for turn in 0..200_u64 {
        let text = pattern(turn, 16);
        pair.a.mr.write_at(0, &text)?;
        (request[3], request[7], request[11]) = (WRITE, 3, COMPLETES);
        let to = pair.b.mr.remote();
        request[16..24].copy_from_slice(&(to.address + turn).to_be_bytes());
        request[24..28].copy_from_slice(&to.rkey.0.to_be_bytes());
        request[32..36].copy_from_slice(&16_u32.to_be_bytes());
        request[36..40].copy_from_slice(&pair.a.mr.lkey().0.to_be_bytes());
        request[40..48].copy_from_slice(&pair.a.mr.iova().to_be_bytes());
        // SAFETY: it is a WRITE of the first region's memory, which outlives the queue pair.
        unsafe { pair.a.qp.one(turn).raw(&request)? };
        let done = completion(&mut pair.a.cq)?;
        done.is(WcOpcode::DRIVER2)?;
        same(done.wr_id, turn, "the id")?;
        same(pair.b.bytes(turn as usize, 16)?, text, "what was written")?;
        for short in [
            &request[..0],
            &request[..15],
            &request[..32],
            &[request, request].concat(),
        ] {
            // SAFETY: as above.
            let refused = unsafe { pair.a.qp.one(1).raw(short) };
            let expected = matches!(refused, Err(PostError::Direct(_)));
            same(expected, true, "a request of another length")?;
        }
    }
    // The opcode of one behind it is its own, and so is that of one in the place of one that was not rung.
    for is_in_its_place in [false, true] {
        if is_in_its_place {
            let mut batch = pair.a.qp.batch();
            // SAFETY: as above.
            unsafe { batch.signaled(1).raw(&request)? };
        }
        let to = pair.b.mr.remote().slice(..8)?;
        pair.a.qp.one(1).write(pair.a.mr.slice(..8)?, to)?;
        completion(&mut pair.a.cq)?.is(WcOpcode::RDMA_WRITE)?;
    }
    Ok(())
}
