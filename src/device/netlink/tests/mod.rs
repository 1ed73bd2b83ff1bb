//! The parser and the conversation over bytes that a kernel sends, could send, and should never send. This
//! module has a kernel that follows a script, and the messages that it sends.

mod answers;
mod conversation;
mod random;
#[cfg(target_endian = "little")]
mod recorded;
mod resources;

use std::collections::VecDeque;

use super::*;

const NOOP: u16 = 1;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const OVERRUN: u16 = 4;
const MULTI: u16 = 2;
const INTERRUPTED: u16 = 16;
const GET: u16 = 0x1401;
const GET_CHARDEV: u16 = 0x140f;
const PORT_GET: u16 = 0x1405;

/// A kernel that answers every request with the next datagrams of a script.
///
/// In a datagram of the script, the messages that answer the request have the sequence number 0; the kernel
/// inserts the request's number there.
#[derive(Default)]
struct Script {
    answers: VecDeque<Vec<Vec<u8>>>,
    queue: VecDeque<Vec<u8>>,
    requests: Vec<Vec<u8>>,
}

impl Script {
    /// A kernel that answers the first request with the first list of datagrams, and so on.
    fn new(answers: impl IntoIterator<Item = Vec<Vec<u8>>>) -> Self {
        Self {
            answers: answers.into_iter().collect(),
            ..Self::default()
        }
    }
}

impl Channel for Script {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Errno> {
        self.requests.push(datagram.to_vec());
        for mut answer in self.answers.pop_front().unwrap_or_default() {
            stamp(&mut answer, &datagram[8..12]);
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

/// Inserts the sequence number into every well-formed message whose number is 0.
fn stamp(datagram: &mut [u8], sequence: &[u8]) {
    let mut at = 0;
    while let Some(header) = datagram.get_mut(at..at + 16) {
        if header[8..12] == [0; 4] {
            header[8..12].copy_from_slice(sequence);
        }
        let length = u32::from_ne_bytes(header[..4].try_into().unwrap()) as usize;
        at += length.next_multiple_of(4).max(16);
    }
}

fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + payload.len() as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(4711_u32.to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn rxe_device(index: u32, name: &str) -> Vec<u8> {
    [
        attribute(attr::DEV_INDEX, &index.to_ne_bytes()),
        attribute(attr::DEV_NAME, format!("{name}\0").as_bytes()),
        attribute(attr::PORT_INDEX, &1_u32.to_ne_bytes()),
        attribute(attr::NODE_GUID, &0x5054_00ff_fe12_3456_u64.to_ne_bytes()),
        attribute(attr::SYS_IMAGE_GUID, &1_u64.to_ne_bytes()),
        attribute(attr::DEV_NODE_TYPE, &[1]),
        // An attribute that is newer than this library.
        attribute(4000, b"new"),
    ]
    .concat()
}

fn rxe_chardev() -> Vec<u8> {
    [
        attribute(attr::UVERBS_DRIVER_ID, &14_u32.to_ne_bytes()),
        attribute(attr::CHARDEV, &0xe7c0_u64.to_ne_bytes()),
        attribute(attr::CHARDEV_ABI, &2_u64.to_ne_bytes()),
        attribute(attr::CHARDEV_NAME, b"uverbs0\0"),
    ]
    .concat()
}

fn rxe_port(device: &str, number: u32) -> Vec<u8> {
    [
        attribute(attr::DEV_INDEX, &0_u32.to_ne_bytes()),
        attribute(attr::DEV_NAME, format!("{device}\0").as_bytes()),
        attribute(attr::PORT_INDEX, &number.to_ne_bytes()),
        attribute(attr::PORT_STATE, &[4]),
        attribute(attr::PORT_PHYS_STATE, &[5]),
        attribute(attr::NDEV_INDEX, &3_u32.to_ne_bytes()),
        attribute(attr::NDEV_NAME, b"d0\0"),
    ]
    .concat()
}

fn part(payload: &[u8]) -> Vec<u8> {
    message(GET, MULTI, 0, payload)
}

fn done() -> Vec<u8> {
    message(DONE, MULTI, 0, &0_i32.to_ne_bytes())
}

fn refusal(errno: Errno) -> Vec<u8> {
    let mut payload = (-errno.raw_os_error()).to_ne_bytes().to_vec();
    payload.extend([0; 16]);
    message(ERROR, 0, 0, &payload)
}

fn list(answers: impl IntoIterator<Item = Vec<Vec<u8>>>) -> Result<Vec<String>, Failure> {
    let infos = Netlink::over(Script::new(answers)).list(|_| false)?;
    Ok(infos.into_iter().map(|info| info.name).collect())
}

fn malformed<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
    match result {
        Err(Failure::Malformed(Malformed(text))) => text.into_owned(),
        other => panic!("{other:?} is not malformed"),
    }
}
