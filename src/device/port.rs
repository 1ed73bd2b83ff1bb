//! Ports, with the data that is visible without opening the device: states, LID, network device.

use std::fmt;

use uverbs_uapi::enums;

/// A port of a device, as netlink or sysfs reports it. Data that neither reported is `None`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Port {
    /// The port's number; the first is 1.
    pub number: u32,
    /// The logical state of the link.
    pub state: Option<PortState>,
    /// The physical state of the link.
    pub physical_state: Option<PhysicalState>,
    /// The port's local identifier; only InfiniBand ports have one.
    pub lid: Option<u32>,
    /// The network device under a RoCE or iWARP port, if it is in this network namespace.
    pub netdev: Option<Netdev>,
}

/// As many ports are told at most of a device that does not report them: it may say any number.
const MOST_UNKNOWN: u32 = 1 << 16;

/// The ports from 1 to `last`, by number: those that were found, which are sorted too, and the others without
/// data.
pub(super) fn with_unknown(mut found: Vec<Port>, last: u32) -> Vec<Port> {
    let is_missing = |number: &u32| {
        found
            .binary_search_by_key(number, |port| port.number)
            .is_err()
    };
    let missing: Vec<u32> = (1..=last.min(MOST_UNKNOWN)).filter(is_missing).collect();
    found.extend(missing.into_iter().map(|number| Port {
        number,
        state: None,
        physical_state: None,
        lid: None,
        netdev: None,
    }));
    found.sort_by_key(|port| port.number);
    found
}

/// A network device.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Netdev {
    /// The interface's name, such as `eth0`.
    pub name: String,
    /// The interface's index.
    pub index: Option<u32>,
}

/// The logical state of a port's link, `enum ibv_port_state` in C (InfiniBand specification,
/// PortInfo:PortState).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PortState {
    /// No state, or no change.
    Nop,
    /// The link is down.
    Down,
    /// The physical link is up; the subnet manager has not configured the port yet.
    Init,
    /// Configured, but only subnet management packets pass.
    Armed,
    /// All packets pass.
    Active,
    /// The port was active and lost the physical link a moment ago.
    ActiveDefer,
    /// A state that this library does not know, by its number.
    Other(u8),
}

impl From<u8> for PortState {
    fn from(number: u8) -> Self {
        match enums::PortState::from(number) {
            enums::PortState::NOP => Self::Nop,
            enums::PortState::DOWN => Self::Down,
            enums::PortState::INIT => Self::Init,
            enums::PortState::ARMED => Self::Armed,
            enums::PortState::ACTIVE => Self::Active,
            enums::PortState::ACTIVE_DEFER => Self::ActiveDefer,
            _ => Self::Other(number),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nop => "NOP",
            Self::Down => "DOWN",
            Self::Init => "INIT",
            Self::Armed => "ARMED",
            Self::Active => "ACTIVE",
            Self::ActiveDefer => "ACTIVE_DEFER",
            Self::Other(number) => return write!(f, "state {number}"),
        })
    }
}

/// The physical state of a port's link (InfiniBand specification, PortInfo:PortPhysicalState;
/// `enum ib_port_phys_state` in the kernel).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PhysicalState {
    /// Neither driving the link nor listening on it.
    Sleep,
    /// Looking for a peer.
    Polling,
    /// Switched off.
    Disabled,
    /// Training the link.
    Training,
    /// The link is up.
    LinkUp,
    /// Recovering from link errors.
    ErrorRecovery,
    /// Under test.
    PhyTest,
    /// A state that this library does not know, by its number.
    Other(u8),
}

impl From<u8> for PhysicalState {
    fn from(number: u8) -> Self {
        match enums::PhysState::from(number) {
            enums::PhysState::SLEEP => Self::Sleep,
            enums::PhysState::POLLING => Self::Polling,
            enums::PhysState::DISABLED => Self::Disabled,
            enums::PhysState::PORT_CONFIGURATION_TRAINING => Self::Training,
            enums::PhysState::LINK_UP => Self::LinkUp,
            enums::PhysState::LINK_ERROR_RECOVERY => Self::ErrorRecovery,
            enums::PhysState::PHY_TEST => Self::PhyTest,
            _ => Self::Other(number),
        }
    }
}

impl fmt::Display for PhysicalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sleep => "SLEEP",
            Self::Polling => "POLLING",
            Self::Disabled => "DISABLED",
            Self::Training => "TRAINING",
            Self::LinkUp => "LINK_UP",
            Self::ErrorRecovery => "ERROR_RECOVERY",
            Self::PhyTest => "PHY_TEST",
            Self::Other(number) => return write!(f, "state {number}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a port that is missing because the device fails to report it, and a number of ports that
    /// takes all memory.
    #[test]
    fn ports_without_data_are_there_too() {
        let found = with_unknown(Vec::new(), 2).pop().into_iter().collect();
        let numbers = |ports: Vec<Port>| ports.iter().map(|port| port.number).collect::<Vec<_>>();
        assert_eq!(numbers(with_unknown(found, 3)), [1, 2, 3]);
        assert_eq!(with_unknown(Vec::new(), u32::MAX).len(), 1 << 16);
    }
}
