//! The adapter refuses to let go of an object: what it may still write to must stay, until it has let go
//! after all.

use std::sync::Arc;

use libtest_mimic::Trial;
use serde_json::json;
use support::{Control, Hca, Result, Setup, device, fail, open, same, skip, test};
use uverbs::{
    Access, Rc,
    alloc::{Counting, GuardPages},
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("refusal::a_region_stays", a_region_stays),
        test("refusal::rings_stay", rings_stay),
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
    let domain = domain.allocator(Arc::clone(&counting)).create()?;
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
