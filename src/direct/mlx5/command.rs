//! The kernel's methods for commands of users to the device.
//!
//! If the device refuses, the kernel answers `EREMOTEIO`, and the device's answer with it.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use uverbs_uapi::handle::PdHandle;
use uverbs_uapi::mlx5::{DevxEventChannelFlags, attr, method, object};
use uverbs_uapi::object as core_object;

use crate::command::{Command, Decode, Object, Request, Undo, undo};
use crate::driver::mlx5::command::handles;
use crate::error::{Errno, Subject, Verb};

handles! {
    /// An object that a command has created.
    ObjectHandle;
    /// Memory that has a number for commands.
    UmemHandle;
}

impl Object for ObjectHandle {
    const DESTROY: Verb = Verb::DevxObjDestroy;
    const NAME: &'static str = "DEVX object";
    const METHOD: (u16, u16, u16) = (
        object::DEVX_OBJ,
        method::devx_obj::DESTROY,
        attr::devx_obj_destroy::HANDLE,
    );
}

impl Object for UmemHandle {
    const DESTROY: Verb = Verb::DevxUmemDereg;
    const NAME: &'static str = "UMEM";
    const METHOD: (u16, u16, u16) = (
        object::DEVX_UMEM,
        method::devx_umem::DEREG,
        attr::devx_umem_dereg::HANDLE,
    );
}

/// What the device answered, whether it did what was asked or not.
pub(crate) type Answered = Box<[u8]>;

/// A command that concerns no object of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct General<'a> {
    pub(crate) input: &'a [u8],
    pub(crate) output: usize,
}

impl Command for General<'_> {
    type Reply = Answered;
    const VERB: Verb = Verb::DevxGeneralCmd;
    const REFUSED_BY_DEVICE: Option<Errno> = Some(Errno::REMOTEIO);

    fn subject(&self) -> Subject {
        Subject::the("device")
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::devx_other as id;
        request
            .method(object::DEVX, method::devx::OTHER)
            .array(id::CMD_IN, self.input)
            .output(id::CMD_OUT, self.output);
        Some(|_, answer| answer.answer_bytes(id::CMD_OUT).map(Into::into))
    }
}

/// Creates an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Create<'a> {
    pub(crate) input: &'a [u8],
    pub(crate) output: usize,
}

impl Command for Create<'_> {
    /// There is no handle if the device has refused.
    type Reply = (Option<ObjectHandle>, Answered);
    const VERB: Verb = Verb::DevxObjCreate;
    const UNDO: Option<Undo> = Some(undo::<ObjectHandle>);
    const REFUSED_BY_DEVICE: Option<Errno> = Some(Errno::REMOTEIO);

    fn subject(&self) -> Subject {
        Subject::the("DEVX object")
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::devx_obj_create as id;
        request
            .method(object::DEVX_OBJ, method::devx_obj::CREATE)
            .new_object(id::HANDLE)
            .array(id::CMD_IN, self.input)
            .output(id::CMD_OUT, self.output);
        Some(|_, answer| {
            let output = answer.answer_bytes(id::CMD_OUT)?.into();
            let handle = answer.new_handle(id::HANDLE).ok().map(ObjectHandle);
            Ok((handle, output))
        })
    }
}

/// Changes an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Modify<'a> {
    pub(crate) handle: u32,
    pub(crate) input: &'a [u8],
    pub(crate) output: usize,
}

impl Command for Modify<'_> {
    type Reply = Answered;
    const VERB: Verb = Verb::DevxObjModify;
    const REFUSED_BY_DEVICE: Option<Errno> = Some(Errno::REMOTEIO);

    fn subject(&self) -> Subject {
        Subject::numbered("object", self.handle.into())
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::devx_obj_modify as id;
        request
            .method(object::DEVX_OBJ, method::devx_obj::MODIFY)
            .handle(id::HANDLE, self.handle)
            .array(id::CMD_IN, self.input)
            .output(id::CMD_OUT, self.output);
        Some(|_, answer| answer.answer_bytes(id::CMD_OUT).map(Into::into))
    }
}

/// Queries an object's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Query<'a> {
    pub(crate) handle: u32,
    pub(crate) input: &'a [u8],
    pub(crate) output: usize,
}

impl Command for Query<'_> {
    type Reply = Answered;
    const VERB: Verb = Verb::DevxObjQuery;
    const REFUSED_BY_DEVICE: Option<Errno> = Some(Errno::REMOTEIO);

    fn subject(&self) -> Subject {
        Subject::numbered("object", self.handle.into())
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::devx_obj_query as id;
        request
            .method(object::DEVX_OBJ, method::devx_obj::QUERY)
            .handle(id::HANDLE, self.handle)
            .array(id::CMD_IN, self.input)
            .output(id::CMD_OUT, self.output);
        Some(|_, answer| answer.answer_bytes(id::CMD_OUT).map(Into::into))
    }
}

/// Gives memory a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegUmem {
    /// The address of the first byte, or its offset in the dma-buf.
    pub(crate) address: u64,
    pub(crate) length: u64,
    /// Bits of `Access`.
    pub(crate) access: u32,
    /// The sizes of pages that may be used, one bit each.
    pub(crate) page_sizes: u64,
    pub(crate) dmabuf: Option<RawFd>,
}

impl Command for RegUmem {
    type Reply = (UmemHandle, u32);
    const VERB: Verb = Verb::DevxUmemReg;
    const UNDO: Option<Undo> = Some(undo::<UmemHandle>);

    fn subject(&self) -> Subject {
        Subject::named("UMEM", format_args!("of {} bytes", self.length))
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::devx_umem_reg as id;
        request
            .method(object::DEVX_UMEM, method::devx_umem::REG)
            .new_object(id::HANDLE)
            .u64(id::ADDR, self.address)
            .u64(id::LEN, self.length)
            .u32(id::ACCESS, self.access)
            .u64(id::PGSZ_BITMAP, self.page_sizes)
            .fd_if_any(id::DMABUF_FD, self.dmabuf)
            .output(id::OUT_ID, size_of::<u32>());
        Some(|_, answer| {
            let handle = answer.new_handle(id::HANDLE).map(UmemHandle)?;
            Ok((handle, answer.answer(id::OUT_ID)?))
        })
    }
}

/// Asks for the event queue of a completion vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryEqn(pub(crate) u32);

impl Command for QueryEqn {
    type Reply = u32;
    const VERB: Verb = Verb::DevxQueryEqn;

    fn subject(&self) -> Subject {
        Subject::numbered("completion vector", self.0.into())
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::devx_query_eqn as id;
        request
            .method(object::DEVX, method::devx::QUERY_EQN)
            .u32(id::USER_VEC, self.0)
            .output(id::DEV_EQN, size_of::<u32>());
        Some(|_, answer| answer.answer(id::DEV_EQN))
    }
}

/// Queries the number of a protection domain in the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryPd(pub(crate) PdHandle);

impl Command for QueryPd {
    type Reply = u32;
    const VERB: Verb = Verb::InitObj;

    fn subject(&self) -> Subject {
        Subject::numbered("PD", self.0.0.into())
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::query_pd as id;
        request
            .method(core_object::PD, method::pd::QUERY)
            .handle(id::HANDLE, self.0.0)
            .output(id::RESP_PDN, size_of::<u32>());
        Some(|_, answer| answer.answer(id::RESP_PDN))
    }
}

/// Opens a file for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenChannel(pub(crate) DevxEventChannelFlags);

impl Command for OpenChannel {
    type Reply = OwnedFd;
    const VERB: Verb = Verb::DevxCreateEventChannel;

    fn subject(&self) -> Subject {
        Subject::the("event channel")
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::devx_async_event_fd_alloc as id;
        request
            .method(
                object::DEVX_ASYNC_EVENT_FD,
                method::devx_async_event_fd::ALLOC,
            )
            .new_object(id::HANDLE)
            .u32(id::FLAGS, self.0.bits());
        Some(|_, answer| {
            let fd = answer.new_fd(id::HANDLE)?;
            // SAFETY: the kernel answered with this new descriptor, so nobody else owns it.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        })
    }
}

/// Subscribes to events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subscribe<'a> {
    pub(crate) channel: RawFd,
    pub(crate) object: Option<u32>,
    pub(crate) events: &'a [u16],
    pub(crate) cookie: u64,
}

impl Command for Subscribe<'_> {
    type Reply = ();
    const VERB: Verb = Verb::DevxSubscribeEvent;

    fn subject(&self) -> Subject {
        match self.object {
            Some(handle) => Subject::numbered("object", handle.into()),
            None => Subject::the("device"),
        }
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::devx_subscribe_event as id;
        request
            .method(object::DEVX, method::devx::SUBSCRIBE_EVENT)
            .fd(id::FD_HANDLE, self.channel)
            .array(id::TYPE_NUM_LIST, self.events)
            .u64(id::COOKIE, self.cookie);
        if let Some(object) = self.object {
            request.handle(id::OBJ_HANDLE, object);
        }
        Some(|_, _| Ok(()))
    }
}
