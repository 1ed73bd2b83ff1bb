//! The adapter refuses to let go of an object: what it may still write to must stay, until it has let go
//! after all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libtest_mimic::Trial;
use serde_json::json;
use support::{Control, Hca, Pair, Result, Setup, device, fail, open, same, skip, test};
use uverbs::{
    Access, Rc,
    alloc::{Counting, GuardPages},
    mr::Memory,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("refusal::a_region_stays", a_region_stays),
        test("refusal::rings_stay", rings_stay),
        test(
            "refusal::regions_of_a_queue_pair_stay",
            regions_of_a_queue_pair,
        ),
    ]
}

/// Lets the next command of this name fail on a function.
fn fail_next(function: u16, command: &str) -> Result {
    let asked = Control::open().and_then(|mut control| {
        let fields = json!({"function": function, "command": command, "count": 1});
        control.ask("fail_command", fields)
    });
    match asked {
        Ok(_) => Ok(()),
        Err(error) => fail(error.to_string()),
    }
}

/// Catches memory that is handed back, or freed, while the adapter still has the key to it.
fn a_region_stays() -> Result {
    let Some(hca) = Hca::of_guest() else {
        return skip("rxe cannot be told to refuse");
    };
    // Where the kernel's driver loads pages by work requests it keeps the keys of regions for the next ones;
    // on the second function it destroys them.
    hca.needs_two()?;
    let pd = uverbs::open("mlx5_1")?.alloc_pd()?;
    let mr = pd.register(vec![7u8; 64], Access::LOCAL_WRITE)?;
    fail_next(1, "DESTROY_MKEY")?;
    let Err(refused) = mr.deregister() else {
        return fail("the adapter was to refuse");
    };
    println!("{}", refused.error);
    same(refused.error.is_device_gone(), false, "what it looks like")?;
    let mut bytes = [0; 64];
    refused.object.read_at(0, &mut bytes)?;
    same(bytes, [7; 64], "the memory")?;
    same(refused.object.deregister()?, vec![7; 64], "it comes back")?;
    Ok(pd.dealloc()?)
}

/// Catches rings that go back to their allocator while the adapter still writes to them, that never go back,
/// or go twice.
fn rings_stay() -> Result {
    if device().is_rxe() {
        return skip("rxe cannot be told to refuse");
    }
    let context = open()?;
    let pd = context.alloc_pd()?;
    let counting = Arc::new(Counting::new(GuardPages::new()));
    let domain = pd.parent_domain();
    let domain = domain.allocator(Arc::clone(&counting)).build()?;
    let freed = || counting.counts().values().map(|count| count.freed).sum();
    let cq = context.cq(15).domain(&domain).create()?;
    let srq = domain.srq(15).create()?;
    let qp = domain.create_qp::<Rc>(&cq, Setup::default().caps)?;
    qp.destroy()?;
    same::<u64>(freed(), 2, "buffers of the queue pair")?;
    fail_next(0, "DESTROY_CQ")?;
    let Err(refused) = cq.destroy() else {
        return fail("the adapter was to keep the completion queue");
    };
    println!("{}", refused.error);
    same(freed(), 2, "buffers while the completion queue is there")?;
    refused.object.destroy()?;
    same(freed(), 4, "buffers of the completion queue")?;
    // The kernel says on some versions that such a queue is gone, whatever the adapter says; then it is let
    // go of.
    fail_next(0, "DESTROY_RMP")?;
    match srq.destroy() {
        Ok(()) => {}
        Err(refused) => {
            println!("{}", refused.error);
            same(freed(), 4, "buffers while the shared queue is there")?;
            refused.object.destroy()?;
        }
    }
    same(freed(), 6, "all buffers")?;
    domain.dealloc()?;
    Ok(pd.dealloc()?)
}

/// Memory that tells when it is freed.
struct Watched {
    bytes: Vec<u8>,
    freed: Arc<AtomicBool>,
}

// SAFETY: a vector's elements stay where they are as long as nothing is pushed, which nobody does.
unsafe impl Memory for Watched {
    fn address(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    fn length(&self) -> usize {
        self.bytes.len()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.freed.store(true, Ordering::Relaxed);
    }
}

/// Catches memory that is freed under the receive of a queue pair that was dropped, and that the adapter neither destroys
/// nor resets; and that stays although it was reset instead.
fn regions_of_a_queue_pair() -> Result {
    if device().is_rxe() {
        return skip("rxe cannot be told to refuse");
    }
    for resets in [true, false] {
        let mut pair = Pair::<Rc>::new()?;
        let freed = Arc::new(AtomicBool::new(false));
        let memory = Watched {
            bytes: vec![0; 64],
            freed: Arc::clone(&freed),
        };
        let region = pair.pd.register(memory, Access::LOCAL_WRITE)?;
        let mut batch = pair.b.qp.recv();
        batch.post(5, region.slice(..)?)?;
        batch.ring()?;
        drop(region);
        let is_freed = || freed.load(Ordering::Relaxed);
        same(is_freed(), false, "that it is freed under a receive")?;
        fail_next(0, "DESTROY_QP")?;
        let qp = match pair.b.qp.destroy() {
            // The kernel says on some versions that it is gone, whatever the adapter says.
            Ok(()) => return same(is_freed(), true, "that it is freed with the queue pair"),
            Err(refused) => refused.object,
        };
        same(is_freed(), false, "that it is freed although it stays")?;
        fail_next(0, "DESTROY_QP")?;
        if !resets {
            fail_next(0, "2RST_QP")?;
        }
        drop(qp);
        same(is_freed(), resets, "that it is freed once it is reset")?;
        drop((pair.a, pair.b.cq, pair.b.mr, pair.pd, pair.context));
        same(is_freed(), resets, "that it is freed with its PD")?;
    }
    Ok(())
}
