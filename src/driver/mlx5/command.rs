//! Commands that only mlx5 has.

use uverbs_uapi::handle::{DmHandle, PdHandle};
use uverbs_uapi::mlx5::{UarAllocType, attr, method, object};
use uverbs_uapi::{attr as core_attr, object as core_object};

use crate::command::{AllocDm, Command, Decode, Object, Request, Undo, undo};
use crate::error::{Subject, Verb};

/// Types for the kernel's handles of objects that only mlx5 has.
macro_rules! handles {
    ($($(#[$doc:meta])* $Name:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(crate) struct $Name(pub(crate) u32);

            impl From<u32> for $Name {
                fn from(handle: u32) -> Self {
                    Self(handle)
                }
            }

            impl From<$Name> for u32 {
                fn from(handle: $Name) -> Self {
                    handle.0
                }
            }
        )*
    };
}

#[cfg(feature = "mlx5-direct")]
pub(crate) use handles;

handles! {
    /// A UAR, by the kernel's handle.
    UarHandle;
}

impl Object for UarHandle {
    const DESTROY: Verb = Verb::DevxFreeUar;
    const NAME: &'static str = "UAR";
    const METHOD: (u16, u16, u16) = (
        object::UAR,
        method::uar::DESTROY,
        attr::uar_obj_destroy::HANDLE,
    );
}

/// Allocates a UAR: a page of the device's registers for this context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocUar(pub(crate) UarAllocType);

/// A new UAR. If nobody destroys it, it is freed with the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewUar {
    pub(crate) handle: UarHandle,
    /// Its offset in the command file, for mmap(2).
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// Its number, for objects with doorbells in it.
    pub(crate) page_id: u32,
}

impl Command for AllocUar {
    type Reply = NewUar;
    const VERB: Verb = Verb::AllocUar;
    const UNDO: Option<Undo> = Some(undo::<UarHandle>);

    fn subject(&self) -> Subject {
        Subject::the("UAR")
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::uar_obj_alloc as id;
        request
            .method(object::UAR, method::uar::ALLOC)
            .new_object(id::HANDLE)
            .constant(id::TYPE, self.0.0.into())
            .output(id::MMAP_OFFSET, size_of::<u64>())
            .output(id::MMAP_LENGTH, size_of::<u32>())
            .output(id::PAGE_ID, size_of::<u32>());
        Some(|_, answer| {
            Ok(NewUar {
                handle: answer.new_handle(id::HANDLE).map(UarHandle)?,
                offset: answer.answer(id::MMAP_OFFSET)?,
                length: answer.answer(id::MMAP_LENGTH)?,
                page_id: answer.answer(id::PAGE_ID)?,
            })
        })
    }
}

/// Queries the number of a protection domain in the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryPd(pub(super) PdHandle);

impl Command for QueryPd {
    type Reply = u32;
    const VERB: Verb = Verb::ImportPd;

    fn subject(&self) -> Subject {
        Subject::numbered("PD", self.0.0.into())
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        request
            .method(core_object::PD, method::pd::QUERY)
            .handle(attr::query_pd::HANDLE, self.0.0)
            .output(attr::query_pd::RESP_PDN, size_of::<u32>());
        Some(|_, answer| answer.answer(attr::query_pd::RESP_PDN))
    }
}

/// Where device memory can be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Where the memory begins in its first page, in bytes.
    pub(super) offset: u64,
    /// The index of its pages in the command file.
    pub(super) page: u16,
}

/// Allocates device memory for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AllocMemic(pub(super) AllocDm);

impl Command for AllocMemic {
    type Reply = (DmHandle, Place);
    const VERB: Verb = AllocDm::VERB;
    const UNDO: Option<Undo> = AllocDm::UNDO;

    fn subject(&self) -> Subject {
        self.0.subject()
    }

    /// The kind of memory is left to the kernel, which then chooses memory for data.
    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::alloc_dm as id;
        self.0.native(request)?;
        request
            .output(id::RESP_START_OFFSET, size_of::<u64>())
            .output(id::RESP_PAGE_INDEX, size_of::<u16>());
        Some(|_, answer| {
            let handle = answer.new_handle(core_attr::alloc_dm::HANDLE)?;
            let place = Place {
                offset: answer.answer(id::RESP_START_OFFSET)?,
                page: answer.answer(id::RESP_PAGE_INDEX)?,
            };
            Ok((DmHandle(handle), place))
        })
    }
}

/// Queries where a piece of device memory is, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryDm(pub(super) DmHandle);

impl Command for QueryDm {
    /// The place, and the length in bytes.
    type Reply = (Place, u64);
    const VERB: Verb = Verb::ImportDm;

    fn subject(&self) -> Subject {
        Subject::numbered("DM", self.0.0.into())
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::query_dm as id;
        request
            .method(core_object::DM, method::dm::QUERY)
            .handle(id::REQ_HANDLE, self.0.0)
            .output(id::RESP_START_OFFSET, size_of::<u64>())
            .output(id::RESP_PAGE_INDEX, size_of::<u16>())
            .output(id::RESP_LENGTH, size_of::<u64>());
        Some(|_, answer| {
            let place = Place {
                offset: answer.answer(id::RESP_START_OFFSET)?,
                page: answer.answer(id::RESP_PAGE_INDEX)?,
            };
            Ok((place, answer.answer(id::RESP_LENGTH)?))
        })
    }
}
