//! Who may be freed when: domains with objects on them are busy, and say with what.

use libtest_mimic::Trial;
use support::exchange::CAPS;
use support::{Objects, Result, open, own_path, test_without_leaks};
use uverbs::{Access, Cause, Error, ParentDomain, Pd, Rc, ThreadDomain, error::DestroyError};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("busy::pd_names_its_users_by_kind", pd_names_its_users),
        test_without_leaks(
            "busy::domain_names_its_users_by_kind",
            domain_names_its_users,
        ),
        test_without_leaks("busy::td_is_busy_while_domains_use_it", td_is_busy),
        test_without_leaks(
            "busy::domain_and_td_of_other_contexts_are_refused",
            foreign_td,
        ),
        test_without_leaks(
            "busy::dropped_parents_live_as_long_as_their_children",
            dropped_parents,
        ),
        test_without_leaks("busy::pd_of_a_closed_context", pd_outlives_context_handle),
    ]
}

/// What a refusal says of who stands on the object.
pub(crate) fn users(error: &Error) -> String {
    match error.cause() {
        Cause::Busy(by) => by.to_string(),
        other => panic!("{other:?} instead of busy"),
    }
}

/// Things that can be freed and may be busy.
pub(crate) trait Dealloc: Sized {
    fn try_dealloc(self) -> std::result::Result<(), DestroyError<Self>>;
}

impl Dealloc for Pd {
    fn try_dealloc(self) -> std::result::Result<(), DestroyError<Self>> {
        self.dealloc()
    }
}

impl Dealloc for ParentDomain {
    fn try_dealloc(self) -> std::result::Result<(), DestroyError<Self>> {
        self.dealloc()
    }
}

impl Dealloc for ThreadDomain {
    fn try_dealloc(self) -> std::result::Result<(), DestroyError<Self>> {
        self.dealloc()
    }
}

/// Tries to free a busy object, and gives it back with what it said.
pub(crate) fn refused<T: Dealloc>(object: T) -> (T, String) {
    match object.try_dealloc() {
        Ok(()) => panic!("it was freed under its users"),
        Err(DestroyError { object, error }) => {
            assert_eq!(error.errno(), None, "the kernel was asked");
            (object, users(&error))
        }
    }
}

/// Catches a PD that is freed under its users, or asks the kernel first, and users that are miscounted or
/// misnamed.
fn pd_names_its_users() -> Result {
    let before = Objects::now()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(4)?;
    let mr = pd.register(vec![0u8; 64], Access::empty())?;
    let (pd, said) = refused(pd);
    assert_eq!(said, "in use by 1 MR");
    let other_mr = pd.register(vec![0u8; 64], Access::empty())?;
    let ah = pd.create_ah(&own_path(&context)?)?;
    let qp = pd.create_qp::<Rc>(&cq, CAPS)?;
    let domain = pd.parent_domain().create()?;
    let (pd, said) = refused(pd);
    assert_eq!(said, "in use by 2 MRs, 1 AH, 1 QP, 1 parent domain");
    // What was refused works on.
    let late = pd.register(vec![0u8; 64], Access::empty())?;

    late.deregister()?;
    mr.deregister()?;
    let (pd, said) = refused(pd);
    assert_eq!(said, "in use by 1 MR, 1 AH, 1 QP, 1 parent domain");
    qp.destroy()?;
    other_mr.deregister()?;
    let (pd, said) = refused(pd);
    assert_eq!(said, "in use by 1 AH, 1 parent domain");
    ah.destroy()?;
    let (pd, said) = refused(pd);
    assert_eq!(said, "in use by 1 parent domain");
    domain.dealloc()?;
    pd.dealloc()?;
    drop((cq, context));
    assert_eq!(Objects::now()?, before);
    Ok(())
}

/// Catches a kind of object that a domain does not count: rdma-core's mlx5 counts queue pairs and
/// completion queues only; here every kind keeps a domain busy.
fn domain_names_its_users() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let domain = pd.parent_domain().create()?;
    let mr = domain.register(vec![0u8; 64], Access::empty())?;
    let (domain, said) = refused(domain);
    assert_eq!(said, "in use by 1 MR");
    let ah = domain.create_ah(&own_path(&context)?)?;
    mr.deregister()?;
    let (domain, said) = refused(domain);
    assert_eq!(said, "in use by 1 AH");
    let cq = context.cq(4).domain(&domain).create()?;
    ah.destroy()?;
    let (domain, said) = refused(domain);
    assert_eq!(said, "in use by 1 CQ");
    let qp = domain.create_qp::<Rc>(&cq, CAPS)?;
    let (domain, said) = refused(domain);
    assert_eq!(said, "in use by 1 QP, 1 CQ");
    let outer = domain.parent_domain().create()?;
    // A completion queue with a user is busy itself, and keeps its domain busy when it is dropped.
    let busy = cq.destroy().unwrap_err();
    assert!(matches!(busy.error.cause(), Cause::Busy(_)), "{busy}");
    drop(busy.object);
    let (domain, said) = refused(domain);
    assert_eq!(said, "in use by 1 QP, 1 CQ, 1 parent domain");
    qp.destroy()?;
    let (domain, said) = refused(domain);
    assert_eq!(said, "in use by 1 parent domain");
    // The PD under it counts the domain alone, not what stands on that.
    let (pd, said) = refused(pd);
    assert_eq!(said, "in use by 1 parent domain");
    outer.dealloc()?;
    domain.dealloc()?;
    Ok(pd.dealloc()?)
}

/// Catches a thread domain that is freed under a domain, and a nested domain that is not counted or counted
/// with the wrong one.
fn td_is_busy() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let td = context.alloc_td();
    let first = pd.parent_domain().thread_domain(&td).create()?;
    let second = pd.parent_domain().thread_domain(&td).create()?;
    let nested = second.parent_domain().create()?;
    let (td, said) = refused(td);
    assert_eq!(said, "3 parent domains use it");
    first.dealloc()?;
    nested.dealloc()?;
    let (td, said) = refused(td);
    assert_eq!(said, "1 parent domain uses it");
    // Another thread domain instead of the inner one's: the inner one's is used by the inner domain alone.
    let other = context.alloc_td();
    let nested = second.parent_domain().thread_domain(&other).create()?;
    let (td, said) = refused(td);
    assert_eq!(said, "1 parent domain uses it");
    let (other, _) = refused(other);
    nested.dealloc()?;
    other.dealloc()?;
    second.dealloc()?;
    td.dealloc()?;
    Ok(pd.dealloc()?)
}

/// Catches a thread domain or a domain of another context that is taken.
fn foreign_td() -> Result {
    let (context, other) = (open()?, open()?);
    let pd = context.alloc_pd()?;
    let td = other.alloc_td();
    let error = pd.parent_domain().thread_domain(&td).create().unwrap_err();
    assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
    let foreign = other.alloc_pd()?.parent_domain().create()?;
    let error = context.cq(4).domain(&foreign).create().unwrap_err();
    assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
    td.dealloc()?;
    Ok(pd.dealloc()?)
}

/// Catches an object of the kernel's that goes with its handle while a child needs it, or stays when the
/// last child has gone. Handles may go in any order; the kernel's objects go when the last child does.
fn dropped_parents() -> Result {
    let before = Objects::now()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let td = context.alloc_td();
    let domain = pd.parent_domain().thread_domain(&td).create()?;
    let outer = domain.parent_domain().create()?;
    let mr = outer.register(vec![3u8; 64], Access::empty())?;
    drop((context, pd, td, domain, outer));
    let during = Objects::now()?;
    assert_eq!(
        (
            during.count("pd")?,
            during.count("mr")?,
            during.count("ctx")?
        ),
        (
            before.count("pd")? + 1,
            before.count("mr")? + 1,
            before.count("ctx")? + 1
        )
    );
    assert_eq!(mr.deregister()?, vec![3u8; 64]);
    assert_eq!(Objects::now()?, before);
    Ok(())
}

/// Catches a PD that goes with the handle of its context, and a file that stays open behind it.
fn pd_outlives_context_handle() -> Result {
    let before = Objects::now()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    drop(context);
    assert_eq!(Objects::now()?.count("pd")?, before.count("pd")? + 1);
    pd.dealloc()?;
    assert_eq!(Objects::now()?, before);
    Ok(())
}
