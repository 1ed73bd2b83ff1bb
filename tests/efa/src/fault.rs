//! Faults on demand: what a test has asked to go wrong with a function, by the control channel.
//!
//! A fault is kept here and looked at where it bites; nothing else of the model knows that it was asked for.

use vfio_model::fault::Failing;

/// What is wrong with a function.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Commands that fail for want of resources.
    pub(crate) failing: Failing<u8>,
    /// Commands that are never answered.
    pub(crate) unanswered: Failing<u8>,
    /// So many events of completions are lost.
    pub(crate) lost_events: u32,
    /// Messages that need a receive request find none.
    pub(crate) not_ready: bool,
    /// It finds none of its address handles for those who send to it.
    pub(crate) knows_nobody: bool,
    /// Send queues are not looked at.
    pub(crate) stalled: bool,
    /// Messages that arrive are lost, so that senders find no answer.
    pub(crate) silent: bool,
    /// The function has failed: nothing happens until it is reset.
    pub(crate) failed: bool,
}

impl Faults {
    /// Whether an event is to be lost; that is one less then.
    pub(crate) fn lose_event(&mut self) -> bool {
        let loses = self.lost_events > 0;
        self.lost_events -= u32::from(loses);
        loses
    }

    /// What a reset puts right.
    pub(crate) fn reset(&mut self) {
        self.failed = false;
    }
}
