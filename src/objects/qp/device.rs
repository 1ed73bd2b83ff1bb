//! Queue pairs to which an agent posts: handed over with their completion queue, and taken back.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use uverbs_queue::handover::{Handover, MOST_REGIONS};
use uverbs_uapi::handle::QpHandle;

use super::{Control, Qp, QpAttr, QpInfo, QpState, Transport};
use crate::alloc::Dmabuf;
use crate::context::Context;
use crate::cq::Cq;
use crate::driver::{HandedOver, LeavingQp};
use crate::error::{Cause, DestroyError, Error, Result, Verb};
use crate::flight::Queues;
use crate::mr::Nameable;

/// A queue pair, with its completion queue, that an agent posts to and polls: another process, or a device.
/// This is its owner's half.
///
/// The *agent* gets the [`Handover`], which says where everything lies, and the files that it names: the
/// [dma-bufs](Self::dmabufs), and for the register the command file (which [`Context`] lends). Instead of the
/// command file a child of fork(2) can use its mapping. The agent posts and polls with
/// `uverbs_queue::mlx5::agent`, which needs neither this library nor an operating system.
///
/// Until [`reclaim`](Self::reclaim) this library neither reads nor writes the rings and records. What remains
/// here is the kernel's queue pair: its attributes, its events, and its end. Regions of the protection domain
/// of which slices were taken stay registered until then, even if they are dropped.
///
/// Dropping it destroys the queue pair, then the completion queue; only then the regions are dropped. The
/// kernel keeps the register page from others as long as a process has it mapped: an agent that rings too
/// late reaches no other queue pair.
///
/// ```no_run
/// use uverbs::{Access, Caps, Context, Pd, Rc, Result, alloc::Udmabuf, mr::SharedMemory};
/// use uverbs::handover::Handover;
///
/// fn hand_over(context: &Context, pd: &Pd, give: impl Fn(&Handover)) -> Result<()> {
///     let rings = Udmabuf::new(1 << 20).expect("a kernel with udmabuf");
///     let domain = pd.parent_domain().allocator(rings).create()?;
///     let cq = context.cq(256).domain(&domain).create()?;
///     let qp = domain.qp(&cq).caps(Caps::default()).for_agent().create::<Rc>()?;
///     // ... connect it ...
///     let region = domain.register(SharedMemory::new(vec![0u8; 4096]), Access::LOCAL_WRITE)?;
///     // SAFETY: the agent names this region alone.
///     let queue = unsafe { qp.into_device(cq, vec![region]) }?;
///     give(queue.handover());
///     // ... and when the agent is gone:
///     // SAFETY: nobody else has the rings mapped any more.
///     let back = unsafe { queue.reclaim() }?;
/// #   drop(back);
///     Ok(())
/// }
/// ```
pub struct DeviceQueue<T: Transport, R> {
    // In the order of their destruction: the queue pair, the queue to which it reports, and the regions that
    // its requests name.
    qp: Qp<T>,
    cq: Cq,
    regions: Vec<R>,
    handover: Handover,
    dmabufs: Vec<Dmabuf>,
    register: NonNull<u8>,
}

// SAFETY: the pointer is never dereferenced here.
unsafe impl<T: Transport, R: Send> Send for DeviceQueue<T, R> {}
// SAFETY: as above.
unsafe impl<T: Transport, R: Sync> Sync for DeviceQueue<T, R> {}

/// A queue pair that could not be handed over, and everything that belongs to it, unchanged.
pub struct NotHandedOver<T: Transport, R> {
    /// The queue pair.
    pub qp: Qp<T>,
    /// Its completion queue.
    pub cq: Cq,
    /// The regions for the agent.
    pub regions: Vec<R>,
    /// Why it was not handed over.
    pub error: Error,
}

/// A queue that is back from its agent.
#[derive(Debug)]
pub struct Reclaimed<T: Transport, R> {
    /// The queue pair, in the state RESET.
    pub qp: Qp<T>,
    /// Its completion queue, without completions.
    pub cq: Cq,
    /// The regions that the agent could name.
    pub regions: Vec<R>,
}

/// A queue that could not be taken back.
pub struct NotReclaimed<T: Transport, R> {
    /// The queue. It can be destroyed.
    pub queue: DeviceQueue<T, R>,
    /// Why it was not taken back.
    pub error: Error,
}

macro_rules! tells_its_error {
    ($Name:ident) => {
        impl<T: Transport, R> fmt::Debug for $Name<T, R> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.error, f)
            }
        }

        impl<T: Transport, R> fmt::Display for $Name<T, R> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.error, f)
            }
        }

        impl<T: Transport, R> std::error::Error for $Name<T, R> {}

        impl<T: Transport, R> From<Box<$Name<T, R>>> for Error {
            /// Keeps the error and drops the queue.
            fn from(failed: Box<$Name<T, R>>) -> Self {
                failed.error
            }
        }
    };
}

tells_its_error!(NotHandedOver);
tells_its_error!(NotReclaimed);

impl<T: Transport> Qp<T> {
    /// Hands the queue pair over, with its completion queue, to an agent that posts and polls without this
    /// library. The agent may name `regions`, which are kept until the queue is back.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`] on devices whose queues cannot be handed over: those of mlx5 can. Otherwise it
    /// is refused with a reason, and everything is returned, if
    ///
    /// - the queue pair was not made [`for_agent`](super::QpBuilder::for_agent): others may ring on its
    ///   register page;
    /// - a ring or a record of either lies in no dma-buf (Linux 7.2 has such);
    /// - requests are in flight, or completions wait;
    /// - a half has been [swapped](Qp::halves);
    /// - the queue pair reports to another completion queue than `cq`, or other queue pairs report to `cq`;
    /// - the transport is neither RC nor UC, it receives from a shared queue or out of order, or data come in
    ///   its completions;
    /// - there are more than [`MOST_REGIONS`] regions, or one of another protection domain.
    ///
    /// # Safety
    ///
    /// Until the queue is back or destroyed, any process or device that can write to its rings and ring its
    /// register uses the device as if it had posted requests in this process, with any key of the protection
    /// domain that it knows or guesses. So either it is trusted to name only `regions`, for whose memory the
    /// promises of [`Pd::raw_slice`](crate::Pd::raw_slice) hold meanwhile. Or those promises hold for all
    /// memory that is registered in the protection domain, which then best has no other regions.
    pub unsafe fn into_device<R: Nameable>(
        mut self,
        mut cq: Cq,
        regions: Vec<R>,
    ) -> Result<DeviceQueue<T, R>, Box<NotHandedOver<T, R>>> {
        match leave(&mut self, &mut cq, &regions) {
            Ok(handed_over) => {
                let HandedOver {
                    value,
                    dmabufs,
                    register,
                } = handed_over;
                Ok(DeviceQueue {
                    qp: self,
                    cq,
                    regions,
                    handover: value,
                    dmabufs,
                    register,
                })
            }
            Err(error) => Err(Box::new(NotHandedOver {
                qp: self,
                cq,
                regions,
                error,
            })),
        }
    }
}

/// Ends the use of a queue pair and its completion queue on this side, if nothing is in flight.
fn leave<T: Transport>(
    qp: &mut Qp<T>,
    cq: &mut Cq,
    regions: &[impl Nameable],
) -> Result<HandedOver> {
    qp.check_halves(Verb::IntoDevice)?;
    let shared = Arc::clone(qp.shared());
    let invalid = |why: &'static str| Error::invalid(Verb::IntoDevice, shared.subject(), why);
    let busy = |by: String| Error::new(Verb::IntoDevice, shared.subject(), Cause::Busy(by.into()));
    if regions.len() > MOST_REGIONS {
        return Err(invalid("an agent is told of at most 8 regions"));
    }
    if regions.iter().any(|region| region.pd().0 != shared.tag()) {
        return Err(invalid("a region belongs to another protection domain"));
    }
    if !shared.cqs.iter().all(|own| Arc::ptr_eq(own, cq.shared())) {
        return Err(invalid("it reports to another completion queue"));
    }
    // The handle's own, and those for the queue pair's sends and receives.
    const OWN: usize = 3;
    if Arc::strong_count(cq.shared()) > OWN {
        return Err(busy("others report to its completion queue".into()));
    }
    let (sends, receives) = (qp.send.queue().in_flight(), qp.recv.in_flight());
    if sends > 0 || receives > 0 {
        return Err(busy(format!(
            "{sends} sends and {receives} receives are in flight"
        )));
    }
    if !cq.is_empty()? {
        return Err(busy("completions wait in its completion queue".into()));
    }
    let kernel = shared.kernel();
    let leaving = LeavingQp {
        qpn: kernel.qpn(),
        transport: shared.transport,
        backing: kernel.backing(),
        send: qp.send.queue(),
        recv: qp.recv.queue(),
        cq: cq.ring(),
    };
    let mut handed_over = shared.context().driver().hand_over(leaving)?;
    drop(kernel);
    // From here on nothing on this side knows what is in flight.
    shared.flight.renew(shared.subject(), Queues::Away);
    let Handover {
        regions: places,
        regions_count,
        ..
    } = &mut handed_over.value;
    for (place, region) in places.iter_mut().zip(regions) {
        *place = region.named();
        *regions_count += 1;
    }
    Ok(handed_over)
}

impl<T: Transport, R> DeviceQueue<T, R> {
    /// The description for the agent: a plain value, which may be copied as bytes.
    pub fn handover(&self) -> &Handover {
        &self.handover
    }

    /// The dma-bufs in which the rings and the records lie, by their indices in the [`Handover`].
    ///
    /// Their descriptors are lent by an `unsafe` function ([`Dmabuf::file`]): while the agent has the queue,
    /// this process uses no buffer of it.
    pub fn dmabufs(&self) -> &[Dmabuf] {
        &self.dmabufs
    }

    /// Where the register is mapped in this process, for a child or a device that gets the mapping and not
    /// the command file: 8 bytes, which only take stores of 8 bytes. It is mapped as long as this value
    /// lives.
    pub fn register(&self) -> *mut u8 {
        self.register.as_ptr()
    }

    /// The memory that the agent may name.
    pub fn regions(&self) -> &[R] {
        &self.regions
    }

    /// The context that it was created in.
    pub fn context(&self) -> &Context {
        self.qp.context()
    }

    /// The queue pair's number on the wire.
    pub fn qpn(&self) -> u32 {
        self.qp.qpn()
    }

    /// The kernel's handle of the queue pair. With it a supervisor that has a duplicate of the command file
    /// can destroy the queue pair when this process is gone ([`Context::destroy_qp_for_everyone`]).
    pub fn handle(&self) -> QpHandle {
        self.qp.handle()
    }

    /// The number by which events name the queue pair; see [`Qp::id`].
    pub fn id(&self) -> u64 {
        self.qp.id()
    }

    /// A handle that queries, changes and fails the queue pair, for other threads.
    pub fn control(&self) -> Control {
        self.qp.control()
    }

    /// Asks the kernel for all attributes.
    ///
    /// # Errors
    ///
    /// As for [`Qp::query`].
    pub fn query(&self) -> Result<QpInfo> {
        self.qp.query()
    }

    /// Changes attributes, as [`Qp::modify`] does.
    ///
    /// # Errors
    ///
    /// As for [`Qp::modify`]. The state RESET is refused: it starts the rings anew, and the agent would not
    /// know. [`reclaim`](Self::reclaim) takes the queue to that state. When that has failed, every state but
    /// ERR is refused.
    pub fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        match attr.state {
            Some(QpState::RESET) => self.qp.control().modify(attr),
            _ => self.qp.modify(attr),
        }
    }

    /// Moves the queue pair to the state ERR: the agent's requests complete as flushed, and so do those that
    /// it posts later.
    ///
    /// # Errors
    ///
    /// The device has been removed.
    pub fn fail(&mut self) -> Result<()> {
        self.modify(&QpAttr {
            state: Some(QpState::ERR),
            ..QpAttr::default()
        })
    }

    /// Takes the queue back: moves the queue pair to the state RESET, and starts its rings and the completion
    /// queue anew. Requests of the agent that are in flight are dropped, and so are its completions. Neither
    /// the contents of the rings nor the agent are trusted: the device is asked how far the completion queue
    /// is.
    ///
    /// The queue pair is as after [`Qp::reset`], and can be connected again or handed over again.
    ///
    /// # Errors
    ///
    /// A ring or a record lies where this process does not reach it
    /// ([`Allocation::Unmapped`](crate::alloc::Allocation::Unmapped)). Or the completion queue overran, as it
    /// does when an agent stores nonsense in its record: it takes no more completions. Or the kernel does not
    /// pass the question on to the device (that needs DEVX). Or the device has been removed. The error
    /// returns the queue, which can then only be destroyed. Rings that are out of reach are refused before
    /// the queue pair is changed: the agent's requests go on, and [`fail`](Self::fail) still stops them. If
    /// it is in the state RESET by then, the device no longer uses the agent's rings.
    ///
    /// # Safety
    ///
    /// Nobody else writes to the rings, the records or the register any more: the agent has ended, or has
    /// given up its mappings and descriptors.
    pub unsafe fn reclaim(mut self) -> Result<Reclaimed<T, R>, Box<NotReclaimed<T, R>>> {
        match self.take_back() {
            Ok(()) => Ok(Reclaimed {
                qp: self.qp,
                cq: self.cq,
                regions: self.regions,
            }),
            Err(error) => Err(Box::new(NotReclaimed { queue: self, error })),
        }
    }

    fn take_back(&mut self) -> Result<()> {
        // First: no other thread takes it to a state in which it works before it is back.
        self.qp.shared().bar(true);
        let context = self.qp.context().clone();
        let (fd, handle) = (context.fd(), self.cq.handle());
        // Before the reset, after which regions are let go: in rings that this process does not reach, the
        // agent's requests outlast it.
        context.driver().may_take_back(handle, self.cq.ring())?;
        self.qp.reset()?;
        let back = context.driver().take_back(fd, handle, self.cq.ring());
        match back {
            Ok(()) => self.qp.shared().bar(false),
            Err(_) => {
                let shared = self.qp.shared();
                shared.flight.renew(shared.subject(), Queues::Away);
            }
        }
        back
    }

    /// Destroys the queue pair, and with it the completion queue; returns the regions. An agent that still
    /// runs can neither send nor receive from then on. The rings go back to their allocator. If the program
    /// has given their descriptors away, it must make sure that no other buffer lies there as long as the
    /// agent may write ([`Dmabuf::file`]).
    ///
    /// # Errors
    ///
    /// As for [`Qp::destroy`]. The error returns the queue.
    pub fn destroy(self) -> Result<Vec<R>, DestroyError<Self>> {
        match self.qp.destroy_in_place() {
            Ok(()) => Ok(self.regions),
            Err(error) => Err(DestroyError {
                object: self,
                error,
            }),
        }
    }
}

impl<T: Transport, R> fmt::Debug for DeviceQueue<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceQueue")
            .field("qp", &self.qp)
            .field("cq", &self.cq)
            .field("regions", &self.regions.len())
            .finish_non_exhaustive()
    }
}
