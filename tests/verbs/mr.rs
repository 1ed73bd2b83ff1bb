//! Memory regions beyond the plain one: addresses of their own, kinds of memory, changes while registered.

use std::io::Write;
use std::ptr::{self, NonNull};
use std::time::Instant;

use libtest_mimic::Trial;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use support::{
    ALL, LIMIT, Pair, Result, Setup, all_there_is, completion, device, fail, has, open, same, says,
    skip, test,
};
use uverbs::uapi::flags::OdpGeneralCapBits;
use uverbs::{
    Access, Cause, Inline, Mr, Rc, RemoteSlice, WcOpcode, WcStatus,
    error::Errno,
    mr::{Advice, AfterRereg, Memory, RawMemory, Rereg, SharedMemory, WordError},
    qp::Placement,
    query::DeviceCapFlags,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "mr::query_tells_what_was_registered",
            query_tells_what_was_registered,
        ),
        test("mr::addresses_count_from_0", addresses_count_from_0),
        test("mr::zero_based_flag", zero_based_flag),
        test("mr::relaxed_ordering", relaxed_ordering),
        test("mr::huge_pages", huge_pages),
        test("mr::read_only_file", read_only_file),
        test("mr::unmapped_while_registered", unmapped_while_registered),
        test("mr::rereg_access", rereg_access),
        test("mr::rereg_pd", rereg_pd),
        test("mr::rereg_memory", rereg_memory),
        test("mr::rereg_refusals", rereg_refusals),
        test("mr::rereg_under_a_request", rereg_under_a_request),
        test(
            "mr::on_demand_follows_the_process",
            on_demand_follows_the_process,
        ),
        test(
            "mr::on_demand_serves_every_operation",
            on_demand_serves_every_operation,
        ),
        test("mr::on_demand_is_flushed", on_demand_is_flushed),
        test("mr::prefetch", prefetch),
        test("mr::advice_about_pinned_memory", advice_about_pinned_memory),
        test("mr::words_that_peers_write", words_that_peers_write),
        test("mr::a_raw_map_for_reading", a_raw_map_for_reading),
        test("mr::one_memory_on_two_pds", one_memory_on_two_pds),
    ]
}

const PAGE: usize = 4096;

/// Everything that a region can give to peers on every kernel.
const OPEN: Access = ALL.union(Access::LOCAL_WRITE);

/// Whole pages without a file behind them.
fn pages(length: usize) -> Result<memmap2::MmapMut> {
    Ok(memmap2::MmapMut::map_anon(length)?)
}

/// Writes `text` to the start of `to` by the peer.
fn write(pair: &mut Pair<Rc>, text: &[u8], to: RemoteSlice) -> Result {
    let to = to.slice(..text.len())?;
    pair.a
        .post(|request| request.write(Inline(text), to))?
        .is(WcOpcode::RDMA_WRITE)
}

/// Reads the start of `from` by the peer.
fn read<const N: usize>(pair: &mut Pair<Rc>, from: RemoteSlice) -> Result<[u8; N]> {
    let into = pair.pd.register(vec![0u8; N], Access::LOCAL_WRITE)?;
    let (slice, from) = (into.slice(..)?, from.slice(..N)?);
    pair.a
        .post(|request| request.read(slice, from))?
        .is(WcOpcode::RDMA_READ)?;
    start(&into)
}

/// The first bytes of a region, as this process sees them.
fn start<const N: usize>(mr: &Mr<impl Memory>) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    mr.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Catches a word that is looked at once and never again, and one beside the region.
fn words_that_peers_write() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let mut target = pair.pd.register(vec![0_u64; 2], OPEN)?;
    target.store_u64(0, 41)?;
    same(
        u64::from_ne_bytes(read(&mut pair, target.remote())?),
        41,
        "what the peer reads",
    )?;
    let mut batch = pair.a.qp.batch();
    batch
        .unsignaled(0)
        .write(Inline(&42_u64.to_ne_bytes()), target.remote().slice(8..)?)?;
    batch.ring()?;
    let deadline = Instant::now() + LIMIT;
    while target.load_u64(8)? == 0 {
        same(Instant::now() < deadline, true, "a word that comes in time")?;
    }
    same(target.load_u64(8)?, 42, "the word")?;
    let beyond = matches!(target.load_u64(9), Err(WordError::OutOfBounds(_)));
    same(beyond, true, "a word that ends behind the region")?;
    let crooked = matches!(target.store_u64(4, 1), Err(WordError::Unaligned { .. }));
    same(crooked, true, "a word that is not aligned")?;
    same(target.load_u64(0)?, 41, "the first word")
}

/// Catches a mapping for reading only that somebody may write to: the device by its access, or this side
/// (which does not compile).
fn a_raw_map_for_reading() -> Result {
    let pair = Pair::<Rc>::new()?;
    let mut file = tempfile::tempfile_in("/dev/shm")?;
    file.write_all(&[7; PAGE])?;
    let map = || memmap2::MmapOptions::new().map_raw_read_only(&file);
    let refused = pair.pd.register(map()?, OPEN).err();
    same(refused.is_some(), true, "access for writing refused")?;
    match pair.pd.register(map()?, Access::REMOTE_READ) {
        Ok(mr) => same(start(&mr)?, [7; 8], "what is in the file"),
        Err(refused) if refused.error.errno() == Some(Errno::FAULT) => skip(
            "this kernel pins pages for writing in any case (until Linux 6.2), which a mapping for reading does not allow",
        ),
        Err(refused) => Err(refused.error.into()),
    }
}

/// Catches regions of the same memory that see other bytes, and memory that goes with the first of them.
fn one_memory_on_two_pds() -> Result {
    let mut one = Pair::<Rc>::new()?;
    let mut other = Pair::<Rc>::with(&Setup::default())?;
    let memory = SharedMemory::new(vec![7u8; 64]);
    let first = one.pd.register(memory.clone(), OPEN)?;
    let second = other.pd.register(memory.clone(), OPEN)?;
    write(&mut one, b"one", first.remote())?;
    write(&mut other, b"other", second.remote().slice(3..)?)?;
    same(&start(&first)?, b"oneother", "through the first")?;
    same(&start(&second)?, b"oneother", "through the second")?;
    drop(first);
    let Err(memory) = memory.into_inner() else {
        return fail("the memory left while it is registered");
    };
    write(&mut other, b"still", second.remote())?;
    drop(second.deregister()?);
    match memory.into_inner() {
        Ok(bytes) => same(&bytes[..9], b"stillher\x07", "what came back"),
        Err(memory) => fail(format!("somebody else has {memory:?}")),
    }
}

/// Catches a kernel or a library that registers another range than it says.
fn query_tells_what_was_registered() -> Result {
    let pd = open()?.alloc_pd()?;
    for (memory, iova) in [(pages(PAGE)?, 0x7000_0000), (pages(3 * PAGE)?, 0)] {
        let mr = pd.register_at(memory, iova, all_there_is())?;
        let info = mr.query()?;
        same((info.lkey, info.rkey), (mr.lkey(), mr.rkey()), "keys")?;
        same((info.length, info.iova), (mr.len() as u64, iova), "range")?;
    }
    Ok(())
}

/// Catches requests that name memory by its address in the process although it was registered by another.
fn addresses_count_from_0() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let mr = pair.pd.register_at(pages(2 * PAGE)?, 0, OPEN)?;
    let all = mr.remote();
    same(all.address, 0, "address")?;
    let across = all.slice(PAGE - 4..)?;
    write(&mut pair, b"across", across)?;
    let mut bytes = [0; 6];
    mr.read_at(PAGE - 4, &mut bytes)?;
    same(&bytes, b"across", "the memory")?;
    same(&read(&mut pair, across)?, b"across", "what a peer reads")?;
    let beyond = RemoteSlice {
        address: 2 * PAGE as u64 - 2,
        ..all
    };
    pair.a
        .post(|request| request.write(Inline(b"too far"), beyond))?
        .failed(WcStatus::REM_ACCESS_ERR)?;

    // Within their pages both addresses must lie alike.
    match pair.pd.register_at(pages(PAGE)?, 8, OPEN) {
        Ok(_) => fail("an address at another place in its page was taken"),
        Err(refused) => {
            same(refused.error.errno(), Some(Errno::INVAL), "errno")?;
            same(refused.memory.len(), PAGE, "the memory that came back")
        }
    }
}

/// Catches an access flag that is lost on its way: soft-RoCE does not have this one, or does not look at it.
fn zero_based_flag() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    match pair
        .pd
        .register_at(pages(PAGE)?, 0, OPEN | Access::ZERO_BASED)
    {
        Ok(mr) => write(&mut pair, b"from 0", mr.remote()),
        Err(refused) if refused.error.is_unsupported() => {
            let said = refused.error.to_string();
            if !said.contains("ZERO_BASED") {
                return fail(format!("the error does not name the flag: {said}"));
            }
            skip(
                "this kernel's driver has no regions with ZERO_BASED; an address of 0 serves as well",
            )
        }
        Err(refused) => Err(refused.error.into()),
    }
}

/// Catches an optional flag that makes a kernel refuse the region.
fn relaxed_ordering() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let access = OPEN | Access::RELAXED_ORDERING;
    let mr = pair.pd.register(vec![0u8; 64], access)?;
    write(&mut pair, b"relaxed", mr.remote())?;
    same(&start(&mr)?, b"relaxed", "the memory")
}

/// Catches an address that is computed as if all pages were small.
fn huge_pages() -> Result {
    const HUGE: usize = 2 << 20;
    // The guest is the test's alone.
    if std::fs::write("/proc/sys/vm/nr_hugepages", "4").is_err() {
        return skip("this kernel has no huge pages");
    }
    let mut options = memmap2::MmapOptions::new();
    let Ok(memory) = options.len(2 * HUGE).huge(Some(21)).map_anon() else {
        return skip("the guest has no memory left in huge pages");
    };
    let mut pair = Pair::<Rc>::new()?;
    let mr = pair.pd.register(memory, OPEN)?;
    let across = mr.remote().slice(HUGE - 3..)?;
    write(&mut pair, b"across", across)?;
    let mut bytes = [0; 6];
    mr.read_at(HUGE - 3, &mut bytes)?;
    same(&bytes, b"across", "the memory")
}

/// Catches a file mapping that is pinned for writing although it is mapped for reading, and one that peers
/// can write.
fn read_only_file() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let mut file = tempfile::tempfile_in("/dev/shm")?;
    file.write_all(&[b'r'; PAGE])?;
    // SAFETY: nobody changes the file.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    let Err(refused) = pair.pd.register(map, Access::LOCAL_WRITE) else {
        return fail("memory that is mapped for reading was registered for writing");
    };
    let mr = match pair.pd.register(refused.memory, Access::REMOTE_READ) {
        Ok(mr) => mr,
        Err(refused) if refused.error.errno() == Some(Errno::FAULT) => {
            return skip(
                "this kernel pins pages for writing in any case (until Linux 6.2), which a shared mapping for \
                 reading does not allow",
            );
        }
        Err(refused) => return Err(refused.error.into()),
    };
    same(&read(&mut pair, mr.remote())?, b"rrrr", "what a peer reads")?;
    pair.a
        .post(|request| request.write(Inline(b"no"), mr.remote()))?
        .failed(WcStatus::REM_ACCESS_ERR)?;
    same(&start(&mr)?, b"rrrr", "the file")
}

/// A page at a place of the kernel's choice, or over `place`; it is never unmapped.
fn page(place: Option<NonNull<u8>>) -> Result<NonNull<u8>> {
    let (address, fixed) = match place {
        Some(place) => (place.as_ptr().cast(), MapFlags::FIXED),
        None => (ptr::null_mut(), MapFlags::empty()),
    };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, or one over a page that this function has mapped before and that nobody refers
    // to.
    let mapped = unsafe { mmap_anonymous(address, PAGE, protection, MapFlags::PRIVATE | fixed) };
    let mapped = NonNull::new(mapped?.cast());
    match mapped {
        Some(mapped) => Ok(mapped),
        None => fail("mapped at address 0"),
    }
}

/// Catches pages that are freed under the device when the process lets go of them: other pages lie at the
/// address afterwards, and the device still has the old ones.
fn unmapped_while_registered() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let place = page(None)?;
    // SAFETY: the bytes stay mapped, the first pages or the second, and nobody refers to them.
    let memory = unsafe { RawMemory::new(place, PAGE) };
    let mut mr = pair
        .pd
        .register(memory, OPEN)
        .map_err(|refused| refused.error)?;
    mr.write_at(0, b"pinned")?;
    page(Some(place))?;
    same(&start(&mr)?, &[0; 6], "the process's page")?;
    same(
        &read(&mut pair, mr.remote())?,
        b"pinned",
        "the device's page",
    )?;
    write(&mut pair, b"in use", mr.remote())?;
    same(
        &read(&mut pair, mr.remote())?,
        b"in use",
        "the device's page",
    )?;
    same(&start(&mr)?, &[0; 6], "the process's page afterwards")
}

/// Takes a change that the kernel does not have as the reason to ignore the test, once the region is found as
/// it was.
fn changed<M: Memory>(
    pair: &mut Pair<Rc>,
    result: std::result::Result<Mr<M>, uverbs::mr::ReregError<Mr<M>, M>>,
) -> Result<Mr<M>> {
    let failed = match result {
        Ok(mr) => return Ok(mr),
        Err(failed) => failed,
    };
    match failed.after {
        AfterRereg::Unchanged(mr) if failed.error.is_unsupported() => {
            write(pair, b"as it was", mr.remote())?;
            same(&start(&mr)?, b"as it was", "the region after the refusal")?;
            skip("the device has no rereg_mr (rxe: since Linux 6.5)")
        }
        _ => Err(failed.error.into()),
    }
}

/// Catches access that is changed in the library only.
fn rereg_access() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = pair.pd.register(vec![0u8; 64], access)?;
    write(&mut pair, b"once", mr.remote())?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let change = Rereg {
        access: Some(access),
        ..Rereg::default()
    };
    let mr = changed(&mut pair, mr.rereg(change))?;
    same(mr.access(), access, "access")?;
    same(&read(&mut pair, mr.remote())?, b"once", "what a peer reads")?;
    pair.a
        .post(|request| request.write(Inline(b"again"), mr.remote()))?
        .failed(WcStatus::REM_ACCESS_ERR)?;
    same(&mr.deregister()?[..5], b"once\0", "the memory")
}

/// Catches a region that stands on its old protection domain still, for the kernel or for the library.
fn rereg_pd() -> Result {
    let mut old = Pair::<Rc>::new()?;
    let mut new = Pair::<Rc>::on(&old.context, &Setup::default())?;
    let mr = old.pd.register(vec![0u8; 64], OPEN)?;
    let change = Rereg {
        pd: Some(&new.pd),
        ..Rereg::default()
    };
    let mr = changed(&mut old, mr.rereg(change))?;
    let slice = mr.slice(..4)?;
    write(&mut new, b"new", mr.remote())?;
    let foreign = old.a.qp.one(1).send(slice);
    same(
        foreign,
        Err(uverbs::PostError::ForeignPd),
        "a slice of it in the old PD",
    )?;
    old.a
        .post(|request| request.write(Inline(b"old"), mr.remote()))?
        .failed(WcStatus::REM_ACCESS_ERR)?;
    same(&start(&mr)?, b"new", "the memory")?;
    let Pair { a, b, pd, .. } = old;
    drop((a, b));
    // Neither the library nor the kernel counts the region there any more.
    pd.dealloc()?;
    match new.pd.dealloc() {
        // The region, and one of each side.
        Ok(()) => fail("the new PD was freed under the region"),
        Err(held) if held.error.to_string().contains("3 MRs") => Ok(()),
        Err(held) => Err(held.error.into()),
    }
}

/// Catches memory that is lost or freed under the device when the kernel does not have the change.
fn rereg_memory() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let mr = pair.pd.register(vec![1u8; 64], OPEN)?;
    let failed = match mr.rereg_memory(vec![2u8; 128], Rereg::default()) {
        Ok((mr, old)) => {
            same(old, vec![1; 64], "the old memory")?;
            write(&mut pair, b"moved", mr.remote())?;
            return same(&start(&mr)?, b"moved", "the new memory");
        }
        Err(failed) => failed,
    };
    let AfterRereg::Unchanged((mr, memory)) = failed.after else {
        return Err(failed.error.into());
    };
    same(failed.error.is_unsupported(), true, "the refusal")?;
    write(&mut pair, b"as it was", mr.remote())?;
    same(&start(&mr)?, b"as it was", "the old memory")?;
    // Two changes at once: how far the kernel came is not known, and both memories are kept.
    let change = Rereg {
        access: Some(OPEN),
        ..Rereg::default()
    };
    let Err(failed) = mr.rereg_memory(memory, change) else {
        return fail("memory and access were changed although memory cannot be");
    };
    let AfterRereg::Unusable(mr) = failed.after else {
        return fail("a change of two things is told to have left both");
    };
    let (old, new) = mr.deregister()?;
    same(&old[..9], b"as it was", "the old memory")?;
    same(new, vec![2; 128], "the new memory")?;
    skip("the device cannot change a region's memory; both were given back")
}

/// Catches changes that would let a device write where nobody agreed to it.
fn rereg_refusals() -> Result {
    let context = open()?;
    let (pd, other) = (context.alloc_pd()?, open()?.alloc_pd()?);
    let read_only = pd.register(vec![0u8; 64], Access::REMOTE_READ)?;
    let access = |access| Rereg {
        access: Some(access),
        ..Rereg::default()
    };
    let elsewhere = Rereg {
        pd: Some(&other),
        ..Rereg::default()
    };
    let mut mr = read_only;
    for (change, reason) in [
        (Rereg::default(), "no change was requested"),
        (access(Access::LOCAL_WRITE), "registered for reading"),
        (access(Access::REMOTE_WRITE), "registered for reading"),
        (elsewhere, "another context"),
    ] {
        let Err(failed) = mr.rereg(change) else {
            return fail(format!("not refused: {reason}"));
        };
        let said = failed.to_string();
        if !said.contains(reason) || !said.contains("as it was") {
            return fail(said);
        }
        let AfterRereg::Unchanged(back) = failed.after else {
            return fail("a refusal by the library left the region unusable");
        };
        mr = back;
    }
    same(mr.deregister()?, vec![0; 64], "the memory")
}

/// Registers a page for paging on demand, or gives the reason why not.
fn on_demand(pair: &Pair<Rc>, place: NonNull<u8>) -> Result<Mr<RawMemory>> {
    on_demand_with(pair, place, OPEN)
}

/// The same with other access.
fn on_demand_with(pair: &Pair<Rc>, place: NonNull<u8>, access: Access) -> Result<Mr<RawMemory>> {
    let odp = pair.context.query_device()?.odp;
    let has = odp.general_caps & OdpGeneralCapBits::SUPPORT.bits() != 0;
    // SAFETY: the bytes stay mapped, and nobody refers to them.
    let memory = unsafe { RawMemory::new(place, PAGE) };
    match pair.pd.register(memory, access | Access::ON_DEMAND) {
        Ok(_) if odp.per_transport_caps.rc_odp_caps == 0 => {
            skip("requests of this device wait for no missing page")
        }
        Ok(mr) => Ok(mr),
        Err(refused) if !has && refused.error.is_unsupported() => {
            skip("the device has no paging on demand")
        }
        Err(refused) => Err(refused.error.into()),
    }
}

/// Catches pages that were pinned after all: the device must see what the process has at the address at the
/// time.
fn on_demand_follows_the_process() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let place = page(None)?;
    let mut mr = on_demand(&pair, place)?;
    mr.write_at(0, b"first")?;
    same(
        &read(&mut pair, mr.remote())?,
        b"first",
        "what a peer reads",
    )?;
    page(Some(place))?;
    mr.write_at(0, b"other")?;
    same(
        &read(&mut pair, mr.remote())?,
        b"other",
        "what a peer reads then",
    )?;
    write(&mut pair, b"third", mr.remote())?;
    same(&start(&mr)?, b"third", "what the process sees")
}

/// Catches an operation that does not fetch pages: each works on a page that nobody has touched.
fn on_demand_serves_every_operation() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let untouched = || page(None);
    let (from, into) = (
        on_demand(&pair, untouched()?)?,
        on_demand(&pair, untouched()?)?,
    );
    let (source, target) = (from.slice(..8)?, into.slice(..8)?);
    let mut recv = pair.b.qp.recv_batch();
    recv.post(1, target)?;
    recv.ring();
    pair.a
        .post(|request| request.send(source))?
        .is(WcOpcode::SEND)?;
    completion(&mut pair.b.cq)?.is(WcOpcode::RECV)?;

    let sum = on_demand(&pair, untouched()?)?;
    let at = sum.remote().slice(..8)?;
    for old in [0u64, 5] {
        pair.a
            .post(|request| request.fetch_add(target, at, 5))?
            .is(WcOpcode::FETCH_ADD)?;
        same(start(&into)?, old.to_ne_bytes(), "the sum before")?;
    }
    pair.a
        .post(|request| request.compare_swap(target, at, 10, 99))?
        .is(WcOpcode::COMP_SWAP)?;
    same(start(&sum)?, 99u64.to_ne_bytes(), "the sum swapped")?;

    let word = on_demand(&pair, untouched()?)?;
    pair.a
        .post(|request| request.atomic_write(*b"one word", word.remote()))?
        .is(WcOpcode::ATOMIC_WRITE)?;
    same(&start(&word)?, b"one word", "the word")
}

/// Catches a FLUSH that breaks the queue pair because nobody has touched the page, or flushes another one.
fn on_demand_is_flushed() -> Result {
    if !has(&open()?, DeviceCapFlags::FLUSH_GLOBAL)? {
        return skip("the kernel's rxe has no FLUSH (since Linux 6.2)");
    }
    let mut pair = Pair::<Rc>::with(&Setup::with_access(ALL | Access::FLUSH_GLOBAL))?;
    let untouched = on_demand_with(&pair, page(None)?, OPEN | Access::FLUSH_GLOBAL)?;
    let to = untouched.remote();
    pair.a
        .post(|request| request.flush(to, Placement::Global))?
        .is(WcOpcode::FLUSH)?;
    write(&mut pair, b"flushed", to)?;
    pair.a
        .post(|request| request.flush_region(to.rkey, Placement::Global))?
        .is(WcOpcode::FLUSH)?;
    same(&start(&untouched)?, b"flushed", "the memory")
}

/// Catches advice about pinned memory that reaches the kernel: soft-RoCE's driver there takes the description
/// of such a region for the longer one of a region on demand, and uses what lies behind it (seen on 7.3).
fn advice_about_pinned_memory() -> Result {
    let pd = open()?.alloc_pd()?;
    let pinned = pd.register(vec![0u8; 4096], Access::LOCAL_WRITE)?;
    let refused = pd.advise_mr(Advice::PREFETCH, true, pinned.slice(..)?);
    let error = refused.err().ok_or("it was taken")?;
    if device().is_rxe() {
        same(error.errno(), None, "the kernel's word")?;
        same(error.to_string().contains("on demand"), true, "the reason")?;
    }
    Ok(())
}

/// Catches advice that is encoded wrongly, and slices of another protection domain that are let through.
fn prefetch() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let mr = on_demand(&pair, page(None)?)?;
    for advice in [
        Advice::PREFETCH,
        Advice::PREFETCH_WRITE,
        Advice::PREFETCH_NO_FAULT,
    ] {
        pair.pd.advise_mr(advice, true, mr.slice(..)?)?;
        pair.pd
            .advise_mr(advice, false, [mr.slice(..8)?, mr.slice(8..)?])?;
    }
    write(&mut pair, b"fetched", mr.remote())?;
    same(&start(&mr)?, b"fetched", "the memory")?;

    let other = pair.context.alloc_pd()?;
    let foreign = other.advise_mr(Advice::PREFETCH, true, mr.slice(..)?);
    let said = foreign
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    same(
        said.contains("another protection domain"),
        true,
        "a slice of another PD",
    )
}

/// Catches a region that is changed, or its memory given back, while a request in flight names it.
fn rereg_under_a_request() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let mr = pair.pd.register(vec![0u8; 64], OPEN)?;
    let mut batch = pair.b.qp.recv_batch();
    batch.post(5, mr.slice(..)?)?;
    batch.ring();
    let change = Rereg {
        access: Some(Access::LOCAL_WRITE),
        ..Rereg::default()
    };
    let Err(failed) = mr.rereg(change) else {
        return fail("the access was changed under a receive");
    };
    same(
        matches!(failed.error.cause(), Cause::Busy(_)),
        true,
        "that it is busy",
    )?;
    says(&failed.error, &["rereg_mr", "in flight", "1 receive"])?;
    let AfterRereg::Unchanged(mr) = failed.after else {
        return fail("a region that was not touched is told to be unusable");
    };
    same(mr.access(), OPEN, "the access")?;
    let Err(failed) = mr.rereg_memory(vec![7u8; 64], Rereg::default()) else {
        return fail("the memory was changed under a receive");
    };
    same(
        matches!(failed.error.cause(), Cause::Busy(_)),
        true,
        "that it is busy",
    )?;
    let AfterRereg::Unchanged((mr, new)) = failed.after else {
        return fail("a region that was not touched is told to be unusable");
    };
    same(new, vec![7; 64], "the new memory")?;
    pair.a
        .post(|request| request.send(Inline(b"now")))?
        .is(WcOpcode::SEND)?;
    same(completion(&mut pair.b.cq)?.ok()?.wr_id, 5, "the receive")?;
    same(&mr.deregister()?[..4], b"now\0", "what came")
}
