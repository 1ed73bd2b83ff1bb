//! Protection domains: what memory, queue pairs and address handles must share to work together.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::handle::PdHandle;

use crate::command::{AllocPd, DeallocPd};
use crate::context::Context;
use crate::error::{Cause, DestroyError, Error, Result, Subject, Verb};
use crate::key::PdTag;

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// The kernel's or the device's limit is reached. Manual page: `ibv_alloc_pd(3)`.
    pub fn alloc_pd(&self) -> Result<Pd> {
        let (handle, _) = self.fd().execute(&AllocPd::default())?;
        Ok(Pd(Arc::new(PdInner {
            context: self.clone(),
            handle,
            users: Users::default(),
            owned: true,
        })))
    }
}

/// A protection domain.
///
/// Objects made in it keep it alive, so it may be dropped before them; to free it at a known time, and to
/// hear of failure, call [`Pd::dealloc`].
pub struct Pd(Arc<PdInner>);

/// What the objects in a PD share with it.
pub(crate) struct PdInner {
    context: Context,
    handle: PdHandle,
    users: Users,
    /// False once the kernel object is gone.
    owned: bool,
}

/// The kinds of object that stand on a PD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    Mr,
    Ah,
    Qp,
}

/// How many objects of each kind stand on a PD.
#[derive(Debug, Default)]
struct Users {
    mrs: AtomicU32,
    ahs: AtomicU32,
    qps: AtomicU32,
}

impl Users {
    fn of(&self, kind: User) -> &AtomicU32 {
        match kind {
            User::Mr => &self.mrs,
            User::Ah => &self.ahs,
            User::Qp => &self.qps,
        }
    }
}

/// "2 MRs, 1 QP"; nothing if there are none.
impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, kind) in [("MR", User::Mr), ("AH", User::Ah), ("QP", User::Qp)] {
            // Relaxed: a snapshot for a message.
            let count = self.of(kind).load(Ordering::Relaxed);
            if count > 0 {
                write!(
                    f,
                    "{separator}{count} {name}{}",
                    if count == 1 { "" } else { "s" }
                )?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

/// An object's share in its PD: keeps the PD alive and is counted there.
#[derive(Debug)]
pub(crate) struct PdUse {
    pd: Arc<PdInner>,
    kind: User,
}

impl PdUse {
    pub(crate) fn context(&self) -> &Context {
        &self.pd.context
    }

    pub(crate) fn tag(&self) -> PdTag {
        self.pd.tag()
    }
}

impl Drop for PdUse {
    fn drop(&mut self) {
        // Relaxed: the count is for messages; the `Arc` orders what matters.
        self.pd.users.of(self.kind).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pd {
    /// The context that it was allocated in.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The kernel's handle, by which other holders of the command file can import the PD.
    pub fn handle(&self) -> PdHandle {
        self.0.handle
    }

    /// Counts a new object of a kind in the PD.
    pub(crate) fn user(&self, kind: User) -> PdUse {
        self.0.users.of(kind).fetch_add(1, Ordering::Relaxed);
        PdUse {
            pd: Arc::clone(&self.0),
            kind,
        }
    }

    /// Frees the protection domain.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`] if objects of this process still stand on it, named by kind and count; `EBUSY` if others
    /// do. The error gives the PD back. Manual page: `ibv_dealloc_pd(3)`.
    pub fn dealloc(self) -> Result<(), DestroyError<Pd>> {
        match Arc::try_unwrap(self.0) {
            Ok(mut inner) => match inner.dealloc() {
                Ok(()) => Ok(()),
                Err(error) => Err(DestroyError {
                    object: Pd(Arc::new(inner)),
                    error,
                }),
            },
            Err(shared) => {
                let by = format!("still stand on it: {}", shared.users);
                let error = Error::new(Verb::DeallocPd, shared.subject(), Cause::Busy(by.into()));
                Err(DestroyError {
                    object: Pd(shared),
                    error,
                })
            }
        }
    }
}

impl PdInner {
    fn subject(&self) -> Subject {
        Subject::numbered("PD", self.handle.0.into())
    }

    fn tag(&self) -> PdTag {
        PdTag::new(self.context.raw_fd(), self.handle.0)
    }

    fn dealloc(&mut self) -> Result<()> {
        self.context.fd().execute(&DeallocPd(self.handle))?;
        self.owned = false;
        Ok(())
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        if self.owned
            && let Err(error) = self.dealloc()
        {
            // It goes with the context at the latest.
            tracing::debug!(target: "uverbs", %error, "a PD could not be freed when it was dropped");
        }
    }
}

impl fmt::Debug for PdInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pd")
            .field("handle", &self.handle.0)
            .field("context", &self.context)
            .finish()
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
