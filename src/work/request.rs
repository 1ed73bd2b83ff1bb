//! Work requests in the one form that all drivers take.
//!
//! The typed interface of a QP builds these values and passes them down inlined, so that a driver's match on
//! the operation is decided at compile time. They borrow and are small: turning a foreign caller's struct
//! into one allocates nothing.

use uverbs_uapi::enums::FlushLevel;
#[cfg(feature = "rxe")]
use uverbs_uapi::enums::WrOpcode;
use uverbs_uapi::flags::{AccessFlags, DeviceCapFlags, FlushPlacement};

use super::{LocalKey, LocalSlice, PdTag, RemoteKey};

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    SendImm {
        imm: u32,
    },
    SendInv {
        rkey: RemoteKey,
    },
    Write {
        remote: Remote,
    },
    WriteImm {
        remote: Remote,
        imm: u32,
    },
    Read {
        remote: Remote,
    },
    CompareSwap {
        remote: Remote,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        remote: Remote,
        add: u64,
    },
    /// The payload is the word to write.
    AtomicWrite {
        remote: Remote,
    },
    /// Has no payload.
    Flush {
        remote: Remote,
        length: u32,
        placement: FlushPlacement,
        level: FlushLevel,
    },
    /// Has no payload.
    LocalInv {
        rkey: RemoteKey,
    },
    /// Has no payload.
    BindMw(Bind),
}

/// What a memory window is bound to, and the keys that it has before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bind {
    /// The window's key now.
    pub(crate) mw_rkey: RemoteKey,
    /// The window's key from then on.
    pub(crate) rkey: RemoteKey,
    /// The region under it.
    pub(crate) mr_lkey: LocalKey,
    pub(crate) address: u64,
    /// 0 takes the window away.
    pub(crate) length: u64,
    pub(crate) access: AccessFlags,
    /// The window is of type 2: it belongs to the queue pair.
    pub(crate) of_queue_pair: bool,
}

/// The start of a piece of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) rkey: RemoteKey,
}

#[cfg(feature = "rxe")]
impl Operation {
    /// The kernel's number of the operation, which only soft-RoCE's rings have.
    #[inline(always)]
    pub(crate) const fn opcode(&self) -> WrOpcode {
        match self {
            Operation::Send => WrOpcode::SEND,
            Operation::SendImm { .. } => WrOpcode::SEND_WITH_IMM,
            Operation::Write { .. } => WrOpcode::RDMA_WRITE,
            Operation::WriteImm { .. } => WrOpcode::RDMA_WRITE_WITH_IMM,
            Operation::Read { .. } => WrOpcode::RDMA_READ,
            Operation::CompareSwap { .. } => WrOpcode::ATOMIC_CMP_AND_SWP,
            Operation::FetchAdd { .. } => WrOpcode::ATOMIC_FETCH_AND_ADD,
            Operation::SendInv { .. } => WrOpcode::SEND_WITH_INV,
            Operation::AtomicWrite { .. } => WrOpcode::ATOMIC_WRITE,
            Operation::Flush { .. } => WrOpcode::FLUSH,
            Operation::LocalInv { .. } => WrOpcode::LOCAL_INV,
            Operation::BindMw(_) => WrOpcode::BIND_MW,
        }
    }
}

/// Where a flush takes what was written before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// To where everybody on the peer's side sees it.
    Global,
    /// To where it survives a loss of power.
    Persistent,
    /// To both.
    GlobalAndPersistent,
}

impl Placement {
    /// The placement as the wire has it.
    #[inline(always)]
    pub(crate) const fn bits(self) -> FlushPlacement {
        match self {
            Self::Global => FlushPlacement::GLOBAL,
            Self::Persistent => FlushPlacement::PERSISTENT,
            Self::GlobalAndPersistent => FlushPlacement::GLOBAL.union(FlushPlacement::PERSISTENT),
        }
    }

    /// What a device must be capable of for it.
    #[inline(always)]
    pub(crate) const fn needs(self) -> DeviceCapFlags {
        match self {
            Self::Global => DeviceCapFlags::FLUSH_GLOBAL,
            Self::Persistent => DeviceCapFlags::FLUSH_PERSISTENT,
            Self::GlobalAndPersistent => {
                DeviceCapFlags::FLUSH_GLOBAL.union(DeviceCapFlags::FLUSH_PERSISTENT)
            }
        }
    }
}

/// What goes out, or where what comes in lands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// Registered memory, read or written by the device after posting.
    Gather(&'a [LocalSlice]),
    /// Bytes that are copied into the work request.
    Inline(&'a [u8]),
}

/// Where a datagram goes. `A` is an address handle as the driver knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination<'a, A> {
    pub(crate) ah: &'a A,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
    pub(crate) pd: PdTag,
}
