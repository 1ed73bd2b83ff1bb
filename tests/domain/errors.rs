//! Allocators that fail, in the middle of creating an object above all: the error surfaces, nothing leaks,
//! and nothing stays behind in the kernel.

use std::error::Error as _;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libtest_mimic::Trial;
use rustix::mm::MapFlags;
use support::exchange::CAPS;
use support::{Objects, Result, completions, device, open, skip, test_without_leaks};
use uverbs::{
    Access, Cause, Context, Cq, Error, Inline, ParentDomain, Pd, Rc,
    alloc::{AllocError, Allocation, Allocator, BufferRequest, Purpose},
    error::Verb,
};

use crate::kinds::reserve_huge_pages;
use crate::script::{Script, expose, fresh, here, mapped, unmap};
use crate::traffic::{cq_on, on_domain};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks(
            "errors::refusal_of_the_second_ring_undoes_the_first",
            second_ring_refused,
        ),
        test_without_leaks("errors::refusal_of_a_cq_ring", cq_ring_refused),
        test_without_leaks("errors::wrong_alignment", wrong_alignment),
        test_without_leaks("errors::too_small", too_small),
        test_without_leaks("errors::overlap_with_a_live_ring", overlap),
        test_without_leaks("errors::place_in_a_huge_page", huge_place),
        test_without_leaks("errors::panic_in_allocate", panic_in_allocate),
        test_without_leaks("errors::panic_in_free", panic_in_free),
        test_without_leaks("errors::resizes_that_find_no_place", no_place),
        test_without_leaks("errors::resizes_into_a_huge_page", no_good_place),
    ]
}

/// A domain with a scripted allocator, and a CQ that is not on it.
struct Rig {
    before: Objects,
    script: Arc<Script>,
    domain: ParentDomain,
    cq: Cq,
    _pd: Pd,
    _context: Context,
}

fn rig(
    answer: impl Fn(usize, &BufferRequest) -> std::result::Result<Allocation, AllocError>
    + Send
    + Sync
    + 'static,
) -> Result<Rig> {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let script = Arc::new(Script::new(answer));
    let domain = pd.parent_domain().allocator(Arc::clone(&script)).create()?;
    let cq = context.create_cq(32)?;
    Ok(Rig {
        before: Objects::now()?,
        script,
        domain,
        cq,
        _pd: pd,
        _context: context,
    })
}

impl Rig {
    /// Creates a queue pair, which must fail, and checks that nothing is left: in the kernel, or with the
    /// allocator, which has granted and got back `freed` buffers.
    fn fails(&self, freed: usize) -> Result<Error> {
        let error = self.domain.create_qp::<Rc>(&self.cq, CAPS).unwrap_err();
        assert_eq!(Objects::now()?, self.before, "{error}");
        let seen = self.script.seen();
        assert_eq!((seen.freed, seen.live.len()), (freed, 0), "{error}");
        assert_eq!(seen.complaints, Vec::<String>::new());
        Ok(error)
    }

    /// The text of a refusal that comes from the library.
    fn refused(&self, freed: usize) -> Result<String> {
        let error = self.fails(freed)?;
        assert_eq!(error.verb(), Verb::AllocBuffer, "{error}");
        assert!(matches!(error.cause(), Cause::Allocator(_)), "{error:?}");
        Ok(error.to_string())
    }
}

#[derive(Debug)]
struct Mine(u32);

impl std::fmt::Display for Mine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no room, code {}", self.0)
    }
}

impl std::error::Error for Mine {}

/// Catches a first ring that is left behind when the second is refused, and an error that is not the
/// allocator's own.
fn second_ring_refused() -> Result {
    let rig = rig(|number, request| match number {
        2 => Err(AllocError::new(Mine(7))),
        _ => Ok(Allocation::Memory(fresh(request.size))),
    })?;
    let error = rig.fails(1)?;
    let mine = error
        .source()
        .and_then(|source| source.downcast_ref::<Mine>());
    assert_eq!(mine.map(|mine| mine.0), Some(7), "{error}");
    // The receive ring, or the doorbell record.
    let second = format!("{:?}", device().qp_buffers()[1]);
    assert!(error.to_string().contains(&second), "{error}");
    // The domain works on: the third and fourth request are granted.
    let qp = rig.domain.create_qp::<Rc>(&rig.cq, CAPS)?;
    qp.destroy()?;
    assert_eq!(rig.script.seen().freed, 3);
    Ok(())
}

/// Catches a completion queue that is left behind, and an error that is not the allocator's own.
fn cq_ring_refused() -> Result {
    let rig = rig(|_, _| Err(AllocError::new("never")))?;
    let error = rig
        .domain
        .context()
        .cq(8)
        .domain(&rig.domain)
        .create()
        .unwrap_err();
    assert!(error.to_string().ends_with("never"), "{error}");
    assert_eq!(Objects::now()?, rig.before);
    assert_eq!(rig.script.seen().freed, 0);
    Ok(())
}

/// Catches memory that is not aligned as asked and taken nevertheless.
fn wrong_alignment() -> Result {
    let rig = rig(|_, request| {
        let memory = fresh(request.size + 4096).cast::<u8>();
        // SAFETY: the mapping is a page longer than asked for.
        let crooked = unsafe { memory.add(request.alignment / 2) };
        Ok(Allocation::Memory(NonNull::slice_from_raw_parts(
            crooked,
            request.size,
        )))
    })?;
    let said = rig.refused(1)?;
    let alignment = rig.script.seen().asked[0].alignment;
    let expected = format!("not aligned to {alignment}");
    assert!(said.contains(&expected), "{said}");
    Ok(())
}

/// Catches memory that is too small and taken nevertheless.
fn too_small() -> Result {
    let rig = rig(|number, request| {
        // The second ring, to have one to undo.
        let size = if number == 2 {
            request.size - 1
        } else {
            request.size
        };
        let memory = fresh(request.size).cast();
        Ok(Allocation::Memory(NonNull::slice_from_raw_parts(
            memory, size,
        )))
    })?;
    let said = rig.refused(2)?;
    assert!(said.contains("are needed"), "{said}");
    Ok(())
}

/// Catches a second ring over the first: without the check it would replace it, and the device would lose its
/// doorbell's other end in silence.
fn overlap() -> Result {
    let last = AtomicUsize::new(0);
    let rig = rig(move |number, request| {
        if number == 2 {
            return here(last.load(Ordering::Relaxed), request.size);
        }
        let memory = fresh(request.size);
        last.store(expose(memory), Ordering::Relaxed);
        Ok(Allocation::Memory(memory))
    })?;
    let error = rig.domain.create_qp::<Rc>(&rig.cq, CAPS).unwrap_err();
    assert!(
        error.to_string().contains("overlaps one that is in use"),
        "{error}"
    );
    assert_eq!(Objects::now()?, rig.before);
    assert_eq!(rig.script.seen().freed, 2);
    // Other domains' rings are looked at as well.
    let first = rig.domain.create_qp::<Rc>(&rig.cq, CAPS)?;
    let taken = *rig.script.seen().live.keys().next().ok_or("no ring")?;
    let thief = Script::new(move |_, request| here(taken, request.size));
    let other = rig.domain.parent_domain().allocator(thief).create()?;
    let error = cq_on(&other).map(drop).unwrap_err();
    assert!(error.to_string().contains("overlaps"), "{error}");
    Ok(first.destroy()?)
}

/// Catches a refusal without a reason: the kernel does not map over a part of a huge page.
fn huge_place() -> Result {
    if device().purpose() == Purpose::Memory {
        return skip("the device uses memory as it is, and maps nothing over it");
    }
    reserve_huge_pages()?;
    let huge = mapped(
        2 << 20,
        MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB,
    )?;
    let address = expose(huge);
    let rig = rig(move |_, request| here(address, request.size))?;
    let error = rig.fails(1)?;
    assert_eq!(error.verb(), Verb::MapQueue, "{error}");
    // Linux 6.1 has one errno for all that keeps it from unmapping what is there.
    let errnos = [
        Some(uverbs::error::Errno::INVAL),
        Some(uverbs::error::Errno::NOMEM),
    ];
    assert!(errnos.contains(&error.errno()), "{error}");
    assert!(error.to_string().contains("huge page"), "{error}");
    // The page is whole.
    // SAFETY: it is mapped, and no ring lies in it.
    unsafe { huge.cast::<u8>().as_ptr().write_bytes(1, 2 << 20) };
    drop(rig);
    unmap(huge);
    Ok(())
}

/// Catches a panic that goes through the library, and objects that it leaves behind.
fn panic_in_allocate() -> Result {
    let rig = rig(|number, request| match number {
        2 => panic!("the allocator has lost its mind"),
        _ => Ok(Allocation::Memory(fresh(request.size))),
    })?;
    let said = rig.refused(1)?;
    assert!(
        said.contains("panicked: the allocator has lost its mind"),
        "{said}"
    );
    rig.domain.create_qp::<Rc>(&rig.cq, CAPS)?.destroy()?;
    Ok(())
}

/// Grants pages and panics when they come back, once it is told to.
struct Ungrateful(AtomicBool);

// SAFETY: each buffer has a mapping of its own that is never unmapped.
unsafe impl Allocator for Ungrateful {
    fn allocate(&self, request: &BufferRequest) -> std::result::Result<Allocation, AllocError> {
        Ok(Allocation::Memory(fresh(request.size)))
    }

    unsafe fn free(&self, _: NonNull<[u8]>, _: &BufferRequest) {
        assert!(!self.0.load(Ordering::Relaxed), "I do not want it back");
    }
}

/// Catches a panic in a drop that ends the process or leaves an object behind.
fn panic_in_free() -> Result {
    let before = Objects::now()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let ungrateful = Arc::new(Ungrateful(AtomicBool::new(false)));
    let domain = pd
        .parent_domain()
        .allocator(Arc::clone(&ungrateful))
        .create()?;
    let mut pair = on_domain(&domain)?;
    let other = domain.create_qp::<Rc>(&pair.cq, CAPS)?;
    ungrateful.0.store(true, Ordering::Relaxed);
    other.destroy()?;
    pair.exchange()?;
    drop((pair, domain, pd, context));
    assert_eq!(Objects::now()?, before);
    Ok(())
}

/// Catches queues that the kernel writes to elsewhere after a resize for which there was no place: no
/// completion came any more, and no receive was found.
fn no_place() -> Result {
    let answer = |_: &BufferRequest| Err(AllocError::new(Mine(9)));
    let freed = resizes(answer, |error| {
        let mine = error
            .source()
            .and_then(|source| source.downcast_ref::<Mine>());
        assert_eq!(mine.map(|mine| mine.0), Some(9), "{error}");
    })?;
    assert_eq!(freed, 2);
    Ok(())
}

/// Catches the same after a resize for which there was a place that nothing can be mapped over.
fn no_good_place() -> Result {
    if device().purpose() == Purpose::Memory {
        return skip("the device uses memory as it is, and maps nothing over it");
    }
    reserve_huge_pages()?;
    let huge = mapped(
        2 << 20,
        MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB,
    )?;
    let address = expose(huge);
    resizes(
        move |request| match request.size <= 1 << 20 {
            true => here(address, request.size),
            false => Err(AllocError::new("too large for the test")),
        },
        |error| {
            assert_eq!(error.verb(), Verb::MapQueue, "{error}");
            assert!(error.to_string().contains("huge page"), "{error}");
        },
    )?;
    unmap(huge);
    Ok(())
}

/// Resizes queues that are in use, for whose new rings the allocator gives this answer. `check` looks at the
/// errors. Returns how many buffers came back.
fn resizes(
    answer: impl Fn(&BufferRequest) -> std::result::Result<Allocation, AllocError>
    + Send
    + Sync
    + 'static,
    check: impl Fn(&Error),
) -> Result<usize> {
    if device().is_mlx5() {
        return skip("the kernel's mlx5 changes no sizes of queues");
    }
    let rig = rig(move |number, request| match number {
        1 | 2 => Ok(Allocation::Memory(fresh(request.size))),
        _ => answer(request),
    })?;
    let (context, pd) = (rig.domain.context(), &rig._pd);
    let mut cq = cq_on(&rig.domain)?;
    let mut srq = rig.domain.srq(8).create()?;
    let mut qp = pd.qp(&cq).srq(&srq).caps(CAPS).create::<Rc>()?;
    let endpoint = qp.endpoint()?;
    qp.connect(&endpoint)?;
    let mr = pd.register(vec![7_u8; 64], Access::LOCAL_WRITE)?;
    let sizes = (cq.capacity(), srq.capacity());
    let post = |srq: &mut uverbs::Srq| -> Result {
        let mut batch = srq.batch();
        batch.post(1, mr.slice(..)?)?;
        batch.ring();
        Ok(())
    };
    post(&mut srq)?;
    for round in 0..3 {
        let refused = [cq.resize(1000), srq.resize(1000)];
        for refused in refused {
            check(&refused.err().ok_or("there was a place")?);
        }
        // What the kernel refuses leaves them as they are too.
        let too_many = context.query_device()?.max_cqe + 1;
        assert!(cq.resize(too_many).is_err());
        assert_eq!((cq.capacity(), srq.capacity()), sizes);
        let mut batch = qp.batch();
        batch.signaled(2).send(Inline(b"still here"))?;
        batch.ring()?;
        for wc in completions(&mut cq, 2)? {
            wc.ok()?;
        }
        assert_eq!(srq.in_flight(), 0, "{round}");
        post(&mut srq)?;
    }
    drop((qp, srq, cq, mr));
    let seen = rig.script.seen();
    assert_eq!(seen.live.len(), 0);
    assert_eq!(seen.complaints, Vec::<String>::new());
    assert_eq!(Objects::now()?, rig.before);
    Ok(seen.freed)
}
