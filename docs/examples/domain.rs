//! Placing rings with allocators: in an arena, and between guard pages that catch overruns.

#![forbid(unsafe_code)]

use std::sync::Arc;

use uverbs::{
    Caps, Pd, Rc,
    alloc::{Allocator, Arena, Counting, GuardPages},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let devices = uverbs::devices()?;
    let name = std::env::args().nth(1);
    let name = name
        .as_deref()
        .or_else(|| devices.first().map(|device| device.name()));
    let context = uverbs::open(name.ok_or("this machine has no RDMA device")?)?;
    let pd = context.alloc_pd()?;

    // An allocator is shared with the domain, so that the program can look at it afterwards.
    let arena = Arc::new(Counting::new(Arena::new(vec![0u8; 1 << 20])?));
    rings_in("an arena", &pd, &arena)?;
    let used = arena.inner().used();
    println!("{used} of {} bytes were used", arena.inner().capacity());
    // All objects are gone, so the arena may start again.
    arena.inner().reset()?;

    let guarded = Arc::new(Counting::new(GuardPages::new()));
    rings_in("guard pages", &pd, &guarded)?;
    Ok(pd.dealloc()?)
}

/// Creates a completion queue and a queue pair on a domain with this allocator, and prints what they asked
/// for.
fn rings_in<A: Allocator>(
    place: &str,
    pd: &Pd,
    allocator: &Arc<Counting<A>>,
) -> Result<(), Box<dyn std::error::Error>> {
    // The domain stands for its PD in every verb. Objects made in it get their rings from its allocator.
    let td = pd.context().alloc_td();
    let domain = pd
        .parent_domain()
        .thread_domain(&td)
        .allocator(Arc::clone(allocator))
        .create()?;
    let cq = pd.context().cq(256).domain(&domain).create()?;
    let qp = domain.create_qp::<Rc>(&cq, Caps::default())?;

    println!("in {place}:");
    for (resource, counts) in allocator.counts() {
        println!("  {resource:?}: {} bytes", counts.live_bytes);
    }

    // Children first: a domain with objects on it is busy, and says with what.
    let busy = domain.dealloc().expect_err("a queue pair stands on it");
    println!("  {busy}");
    qp.destroy()?;
    cq.destroy()?;
    busy.object.dealloc()?;
    td.dealloc()?;
    assert!(allocator.counts().values().all(|counts| counts.live() == 0));
    Ok(())
}
