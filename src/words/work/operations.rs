//! What a queue pair can do: a set that is fixed when it is created.

use bitflags::bitflags;
use uverbs_uapi::enums::{AtomicCap, QpType};
use uverbs_uapi::flags::{DeviceCapFlags, FlushPlacement};

use super::{Operation, PostError};

bitflags! {
    /// Operations of send requests.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Operations: u16 {
        const SEND = 1 << 0;
        const WRITE = 1 << 1;
        const READ = 1 << 2;
        const ATOMIC = 1 << 3;
        const SEND_INV = 1 << 4;
        const LOCAL_INV = 1 << 5;
        const BIND_MW = 1 << 6;
        /// Binds of windows whose addresses count from 0.
        const BIND_ZERO_BASED = 1 << 7;
        const ATOMIC_WRITE = 1 << 8;
        const FLUSH_GLOBAL = 1 << 9;
        const FLUSH_PERSISTENT = 1 << 10;
        const SEND_IMM = 1 << 11;
        const WRITE_IMM = 1 << 12;

        /// Operations that write data from the peer into slices of this side: each counts as a read in
        /// flight.
        const THAT_FETCH = Self::READ.bits() | Self::ATOMIC.bits();

        /// Operations that every driver has if the transport has them.
        const CLASSIC = Self::SEND.bits()
            | Self::SEND_IMM.bits()
            | Self::WRITE.bits()
            | Self::WRITE_IMM.bits()
            | Self::READ.bits()
            | Self::ATOMIC.bits();
        /// Messages, which need enough room at the receiver.
        const SENDS = Self::SEND.bits() | Self::SEND_IMM.bits() | Self::SEND_INV.bits();
        /// Operations that a device may lack although its driver has them: its capabilities report them.
        const OF_CAPABILITIES =
            Self::ATOMIC_WRITE.bits() | Self::FLUSH_GLOBAL.bits() | Self::FLUSH_PERSISTENT.bits();
        /// Operations that depend on the device: these, and atomics, which it reports in a field of their
        /// own.
        const OF_DEVICE = Self::OF_CAPABILITIES.bits() | Self::ATOMIC.bits();
        /// Operations that change keys of this side, and send nothing.
        const OF_KEYS = Self::LOCAL_INV.bits() | Self::BIND_MW.bits();
    }
}

impl Operations {
    /// The operations of a transport in the InfiniBand specification, and of dynamic connections. Operations
    /// that only one device has are not among them, nor are raw packets, which need fields that requests do
    /// not have yet.
    pub(crate) fn of(transport: QpType) -> Self {
        let datagrams = Self::SEND | Self::SEND_IMM;
        let unreliable = datagrams
            | Self::WRITE
            | Self::WRITE_IMM
            | Self::LOCAL_INV
            | Self::BIND_MW
            | Self::BIND_ZERO_BASED;
        match transport {
            QpType::DCI => datagrams | Self::WRITE | Self::WRITE_IMM | Self::READ | Self::ATOMIC,
            QpType::RC => Self::all(),
            QpType::XRC_SEND => Self::all().difference(Self::OF_CAPABILITIES),
            QpType::UC => unreliable,
            QpType::UD => datagrams,
            _ => Self::empty(),
        }
    }

    /// Removes the operations that a device with these capabilities lacks; it may also lack atomics.
    pub(crate) fn with(self, capabilities: DeviceCapFlags, atomics: AtomicCap) -> Self {
        let told = [
            (Self::ATOMIC_WRITE, DeviceCapFlags::ATOMIC_WRITE),
            (Self::FLUSH_GLOBAL, DeviceCapFlags::FLUSH_GLOBAL),
            (Self::FLUSH_PERSISTENT, DeviceCapFlags::FLUSH_PERSISTENT),
        ];
        let lacking = told
            .iter()
            .filter(|(_, needed)| !capabilities.contains(*needed));
        let left = lacking.fold(self, |left, (operation, _)| left.difference(*operation));
        match atomics {
            AtomicCap::NONE => left.difference(Self::ATOMIC),
            _ => left,
        }
    }

    /// Why a request that needs these operations cannot be posted to a queue pair with this set.
    #[cold]
    pub(crate) fn refusal(self, needed: Self, transport: QpType) -> PostError {
        let missing = needed.difference(self);
        let mut capability = DeviceCapFlags::empty();
        capability.set(
            DeviceCapFlags::ATOMIC_WRITE,
            missing.contains(Self::ATOMIC_WRITE),
        );
        capability.set(
            DeviceCapFlags::FLUSH_GLOBAL,
            missing.contains(Self::FLUSH_GLOBAL),
        );
        capability.set(
            DeviceCapFlags::FLUSH_PERSISTENT,
            missing.contains(Self::FLUSH_PERSISTENT),
        );
        if !Self::of(transport).contains(needed) {
            PostError::NotInTransport { transport }
        } else if missing.contains(Self::ATOMIC) {
            PostError::NoAtomics
        } else if !capability.is_empty() {
            PostError::MissingCapability { capability }
        } else {
            PostError::NotInTransport { transport }
        }
    }
}

impl Operation {
    /// The operations that a queue pair needs for it.
    #[inline(always)]
    pub(crate) const fn needs(&self) -> Operations {
        match self {
            Self::Send => Operations::SEND,
            Self::SendImm { .. } => Operations::SEND_IMM,
            Self::Write { .. } => Operations::WRITE,
            Self::WriteImm { .. } => Operations::WRITE_IMM,
            Self::Read { .. } => Operations::READ,
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => Operations::ATOMIC,
            Self::SendInv { .. } => Operations::SEND_INV,
            Self::LocalInv { .. } => Operations::LOCAL_INV,
            Self::BindMw(_) => Operations::BIND_MW,
            Self::AtomicWrite { .. } => Operations::ATOMIC_WRITE,
            Self::Flush { placement, .. } => flush(*placement),
        }
    }
}

#[inline(always)]
const fn flush(placement: FlushPlacement) -> Operations {
    let global = placement.contains(FlushPlacement::GLOBAL);
    match placement.contains(FlushPlacement::PERSISTENT) {
        true if global => Operations::FLUSH_GLOBAL.union(Operations::FLUSH_PERSISTENT),
        true => Operations::FLUSH_PERSISTENT,
        false => Operations::FLUSH_GLOBAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_lacks_is_told_by_its_name_and_what_a_transport_lacks_by_the_transport() {
        let able = Operations::of(QpType::RC).with(DeviceCapFlags::FLUSH_GLOBAL, AtomicCap::HCA);
        assert!(able.contains(Operations::FLUSH_GLOBAL | Operations::READ));
        let both = Operations::FLUSH_GLOBAL | Operations::FLUSH_PERSISTENT;
        assert_eq!(
            able.refusal(both, QpType::RC),
            PostError::MissingCapability {
                capability: DeviceCapFlags::FLUSH_PERSISTENT
            }
        );
        assert!(able.contains(Operations::ATOMIC));
        let able = able.with(DeviceCapFlags::all(), AtomicCap::NONE);
        let refusal = able.refusal(Operations::ATOMIC, QpType::RC);
        assert_eq!(refusal, PostError::NoAtomics);
        let transport = QpType::UC;
        let able = Operations::of(transport).difference(Operations::LOCAL_INV);
        for needed in [
            Operations::LOCAL_INV,
            Operations::READ,
            Operations::ATOMIC_WRITE,
        ] {
            assert!(!able.contains(needed));
            let refusal = PostError::NotInTransport { transport };
            assert_eq!(able.refusal(needed, transport), refusal);
        }
    }

    #[test]
    fn raw_packets_have_no_requests_yet() {
        assert_eq!(Operations::of(QpType::RAW_PACKET), Operations::empty());
    }
}
