//! Requests for connections, awaited.

use crate::cm::{self, Listens};
use crate::error::Result;
use crate::readable::{Readable, Watching};

/// Awaits requests for connections. `R` waits for the listener's file to be readable.
#[derive(Debug)]
pub struct Listener<T, R: Readable> {
    // Before the file that it watches.
    readable: Watching<R>,
    inner: cm::Listener<T>,
}

impl<T: Listens, R: Readable + Default> Listener<T, R> {
    /// Awaits the requests of a listener.
    pub fn new(inner: cm::Listener<T>) -> Self {
        Self {
            readable: Watching(R::default()),
            inner,
        }
    }
}

impl<T: Listens, R: Readable> Listener<T, R> {
    /// The address that it listens on, with the port.
    pub fn local_addr(&self) -> std::net::SocketAddr {
        self.inner.local_addr()
    }

    /// The next request. Dropping the future loses no request.
    ///
    /// # Errors
    ///
    /// As for [`cm::Listener::try_next`], or the runtime cannot watch the file.
    pub async fn accept(&mut self) -> Result<cm::Request<T>> {
        self.inner.next_kept(&mut self.readable.0).await
    }
}
