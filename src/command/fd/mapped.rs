//! The mappings of a command file. The kernel keeps the file as long as any of it is mapped, so closing a
//! context that is still in use requires the addresses of the mappings. Only C programs can do that; without
//! the C ABI nothing is noted.

#[cfg(feature = "c-abi")]
use std::collections::BTreeMap;
use std::ptr::NonNull;
#[cfg(feature = "c-abi")]
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The mappings of a command file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mappings {
    /// Their lengths in bytes, by address.
    #[cfg(feature = "c-abi")]
    all: Arc<Mutex<BTreeMap<usize, usize>>>,
}

/// A mapping that is noted until this is dropped. Drop it before the mapping is unmapped: afterwards another
/// mapping may lie there.
#[derive(Debug, Default)]
#[must_use = "it is noted no longer"]
pub(crate) struct Mapped {
    #[cfg(feature = "c-abi")]
    noted: Option<(Mappings, usize)>,
}

#[cfg(feature = "c-abi")]
impl Mappings {
    /// Notes a mapping.
    pub(super) fn note(&self, base: NonNull<u8>, length: usize) -> Mapped {
        let base = base.as_ptr().expose_provenance();
        self.all().insert(base, length);
        Mapped {
            noted: Some((self.clone(), base)),
        }
    }

    /// Replaces all mappings with memory of this process, so that they do not keep the file. Code that still
    /// has one reads zeros there. A mapping that the kernel does not replace stays.
    ///
    /// # Safety
    ///
    /// Nothing uses any of them meanwhile.
    pub(super) unsafe fn replace(&self) {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        for (base, length) in self.all().iter() {
            let at = std::ptr::with_exposed_provenance_mut(*base);
            // SAFETY: the noted ranges are mapped and belong to the code that noted them, which does not use
            // them now.
            let _ = unsafe { mmap_anonymous(at, *length, access, flags) };
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        // It is consistent after every statement.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(not(feature = "c-abi"))]
impl Mappings {
    /// Notes nothing.
    pub(super) fn note(&self, _: NonNull<u8>, _: usize) -> Mapped {
        Mapped::default()
    }
}

impl Mapped {
    /// Removes the note: the mapping is about to be unmapped.
    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }

    /// Notes that the mapping was moved.
    #[allow(dead_code, reason = "not every driver moves mappings")]
    pub(crate) fn moved(&mut self, to: NonNull<u8>) {
        #[cfg(feature = "c-abi")]
        if let Some((mappings, base)) = &mut self.noted {
            let to = to.as_ptr().expose_provenance();
            let mut all = mappings.all();
            if let Some(length) = all.remove(base) {
                all.insert(to, length);
            }
            *base = to;
        }
        #[cfg(not(feature = "c-abi"))]
        let _ = to;
    }
}

#[cfg(feature = "c-abi")]
impl Drop for Mapped {
    fn drop(&mut self) {
        if let Some((mappings, base)) = &self.noted {
            mappings.all().remove(base);
        }
    }
}

#[cfg(all(test, feature = "c-abi"))]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    use rustix::param::page_size;

    use super::*;

    fn page() -> NonNull<u8> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), page_size(), access, MapFlags::SHARED).unwrap()
        };
        base.expose_provenance();
        let base = NonNull::new(base.cast::<u8>()).unwrap();
        // SAFETY: the page is this test's.
        unsafe { base.write(7) };
        base
    }

    /// Would catch a mapping that keeps its file, and one that is replaced although its note was removed.
    #[test]
    fn what_is_noted_is_replaced() {
        let (kept, moved, gone) = (page(), page(), page());
        let mappings = Mappings::default();
        let _kept = mappings.note(kept, page_size());
        let mut of_moved = mappings.note(NonNull::dangling(), page_size());
        of_moved.moved(moved);
        drop(mappings.note(gone, page_size()));
        // SAFETY: the pages are this test's, and nothing else uses them.
        unsafe {
            mappings.replace();
            assert_eq!([kept.read(), moved.read(), gone.read()], [0, 0, 7]);
            for page in [kept, moved, gone] {
                munmap(page.as_ptr().cast(), page_size()).unwrap();
            }
        }
    }
}
