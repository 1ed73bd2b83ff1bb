//! The peer of another host's `uverbs doctor PEER`: answers pings by datagrams and over connections.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use uverbs::Ud;
use uverbs::cm::Listener;

use super::datagram;
use crate::failure::Result;
use crate::{output, rping};

/// How long a client may be silent.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves until one of the two listeners fails. Prints a line when both listen.
pub(super) fn run(port: u16) -> Result<()> {
    let over_connections = rping::server(port, PATIENCE)?;
    let of_datagrams = rping::on_all_addresses(port)?;
    output::line(format_args!("pings at port {port} are answered"))?;
    let (ended, first) = mpsc::channel();
    let other = ended.clone();
    thread::spawn(move || ended.send(over_connections()));
    thread::spawn(move || other.send(datagrams(&of_datagrams)));
    // An error means that a thread has panicked, and has printed that.
    first.recv().unwrap_or(Ok(()))
}

fn datagrams(listener: &Listener<Ud>) -> Result<()> {
    loop {
        let request = listener.next()?;
        // Continue: the next client may succeed.
        if let Err(failure) = datagram::answer(request, PATIENCE) {
            output::complain(failure);
        }
    }
}
