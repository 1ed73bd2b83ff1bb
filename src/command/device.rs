//! The context, and queries of the device.

use std::os::fd::{FromRawFd, OwnedFd};

use uverbs_uapi::types::{ExQueryDeviceResp, GidEntry, QueryPortResp, QueryPortRespEx};
use uverbs_uapi::{attr, cmd, method, object, write as abi};
use zerocopy::FromBytes;

use super::request::DriverReply;
use super::{Command, Decode, DriverData, Malformed, Request, response};
use crate::error::{Subject, Verb};

/// Makes the open file a user context of its device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GetContext {
    pub(crate) driver: DriverData,
}

/// The kernel's answer about a new context.
#[derive(Debug)]
pub(crate) struct GetContextReply {
    /// Completion vectors that a CQ can choose from.
    pub(crate) num_comp_vectors: u32,
    /// Bits of `CoreSupport`; none with write(2), which does not report them.
    pub(crate) core_support: u64,
    /// The file descriptor of asynchronous events, which only write(2) creates with the context.
    pub(crate) async_fd: Option<OwnedFd>,
    #[allow(dead_code, reason = "not every driver is told something")]
    pub(crate) driver: DriverReply,
}

impl Command for GetContext {
    type Reply = GetContextReply;
    const VERB: Verb = Verb::GetContext;

    fn subject(&self) -> Subject {
        Subject::the("device")
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::get_context as id;
        request
            .method(object::DEVICE, method::device::GET_CONTEXT)
            .output(id::NUM_COMP_VECTORS, size_of::<u32>())
            .output(id::CORE_SUPPORT, size_of::<u64>())
            .driver(&self.driver);
        Some(|command, answer| {
            Ok(GetContextReply {
                num_comp_vectors: answer.answer(id::NUM_COMP_VECTORS)?,
                core_support: answer.answer(id::CORE_SUPPORT).unwrap_or(0),
                async_fd: None,
                driver: answer.driver_reply(&command.driver),
            })
        })
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::GetContext::default();
        request
            .write_command::<_, abi::GetContextResp>(cmd::GET_CONTEXT, &core)
            .driver(&self.driver);
        Some(|command, answer| {
            let response: abi::GetContextResp = answer.response()?;
            let async_fd = owned(response.async_fd.into(), attr::invoke_write::CORE_OUT)?;
            Ok(GetContextReply {
                num_comp_vectors: response.num_comp_vectors,
                core_support: 0,
                async_fd: Some(async_fd),
                driver: answer.driver_reply(&command.driver),
            })
        })
    }
}

/// Takes ownership of a file descriptor that the kernel has just installed in this process.
pub(super) fn owned(raw: i64, attribute: u16) -> Result<OwnedFd, Malformed> {
    let fd = i32::try_from(raw).ok().filter(|fd| *fd >= 0);
    let fd = fd.ok_or(Malformed::OutOfRange(attribute, raw as u64))?;
    // SAFETY: the kernel answered a command of this process with this new descriptor, so it has no other
    // owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Allocates a file descriptor on which asynchronous events arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocAsyncFd;

impl Command for AllocAsyncFd {
    type Reply = OwnedFd;
    const VERB: Verb = Verb::AllocAsyncFd;

    fn subject(&self) -> Subject {
        Subject::the("context")
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        request
            .method(object::ASYNC_EVENT, method::async_event::ALLOC)
            .new_object(attr::async_event_alloc::FD_HANDLE);
        Some(|_, answer| {
            let fd = answer.new_fd(attr::async_event_alloc::FD_HANDLE)?;
            owned(fd.into(), attr::async_event_alloc::FD_HANDLE)
        })
    }
}

/// Queries the device's attributes, including the extended ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryDevice;

impl Command for QueryDevice {
    type Reply = ExQueryDeviceResp;
    const VERB: Verb = Verb::QueryDevice;

    fn subject(&self) -> Subject {
        Subject::the("device")
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        request.write_command::<_, ExQueryDeviceResp>(
            cmd::EX_QUERY_DEVICE,
            &abi::ExQueryDevice::default(),
        );
        Some(response)
    }
}

/// Like [`QueryDevice`], with the driver's own part of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "not every driver has something to say")]
pub(crate) struct QueryDeviceWith {
    pub(crate) driver: DriverData,
}

impl Command for QueryDeviceWith {
    type Reply = (ExQueryDeviceResp, DriverReply);
    const VERB: Verb = Verb::QueryDevice;

    fn subject(&self) -> Subject {
        Subject::the("device")
    }

    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        request
            .write_command::<_, ExQueryDeviceResp>(
                cmd::EX_QUERY_DEVICE,
                &abi::ExQueryDevice::default(),
            )
            .driver(&self.driver);
        Some(|command, answer| Ok((answer.response()?, answer.driver_reply(&command.driver))))
    }
}

/// Queries a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryPort {
    pub(crate) port: u8,
}

impl Command for QueryPort {
    type Reply = QueryPortRespEx;
    const VERB: Verb = Verb::QueryPort;

    fn subject(&self) -> Subject {
        Subject::numbered("port", self.port.into())
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        request
            .method(object::DEVICE, method::device::QUERY_PORT)
            .constant(attr::query_port::PORT_NUM, self.port.into())
            .output(attr::query_port::RESP, size_of::<QueryPortRespEx>());
        Some(|_, answer| answer.answer(attr::query_port::RESP))
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::QueryPort {
            port_num: self.port,
            ..Default::default()
        };
        request.write_command::<_, QueryPortResp>(cmd::QUERY_PORT, &core);
        Some(|_, answer| {
            Ok(QueryPortRespEx {
                legacy_resp: answer.response()?,
                ..Default::default()
            })
        })
    }
}

/// Queries the speed of a port, in 100 Mbit/s. Since Linux 7.0.
#[cfg(feature = "c-abi")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryPortSpeed {
    pub(crate) port: u32,
}

#[cfg(feature = "c-abi")]
impl Command for QueryPortSpeed {
    type Reply = u64;
    const VERB: Verb = Verb::QueryPortSpeed;

    fn subject(&self) -> Subject {
        Subject::numbered("port", self.port.into())
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        request
            .method(object::DEVICE, method::device::QUERY_PORT_SPEED)
            .constant(attr::query_port_speed::PORT_NUM, self.port.into())
            .output(attr::query_port_speed::RESP, size_of::<u64>());
        Some(|_, answer| answer.answer(attr::query_port_speed::RESP))
    }
}

/// Queries the valid entries of the GID tables of all ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryGidTable {
    /// Room for this many entries; the kernel fails with EINVAL if there are more.
    pub(crate) room: usize,
}

impl QueryGidTable {
    /// Enough for most devices; if not, the caller repeats the query with more room.
    pub(crate) const USUAL: usize = 64;

    /// The most entries that one attribute can hold.
    pub(crate) const MAX: usize = u16::MAX as usize / size_of::<GidEntry>();
}

impl Command for QueryGidTable {
    type Reply = Vec<GidEntry>;
    const VERB: Verb = Verb::QueryGidTable;

    fn subject(&self) -> Subject {
        Subject::the("device")
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        let room = self.room.min(Self::MAX) * size_of::<GidEntry>();
        request
            .method(object::DEVICE, method::device::QUERY_GID_TABLE)
            .constant(
                attr::query_gid_table::ENTRY_SIZE,
                size_of::<GidEntry>() as u64,
            )
            .output(attr::query_gid_table::RESP_ENTRIES, room)
            .output(attr::query_gid_table::RESP_NUM_ENTRIES, size_of::<u64>());
        Some(|_, answer| {
            let count: u64 = answer.answer(attr::query_gid_table::RESP_NUM_ENTRIES)?;
            if count == 0 {
                return Ok(Vec::new());
            }
            let mut rest = answer.answer_bytes(attr::query_gid_table::RESP_ENTRIES)?;
            let mut entries = Vec::new();
            for _ in 0..count {
                let (entry, behind) = GidEntry::read_from_prefix(rest).map_err(|_| {
                    Malformed::Contradicts("more GID entries than there was room for")
                })?;
                entries.push(entry);
                rest = behind;
            }
            Ok(entries)
        })
    }
}

/// Queries one entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryGid {
    pub(crate) port: u32,
    pub(crate) index: u32,
}

impl Command for QueryGid {
    type Reply = GidEntry;
    const VERB: Verb = Verb::QueryGid;

    fn subject(&self) -> Subject {
        Subject::named("GID", format_args!("{} of port {}", self.index, self.port))
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        request
            .method(object::DEVICE, method::device::QUERY_GID_ENTRY)
            .constant(attr::query_gid_entry::PORT, self.port.into())
            .constant(attr::query_gid_entry::GID_INDEX, self.index.into())
            // There are no flags, but the kernel requires the attribute.
            .constant(attr::query_gid_entry::FLAGS, 0)
            .output(attr::query_gid_entry::RESP_ENTRY, size_of::<GidEntry>());
        Some(|_, answer| answer.answer(attr::query_gid_entry::RESP_ENTRY))
    }
}
