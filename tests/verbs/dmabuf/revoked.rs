//! Regions in dma-bufs whose exporter takes the memory back. The exporter is the adapter itself, with its own
//! memory: it revokes the dma-buf when that memory is freed, or the context of it ends.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::result::Result as Either;

use libtest_mimic::Trial;
use rustix::param::page_size;
use serde_json::json;
use support::{
    ALL, Control, Pair, Result, Setup, completion, device, fail, kernel, open, pattern, same, says,
    skip, test_without_leaks,
};
use uverbs::dm::{Dm, ExportedDm};
use uverbs::mr::{DmabufMr, RegisterError};
use uverbs::{Access, Cause, Context, Inline, Pd, Rc, WcOpcode, WcStatus, error::Errno};

use super::{is_dmabuf, open_dmabufs};

/// A test, not yet held back from where there is no such exporter.
type Named = (&'static str, fn() -> Result);

pub(super) fn tests() -> Vec<Trial> {
    let tests: [Named; 6] = [
        ("dmabuf::of_device_memory", of_device_memory),
        ("dmabuf::revoked_by_freeing", revoked_by_freeing),
        ("dmabuf::revoked_by_the_end", revoked_by_the_end),
        ("dmabuf::revoked_in_flight", revoked_in_flight),
        ("dmabuf::revoked_under_receives", revoked_under_receives),
        ("dmabuf::revoked_many_times", revoked_many_times),
    ];
    let with_exporter = |run: fn() -> Result| {
        move || match device().is_rxe() {
            true => skip("soft-RoCE has no device memory"),
            false => exports().and_then(|()| run()),
        }
    };
    let trial = |(name, run)| test_without_leaks(name, with_exporter(run));
    tests.into_iter().map(trial).collect()
}

/// Bytes of the memory: more than a page, and no whole number of the device's units.
const LENGTH: usize = 9100;

/// Ends the test where device memory is not exported: before Linux 7.0, or if the kernel is built without
/// `CONFIG_PCI_P2PDMA`, which those for x86-64 have from then on.
fn exports() -> Result {
    let dm = open()?.alloc_dm(64, 0)?;
    let is_new = kernel() >= (7, 0);
    match dm.export_dmabuf() {
        Ok(_) if !is_new => fail("a kernel without the method has exported device memory"),
        Ok(_) => Ok(()),
        Err(error) if error.is_unsupported() && !(is_new && cfg!(target_arch = "x86_64")) => {
            says(&error, &["dm_export_dmabuf_fd", "DM"])?;
            skip(format!("nothing revokes a dma-buf here: {error}"))
        }
        Err(error) => Err(error.into()),
    }
}

fn pair() -> Result<Pair<Rc>> {
    Pair::with(&Setup {
        length: LENGTH,
        ..Setup::default()
    })
}

fn export(context: &Context) -> Result<(Dm, ExportedDm)> {
    let dm = context.alloc_dm(LENGTH as u64, 0)?;
    dm.write_at(0, &[b'.'; LENGTH])?;
    let exported = dm.export_dmabuf()?;
    let length = exported.range.end - exported.range.start;
    same(length, LENGTH as u64, "the bytes that are the memory")?;
    Ok((dm, exported))
}

/// A region in all of it.
fn region(pd: &Pd, exported: ExportedDm) -> Result<DmabufMr> {
    let ExportedDm { dmabuf, range, .. } = exported;
    register(pd, dmabuf, range).map_err(|refused| refused.error.into())
}

/// A region whose addresses begin at the same offset in a page as the range.
fn register(
    pd: &Pd,
    dmabuf: OwnedFd,
    range: Range<u64>,
) -> Either<DmabufMr, RegisterError<OwnedFd>> {
    let iova = 0x7000_0000_0000 + range.start % page_size() as u64;
    pd.register_dmabuf(dmabuf, range, iova, ALL | Access::LOCAL_WRITE)
}

fn bytes(dm: &Dm) -> Result<Vec<u8>> {
    let mut bytes = vec![0; LENGTH];
    dm.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Writes a pattern to the region by RDMA.
fn fill(pair: &mut Pair<Rc>, mr: &DmabufMr, seed: u64) -> Result<Vec<u8>> {
    let content = pattern(seed, LENGTH);
    pair.a.mr.write_at(0, &content)?;
    pair.a
        .post_own(|request, own| request.write(own.slice(..)?, mr.remote()))?
        .is(WcOpcode::RDMA_WRITE)?;
    Ok(content)
}

/// Fails unless every way to use the region ends with an error that says so.
fn is_dead(pair: &mut Pair<Rc>, mr: &DmabufMr) -> Result {
    let again = |pair: &mut Pair<Rc>| {
        pair.a.qp.reset()?;
        pair.b.qp.reset()?;
        pair.connect(&Setup::default().options)
    };
    let wc = pair
        .a
        .post(|request| request.write(Inline(b"too late"), mr.remote().slice(..8)?))?;
    same(wc.status, WcStatus::REM_ACCESS_ERR, "a WRITE")?;
    again(pair)?;
    let wc = pair
        .a
        .post_own(|request, own| request.read(own.slice(..)?, mr.remote()))?;
    same(wc.status, WcStatus::REM_ACCESS_ERR, "a READ")?;
    again(pair)?;
    let target = pair.a.mr.remote().slice(..LENGTH)?;
    let mut batch = pair.b.qp.batch();
    batch.signaled(3).write(mr.slice(..)?, target)?;
    batch.ring()?;
    let wc = completion(&mut pair.b.cq)?;
    same(wc.status, WcStatus::LOC_PROT_ERR, "a WRITE from there")?;
    again(pair)
}

/// Fails unless the region goes as any other, and the dma-buf that it gives back takes no other region.
fn is_gone(pd: &Pd, mr: DmabufMr) -> Result {
    let dmabuf = mr.deregister()?;
    same(is_dmabuf(&dmabuf), true, "that the dma-buf is back")?;
    let Err(refused) = register(pd, dmabuf, 0..64) else {
        return fail("a region in a dma-buf that was revoked");
    };
    println!("{}", refused.error);
    same(refused.error.errno(), Some(Errno::NODEV), "the errno")?;
    same(
        refused.error.is_device_gone(),
        false,
        "that the device is gone",
    )?;
    says(&refused.error, &["reg_dmabuf_mr", "revoked the dma-buf"])?;
    same(is_dmabuf(&refused.memory), true, "that it is back again")
}

/// Catches a dma-buf of other pages, a range that is not the memory's, and a region that reaches beyond.
fn of_device_memory() -> Result {
    let mut pair = pair()?;
    let (dm, exported) = export(&pair.context)?;
    let (dmabuf, range) = (exported.dmabuf.try_clone()?, exported.range.clone());
    let mr = region(&pair.pd, exported)?;
    let content = fill(&mut pair, &mr, 1)?;
    same(bytes(&dm)? == content, true, "what was written")?;
    let content = pattern(2, LENGTH);
    dm.write_at(0, &content)?;
    pair.a
        .post_own(|request, own| request.read(own.slice(..)?, mr.remote()))?
        .is(WcOpcode::RDMA_READ)?;
    same(pair.a.bytes(0, LENGTH)? == content, true, "what was read")?;
    // A region in a part of it, by the dma-buf under another number.
    let part = match register(&pair.pd, dmabuf, range.start + 4096..range.start + 4196) {
        Ok(part) => part,
        Err(refused) => return Err(refused.error.into()),
    };
    pair.a
        .post(|request| request.write(Inline(&[b'p'; 100]), part.remote()))?
        .is(WcOpcode::RDMA_WRITE)?;
    let mut expected = content;
    expected[4096..4196].fill(b'p');
    same(bytes(&dm)? == expected, true, "with the part")?;
    let mut beyond = part.remote().slice(..8)?;
    beyond.address += 96;
    let wc = pair
        .a
        .post(|request| request.write(Inline(b"too far!"), beyond))?;
    same(wc.status, WcStatus::REM_ACCESS_ERR, "beyond the part")?;
    same(bytes(&dm)? == expected, true, "after that")?;
    mr.deregister()?;
    part.deregister()?;
    same(open_dmabufs()?, 0, "dma-bufs that are left")?;
    Ok(dm.free()?)
}

/// Catches memory that is freed while a region in it lives on in the device, and a region that does not go.
fn revoked_by_freeing() -> Result {
    let mut pair = pair()?;
    let (dm, exported) = export(&pair.context)?;
    let mr = region(&pair.pd, exported)?;
    fill(&mut pair, &mr, 3)?;
    dm.free()?;
    is_dead(&mut pair, &mr)?;
    is_gone(&pair.pd, mr)
}

/// As if the process that exports had ended: its file is closed, and it freed nothing.
fn revoked_by_the_end() -> Result {
    let mut pair = pair()?;
    let exporter = open()?;
    let (dm, exported) = export(&exporter)?;
    let mr = region(&pair.pd, exported)?;
    let content = fill(&mut pair, &mr, 4)?;
    same(bytes(&dm)? == content, true, "what was written")?;
    drop(dm.disown()?);
    // The memory is there as long as the file: the region still leads to it.
    pair.a
        .post_own(|request, own| request.read(own.slice(..)?, mr.remote()))?
        .is(WcOpcode::RDMA_READ)?;
    drop(exporter);
    is_dead(&mut pair, &mr)?;
    is_gone(&pair.pd, mr)
}

/// Catches requests that were posted before, and are carried out or lost.
fn revoked_in_flight() -> Result {
    let mut pair = pair()?;
    let (dm, exported) = export(&pair.context)?;
    let mr = region(&pair.pd, exported)?;
    let mut control = Control::open()?;
    control.ask("stall", json!({"function": 0, "on": true}))?;
    let posted = || -> Result {
        let mut batch = pair.a.qp.batch();
        batch.signaled(1).write(pair.a.mr.slice(..)?, mr.remote())?;
        batch.signaled(2).write(pair.a.mr.slice(..)?, mr.remote())?;
        batch.ring()?;
        Ok(dm.free()?)
    }();
    control.ask("stall", json!({"function": 0, "on": false}))?;
    posted?;
    let statuses = [WcStatus::REM_ACCESS_ERR, WcStatus::WR_FLUSH_ERR];
    for (wr_id, status) in (1..).zip(statuses) {
        let wc = completion(&mut pair.a.cq)?;
        same((wc.wr_id, wc.status), (wr_id, status), "a request")?;
    }
    is_gone(&pair.pd, mr)
}

/// Catches a message that a receive in revoked memory takes as if it had room, and a region that is busy
/// afterwards.
fn revoked_under_receives() -> Result {
    let mut pair = pair()?;
    let (dm, exported) = export(&pair.context)?;
    let mr = region(&pair.pd, exported)?;
    let mut batch = pair.b.qp.recv_batch();
    batch.post(1, mr.slice(..100)?)?;
    batch.ring();
    dm.free()?;
    let Err(refused) = mr.deregister() else {
        return fail("a region was deregistered under a receive");
    };
    if !matches!(refused.error.cause(), Cause::Busy(_)) {
        return fail(format!("another error: {}", refused.error));
    }
    let wc = pair.a.post(|request| request.send(Inline(b"nowhere")))?;
    same(wc.status, WcStatus::REM_OP_ERR, "the SEND")?;
    let wc = completion(&mut pair.b.cq)?;
    same(
        (wc.wr_id, wc.status),
        (1, WcStatus::LOC_PROT_ERR),
        "the receive",
    )?;
    is_gone(&pair.pd, refused.object)
}

/// Catches device memory that stays allocated for a dma-buf or a region that is gone.
fn revoked_many_times() -> Result {
    let mut pair = pair()?;
    let most = pair.context.query_device()?.max_dm_size;
    for seed in 0..20 {
        let dm = pair.context.alloc_dm(most, 0)?;
        let exported = dm.export_dmabuf()?;
        let number = exported.dmabuf.as_raw_fd();
        let range = exported.range.start..exported.range.start + LENGTH as u64;
        let mr = match register(&pair.pd, exported.dmabuf, range) {
            Ok(mr) => mr,
            Err(refused) => return Err(refused.error.into()),
        };
        fill(&mut pair, &mr, seed)?;
        // In every order.
        match seed % 3 {
            0 => {
                dm.free()?;
                drop(mr);
            }
            1 => {
                drop(mr);
                dm.free()?;
            }
            _ => {
                dm.free()?;
                same(mr.deregister()?.as_raw_fd(), number, "the dma-buf")?;
            }
        }
    }
    same(open_dmabufs()?, 0, "dma-bufs that are left")
}
