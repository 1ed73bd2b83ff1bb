//! The contract between the objects of this library and a driver.
//!
//! A driver implements [`Driver`] on what a context has of its device, and the traits of the queues that it
//! has. What it leaves out is refused by name, before the kernel is asked: that is what the default methods
//! do. A queue that a driver does not have is one of those in `absent.rs`. `sample` is the least of a driver,
//! to be copied.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use uverbs_uapi::enums::{QpType, WcOpcode, WcStatus};
use uverbs_uapi::flags::{SendFlags, WcFlags};
use uverbs_uapi::handle::{AhHandle, CqHandle, DmHandle, PdHandle, QpHandle, SrqHandle, WqHandle};

use crate::alloc::Buffers;
use crate::command::{
    AllocPd, CommandFd, CreateAh, CreateCq, CreateQp, CreateRssQp, CreateSrq, CreateWq,
    CreateXrcTarget, DriverData, DriverReply, GetContextReply, ModifySrq, ReqNotifyCq, ResizeCq,
};
use crate::device::{DriverClue, DriverId};
use crate::error::{Errno, Error, Result, Subject, Verb};
use crate::work::{
    Destination, Ece, LocalSlice, Operation, Operations, Payload, PollError, PostError,
};

/// A driver, as what a context has of its device.
///
/// Whatever fails gives back what it has made in the kernel.
pub(crate) trait Driver: Debug + Send + Sync + Sized + 'static {
    /// The kernel's number of the driver.
    const ID: DriverId;
    /// Versions of the ABI of the kernel's driver that this one speaks.
    const ABI_VERSIONS: RangeInclusive<u32>;

    type Cq: Cq + 'static;
    type SendQueue: SendQueue<Ah = Self::Ah> + 'static;
    type RecvQueue: RecvQueue + 'static;
    type SharedRecvQueue: RecvQueue + 'static;
    /// An address handle, as requests name it.
    type Ah: Debug;
    /// What must stay until the kernel has let go of a queue pair. A clone that is forgotten keeps it for
    /// good.
    type QpBacking: QpBacking;
    /// As `QpBacking`, of a shared receive queue.
    type SrqBacking: Debug + Clone;
    /// The hardware that a thread domain picks, once a queue pair needs it.
    type ThreadDomain: Debug + Default;

    /// What queue pairs of a transport can do. Of [`Operations::OF_CAPABILITIES`] those that the driver has,
    /// whatever the device.
    fn operations(&self, transport: QpType) -> Operations {
        Operations::of(transport).intersection(Operations::CLASSIC)
    }

    /// Whether sysfs tells of this driver; netlink tells its number.
    fn is_behind(clue: &DriverClue) -> bool {
        let _ = clue;
        false
    }

    /// What a buffer with this code is for ([`ResourceType::code`](crate::alloc::ResourceType::code)).
    fn buffer_name(code: u32) -> Option<&'static str> {
        let _ = code;
        None
    }

    /// Makes the open file a context of the device.
    fn get_context(fd: &CommandFd) -> Result<(Self, GetContextReply)>;

    /// Takes part in a context that somebody else has made of the open file.
    fn query_context(_fd: &CommandFd) -> Result<(Self, GetContextReply)> {
        Err(Self::lacks(Verb::ImportDevice, "contexts of others"))
    }

    /// Allocates a protection domain.
    fn alloc_pd(&self, fd: &CommandFd) -> Result<PdHandle> {
        fd.execute(&AllocPd::default()).map(|(handle, _)| handle)
    }

    /// Checks with the driver what the kernel's list of handles has told, where the driver has such a
    /// question.
    fn import_pd(&self, _fd: &CommandFd, _handle: PdHandle) -> Result<()> {
        Ok(())
    }

    /// Creates a completion queue, with entries of so many bytes if they are told.
    fn create_cq(
        &self,
        _fd: &CommandFd,
        _command: CreateCq,
        _entry_bytes: Option<u32>,
        _buffers: Option<&Buffers>,
    ) -> Result<(CqHandle, Self::Cq)> {
        Err(Self::lacks(Verb::CreateCq, "completion queues"))
    }

    /// Gives a completion queue another size; the completions that wait stay.
    fn resize_cq(
        &self,
        _fd: &CommandFd,
        _command: ResizeCq,
        _cq: &mut Self::Cq,
        _buffers: Option<&Buffers>,
    ) -> Result<()> {
        Err(Self::lacks(
            Verb::ResizeCq,
            "completion queues that change their size",
        ))
    }

    /// Creates a queue pair.
    fn create_qp(
        &self,
        _fd: &Arc<CommandFd>,
        _command: CreateQp,
        _parts: &QpParts<'_, Self::Cq, Self::SharedRecvQueue, Self::ThreadDomain>,
    ) -> Result<NewQp<Self::SendQueue, Self::RecvQueue, Self::QpBacking>> {
        Err(Self::lacks(Verb::CreateQp, "queue pairs"))
    }

    /// Follows the kernel, which has taken a queue pair to the state RESET. A kernel that has the rings goes
    /// on in them where it is.
    fn reset_qp(
        _backing: &Self::QpBacking,
        _send: &mut Self::SendQueue,
        _recv: Option<&mut Self::RecvQueue>,
    ) {
    }

    /// Fails if the driver cannot set the pace of any queue pair that this library creates.
    fn paces(&self) -> Result<()> {
        Err(Self::lacks(Verb::ModifyQp, "a pace for queue pairs"))
    }

    /// The error for queue pairs that have no options for their connection.
    fn without_ece(&self, verb: Verb) -> Error {
        Self::lacks(verb, ECE)
    }

    /// Creates a shared receive queue.
    fn create_srq(
        &self,
        _fd: &CommandFd,
        _command: CreateSrq,
        _buffers: Option<&Buffers>,
    ) -> Result<(SrqHandle, Self::SharedRecvQueue, Self::SrqBacking)> {
        Err(Self::lacks(Verb::CreateSrq, "shared receive queues"))
    }

    /// Creates a shared receive queue of the type XRC or tag matching; its number on the wire comes last.
    fn create_xsrq(
        &self,
        _fd: &CommandFd,
        _command: CreateSrq,
        _buffers: Option<&Buffers>,
    ) -> Result<(SrqHandle, Self::SharedRecvQueue, Self::SrqBacking, u32)> {
        let what = "shared receive queues for XRC or tag matching";
        Err(Self::lacks(Verb::CreateSrq, what))
    }

    /// Sets an attribute of a shared receive queue that leaves its ring alone.
    fn modify_srq(&self, fd: &CommandFd, command: ModifySrq) -> Result<()> {
        fd.execute(&command)
    }

    /// Gives a shared receive queue another size; its waiting requests stay.
    fn resize_srq(
        &self,
        _fd: &CommandFd,
        _command: ModifySrq,
        _queue: &mut Self::SharedRecvQueue,
        _buffers: Option<&Buffers>,
    ) -> Result<()> {
        let what = "shared receive queues that change their size";
        Err(Self::lacks(Verb::ModifySrq, what))
    }

    /// Creates an address handle.
    fn create_ah(&self, _fd: &CommandFd, _command: CreateAh) -> Result<(AhHandle, Self::Ah)> {
        Err(Self::lacks(Verb::CreateAh, "address handles"))
    }

    /// Creates a work queue; its number comes second.
    fn create_wq(
        &self,
        _fd: &CommandFd,
        _command: CreateWq,
        _buffers: Option<&Buffers>,
    ) -> Result<(WqHandle, u32, Self::RecvQueue)> {
        Err(Self::lacks(Verb::CreateWq, "work queues"))
    }

    /// Creates a queue pair over an indirection table; its number comes second.
    fn create_rss_qp(&self, _fd: &CommandFd, _command: &CreateRssQp) -> Result<(QpHandle, u32)> {
        let what = "queue pairs over indirection tables";
        Err(Self::lacks(Verb::CreateQp, what))
    }

    /// Creates a queue pair that is the target of an XRC domain; its number comes second.
    fn create_xrc_target(
        &self,
        _fd: &CommandFd,
        _command: &CreateXrcTarget,
    ) -> Result<(QpHandle, u32)> {
        Err(Self::lacks(Verb::CreateQp, "targets of XRC domains"))
    }

    /// Checks that a handle is that of device memory, and tells its length in bytes.
    fn import_dm(&self, _fd: &CommandFd, _handle: DmHandle) -> Result<u64> {
        Err(Self::lacks(Verb::ImportDm, "import of device memory"))
    }

    /// The key of the memory region that swallows what is written to it and gives zeros.
    fn null_lkey(&self) -> Result<u32> {
        let what = "a null MR: no key that stands for no memory";
        Err(Self::lacks(Verb::AllocNullMr, what))
    }

    /// The device's clock now, in its own ticks.
    fn raw_clock(&self, _fd: &CommandFd) -> Result<u64> {
        Err(Self::lacks(Verb::QueryRtValues, NO_CLOCK))
    }

    /// The error for what the driver does not have.
    #[cold]
    fn lacks(verb: Verb, what: &str) -> Error {
        let missing = format!(
            "this library's driver for {} does not have {what}",
            Self::ID
        );
        Error::unsupported(verb, Subject::the("device"), missing)
    }
}

pub(crate) const ECE: &str = "enhanced connection establishment (ECE)";
pub(crate) const NO_CLOCK: &str = "a clock that programs can read";

/// What a queue pair is made of besides its command, of the driver's types or of those of [`super`].
pub(crate) struct QpParts<'a, C, S, T> {
    pub(crate) send_cq: &'a C,
    pub(crate) recv_cq: &'a C,
    pub(crate) srq: Option<&'a S>,
    pub(crate) buffers: Option<&'a Buffers>,
    pub(crate) thread_domain: Option<&'a T>,
    /// Small payloads may come in completions.
    pub(crate) inline_scatter: bool,
}

/// A queue pair that was created.
#[derive(Debug)]
pub(crate) struct NewQp<S, R, B> {
    pub(crate) handle: QpHandle,
    pub(crate) qpn: u32,
    pub(crate) send: S,
    /// None if the queue pair receives from an SRQ.
    pub(crate) recv: Option<R>,
    pub(crate) backing: B,
}

/// What must stay of a queue pair, and what it answers for the queue pair.
pub(crate) trait QpBacking: Debug + Clone {
    /// Whether the kernel knows how much the send queue holds; where the ring is this side's it is told of
    /// blocks only.
    fn kernel_knows_caps(&self) -> bool {
        true
    }

    /// The options for its connection, with their vendor; none if it has no such.
    fn query_ece(&self) -> Option<Ece> {
        None
    }

    /// Asks for options of its connection with the next change of its state, if it has such.
    fn set_ece(&self, _options: u32) {}

    /// What the kernel's driver is told with a change of the state.
    fn modify_data(&self) -> DriverData {
        DriverData::default()
    }

    /// Takes over what the kernel's driver has answered to [`Self::modify_data`].
    fn modified(&self, _reply: &DriverReply) {}

    /// Ends the loan of the memory that requests name, as far as this side would still write to it.
    fn close(&self) {}
}

/// Nothing that has to stay, or is picked.
#[derive(Clone, Debug, Default)]
#[allow(dead_code, reason = "not every driver has nothing to keep")]
pub(crate) struct Nothing;

impl QpBacking for Nothing {}

/// A send queue.
pub(crate) trait SendQueue: Debug {
    /// An address handle, as its requests name it.
    type Ah;
    type Slot: SendSlot;
    type Batch<'q>: SendBatch<Ah = Self::Ah, Slot = Self::Slot>
    where
        Self: 'q;

    /// The most requests in flight.
    fn capacity(&self) -> u32;

    /// The most slices of a request.
    fn max_sge(&self) -> u32;

    /// The most inline bytes of a request.
    fn max_inline(&self) -> u32;

    /// Requests that have been posted and that the device is not known to have finished.
    fn in_flight(&self) -> u32;

    /// Starts a batch.
    fn batch(&mut self) -> Self::Batch<'_>;
}

/// Requests that are being written into a send queue. It is rung or abandoned; forgotten (`mem::forget`), it
/// may leave its requests to the next batch.
pub(crate) trait SendBatch: Debug {
    type Ah;
    type Slot: SendSlot;

    /// Requests in it.
    fn len(&self) -> u32;

    /// Adds a request. The caller has checked that the queue pair has the operation.
    fn push(
        &mut self,
        operation: Operation,
        to: Option<Destination<'_, Self::Ah>>,
        payload: Payload<'_>,
    ) -> Result<Self::Slot, PostError>;

    /// Hands it to the device with one doorbell, and gives how many requests it had. Without any, nothing is
    /// done. The batch is not used afterwards.
    fn ring(&mut self) -> Result<usize, Errno>;

    /// Forgets it, where the queue knows of it: a batch that is not rung leaves nothing.
    #[inline(always)]
    fn abandon(&mut self) {}
}

/// A request in a send queue whose id and flags can still change.
pub(crate) trait SendSlot: Debug {
    /// Sets the id that the completion carries.
    fn set_id(&mut self, wr_id: u64);

    /// Sets flags on top of those that are set.
    fn add_flags(&mut self, flags: SendFlags);
}

/// A receive queue: a queue pair's own, a shared one, or a work queue's.
pub(crate) trait RecvQueue: Debug {
    /// The most requests in flight.
    fn capacity(&self) -> u32;

    /// The most slices of a request.
    fn max_sge(&self) -> u32;

    /// Requests that have been posted and that no message is known to have been received into.
    fn in_flight(&self) -> u32;

    /// Requests in the batch that has not been rung yet.
    fn pending(&self) -> u32;

    /// Adds a request to the batch.
    fn push(&mut self, wr_id: u64, slices: &[LocalSlice]) -> Result<(), PostError>;

    /// Hands the batch to the device.
    fn ring(&mut self);

    /// Forgets the batch.
    fn abandon(&mut self);
}

/// A completion queue.
pub(crate) trait Cq: Debug {
    /// What of it must stay until the kernel has let go of it. A clone that is forgotten keeps it for good.
    type Backing: Debug + Clone;
    type Completion: Completion;
    type Polled<'q>: Polled<Completion = Self::Completion>
    where
        Self: 'q;

    /// What must outlive it.
    fn backing(&self) -> Self::Backing;

    /// The count of the queue's events that were read, if arming depends on it.
    fn events(_backing: &Self::Backing) -> Option<&Arc<AtomicU32>> {
        None
    }

    /// Has the next poll say that the queue had no room for a completion.
    fn overran(_backing: &Self::Backing) {}

    /// The most completions that wait at a time.
    fn capacity(&self) -> u32;

    /// True if no completion is there.
    fn is_empty(&mut self) -> Result<bool, PollError>;

    /// Asks for an event when the next completion arrives.
    fn arm(&mut self, fd: &CommandFd, cq: CqHandle, solicited_only: bool) -> Result<()> {
        fd.execute(&ReqNotifyCq { cq, solicited_only })
    }

    /// The completions that have arrived.
    fn poll(&mut self) -> Result<Self::Polled<'_>, PollError>;
}

/// Completions that are being taken.
pub(crate) trait Polled: Debug {
    type Completion: Completion;

    /// The next completion. Its entry goes back to the device at once, and before anything that it frees in a
    /// queue may be used again: so no more completions come than there is room for.
    fn take(&mut self) -> Option<Self::Completion>;
}

/// A completion, as the device wrote it. Its fields are interpreted only when asked for; their meaning is
/// told in `crate::wc`.
pub(crate) trait Completion: Debug + Copy {
    fn wr_id(&self) -> u64;
    fn status(&self) -> WcStatus;
    fn opcode(&self) -> WcOpcode;
    fn vendor_err(&self) -> u32;
    fn byte_len(&self) -> u32;
    fn qp_num(&self) -> u32;
    fn src_qp(&self) -> u32;
    /// The immediate data in network byte order, or the rkey in the host's.
    fn ex(&self) -> u32;
    fn flags(&self) -> WcFlags;
    fn timestamp(&self) -> Option<u64>;
    fn pkey_index(&self) -> u16;
    fn slid(&self) -> u16;
    fn sl(&self) -> u8;
    fn dlid_path_bits(&self) -> u8;
}

/// All of it, for whoever calls the methods.
pub(crate) mod methods {
    pub(crate) use super::{
        Completion as _, Cq as _, Driver as _, Polled as _, QpBacking as _, RecvQueue as _,
        SendBatch as _, SendQueue as _, SendSlot as _,
    };
}
