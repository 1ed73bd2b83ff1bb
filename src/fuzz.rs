//! Entry points for the fuzz targets in `tests/fuzz`, to the code that reads bytes of the kernel, of a device
//! or of a peer. They are not part of the interface, and exist only with the feature `fuzz`.
//!
//! Each takes any bytes and must return: an error is fine, a panic is a finding.

use uverbs_uapi::event::{AsyncEventDesc, CompEventDesc};

#[allow(
    unused_imports,
    unreachable_pub,
    reason = "not every driver has ways in"
)]
pub use crate::driver::fuzz::*;
use crate::error::{Subject, Verb};
use crate::event::AsyncEvent;
use crate::event_file::EventFile;

/// The kernel's answers to all commands. The bytes are consumed from the front, then zeros follow.
pub fn answers(bytes: &[u8]) {
    let mut words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    crate::command::fuzz::answer_all(&mut || words.next().unwrap_or_default());
}

/// Records of the asynchronous event file and of a completion channel.
pub fn events(bytes: &[u8]) {
    // A pipe surely holds this much.
    let bytes = &bytes[..bytes.len().min(4096)];
    let Ok((read, write)) = rustix::pipe::pipe() else {
        return;
    };
    let file = EventFile::new(read, Subject::the("events"));
    if bytes.is_empty() || rustix::io::write(&write, bytes) != Ok(bytes.len()) {
        return;
    }
    for turn in 0.. {
        let more = match turn % 2 {
            0 => file
                .try_read::<AsyncEventDesc>(Verb::GetAsyncEvent)
                .map(|record| record.map(AsyncEvent::from).map(|it| format!("{it:?}"))),
            _ => file
                .try_read::<CompEventDesc>(Verb::GetCqEvent)
                .map(|record| record.map(|it| format!("{it:?}"))),
        };
        match more {
            Ok(Some(text)) => drop(std::hint::black_box(text)),
            Ok(None) => break,
            Err(error) => drop(std::hint::black_box(error.to_string())),
        }
    }
}

/// Datagrams of RDMA netlink that answer all requests; each has its length before it, in two bytes. A
/// datagram of length 0 ends the answers to a request.
pub fn netlink(mut bytes: &[u8]) {
    crate::device::netlink::fuzz::read(bytes);
    let mut datagrams = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (datagram, rest) = rest.split_at(length);
        datagrams.push(datagram);
        bytes = rest;
    }
    crate::device::netlink::fuzz::ask(&datagrams);
}

/// Messages between a broker and the processes that join.
pub fn share(bytes: &[u8]) {
    crate::share::fuzz::read(bytes);
}

/// Events and answers of the connection manager.
pub fn cm(bytes: &[u8]) {
    crate::cm::fuzz::read(bytes);
}
