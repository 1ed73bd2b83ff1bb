//! Devices by the kernel's RDMA netlink: needs no file system, shows only what this network namespace may see, and
//! says which driver a device belongs to. Not for events, and nothing is ever changed through it.

mod answers;
mod conversation;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod message;

use netlink_packet_core::NLM_F_DUMP;
use uverbs_uapi::nldev::{attr, client, cmd, message_type};

use conversation::{Channel, Conversation, Socket};
use message::Request;

use super::chardev::Chardev;
use super::failure::{Failure, Malformed};
use super::info::Info;
use super::port::Port;
use crate::error::Errno;

/// The devices as netlink shows them.
pub(super) struct Netlink<C = Socket>(Conversation<C>);

impl Netlink {
    /// Opens the socket.
    pub(super) fn open() -> Result<Self, Errno> {
        Socket::open().map(Self::over)
    }
}

impl<C: Channel> Netlink<C> {
    fn over(channel: C) -> Self {
        Self(Conversation::new(channel))
    }

    /// The devices, no further than one that is `enough`. Can be asked once.
    pub(super) fn list(&mut self, enough: impl Fn(&Info) -> bool) -> Result<Vec<Info>, Failure> {
        let request = Request::new(message_type(client::NLDEV, cmd::GET), NLM_F_DUMP);
        self.0.ask_until(request, answers::device, enough)
    }

    /// The uverbs character device of the device with this index; `None` if it has none, or if the kernel cannot
    /// tell (before Linux 5.3).
    pub(super) fn chardev(&mut self, index: u32) -> Result<Option<Chardev>, Failure> {
        let request = Request::new(message_type(client::NLDEV, cmd::GET_CHARDEV), 0)
            .with_u32(attr::DEV_INDEX, index)
            .with_text(attr::CHARDEV_TYPE, c"uverbs");
        match self.0.ask(request, answers::chardev) {
            Ok(chardevs) => Ok(chardevs.into_iter().next()),
            Err(Failure::Refused(Errno::OPNOTSUPP | Errno::NOENT | Errno::INVAL)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The ports of the device with this index, which must still have this name.
    pub(super) fn ports(&mut self, index: u32, name: &str) -> Result<Vec<Port>, Failure> {
        let request = Request::new(message_type(client::NLDEV, cmd::PORT_GET), NLM_F_DUMP)
            .with_u32(attr::DEV_INDEX, index);
        let answers = self.0.ask(request, answers::port)?;
        if answers.iter().any(|(device, _)| device != name) {
            return Err(Failure::Refused(Errno::NODEV));
        }
        let mut ports: Vec<Port> = answers.into_iter().map(|(_, port)| port).collect();
        ports.sort_by_key(|port| port.number);
        match ports
            .windows(2)
            .any(|pair| pair[0].number == pair[1].number)
        {
            true => Err(Malformed::from("a port comes twice").into()),
            false => Ok(ports),
        }
    }
}

#[cfg(test)]
mod tests;
