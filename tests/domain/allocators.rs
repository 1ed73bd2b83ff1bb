//! What an allocator is asked, and when its buffers come back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;

use libtest_mimic::Trial;
use support::exchange::CAPS;
use support::{Exchange, LIMIT, Result, device, open, skip, test_without_leaks};
use uverbs::{
    QpState, Rc,
    alloc::{AllocError, Allocation, BufferRequest, Purpose, ResourceType},
    qp::Control,
};

use crate::script::{Script, expose, fresh, here, map_at, range};
use crate::traffic::{cq_on, on_domain};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks(
            "allocators::requests_name_resource_size_and_domain",
            requests,
        ),
        test_without_leaks(
            "allocators::rings_lie_where_the_allocator_says",
            rings_lie_there,
        ),
        test_without_leaks(
            "allocators::each_buffer_comes_back_once_and_defaults_never",
            comes_back_once,
        ),
        test_without_leaks(
            "allocators::places_come_back_zeroed_and_private",
            comes_back_zeroed,
        ),
        test_without_leaks(
            "allocators::rings_stay_when_the_domain_is_dropped",
            rings_keep_the_allocator,
        ),
        test_without_leaks("allocators::rings_of_a_reset_lie_there_too", reset_rings),
        test_without_leaks("allocators::may_ask_about_what_is_reset", asks_in_a_reset),
    ]
}

/// Buffers of a completion queue and two queue pairs.
fn all_buffers() -> usize {
    device().cq_buffers().len() + 2 * device().qp_buffers().len()
}

/// Grants fresh pages for everything.
fn always_fresh() -> Arc<Script> {
    Arc::new(Script::new(|_, request| {
        Ok(Allocation::Memory(fresh(request.size)))
    }))
}

/// Catches a request that names another resource, domain or size than the ring it is for, and one size for
/// every ring.
fn requests() -> Result {
    let context = open()?;
    // So that the domain's number and the PD's differ.
    let unused = context.alloc_pd()?;
    let pd = context.alloc_pd()?;
    let script = always_fresh();
    let domain = pd.parent_domain().allocator(Arc::clone(&script)).create()?;
    let cq = cq_on(&domain)?;
    let qp = domain.create_qp::<Rc>(&cq, CAPS)?;
    let asked = script.seen().asked;
    let resources: Vec<_> = asked.iter().map(|request| request.resource).collect();
    let (of_cq, of_qp) = (device().cq_buffers(), device().qp_buffers());
    assert_eq!(resources, [of_cq, of_qp].concat());
    for request in &asked {
        assert!(is_sensible(request), "{request:?}");
        assert_eq!(request.purpose, device().purpose());
        assert_eq!((request.pd, request.domain), (pd.handle(), domain.id()));
    }
    // Queues of more requests make larger rings.
    let caps = uverbs::Caps {
        max_send_wr: 512,
        ..CAPS
    };
    let large = domain.create_qp::<Rc>(&cq, caps)?;
    let asked = script.seen().asked;
    let (small, larger) = asked[of_cq.len()..].split_at(of_qp.len());
    assert!(larger[0].size > 4 * small[0].size, "{asked:?}");
    assert_eq!(larger[1].size, small[1].size);
    drop((qp, large, cq, unused));
    Ok(())
}

/// Whether size and alignment are those that rdma-core's providers ask for, and on soft-RoCE those of whole
/// pages.
fn is_sensible(request: &BufferRequest) -> bool {
    let page = rustix::param::page_size();
    let BufferRequest {
        size, alignment, ..
    } = *request;
    match request.resource {
        ResourceType::MLX5_DBR => (size, alignment) == (8, 8),
        // The start of a queue pair's buffer within a page of its whole size is told in 64ths.
        ResourceType::MLX5_QP => {
            let whole = size.next_multiple_of(page).next_power_of_two();
            size > 0 && size % 64 == 0 && alignment == 64.max(whole / 64)
        }
        _ => size > 0 && size % page == 0 && alignment == page,
    }
}

/// Catches a ring that lies elsewhere. The kernel's account: its file is mapped at the allocator's addresses,
/// from the first byte to the last. Where the memory itself is used, it has been written to.
fn rings_lie_there() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let script = always_fresh();
    let domain = pd.parent_domain().allocator(Arc::clone(&script)).create()?;
    let mut pair = on_domain(&domain)?;
    pair.exchange()?;
    let live = script.seen().live;
    assert_eq!(live.len(), all_buffers());
    for (address, request) in live {
        if request.purpose == Purpose::Memory {
            let first = std::ptr::with_exposed_provenance::<u8>(address);
            // SAFETY: the memory is the allocator's, mapped as long as the process lives; the queues are at
            // rest.
            let used = (0..request.size).any(|at| unsafe { first.add(at).read_volatile() } != 0);
            assert!(used, "nothing was written to {request:?}");
            continue;
        }
        let map = map_at(address).ok_or("not mapped")?;
        assert!(
            map.contains("/dev/infiniband/uverbs") && map.contains("rw-s"),
            "{map}"
        );
        let range = range(&map).ok_or("no range")?;
        assert_eq!(range, address..address + request.size, "{request:?}");
    }
    Ok(())
}

/// Catches a buffer that never comes back, comes back twice, or before the kernel has let go of it, and a
/// default buffer that does.
fn comes_back_once() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    // Every other ring is the driver's own.
    let script = Arc::new(Script::new(|number, request| match number % 2 {
        0 => Ok(Allocation::Default),
        _ => Ok(Allocation::Memory(fresh(request.size))),
    }));
    let domain = pd.parent_domain().allocator(Arc::clone(&script)).create()?;
    let mut pair = on_domain(&domain)?;
    pair.exchange()?;
    let seen = script.seen();
    assert_eq!(
        (seen.asked.len(), seen.live.len(), seen.freed),
        (all_buffers(), 3, 0)
    );
    let Exchange { cq, a, b, .. } = pair;
    // Of the CQ, of `a` and of `b`: one each has been granted.
    a.destroy()?;
    assert_eq!(script.seen().freed, 1);
    // By dropping as by destroying, and by halves.
    let (send, recv) = b.split();
    drop(send);
    drop(recv);
    assert_eq!(script.seen().freed, 2);
    cq.destroy()?;
    let seen = script.seen();
    assert_eq!((seen.freed, seen.live.len()), (3, 0));
    assert_eq!(seen.complaints, Vec::<String>::new());
    Ok(())
}

/// Catches a place that comes back with the ring still mapped, with its bytes, or shared.
fn comes_back_zeroed() -> Result {
    if device().purpose() == Purpose::Memory {
        return skip("the device uses memory as it is, and maps nothing over it");
    }
    let context = open()?;
    let pd = context.alloc_pd()?;
    let place = fresh(1 << 20);
    let address = expose(place);
    let script = Arc::new(Script::new(move |_, request| here(address, request.size)));
    let domain = pd.parent_domain().allocator(Arc::clone(&script)).create()?;
    let byte = || {
        // SAFETY: the pages are mapped and readable throughout, and no ring of the driver's is read here.
        unsafe { place.cast::<u8>().as_ptr().read_volatile() }
    };
    // SAFETY: the pages are this test's as long as no ring lies there.
    unsafe {
        place
            .cast::<u8>()
            .as_ptr()
            .write_bytes(0x77, rustix::param::page_size())
    };
    let cq = cq_on(&domain)?;
    assert!(map_at(address).is_some_and(|map| map.contains("uverbs")));
    cq.destroy()?;
    let map = map_at(address).ok_or("nothing is mapped there any more")?;
    assert!(!map.contains("uverbs") && map.contains("rw-p"), "{map}");
    assert_eq!(byte(), 0);
    // The same place serves again.
    cq_on(&domain)?.destroy()?;
    assert_eq!(script.seen().freed, 2);
    Ok(())
}

/// Catches an allocator that goes with its domain while rings lie in its memory, or never goes.
fn rings_keep_the_allocator() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let script = always_fresh();
    let domain = pd.parent_domain().allocator(Arc::clone(&script)).create()?;
    let mut pair = on_domain(&domain)?;
    drop((domain, pd, context));
    pair.exchange()?;
    assert_eq!(script.seen().freed, 0);
    drop(pair);
    let seen = script.seen();
    assert_eq!((seen.freed, seen.live.len()), (all_buffers(), 0));
    assert_eq!(Arc::strong_count(&script), 1);
    Ok(())
}

/// Catches a lock that is held while an allocator is asked for the rings of a queue pair that is reset: an
/// allocator that asks about the queue pair would wait for ever.
fn asks_in_a_reset() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let asked = Arc::new(OnceLock::<Control>::new());
    let script = Script::new({
        let asked = Arc::clone(&asked);
        move |_, request| {
            if let Some(control) = asked.get().cloned() {
                let (tell, told) = mpsc::channel();
                thread::spawn(move || tell.send(control.qpn()));
                let told = told.recv_timeout(LIMIT);
                told.map_err(|_| AllocError::new("the queue pair does not answer"))?;
            }
            Ok(Allocation::Memory(fresh(request.size)))
        }
    });
    let domain = pd.parent_domain().allocator(script).create()?;
    let mut pair = on_domain(&domain)?;
    pair.exchange()?;
    asked.set(pair.a.control()).map_err(|_| "set twice")?;
    pair.a.reset()?;
    pair.b.reset()?;
    let (a, b) = (pair.a.endpoint()?, pair.b.endpoint()?);
    pair.a.connect(&b)?;
    pair.b.connect(&a)?;
    pair.exchange()
}

/// Catches a reset whose new rings lie elsewhere, whose old ones never come back, or that leaves something
/// half done when the allocator has nothing.
fn reset_rings() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let dry = Arc::new(AtomicBool::new(false));
    let script = Arc::new(Script::new({
        let dry = Arc::clone(&dry);
        move |_, request| match dry.load(Ordering::Relaxed) {
            true => Err(AllocError::new("nothing left")),
            false => Ok(Allocation::Memory(fresh(request.size))),
        }
    }));
    let domain = pd.parent_domain().allocator(Arc::clone(&script)).create()?;
    let mut pair = on_domain(&domain)?;
    for _ in 0..3 {
        pair.exchange()?;
        dry.store(true, Ordering::Relaxed);
        // A device that starts in its rings anew asks for none.
        if device().is_rxe() {
            let qpn = pair.a.qpn();
            let refused = pair.a.reset().unwrap_err();
            assert!(refused.to_string().contains("nothing left"), "{refused}");
            assert_eq!((pair.a.qpn(), pair.a.state()), (qpn, QpState::RTS));
            pair.exchange()?;
        }
        dry.store(false, Ordering::Relaxed);
        pair.a.reset()?;
        pair.b.reset()?;
        let (a, b) = (pair.a.endpoint()?, pair.b.endpoint()?);
        pair.a.connect(&b)?;
        pair.b.connect(&a)?;
        assert_eq!(script.seen().live.len(), all_buffers());
    }
    pair.exchange()?;
    drop(pair);
    let seen = script.seen();
    assert_eq!(seen.live.len(), 0);
    assert_eq!(seen.complaints, Vec::<String>::new());
    Ok(())
}
