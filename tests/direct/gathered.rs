//! Keys that cover parts of several regions.

use std::sync::Arc;

use libtest_mimic::Trial;
use support::{Pair, Result, completion, fail, open, pattern, same, says, test_on_adapter};
use uverbs::direct::mlx5::layout::{Input, Mkc, QueryMkeyIn, QueryMkeyOut, Structure};
use uverbs::direct::mlx5::{Direct, GatherError, GatheredKey};
use uverbs::mr::RemoteSlice;
use uverbs::{Access, Mr, Pd, Rc, WcStatus};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 4] = [
        ("gathered::peers_write_and_read", peers_write_and_read),
        (
            "gathered::what_a_key_does_not_give",
            what_a_key_does_not_give,
        ),
        ("gathered::regions_stay", regions_stay),
        ("gathered::what_is_refused", what_is_refused),
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
    let of_other = gather(Access::REMOTE_READ).part(&foreign, 0..1)?;
    refused(of_other.create(), &["another protection domain"])?;
    refused(gather(Access::REMOTE_READ).create(), &["1 to 4076 parts"])?;
    for range in [0..0, 0..REGION + 1] {
        match gather(Access::REMOTE_READ).part(&read_only, range) {
            Err(GatherError::OutOfBounds(_)) => {}
            other => return fail(format!("{other:?}")),
        }
    }
    Ok(())
}
