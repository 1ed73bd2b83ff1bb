//! Taking completions.

use std::fmt;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use super::{Cq, Notify};
use crate::driver;
use crate::error::Result;
use crate::wc::Completion;
use crate::work::PollError;

impl Cq {
    /// Takes the completions that have arrived, at most as many as the queue holds, without a system call.
    ///
    /// Each entry returns to the device as soon as the loop takes it, and before the request's slot in its
    /// queue becomes free. So requests may be posted inside the loop, and a completion queue with room for
    /// all requests of the queues that report to it never overruns. Of a shared receive queue this is its
    /// capacity, or the number of queue pairs that receive from it, if that is more. Completions of a queue
    /// pair that has been reset or destroyed keep their places until a poll has passed them: poll before
    /// posting again. What the loop does not take stays in the queue. Without completions the loop has no
    /// iterations.
    ///
    /// It does not check whether the device is still there: when the device has been removed, it finds
    /// nothing for ever. A program that only polls and waits for no event calls
    /// [`Context::is_device_gone`](crate::Context::is_device_gone) now and then.
    ///
    /// ```no_run
    /// # fn poll(cq: &mut uverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
    /// for completion in &mut cq.poll()? {
    ///     println!("{} {:?}", completion.wr_id(), completion.result()?);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The queue has overrun ([`PollError::Overrun`]) or is lost ([`PollError::QueueLost`]). Or the ring's
    /// contents are invalid: the memory that is shared with the kernel or device has been overwritten, or the
    /// device is faulty. The next call continues with the completions after the reported one. Manual page:
    /// `ibv_poll_cq(3)`.
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Completions<'_>, PollError> {
        let raw = self.ring.poll()?;
        Ok(Completions { raw })
    }

    /// Copies the completions that have arrived into `into`, at most as many as fit, and returns the filled
    /// part. Otherwise like [`poll`](Self::poll).
    ///
    /// ```no_run
    /// # use std::mem::MaybeUninit;
    /// # fn poll(cq: &mut uverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut buffer = [const { MaybeUninit::uninit() }; 16];
    /// for completion in cq.poll_into(&mut buffer)? {
    ///     println!("{} {:?}", completion.wr_id(), completion.result()?);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Cq::poll`]; nothing is taken.
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)]
    pub fn poll_into<'b>(
        &mut self,
        into: &'b mut [MaybeUninit<Completion>],
    ) -> Result<&'b mut [Completion], PollError> {
        let mut completions = self.poll()?;
        let mut count = 0;
        for (place, completion) in into.iter_mut().zip(&mut completions) {
            place.write(completion);
            count += 1;
        }
        // SAFETY: the first `count` places were just written, and `MaybeUninit` has the layout of its
        // contents.
        Ok(unsafe { std::slice::from_raw_parts_mut(into.as_mut_ptr().cast(), count) })
    }

    /// Takes the completions that have arrived; if there are none, arms the queue and polls once more.
    ///
    /// `None` means that the queue is empty *and* armed: the next completion causes an event on its channel.
    /// Only this order misses no completion, since there is no event for completions that arrive before
    /// arming.
    ///
    /// # Errors
    ///
    /// As for [`Cq::poll`] and [`Cq::arm`].
    pub fn poll_or_arm(&mut self, notify: Notify) -> Result<Option<Completions<'_>>> {
        if self.ring.is_empty()? {
            self.arm(notify)?;
            if self.ring.is_empty()? {
                return Ok(None);
            }
        }
        Ok(Some(self.poll()?))
    }

    /// Takes the completions that have arrived; if there are none, waits for one for at most `timeout`.
    /// `None` if none arrived.
    ///
    /// With a shared receive queue on mlx5 there may be none in `Some` either: a message for memory on demand
    /// found a page missing, and the receive has been posted again.
    ///
    /// It sleeps on the queue's [channel](super::CqBuilder::channel), which should not be shared: events of
    /// other queues that it reads are dropped.
    ///
    /// ```no_run
    /// # fn wait(context: &uverbs::Context) -> uverbs::Result<()> {
    /// let channel = context.create_channel()?;
    /// let mut cq = context.cq(64).channel(&channel).create()?;
    /// match cq.wait(std::time::Duration::from_secs(1))? {
    ///     Some(mut completions) => for completion in &mut completions { println!("{completion:?}") },
    ///     None => println!("nothing for a second"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The queue has no channel; otherwise as for [`Cq::poll`], [`Cq::arm`] and
    /// [`CompletionChannel::wait_for`](crate::CompletionChannel::wait_for).
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Completions<'_>>> {
        let channel = self.channel()?.clone();
        // `None`: a deadline that the clock cannot represent never comes.
        let deadline = Instant::now().checked_add(timeout);
        while self.ring.is_empty()? {
            self.arm(Notify::Next)?;
            if !self.ring.is_empty()? {
                break;
            }
            let left = deadline.map_or(Duration::MAX, |at| {
                at.saturating_duration_since(Instant::now())
            });
            if channel.wait_for(left)?.is_none() && left.is_zero() {
                return Ok(None);
            }
        }
        Ok(Some(self.poll()?))
    }
}

/// Completions that are being taken from their queue.
///
/// Iterate over a mutable reference. What the loop does not take stays in the queue.
pub struct Completions<'cq> {
    raw: driver::Polled<'cq>,
}

impl<'i, 'cq> IntoIterator for &'i mut Completions<'cq> {
    type Item = Completion;
    type IntoIter = CompletionIter<'i, 'cq>;

    #[inline(always)]
    fn into_iter(self) -> CompletionIter<'i, 'cq> {
        CompletionIter { raw: &mut self.raw }
    }
}

impl<'cq> Completions<'cq> {
    /// An iterator over the completions, the same as in `for` over a mutable reference.
    #[inline(always)]
    pub fn iter(&mut self) -> CompletionIter<'_, 'cq> {
        self.into_iter()
    }
}

impl fmt::Debug for Completions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions")
            .field("raw", &self.raw)
            .finish()
    }
}

/// The iterator over [`Completions`].
pub struct CompletionIter<'i, 'cq> {
    raw: &'i mut driver::Polled<'cq>,
}

impl Iterator for CompletionIter<'_, '_> {
    type Item = Completion;

    #[inline(always)]
    fn next(&mut self) -> Option<Completion> {
        self.raw.next().map(Completion::new)
    }
}

impl fmt::Debug for CompletionIter<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionIter")
            .field("raw", &self.raw)
            .finish()
    }
}
