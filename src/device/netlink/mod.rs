//! Devices by the kernel's RDMA netlink: it needs no file system, shows only what this network namespace may
//! see, and reports the driver of a device. Not for events. Devices of soft-RoCE are made and deleted through
//! it; it changes nothing else.

mod answers;
mod conversation;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod message;
mod resources;
#[cfg(feature = "c-abi")]
pub(crate) mod station;

use std::ffi::CStr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use uverbs_uapi::nldev::{attr, client, cmd, message_type};

use conversation::{Channel, Conversation, Socket};
use message::Request;

use super::chardev::Chardev;
use super::failure::{Failure, Malformed};
use super::info::Info;
use super::port::Port;
use super::resource::{
    CmIdResource, ContextResource, CqResource, MrResource, PdResource, QpCounters, QpResource,
    ResourceCount, SrqResource,
};
use crate::error::Errno;

/// The devices that netlink shows.
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

    /// The devices, up to one that is `enough`. Call it only once.
    pub(super) fn list(&mut self, enough: impl Fn(&Info) -> bool) -> Result<Vec<Info>, Failure> {
        let request = Request::new(message_type(client::NLDEV, cmd::GET), NLM_F_DUMP);
        self.0.ask_until(request, answers::device, enough)
    }

    /// The uverbs character device of the device with this index; `None` if it has none, or if the kernel
    /// cannot report it (before Linux 5.3).
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

    /// The connection manager's character device; the kernel loads its module for that. `None` if there is
    /// none, or if the kernel cannot report it.
    pub(super) fn connection_manager(&mut self) -> Result<Option<Chardev>, Failure> {
        let request = Request::new(message_type(client::NLDEV, cmd::GET_CHARDEV), 0)
            .with_text(attr::CHARDEV_TYPE, c"rdma_cm");
        match self.0.ask(request, answers::chardev) {
            Ok(chardevs) => Ok(chardevs.into_iter().next()),
            Err(Failure::Refused(Errno::OPNOTSUPP | Errno::NOENT | Errno::INVAL)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The name that the device with this index has now. An index is of one device for good: the kernel gives
    /// out 2^31 of them before the first one again (`assign_name` in `drivers/infiniband/core/device.c`).
    pub(super) fn name(&mut self, index: u32) -> Result<String, Failure> {
        let request =
            Request::new(message_type(client::NLDEV, cmd::GET), 0).with_u32(attr::DEV_INDEX, index);
        let gone = Failure::Refused(Errno::NODEV);
        match self.0.ask(request, answers::device) {
            Ok(devices) => match devices.into_iter().next() {
                Some(device) if device.index == Some(index) => Ok(device.name),
                _ => Err(gone),
            },
            // The index of no device (`nldev_get_doit`).
            Err(Failure::Refused(Errno::INVAL)) => Err(gone),
            Err(failure) => Err(failure),
        }
    }

    /// The ports of the device with this index, without the first one that the device fails to report and
    /// those after it: there the kernel ends its answer (`nldev_port_get_dumpit`).
    pub(super) fn ports(&mut self, index: u32) -> Result<Vec<Port>, Failure> {
        let request = Request::new(message_type(client::NLDEV, cmd::PORT_GET), NLM_F_DUMP);
        let answers = self.ask_about(index, request, answers::port)?;
        if answers.iter().any(|&(device, _)| device != index) {
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

    /// Asks about the device with this index; `ENODEV` if there is none.
    ///
    /// The kernel has `EINVAL` for that (`res_get_common_dumpit`), as for a command that it does not know. So
    /// it is then asked whether the device is there.
    fn ask_about<T>(
        &mut self,
        index: u32,
        request: Request,
        parse: impl Fn(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Failure> {
        let answers = self.0.ask(request.with_u32(attr::DEV_INDEX, index), parse);
        if matches!(answers, Err(Failure::Refused(Errno::INVAL))) {
            self.name(index)?;
        }
        answers
    }
}

/// Devices on network devices, which only administrators may make and delete.
impl<C: Channel> Netlink<C> {
    /// Makes a device of a kind, such as "rxe", whose module the kernel loads.
    pub(super) fn add_link(
        &mut self,
        name: &CStr,
        kind: &CStr,
        netdev: &CStr,
    ) -> Result<(), Failure> {
        let request = Request::new(message_type(client::NLDEV, cmd::NEWLINK), NLM_F_ACK)
            .with_text(attr::DEV_NAME, name)
            .with_text(attr::LINK_TYPE, kind)
            .with_text(attr::NDEV_NAME, netdev);
        self.0.ask(request, |_| Ok(())).map(drop)
    }

    /// Deletes the device with this index.
    pub(super) fn delete_link(&mut self, index: u32) -> Result<(), Failure> {
        let request = Request::new(message_type(client::NLDEV, cmd::DELLINK), NLM_F_ACK)
            .with_u32(attr::DEV_INDEX, index);
        self.0.ask(request, |_| Ok(())).map(drop)
    }
}

/// The objects of all processes and of the kernel on the device with this index.
impl<C: Channel> Netlink<C> {
    /// How many objects there are of each kind.
    pub(super) fn summary(&mut self, index: u32) -> Result<Vec<ResourceCount>, Failure> {
        let request = Request::new(message_type(client::NLDEV, cmd::RES_GET), 0);
        let answers = self.ask_about(index, request, resources::summary)?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// The objects of one kind. The kernel sends them in parts, each of which is a table.
    fn objects<T>(
        &mut self,
        index: u32,
        command: u16,
        parse: impl Fn(&[u8]) -> Result<Vec<T>, Malformed>,
    ) -> Result<Vec<T>, Failure> {
        let request = Request::new(message_type(client::NLDEV, command), NLM_F_DUMP);
        let answers = self.ask_about(index, request, parse)?;
        Ok(answers.into_iter().flatten().collect())
    }

    pub(super) fn pds(&mut self, index: u32) -> Result<Vec<PdResource>, Failure> {
        self.objects(index, cmd::RES_PD_GET, resources::pds)
    }

    pub(super) fn mrs(&mut self, index: u32) -> Result<Vec<MrResource>, Failure> {
        self.objects(index, cmd::RES_MR_GET, resources::mrs)
    }

    pub(super) fn cqs(&mut self, index: u32) -> Result<Vec<CqResource>, Failure> {
        self.objects(index, cmd::RES_CQ_GET, resources::cqs)
    }

    pub(super) fn qps(&mut self, index: u32) -> Result<Vec<QpResource>, Failure> {
        self.objects(index, cmd::RES_QP_GET, resources::qps)
    }

    pub(super) fn srqs(&mut self, index: u32) -> Result<Vec<SrqResource>, Failure> {
        self.objects(index, cmd::RES_SRQ_GET, resources::srqs)
    }

    pub(super) fn contexts(&mut self, index: u32) -> Result<Vec<ContextResource>, Failure> {
        self.objects(index, cmd::RES_CTX_GET, resources::contexts)
    }

    pub(super) fn cm_ids(&mut self, index: u32) -> Result<Vec<CmIdResource>, Failure> {
        self.objects(index, cmd::RES_CM_ID_GET, resources::cm_ids)
    }

    /// The sets of counters that are bound to queue pairs.
    pub(super) fn qp_counters(&mut self, index: u32) -> Result<Vec<QpCounters>, Failure> {
        let request = Request::new(message_type(client::NLDEV, cmd::STAT_GET), NLM_F_DUMP)
            .with_u32(attr::STAT_RES, attr::RES_QP.into());
        let answers = self.ask_about(index, request, resources::qp_counters)?;
        Ok(answers.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests;
