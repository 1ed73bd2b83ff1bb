//! Creating completion queues, and the limits on their size.

use std::sync::Arc;

use uverbs_uapi::flags::CqCreateFlags;

use super::{Cq, CqShared};
use crate::alloc::Buffers;
use crate::channel::CompletionChannel;
use crate::command::{CreateCq, DriverData};
use crate::context::Context;
use crate::domain::ParentDomain;
use crate::driver::CqParts;
use crate::error::{Errno, Error, Result, Subject, Verb};
use crate::pd::User;

/// The description of a completion queue to create.
#[must_use = "nothing is created before `create`"]
#[derive(Clone, Debug)]
pub struct CqBuilder<'a> {
    context: &'a Context,
    entries: u32,
    channel: Option<&'a CompletionChannel>,
    comp_vector: u32,
    flags: CqCreateFlags,
    entry_bytes: Option<u32>,
    domain: Option<&'a ParentDomain>,
    for_agent: bool,
}

impl Context {
    /// Creates a completion queue for at least `entries` completions, without events.
    ///
    /// # Errors
    ///
    /// `entries` is 0 or exceeds the device's `max_cqe`. Manual page: `ibv_create_cq(3)`.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, entries: u32) -> Result<Cq> {
        self.cq(entries).create()
    }

    /// Starts the description of a completion queue for at least `entries` completions.
    pub fn cq(&self, entries: u32) -> CqBuilder<'_> {
        CqBuilder {
            context: self,
            entries,
            channel: None,
            comp_vector: 0,
            flags: CqCreateFlags::empty(),
            entry_bytes: None,
            domain: None,
            for_agent: false,
        }
    }
}

impl<'a> CqBuilder<'a> {
    /// Reports events to this channel, once [armed](Cq::arm).
    pub fn channel(mut self, channel: &'a CompletionChannel) -> Self {
        self.channel = Some(channel);
        self
    }

    /// The completion vector for events, below [`Context::num_comp_vectors`].
    pub fn comp_vector(mut self, vector: u32) -> Self {
        self.comp_vector = vector;
        self
    }

    /// Makes completions carry a timestamp ([`Completion::timestamp`](crate::Completion::timestamp)).
    pub fn timestamps(mut self, wanted: bool) -> Self {
        self.flags.set(CqCreateFlags::TIMESTAMP_COMPLETION, wanted);
        self
    }

    /// Makes the device skip the check for a full queue: the user guarantees that it never is
    /// (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`).
    ///
    /// # Safety
    ///
    /// If `ignore` is true, never more completions wait than the queue's [capacity](Cq::capacity). Every
    /// request that may have a completion counts from when it is posted, including unsignaled requests, which
    /// may fail, and flushed ones. Completions of a queue pair that has been reset or destroyed count until a
    /// poll has passed them. Otherwise the device writes to entries that are being read. While the
    /// queue is with an agent ([`Qp::into_device`](crate::Qp::into_device)), nothing here reads it, and more
    /// completions may come.
    pub unsafe fn ignore_overrun(mut self, ignore: bool) -> Self {
        self.flags.set(CqCreateFlags::IGNORE_OVERRUN, ignore);
        self
    }

    /// The size of an entry in bytes, if the device has several: 64 or 128 on mlx5, by default the size of
    /// the CPU's cache line (`cqe_size` of `mlx5dv_create_cq(3)`).
    pub fn entry_bytes(mut self, bytes: u32) -> Self {
        self.entry_bytes = Some(bytes);
        self
    }

    /// Creates the queue on a parent domain, whose allocator provides the ring (`parent_domain` of
    /// `ibv_create_cq_ex(3)`).
    pub fn domain(mut self, domain: &'a ParentDomain) -> Self {
        self.domain = Some(domain);
        self
    }

    /// Creates the queue for an agent, to which it is handed over with a queue pair
    /// ([`Qp::into_device`](crate::Qp::into_device)). An allocator may put its ring and its record where this
    /// process does not reach them ([`Allocation::Unmapped`](crate::alloc::Allocation::Unmapped)). Then
    /// polling it here finds nothing, and arming it is refused.
    ///
    /// Creating fails with [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver lacks it: mlx5 has
    /// it.
    pub fn for_agent(mut self) -> Self {
        self.for_agent = true;
        self
    }

    /// Creates the queue.
    ///
    /// # Errors
    ///
    /// As for [`Context::create_cq`]. Also, the vector does not exist, the channel belongs to another
    /// context, or the driver lacks an option ([`Cause::Unsupported`](crate::Cause::Unsupported)): rxe has no
    /// timestamps, no queues that ignore overrun, and one size of entries. Manual page:
    /// `ibv_create_cq_ex(3)`.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create(self) -> Result<Cq> {
        let context = self.context;
        let subject = || Subject::named("CQ", format_args!("of {} entries", self.entries));
        let parts = [
            ("the channel", self.channel.map(CompletionChannel::context)),
            (
                "the parent domain",
                self.domain.map(|domain| domain.context()),
            ),
        ];
        context.check_parts(Verb::CreateCq, subject, parts)?;
        check_size(self.entries, context, subject)?;
        let id = context.new_id();
        let command = CreateCq {
            cqe: self.entries,
            user_handle: id,
            channel: self.channel.map(|channel| channel.raw_fd()),
            comp_vector: self.comp_vector,
            flags: self.flags.bits(),
            event_fd: context.event_fd()?,
            driver: DriverData::default(),
        };
        let buffers = self.domain.and_then(|domain| domain.buffers());
        let driver = context.driver();
        let parts = CqParts {
            for_agent: self.for_agent,
            ..made_of(self.entry_bytes, buffers)
        };
        let created = driver.create_cq(context.fd(), command, &parts);
        // No `map_err`: it would move the created values.
        let (handle, ring) = match created {
            Ok(created) => created,
            Err(error) => return Err(with_limits(with_flags(error, self.flags), context)),
        };
        let channel = self.channel.cloned();
        let domain = self.domain.map(|domain| domain.user(User::Cq));
        let shared = CqShared::new(context, handle, id, ring.backing(), channel, domain);
        Ok(Cq {
            ring,
            shared: Arc::new(shared),
        })
    }
}

/// So many entries cost little memory, whether or not the device has them.
const FEW: u32 = 1 << 16;

/// Refuses more entries than the device has. Otherwise memory would be allocated for them first, and that may
/// fail.
fn check_size(entries: u32, context: &Context, subject: impl FnOnce() -> Subject) -> Result<()> {
    if entries <= FEW || entries <= context.query_device()?.max_cqe {
        return Ok(());
    }
    let error = Error::os(Verb::CreateCq, subject(), Errno::INVAL);
    Err(with_limits(error, context))
}

/// Adds the flags that the driver may lack.
fn with_flags(error: Error, flags: CqCreateFlags) -> Error {
    match error.is_unsupported() && !flags.is_empty() {
        true => error.with_detail(format!("with {flags:?}")),
        false => error,
    }
}

/// The parts of a queue besides its command.
pub(super) fn made_of(entry_bytes: Option<u32>, buffers: Option<&Buffers>) -> CqParts<'_> {
    CqParts {
        entry_bytes,
        buffers,
        for_agent: false,
        follows_requests: true,
    }
}

/// Adds the limits on completion queues to an error that they may have caused.
pub(super) fn with_limits(error: Error, context: &Context) -> Error {
    context.with_limits(error, |device| {
        let vectors = context.num_comp_vectors();
        format!(
            "the device's max_cqe is {}, it has {vectors} completion vectors",
            device.max_cqe
        )
    })
}
