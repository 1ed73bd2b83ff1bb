//! A thread that does nothing but poll an engine, for callers on other threads.

use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};

use super::engine::{Engine, Request};
use super::waiter::{Completer, Waiter, pair};
use super::{PATIENCE, Result};

pub(crate) struct Worker {
    requests: Sender<(Request, Completer)>,
    messages: Receiver<Vec<u8>>,
    thread: JoinHandle<Result<()>>,
}

impl Worker {
    /// Moves the engine, and the thread domains in it, to a thread of its own.
    pub(crate) fn spawn(mut engine: Engine) -> Self {
        let (requests, to_do) = mpsc::channel::<(Request, Completer)>();
        let (post, messages) = mpsc::channel();
        let work = move || loop {
            match to_do.try_recv() {
                Ok((request, done)) => engine.submit_for(request, done),
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) if !engine.poll()? => thread::yield_now(),
                Err(TryRecvError::Empty) => {}
            }
            while let Some(message) = engine.receive() {
                post.send(message)?;
            }
        };
        Self {
            requests,
            messages,
            thread: thread::spawn(work),
        }
    }

    /// As [`Engine::submit`].
    pub(crate) fn submit(&self, request: Request) -> Waiter {
        let (waiter, completer) = pair();
        // If the thread has ended, the completer is dropped, and so the waiter told.
        let _ = self.requests.send((request, completer));
        waiter
    }

    /// Waits for the next message of any peer.
    pub(crate) fn receive(&self) -> Result<Vec<u8>> {
        Ok(self.messages.recv_timeout(PATIENCE)?)
    }

    /// Ends the thread, and tells of what failed there.
    pub(crate) fn stop(self) -> Result<()> {
        drop(self.requests);
        self.thread.join().map_err(|_| "the worker panicked")?
    }
}
