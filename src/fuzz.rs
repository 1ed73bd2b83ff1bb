//! Ways into what reads bytes of the kernel, of a device or of a peer, for the fuzz targets in `tests/fuzz`:
//! no part of the interface, and only there with the feature `fuzz`.
//!
//! Each takes any bytes and must come back: an error is fine, a panic is a finding.

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

/// The kernel's answers to all commands: the bytes are drawn from in turn, and are zeros when used up.
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
    // More does not fit into a pipe for sure.
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

/// Datagrams of RDMA netlink in answer to all questions; each has its length before it, in two bytes. The
/// questions are answered up to a datagram of length 0.
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

/// Messages between a broker and those who join.
pub fn share(bytes: &[u8]) {
    crate::share::fuzz::read(bytes);
}

/// Events and answers of the connection manager.
pub fn cm(bytes: &[u8]) {
    crate::cm::fuzz::read(bytes);
}
