//! Domains over domains, and domains in the place of protection domains in every verb.

use std::sync::Arc;

use libtest_mimic::Trial;
use rustix::param::page_size;
use support::exchange::CAPS;
use support::{Exchange, Objects, Result, device, open, own_path, test_without_leaks};
use uverbs::{
    Access, Caps, Pd, Rc, Uc, Ud,
    alloc::{Counting, GuardPages},
    qp::QpType,
};

use crate::busy::refused;
use crate::traffic::{cq_on, datagrams, on_domain};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("nested::outer_inherits_allocator_and_td", inherits),
        test_without_leaks("nested::outer_overrides_the_allocator", overrides),
        test_without_leaks("nested::inner_is_busy_while_outer_lives", inner_is_busy),
        test_without_leaks("nested::domain_is_a_pd_in_every_verb", every_verb),
        test_without_leaks("nested::objects_of_pd_and_domains_work_together", mixed),
        test_without_leaks("nested::deep", deep),
    ]
}

type Guarded = Arc<Counting<GuardPages>>;

fn guarded() -> Guarded {
    Arc::new(Counting::new(GuardPages::new()))
}

/// Buffers of a completion queue, of two queue pairs, and of all that an [`Exchange`] makes.
fn buffers() -> (usize, usize, usize) {
    let (cq, qps) = (device().cq_buffers().len(), 2 * device().qp_buffers().len());
    (cq, qps, cq + qps)
}

fn asked(allocator: &Guarded) -> usize {
    allocator
        .counts()
        .values()
        .map(|counts| counts.asked as usize)
        .sum()
}

/// Catches an outer domain that does not ask the allocator of the inner one, or does not count with its
/// thread domain.
fn inherits() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let td = context.alloc_td();
    let allocator = guarded();
    let inner = pd
        .parent_domain()
        .thread_domain(&td)
        .allocator(Arc::clone(&allocator))
        .create()?;
    let outer = inner.parent_domain().create()?;
    assert_ne!(inner.id(), outer.id());
    assert_eq!(inner.handle(), outer.handle());
    on_domain(&outer)?.exchange()?;
    let (_, _, all) = buffers();
    assert_eq!((asked(&allocator), allocator.inner().live()), (all, 0));
    // The thread domain is used by both.
    inner.parent_domain().create()?.dealloc()?;
    let (td, said) = refused(td);
    assert_eq!(said, "2 parent domains use it");
    outer.dealloc()?;
    inner.dealloc()?;
    td.dealloc()?;
    Ok(pd.dealloc()?)
}

/// Catches a ring that lies in the other domain's allocator.
fn overrides() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let (of_inner, of_outer) = (guarded(), guarded());
    let inner = pd
        .parent_domain()
        .allocator(Arc::clone(&of_inner))
        .create()?;
    let outer = inner
        .parent_domain()
        .allocator(Arc::clone(&of_outer))
        .create()?;
    let mut pair = Exchange::with(&outer, &outer, cq_on(&inner)?)?;
    pair.exchange()?;
    // The completion queue's are on the inner one, the queue pairs' on the outer.
    let (cq, qps, _) = buffers();
    assert_eq!((asked(&of_inner), of_inner.inner().live()), (cq, cq));
    assert_eq!((asked(&of_outer), of_outer.inner().live()), (qps, qps));
    drop(pair);
    assert_eq!((of_inner.inner().live(), of_outer.inner().live()), (0, 0));
    Ok(())
}

/// Catches an inner domain that is freed under the outer one, or goes with its handle.
fn inner_is_busy() -> Result {
    let before = Objects::now()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let allocator = guarded();
    let inner = pd
        .parent_domain()
        .allocator(Arc::clone(&allocator))
        .create()?;
    let outer = inner.parent_domain().create()?;
    let (inner, said) = refused(inner);
    assert_eq!(said, "in use by 1 parent domain");
    // Dropped instead of freed, it stays as long as the outer one needs it.
    drop((inner, pd));
    let mut pair = on_domain(&outer)?;
    pair.exchange()?;
    assert_eq!(allocator.inner().live(), buffers().2);
    drop((pair, outer, context));
    assert_eq!(Objects::now()?, before);
    assert_eq!(Arc::strong_count(&allocator), 1);
    Ok(())
}

/// Catches a verb that takes no domain, or takes it for another object than its PD.
fn every_verb() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let td = context.alloc_td();
    let inner = pd.parent_domain().thread_domain(&td).create()?;
    let outer = inner
        .parent_domain()
        .allocator(GuardPages::new())
        .create()?;
    for pd in [&pd, &*inner, &*outer] {
        all_verbs(pd)?;
    }
    outer.dealloc()?;
    inner.dealloc()?;
    td.dealloc()?;
    Ok(pd.dealloc()?)
}

fn all_verbs(pd: &Pd) -> Result {
    let context = pd.context();
    let before = Objects::now()?;
    let cq = context.create_cq(8)?;
    let mr = pd.register(vec![0u8; 64], Access::empty())?;
    let memory = vec![0u8; 64];
    let offset = memory.as_ptr().addr() as u64 % page_size() as u64;
    let at = pd.register_at(memory, (7 << 20) + offset, Access::LOCAL_WRITE)?;
    assert_eq!(at.iova(), (7 << 20) + offset);
    let ah = pd.create_ah(&own_path(context)?)?;
    let rc = pd.create_qp::<Rc>(&cq, CAPS)?;
    let uc = pd.create_qp::<Uc>(&cq, CAPS)?;
    let ud = pd
        .qp(&cq)
        .caps(Caps::default())
        .signal_all(true)
        .create::<Ud>()?;
    let any = pd.qp(&cq).create_any(QpType::RC)?;
    let domain = pd.parent_domain().create()?;
    let now = Objects::now()?;
    assert_eq!(
        (now.count("qp")?, now.count("mr")?, now.count("cq")?),
        (
            before.count("qp")? + 4,
            before.count("mr")? + 2,
            before.count("cq")? + 1
        )
    );
    assert_eq!(
        now.count("pd")?,
        before.count("pd")?,
        "a domain is no PD of the kernel's"
    );
    domain.dealloc()?;
    any.destroy()?;
    ud.destroy()?;
    uc.destroy()?;
    rc.destroy()?;
    ah.destroy()?;
    at.deregister()?;
    mr.deregister()?;
    cq.destroy()?;
    assert_eq!(Objects::now()?, before);
    Ok(())
}

/// Catches more than one protection domain in the kernel: its queue pairs, memory and address handles work
/// together whichever of the handles they were made with.
fn mixed() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let inner = pd.parent_domain().allocator(GuardPages::new()).create()?;
    let outer = inner.parent_domain().create()?;
    Exchange::with(&inner, &pd, cq_on(&outer)?)?.exchange()?;
    Exchange::with(&pd, &outer, cq_on(&inner)?)?.exchange()?;
    datagrams(&outer, &pd, &inner, cq_on(&outer)?)?;
    datagrams(&pd, &inner, &outer, context.create_cq(32)?)
}

/// Catches a recursion that runs out of stack, and a chain that breaks: the last domain alone keeps all
/// others, and asks the first one's allocator.
fn deep() -> Result {
    const DEPTH: usize = 200;
    let before = Objects::now()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let allocator = guarded();
    let mut domains = vec![
        pd.parent_domain()
            .allocator(Arc::clone(&allocator))
            .create()?,
    ];
    for at in 1..DEPTH {
        let next = domains[at - 1].parent_domain().create()?;
        domains.push(next);
    }
    let last = domains.pop().ok_or("no domain")?;
    drop((domains, pd, context));
    on_domain(&last)?.exchange()?;
    assert_eq!(asked(&allocator), buffers().2);
    drop(last);
    assert_eq!(Objects::now()?, before);
    Ok(())
}
