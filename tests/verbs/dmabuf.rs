//! Regions in dma-bufs, with udmabuf as the exporter: every byte that a device reads and writes there, and
//! what is refused. Memory that is taken back is in `revoked`: udmabuf never does that. Where a device
//! has no such regions, the refusal must be told and the dma-buf come back.

mod exporter;
mod revoked;

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use libtest_mimic::Trial;
use support::{
    ALL, Pair, Result, Setup, completion, device, fail, pattern, same, says, skip, test,
};
use uverbs::mr::DmabufMr;
use uverbs::{Access, Cause, Inline, Pd, Rc, WcOpcode, WcStatus, error::Errno};

use exporter::{Exporter, PAGE};

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = vec![
        test("dmabuf::every_byte", every_byte),
        test("dmabuf::beyond_the_region", beyond_the_region),
        test("dmabuf::refused", refused),
        test("dmabuf::stays_while_posted", stays_while_posted),
        test("dmabuf::not_a_dmabuf", not_a_dmabuf),
    ];
    tests.extend(revoked::tests());
    tests
}

/// Pages of a dma-buf: more than the entries of one block of a list, and an odd number of them.
const PAGES: usize = 67;
/// The region: it begins and ends within a page.
const REGION: Range<u64> = 5000..(66 * PAGE as u64 + 123);
const LENGTH: usize = (REGION.end - REGION.start) as usize;
/// The region's address, with the offset in its page that the kernel asks for.
const IOVA: u64 = 0x7000_0000_0000 + REGION.start % PAGE as u64;

/// A dma-buf and a region in it; a skipped test where there can be none.
fn region(pd: &Pd) -> Result<(Exporter, DmabufMr)> {
    let (exporter, dmabuf) = exported()?;
    let number = dmabuf.as_raw_fd();
    let access = ALL | Access::LOCAL_WRITE;
    match pd.register_dmabuf(dmabuf, REGION, IOVA, access) {
        Ok(mr) => Ok((exporter, mr)),
        Err(refused) if device().is_rxe() => {
            same(refused.memory.as_raw_fd(), number, "the dma-buf")?;
            same(
                refused.error.is_unsupported(),
                true,
                "that it is unsupported",
            )?;
            skip(format!("rxe has no regions in dma-bufs: {}", refused.error))
        }
        Err(refused) => Err(refused.error.into()),
    }
}

fn exported() -> Result<(Exporter, OwnedFd)> {
    match Exporter::new::<PAGES>() {
        Ok(exported) => Ok(exported),
        Err(error) => skip(format!("no dma-buf here: udmabuf: {error}")),
    }
}

fn pair() -> Result<Pair<Rc>> {
    Pair::with(&Setup {
        length: LENGTH,
        ..Setup::default()
    })
}

/// Catches a page that is taken for another, bytes beside the region, a region that is good for one direction
/// only, and a dma-buf that is lost.
fn every_byte() -> Result {
    let mut pair = pair()?;
    let (exporter, mr) = region(&pair.pd)?;
    let at = REGION.start as usize;
    let first = pattern(1, LENGTH);
    pair.a.mr.write_at(0, &first)?;
    pair.a
        .post_own(|request, own| request.write(own.slice(..)?, mr.remote()))?
        .is(WcOpcode::RDMA_WRITE)?;
    exporter.has(at, &first)?;
    pair.a.mr.write_at(0, &vec![0; LENGTH])?;
    pair.a
        .post_own(|request, own| request.read(own.slice(..)?, mr.remote()))?
        .is(WcOpcode::RDMA_READ)?;
    same(pair.a.bytes(0, LENGTH)? == first, true, "what was read")?;
    // And by its local key: what a peer sends lands there, and is written from there to the peer.
    let second = pattern(2, LENGTH);
    pair.a.mr.write_at(0, &second)?;
    let mut batch = pair.b.qp.recv_batch();
    batch.post(1, mr.slice(..)?)?;
    batch.ring();
    pair.a
        .post_own(|request, own| request.send(own.slice(..)?))?
        .is(WcOpcode::SEND)?;
    completion(&mut pair.b.cq)?.is(WcOpcode::RECV)?;
    exporter.has(at, &second)?;
    let mut batch = pair.b.qp.batch();
    let (from, to) = (
        mr.slice(1000..)?,
        pair.a.mr.remote().slice(..LENGTH - 1000)?,
    );
    batch.signaled(2).write(from, to)?;
    batch.ring()?;
    completion(&mut pair.b.cq)?.is(WcOpcode::RDMA_WRITE)?;
    let came = pair.a.bytes(0, LENGTH - 1000)?;
    same(came == second[1000..], true, "what was written from there")?;
    same(
        is_dmabuf(&mr.deregister()?),
        true,
        "that the dma-buf is back",
    )
}

fn is_dmabuf(fd: &OwnedFd) -> bool {
    names_dmabuf(fd.as_raw_fd())
}

fn names_dmabuf(fd: i32) -> bool {
    let link = fs::read_link(format!("/proc/self/fd/{fd}"));
    link.is_ok_and(|link| link.to_string_lossy().starts_with("/dmabuf:"))
}

/// Catches a region that is longer than it was asked for.
fn beyond_the_region() -> Result {
    for (offset, what) in [(-8, "before"), (LENGTH as i64 - 7, "behind")] {
        let mut pair = pair()?;
        let (exporter, mr) = region(&pair.pd)?;
        let mut to = mr.remote().slice(..8)?;
        to.address = to.address.wrapping_add_signed(offset);
        let wc = pair
            .a
            .post(|request| request.write(Inline(b"too far!"), to))?;
        same(wc.status, WcStatus::REM_ACCESS_ERR, what)?;
        exporter.has(0, &[])?;
    }
    Ok(())
}

/// Catches a range outside of the dma-buf that is registered, an error that does not say what is wrong, and a
/// dma-buf that does not come back.
fn refused() -> Result {
    let pair = pair()?;
    let (_, mr) = region(&pair.pd)?;
    let mut dmabuf = mr.deregister()?;
    let end = (PAGES * PAGE) as u64;
    for (range, iova, what) in [
        (0..end + 1, 0, "one byte too long"),
        (end..end + 1, 0, "behind it"),
        (u64::MAX - 4095..u64::MAX, 0, "at the end of all addresses"),
        (0..100, 1, "an address with another offset in its page"),
    ] {
        match pair
            .pd
            .register_dmabuf(dmabuf, range, iova, Access::LOCAL_WRITE)
        {
            Ok(_) => return fail(format!("registered: {what}")),
            Err(refused) => {
                println!("{what}: {}", refused.error);
                says(&refused.error, &["reg_dmabuf_mr", "dma-buf"])?;
                same(refused.error.errno(), Some(Errno::INVAL), what)?;
                dmabuf = refused.memory;
            }
        }
    }
    same(is_dmabuf(&dmabuf), true, "that the dma-buf is back")
}

/// Catches a region that goes, or whose dma-buf is closed, while a request in flight names it.
fn stays_while_posted() -> Result {
    let mut pair = pair()?;
    let (exporter, mr) = region(&pair.pd)?;
    let mut batch = pair.b.qp.recv_batch();
    batch.post(1, mr.slice(..100)?)?;
    batch.post(2, mr.slice(100..200)?)?;
    batch.ring();
    let Err(refused) = mr.deregister() else {
        return fail("a region was deregistered under a receive");
    };
    if !matches!(refused.error.cause(), Cause::Busy(_)) {
        return fail(format!("another error: {}", refused.error));
    }
    says(&refused.error, &["dereg_mr", "in flight", "2 receives"])?;
    let before = open_dmabufs()?;
    drop(refused.object);
    same(pair.pd.reclaim(), 1, "regions that wait")?;
    same(
        open_dmabufs()?,
        before,
        "dma-bufs while receives are posted",
    )?;
    for wr_id in [1, 2] {
        pair.a
            .post(|request| request.send(Inline(&[wr_id as u8; 100])))?
            .is(WcOpcode::SEND)?;
        same(
            completion(&mut pair.b.cq)?.ok()?.wr_id,
            wr_id,
            "the receive",
        )?;
    }
    same(pair.pd.reclaim(), 0, "regions that wait")?;
    same(open_dmabufs()?, before - 1, "dma-bufs afterwards")?;
    exporter.has(REGION.start as usize, &[[1; 100], [2; 100]].concat())
}

/// How many dma-bufs this process has open.
fn open_dmabufs() -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_string_lossy().parse();
        count += usize::from(number.is_ok_and(names_dmabuf));
    }
    Ok(count)
}

/// Catches a descriptor of anything that is taken for a dma-buf, and an empty range that reaches the kernel.
fn not_a_dmabuf() -> Result {
    let pair = Pair::<Rc>::new()?;
    let file = OwnedFd::from(File::open("/dev/null")?);
    let Err(refused) = pair
        .pd
        .register_dmabuf(file, 0..4096, 0, Access::LOCAL_WRITE)
    else {
        return fail("/dev/null was registered");
    };
    let Err(refused) = pair
        .pd
        .register_dmabuf(refused.memory, 5..5, 0, Access::LOCAL_WRITE)
    else {
        return fail("no bytes were registered");
    };
    let said = refused.error.to_string();
    same(said.contains("no bytes"), true, &said)
}
