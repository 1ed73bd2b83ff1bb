//! A kernel that answers with arbitrary bytes.

use std::collections::VecDeque;

use super::conversation::Channel;
use super::{Netlink, answers};
use crate::error::Errno;

/// Answers a request with the next datagrams, up to an empty one. If an answer has 0 as its sequence number,
/// it inserts the request's number.
struct Kernel<'a> {
    datagrams: VecDeque<&'a [u8]>,
    queue: VecDeque<Vec<u8>>,
}

impl Channel for Kernel<'_> {
    fn send(&mut self, request: &[u8]) -> Result<(), Errno> {
        while let Some(datagram) = self.datagrams.pop_front().filter(|it| !it.is_empty()) {
            let mut answer = datagram.to_vec();
            if let (Some(place), Some(number)) = (answer.get_mut(8..12), request.get(8..12))
                && place == [0; 4]
            {
                place.copy_from_slice(number);
            }
            self.queue.push_back(answer);
        }
        Ok(())
    }

    fn receive(&mut self, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
        let datagram = self.queue.pop_front().ok_or(Errno::AGAIN)?;
        let fits = datagram.len().min(buffer.capacity());
        buffer.extend_from_slice(&datagram[..fits]);
        Ok(datagram.len())
    }
}

/// Sends every kind of request.
pub(crate) fn ask(datagrams: &[&[u8]]) {
    let netlink = || {
        Netlink::over(Kernel {
            datagrams: datagrams.iter().copied().collect(),
            queue: VecDeque::new(),
        })
    };
    let _ = netlink().list(|_| false);
    let _ = netlink().chardev(0);
    let _ = netlink().ports(0);
}

/// Reads the bytes as the attributes of each kind of answer.
pub(crate) fn read(attributes: &[u8]) {
    let _ = answers::device(attributes);
    let _ = answers::chardev(attributes);
    let _ = answers::port(attributes);
}
