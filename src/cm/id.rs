//! An identifier of the connection manager, alone on its file.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use uverbs_uapi::enums::{QpState, QpType};
use uverbs_uapi::rdma_cm::{EventResp, IdOption, OptionLevel, PortSpace};

use super::address::{self, Address, Wire};
use super::attributes;
use super::command::{
    self, Command, CreateId, DestroyId, InitQpAttr, MigrateId, QueryAddr, SetOption,
};
use super::file::File;
use crate::context::Context;
use crate::device::Device;
use crate::error::{Cause, Errno, Error, Result, Subject, Verb};
use crate::qp::QpAttr;

/// The number that events of a file's own identifier carry. Multicast groups on the same file have higher
/// numbers.
pub(super) const OWN: u64 = 1;

/// An identifier. Dropping it destroys it, which notifies the peer of whatever ends with it.
#[derive(Debug)]
pub(super) struct Id {
    file: File,
    number: u32,
    subject: Subject,
}

/// The addresses and the device of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The own address.
    pub(super) local: Option<Address>,
    /// The peer's address.
    pub(super) peer: Option<Address>,
    /// The device's index and the port, if it is bound to a device.
    pub(super) device: Option<(u32, u8)>,
}

impl Id {
    /// Makes an identifier.
    pub(super) fn create(space: PortSpace, qp_type: QpType, subject: Subject) -> Result<Self> {
        let file = File::open()?;
        match make(&file, space, qp_type) {
            Ok(number) => Ok(Self {
                file,
                number,
                subject,
            }),
            Err(errno) => Err(Error::os(CreateId::VERB, subject, errno)),
        }
    }

    /// Destroys it and makes another one on its file, which stays the same for whoever waits for it. The
    /// kernel drops the events of the old one. If that fails, it is of no use any more.
    pub(super) fn replace(
        &mut self,
        space: PortSpace,
        qp_type: QpType,
        subject: Subject,
    ) -> Result<()> {
        // First: it may have the address and port that the other one needs.
        destroy(&self.file, self.number);
        self.subject = subject;
        let made = make(&self.file, space, qp_type);
        self.number = made.map_err(|errno| self.error(CreateId::VERB, errno))?;
        Ok(())
    }

    /// A file for another identifier.
    pub(super) fn another_file(&self) -> Result<File> {
        self.file.another()
    }

    /// Whether there is an event.
    pub(super) fn has_event(&self) -> Result<bool> {
        let has = self.file.is_readable();
        has.map_err(|errno| self.error(Verb::GetCmEvent, errno))
    }

    /// Moves the identifier that came with a request on this one's file to `file`. If that fails, it destroys
    /// the identifier, which refuses the request.
    pub(super) fn take(&self, number: u32, subject: Subject, file: File) -> Result<Self> {
        let command = MigrateId {
            id: number,
            fd: self.file.as_fd().as_raw_fd() as u32,
            ..Default::default()
        };
        let taken = match file.send(&command) {
            Ok(_) => Ok(Self {
                file,
                number,
                subject,
            }),
            Err(errno) => Err(Error::os(MigrateId::VERB, subject, errno)),
        };
        if taken.is_err() {
            destroy(&self.file, number);
        }
        taken
    }

    /// Its number in commands.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Its name in errors.
    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Sets the name that errors have from now on.
    pub(super) fn rename(&mut self, subject: Subject) {
        self.subject = subject;
    }

    /// Sends a command.
    pub(super) fn execute<C: Command>(&self, command: &C) -> Result<C::Reply> {
        let sent = self.file.send(command);
        sent.map_err(|errno| self.error(C::VERB, errno))
    }

    /// The error of a verb on it.
    pub(super) fn error(&self, verb: Verb, errno: Errno) -> Error {
        Error::os(verb, self.subject.clone(), errno)
    }

    /// Binds it to an own address.
    pub(super) fn bind(&self, own: Wire) -> Result<()> {
        self.execute(&command::bind(self.number, own))
    }

    /// Sets an option to a value of one byte or of an `int`, whichever type the option has.
    pub(super) fn set(&self, option: IdOption, value: &[u8]) -> Result<()> {
        self.execute(&SetOption {
            optval: value.as_ptr() as u64,
            id: self.number,
            level: OptionLevel::ID.0,
            optname: option.0,
            optlen: value.len() as u32,
        })
    }

    /// Sets an option that is on or off.
    pub(super) fn switch(&self, option: IdOption, on: bool) -> Result<()> {
        self.set(option, &i32::from(on).to_ne_bytes())
    }

    /// Its addresses and its device.
    pub(super) fn place(&self) -> Result<Place> {
        let told = self.execute(&QueryAddr::of(self.number))?;
        let port = told.port_num;
        Ok(Place {
            local: address::read(&told.src_addr),
            peer: address::read(&told.dst_addr),
            device: (port != 0).then_some((told.ibdev_index, port)),
        })
    }

    /// The attributes of a transition of its queue pair, as the kernel proposes them.
    pub(super) fn attributes(&self, state: QpState) -> Result<QpAttr> {
        let command = InitQpAttr {
            id: self.number,
            qp_state: state.0,
            ..Default::default()
        };
        Ok(attributes::read(&self.execute(&command)?, state))
    }

    /// The next event, if one is there.
    pub(super) fn try_event(&self) -> Result<Option<EventResp>> {
        let event = self.file.try_event();
        event.map_err(|errno| self.error(Verb::GetCmEvent, errno))
    }

    /// Waits until there may be an event, for at most `limit`; `None` means forever.
    pub(super) fn wait(&self, limit: Option<Duration>) -> Result<()> {
        let waited = self.file.wait(limit);
        waited.map_err(|errno| self.error(Verb::GetCmEvent, errno))
    }
}

/// Makes an identifier on this file, and returns its number.
fn make(file: &File, space: PortSpace, qp_type: QpType) -> Result<u32, Errno> {
    let command = CreateId {
        uid: OWN,
        ps: space.0 as u16,
        qp_type: qp_type.0 as u8,
        ..Default::default()
    };
    file.send(&command).map(|made| made.id)
}

/// Destroys an identifier on this file. The kernel does not wait for a peer.
fn destroy(file: &File, number: u32) {
    // The kernel refuses a process that has forked, whose parent has the identifier. Otherwise it is
    // destroyed at the latest when the file is closed.
    let _ = file.send(&DestroyId {
        id: number,
        ..Default::default()
    });
}

/// Closing the file would also destroy it, but only when the last process that has the file closes it: a
/// process that was forked has it too.
impl Drop for Id {
    fn drop(&mut self) {
        destroy(&self.file, self.number);
    }
}

impl AsFd for Id {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The device with this index.
pub(super) fn device(index: u32, subject: &Subject) -> Result<Device> {
    let mut devices = crate::device::devices()?.into_iter();
    match devices.find(|device| device.index() == Some(index)) {
        Some(device) => Ok(device),
        None => {
            let what = format!("no device that this network namespace shows has the index {index}");
            let cause = Cause::NotFound(what.into());
            Err(Error::new(Verb::FindDevice, subject.clone(), cause))
        }
    }
}

/// Refuses a context of another device than the one with this index.
pub(super) fn check_device(
    verb: Verb,
    subject: &Subject,
    context: &Context,
    index: u32,
) -> Result<()> {
    match context.device().index() {
        Some(own) if own != index => {
            let name = context.name();
            let on = device(index, subject).map_or_else(
                |_| format!("the device of index {index}"),
                |device| device.name().to_owned(),
            );
            let why = format!("the queue pair is on {name}, and the way to the peer is over {on}");
            Err(Error::invalid(verb, subject.clone(), why))
        }
        _ => Ok(()),
    }
}
