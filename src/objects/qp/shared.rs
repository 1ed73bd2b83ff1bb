//! The part of a queue pair that its halves and its handles share: the kernel's object, its state, and what
//! connecting remembers. All changes of state are made here.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use uverbs_uapi::enums::{Mtu, QpState, QpType};
use uverbs_uapi::flags::QpAttrMask;
use uverbs_uapi::handle::QpHandle;
use uverbs_uapi::write as abi;

use super::attr::{Change, QpAttr, QpInfo};
use super::connect::{Local, Steps};
use super::kernel::KernelQp;
use super::multicast::Group;
use crate::command::{DriverData, DriverReply, ModifyQp, QueryQp, Quiet, WrittenModifyQp, quiet};
use crate::context::Context;
use crate::cq::CqShared;
use crate::driver::{RecvQueue, ResetQp, SendQueue};
use crate::error::{Error, Result, Subject, Verb};
use crate::flight::{Flight, Queues};
use crate::pd::PdUse;
use crate::probes;
use crate::srq::SrqShared;
use crate::work::{Operations, PdTag, PostError};

/// How far the packet sequence numbers of a connection start ahead of the previous connection's. Numbers
/// are compared modulo 2^24, so a distance of up to 2^23 counts as ahead; this is half of it.
const PSN_AHEAD: u32 = 1 << 22;

/// The shared part of a queue pair's two halves.
pub(crate) struct QpShared {
    /// Locked for reading during calls to the kernel about it, and for writing only to replace it.
    kernel: RwLock<KernelQp>,
    pub(super) id: u64,
    pub(super) transport: QpType,
    pub(super) operations: Operations,
    /// The state that this side set last, a `QpState`. The kernel may have moved the QP on to SQE or ERR.
    /// Both allow posting, so this never refuses what the kernel would accept. Of calls on several threads
    /// the last one to store has not always been the last one in the kernel: see `advance`.
    ///
    /// Relaxed throughout: it decides between an error and a post, and guards no memory.
    state: AtomicU8,
    /// The packet sequence number of the start of the next connection, once it is drawn.
    psn: Mutex<Option<u32>>,
    /// Packets may have been sent with numbers from `psn` on.
    ///
    /// Relaxed throughout: only the value counts, and only control calls load it.
    connected: AtomicBool,
    /// It may have READs and atomics in flight, as far as is known.
    ///
    /// Relaxed throughout: it decides between an error and a post, and guards no memory.
    fetches: AtomicBool,
    /// The most bytes of a datagram, once the port's MTU is known.
    ///
    /// Relaxed throughout: it decides between an error and a post, and guards no memory.
    max_datagram: AtomicU32,
    /// An agent had it, and it is not back: of all changes it takes that to the state ERR alone.
    ///
    /// Relaxed throughout: it is stored before the lock of `kernel` is taken for the reset, and loaded under
    /// that lock.
    is_barred: AtomicBool,
    /// This side's end of the path, as [`Qp::endpoint`] last returned it.
    told: Mutex<Option<Local>>,
    /// Locked before `kernel`.
    groups: Mutex<Vec<Group>>,
    pd: PdUse,
    /// Regions ask it before they are deregistered.
    pub(super) flight: Arc<Flight>,
    pub(super) cqs: [Arc<CqShared>; 2],
    _srq: Option<Arc<SrqShared>>,
}

impl QpShared {
    /// For a queue pair that has been created on these completion queues: in the state RESET.
    pub(super) fn new(
        kernel: KernelQp,
        id: u64,
        (transport, operations): (QpType, Operations),
        pd: PdUse,
        cqs: [Arc<CqShared>; 2],
        srq: Option<Arc<SrqShared>>,
    ) -> Self {
        let queues = Queues::Qp(kernel.backing().clone());
        let flight = pd.flights().begin(kernel.subject(), queues);
        Self {
            kernel: RwLock::new(kernel),
            id,
            transport,
            operations,
            state: AtomicU8::new(QpState::RESET.0 as u8),
            psn: Mutex::new(None),
            connected: AtomicBool::new(false),
            fetches: AtomicBool::new(true),
            max_datagram: AtomicU32::new(u32::MAX),
            is_barred: AtomicBool::new(false),
            told: Mutex::new(None),
            groups: Mutex::default(),
            pd,
            flight,
            cqs,
            _srq: srq,
        }
    }

    pub(super) fn kernel(&self) -> Quiet<RwLockReadGuard<'_, KernelQp>> {
        quiet(|| self.kernel.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn kernel_alone(&self) -> Quiet<RwLockWriteGuard<'_, KernelQp>> {
        quiet(|| self.kernel.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// The multicast groups that it is in.
    pub(super) fn groups(&self) -> Quiet<MutexGuard<'_, Vec<Group>>> {
        quiet(|| self.groups.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn handle(&self) -> QpHandle {
        self.kernel().handle()
    }

    pub(super) fn qpn(&self) -> u32 {
        self.kernel().qpn()
    }

    pub(crate) fn subject(&self) -> Subject {
        self.kernel().subject()
    }

    pub(crate) fn context(&self) -> &Context {
        self.pd.context()
    }

    #[inline(always)]
    pub(super) fn state(&self) -> QpState {
        QpState(self.state.load(Ordering::Relaxed).into())
    }

    /// Refuses states in which a queue pair does not send.
    #[cold]
    pub(super) fn check_sends(&self) -> std::result::Result<(), PostError> {
        match self.state() {
            state @ (QpState::RESET | QpState::INIT | QpState::RTR) => {
                Err(PostError::WrongState { state })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn tag(&self) -> PdTag {
        self.pd.tag()
    }

    pub(super) fn fetches(&self) -> bool {
        self.fetches.load(Ordering::Relaxed)
    }

    /// Makes the next connection start its packet sequence numbers well ahead of those that this one is
    /// likely to have reached.
    ///
    /// Late packets of this connection are then behind and ignored. A packet that is ahead could count as an
    /// acknowledgement of requests in flight, and soft-RoCE would complete these (`check_psn` in
    /// `drivers/infiniband/sw/rxe/rxe_comp.c`).
    pub(super) fn start_ahead(&self) {
        let mut psn = self.psn.lock().unwrap_or_else(PoisonError::into_inner);
        // If a peer only knows the number, no packets have it.
        if let Some(psn) = &mut *psn
            && self.connected.swap(false, Ordering::Relaxed)
        {
            *psn = psn.wrapping_add(PSN_AHEAD) & 0x00ff_ffff;
        }
    }

    /// The packet sequence number of the start of the next connection: the first time one that `draw`
    /// returns.
    pub(super) fn psn(&self, draw: impl FnOnce() -> Result<u32>) -> Result<u32> {
        let mut psn = self.psn.lock().unwrap_or_else(PoisonError::into_inner);
        match *psn {
            Some(psn) => Ok(psn),
            None => Ok(*psn.insert(draw()?)),
        }
    }

    /// Makes posts refuse longer datagrams: devices drop these silently, or complete them as if they had been
    /// sent.
    pub(crate) fn limit_datagrams(&self, mtu: Mtu) {
        self.limit_messages(mtu.bytes().unwrap_or(u32::MAX));
    }

    /// As [`Self::limit_datagrams`], with a limit of `bytes` bytes.
    pub(super) fn limit_messages(&self, bytes: u32) {
        self.max_datagram.store(bytes, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn max_datagram(&self) -> u64 {
        self.max_datagram.load(Ordering::Relaxed).into()
    }

    pub(super) fn remember(&self, told: Local) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
    }

    /// What [`remember`](Self::remember) was last given, until it is forgotten.
    pub(super) fn told(&self) -> Option<Local> {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn forget(&self) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Makes [`modify`](Self::modify) refuse every state but ERR, or no longer.
    pub(super) fn bar(&self, is_barred: bool) {
        self.is_barred.store(is_barred, Ordering::Relaxed);
    }

    /// Whether a change takes READs and atomics away from a queue pair that may have posted some: its send
    /// half has noted what it can post.
    pub(super) fn ends_fetches(&self, attr: &QpAttr) -> bool {
        attr.max_rd_atomic == Some(0) && self.check_sends().is_ok()
    }

    /// Changes attributes; not for the state RESET.
    pub(super) fn modify(&self, attr: &QpAttr) -> Result<()> {
        let mut change = WrittenModifyQp::from(attr.to_abi());
        // Held until the state is stored, so that a reset comes before all of this or after it.
        let kernel = self.kernel();
        if self.is_barred.load(Ordering::Relaxed) && attr.state != Some(QpState::ERR) {
            let why = "its agent's rings have not come back: destroy it";
            return Err(Error::invalid(Verb::ModifyQp, kernel.subject(), why));
        }
        let from = self.check(&kernel, &change.core)?;
        self.change(&kernel, &mut change, from)
    }

    /// Takes it from RESET to RTS by these changes, all under the lock that [`Self::modify`] takes for each.
    pub(super) fn connect(&self, steps: Steps) -> Result<()> {
        let kernel = self.kernel();
        // From RESET on the steps are what the transitions require: a test checks that for each transport.
        let is_usual = self.state() == QpState::RESET && steps.are_usual();
        steps.each(|step| {
            let from = match is_usual {
                true => self.state(),
                false => self.check(&kernel, &step.core)?,
            };
            self.change(&kernel, step, from)
        })
    }

    /// Makes a change that has been checked, to a state other than RESET.
    pub(super) fn change(
        &self,
        kernel: &KernelQp,
        change: &mut WrittenModifyQp,
        from: QpState,
    ) -> Result<()> {
        change.core.qp_handle = kernel.handle().0;
        let raw = &change.core;
        let (before, to) = (self.state(), raw.state());
        let connects = matches!(to, None | Some(QpState::INIT | QpState::RTR | QpState::RTS));
        let driver = match connects {
            true => kernel.backing().modify_data(),
            false => DriverData::default(),
        };
        let receives = matches!(to, Some(QpState::RTR | QpState::RTS));
        if receives {
            kernel.backing().begins();
        }
        let changed = match driver.is_empty() {
            true => kernel.modify(change).map(|()| DriverReply::new()),
            false => kernel.execute(&ModifyQp { base: *raw, driver }),
        };
        let reply = match changed {
            Ok(reply) => reply,
            Err(error) => return Err(self.explained(error, raw, from)),
        };
        if connects {
            kernel.backing().modified(&reply);
        }
        if receives {
            kernel.backing().has_begun();
        }
        if change.core.mask().contains(QpAttrMask::MAX_QP_RD_ATOMIC) {
            let fetches = change.core.max_rd_atomic > 0;
            self.fetches.store(fetches, Ordering::Relaxed);
        }
        if let Some(state) = to {
            self.advance(before, state);
        }
        if to == Some(QpState::RTS) {
            self.connected.store(true, Ordering::Relaxed);
            probes::connected(kernel.qpn());
        }
        Ok(())
    }

    /// Takes it to the state RESET, with the queues of both halves.
    pub(super) fn reset(
        &self,
        attr: &QpAttr,
        send: &mut SendQueue,
        mut recv: Option<&mut RecvQueue>,
    ) -> Result<()> {
        let (context, fd) = (self.context(), self.context().fd());
        // Before the lock, so that it is dropped after it if the reset fails: its rings go back to an
        // allocator.
        let mut by = None;
        // Held until all is stored: another thread that fails the queue pair does so before or after the
        // reset.
        let (mut kernel, command, from) = loop {
            let kernel = self.kernel_alone();
            let command = attr.command(kernel.handle(), DriverData::default());
            let from = self.check(&kernel, &command.base)?;
            if by.is_some() || !kernel.backing().needs_replacement() {
                break (kernel, command, from);
            }
            let (of, subject) = (kernel.backing().clone(), kernel.subject());
            // An allocator is asked for rings, and may ask about this queue pair.
            drop(kernel);
            let new = context.driver().replacement(fd, &of, self.pd.buffers());
            let new =
                new.map_err(|error| self.explained(error.about(subject), &command.base, from))?;
            by = Some((
                KernelQp::new(context, new.handle, new.qpn, new.backing),
                new.send,
                new.recv,
            ));
        };
        let reset = ResetQp {
            command: &command,
            backing: kernel.backing(),
            send: &mut *send,
            recv: recv.as_deref_mut(),
            is_replaced: by.is_some(),
        };
        let reset = context.driver().reset_qp(fd, reset);
        reset
            .map_err(|error| self.explained(error.about(kernel.subject()), &command.base, from))?;
        let mut old = None;
        if let Some((new, new_send, new_recv)) = by {
            let stays = send.has_bound_windows();
            *send = new_send;
            if let (Some(recv), Some(new)) = (recv, new_recv) {
                *recv = new;
            }
            old = kernel.replace(new, stays);
        }
        let queues = Queues::Qp(kernel.backing().clone());
        self.flight.renew(kernel.subject(), queues);
        self.store(QpState::RESET);
        self.start_ahead();
        drop(kernel);
        // Destroyed while other threads may use the new one. If the kernel keeps it, it goes with the new
        // one.
        if let Some(mut old) = old
            && old.destroy().is_err()
        {
            self.kernel_alone().keep(old);
        }
        self.pd.reap();
        Ok(())
    }

    /// Refuses a change that does not exist, and returns the state from which it starts.
    pub(super) fn check(&self, kernel: &KernelQp, raw: &abi::ModifyQp) -> Result<QpState> {
        let from = raw.cur_state().unwrap_or_else(|| self.state());
        raw.check(|| kernel.subject(), self.transport, from)?;
        Ok(from)
    }

    pub(super) fn store(&self, state: QpState) {
        self.state.store(state.0 as u8, Ordering::Relaxed);
    }

    /// Stores the state to which a call has led, or which it found; before the call it was `before`. If other
    /// calls have stored one meanwhile, it does not go back: only a reset leads back, and comes before the
    /// whole call or after it.
    fn advance(&self, before: QpState, state: QpState) {
        let progress = |of: QpState| match of {
            QpState::RESET => 0,
            QpState::INIT => 1,
            QpState::RTR => 2,
            QpState::ERR => 4,
            _ => 3,
        };
        let next = |now: u8| {
            let now = QpState(now.into());
            let stays = now != before && progress(state) < progress(now);
            (!stays).then_some(state.0 as u8)
        };
        let relaxed = Ordering::Relaxed;
        let _ = self.state.fetch_update(relaxed, relaxed, next);
    }

    /// Says which step failed, and with which path.
    #[cold]
    pub(super) fn explained(&self, error: Error, raw: &abi::ModifyQp, from: QpState) -> Error {
        let error = match raw.state() {
            Some(to) => error.with_detail(format!("from {from:?} to {to:?}")),
            None => error,
        };
        match raw.path() {
            Some(path) => path.explain(self.context(), error),
            None => error,
        }
    }

    /// Destroys the kernel's object. From then on the device writes to no buffer of it and regions do not
    /// wait for it, even if a call of a [`Control`](super::Control) keeps this alive for a moment.
    pub(super) fn destroy(&self) -> Result<()> {
        let mut kernel = self.kernel_alone();
        kernel.destroy()?;
        let backing = kernel.backing().clone();
        // Without the lock: buffers may go back to an allocator, and regions' memory may be of any type.
        drop(kernel);
        backing.close();
        self.pd.flights().end(&self.flight);
        Ok(())
    }

    pub(super) fn query(&self) -> Result<QpInfo> {
        let kernel = self.kernel();
        let mask = self.context().driver().query_mask(self.transport);
        let command = QueryQp {
            qp: kernel.handle(),
            attr_mask: mask.bits(),
        };
        let before = self.state();
        let info = QpInfo::from(kernel.execute(&command)?);
        self.advance(before, info.state);
        Ok(info)
    }
}

impl Drop for QpShared {
    fn drop(&mut self) {
        let kernel = self.kernel.get_mut();
        let forgotten = kernel.unwrap_or_else(PoisonError::into_inner).end();
        // Regions wait forever for a queue pair that keeps using them.
        if forgotten {
            self.pd.flights().end(&self.flight);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::owned::tests::Listener;
    use crate::pd::User;

    /// A queue pair of the sample driver in the state RTS, without its halves.
    pub(in super::super) fn shared(context: &Context, transport: QpType) -> QpShared {
        let kernel = KernelQp::new(
            context,
            QpHandle(9),
            17,
            crate::driver::samples::qp_backing(),
        );
        let qp = QpShared::new(
            kernel,
            1,
            (transport, Operations::of(transport)),
            context.alloc_pd().unwrap().user(User::Qp),
            [CqShared::sample(context), CqShared::sample(context)],
            None,
        );
        qp.store(QpState::RTS);
        qp
    }

    /// The commands that dropping a queue pair takes, by the names of their verbs.
    fn dropping(kernel_refuses: bool) -> Vec<String> {
        let (kernel, file) = rustix::pipe::pipe().unwrap();
        let context = Context::over(file);
        let qp = shared(&context, QpType::UD);
        let _kernel = Some(kernel).filter(|_| !kernel_refuses);
        let told = Arc::new(Mutex::new(Vec::new()));
        let commands = Arc::clone(&told);
        let listener = Listener("uverbs::command", move |text: String| {
            let verb = text.split([' ', ':']).find(|word| word.ends_with("_qp"));
            commands.lock().unwrap().extend(verb.map(String::from));
        });
        tracing::subscriber::with_default(listener, || drop(qp));
        std::mem::take(&mut *told.lock().unwrap())
    }

    /// Otherwise it would keep receiving into memory that is the user's again.
    #[test]
    fn a_drop_that_the_kernel_refuses_resets() {
        assert_eq!(dropping(false), ["destroy_qp"]);
        assert_eq!(dropping(true), ["destroy_qp", "modify_qp"]);
    }

    /// Would catch a subscriber that is notified of a command under the queue pair's lock: one that uses the
    /// queue pair would wait for ever.
    #[test]
    fn a_subscriber_may_ask_for_the_queue_pair() {
        let (_kernel, file) = rustix::pipe::pipe().unwrap();
        let context = Context::over(file);
        let qp = Arc::new(shared(&context, QpType::UD));
        let (asked, told) = (Arc::clone(&qp), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&told);
        let listener = Listener("uverbs::command", move |_| {
            assert!(asked.kernel.try_write().is_ok());
            counted.fetch_add(1, Ordering::Relaxed);
        });
        tracing::subscriber::with_default(listener, || {
            let error = QpAttr {
                state: Some(QpState::ERR),
                ..QpAttr::default()
            };
            qp.modify(&error).unwrap();
            assert_eq!(told.load(Ordering::Relaxed), 1);
            qp.destroy().unwrap();
            assert_eq!(told.load(Ordering::Relaxed), 2);
        });
    }

    /// Would catch regions, and buffers of inline data, that stay in use behind a destruction because a call
    /// of a control on another thread has not returned.
    #[test]
    fn a_destroyed_queue_pair_is_over_whoever_has_it() {
        let (kernel, file) = rustix::pipe::pipe().unwrap();
        let qp = Arc::new(shared(&Context::over(file), QpType::RC));
        let late = Arc::clone(&qp);
        qp.destroy().unwrap();
        assert!(late.flight.is_over());
        let error = late.query().unwrap_err();
        assert!(error.to_string().contains("has been destroyed"), "{error}");
        drop(kernel);
    }

    /// Would catch a query, or a change, that another thread's change has overtaken and that takes the state
    /// back: posts would be refused for good.
    #[test]
    fn an_overtaken_call_does_not_take_the_state_back() {
        let (_kernel, file) = rustix::pipe::pipe().unwrap();
        let qp = shared(&Context::over(file), QpType::RC);
        for (before, meanwhile, state, after) in [
            (QpState::INIT, QpState::RTS, QpState::INIT, QpState::RTS),
            (QpState::INIT, QpState::ERR, QpState::RTR, QpState::ERR),
            (QpState::INIT, QpState::RTR, QpState::ERR, QpState::ERR),
            (QpState::RTS, QpState::SQD, QpState::RTS, QpState::RTS),
            // Nothing has come between: somebody else has reset it.
            (QpState::RTS, QpState::RTS, QpState::INIT, QpState::INIT),
        ] {
            qp.store(meanwhile);
            qp.advance(before, state);
            assert_eq!(qp.state(), after, "{before:?} {meanwhile:?} {state:?}");
        }
    }

    /// Would catch regions that are deregistered although a queue pair that uses them may live on: its state
    /// is unknown, since a subscriber panicked at its destruction.
    #[test]
    fn a_panic_behind_the_destruction_forgets_nothing() {
        for refuses in [false, true] {
            let (kernel, file) = rustix::pipe::pipe().unwrap();
            let context = Context::over(file);
            let qp = shared(&context, QpType::RC);
            let _kernel = Some(kernel).filter(|_| !refuses);
            let mut of_kernel = qp.kernel.write().unwrap();
            let panics = Listener("uverbs::command", |text| panic!("told of {text}"));
            let destroyed = tracing::subscriber::with_default(panics, || {
                catch_unwind(AssertUnwindSafe(|| of_kernel.destroy()))
            });
            assert!(destroyed.is_err(), "the subscriber was not asked");
            assert!(!of_kernel.end());
        }
    }
}
