//! Waiting for what an engine does.

use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Instant;

use super::{PATIENCE, Result};

/// What became of a request; the text says why it failed.
pub(crate) type Outcome = std::result::Result<(), String>;

/// A request under way. It may be dropped: the request goes on.
pub(crate) struct Waiter(Receiver<Outcome>);

/// The engine's end, which takes one outcome. An engine that ends drops it, and so leaves nobody waiting.
pub(crate) type Completer = Sender<Outcome>;

/// Both ends of a new request.
pub(crate) fn pair() -> (Waiter, Completer) {
    let (completer, outcome) = mpsc::channel();
    (Waiter(outcome), completer)
}

impl Waiter {
    /// Waits, and calls `poll` meanwhile: the engine's on the thread that has the engine, or nothing on
    /// another. `poll` tells whether it found anything to do.
    pub(crate) fn wait(&self, mut poll: impl FnMut() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.0.try_recv() {
                Ok(outcome) => return Ok(outcome?),
                Err(TryRecvError::Disconnected) => return Err("the engine has ended".into()),
                Err(TryRecvError::Empty) if poll()? => {}
                Err(TryRecvError::Empty) if Instant::now() > deadline => {
                    return Err("nothing has come in time".into());
                }
                // Others may need the processor to get any further.
                Err(TryRecvError::Empty) => std::thread::yield_now(),
            }
        }
    }
}
