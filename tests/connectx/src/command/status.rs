//! Statuses of commands, in `status` of a command's output (`MLX5_CMD_STAT_*` of the driver's `device.h`).

/// Why a command failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Status {
    /// The device does not know the command.
    BadOperation,
    /// A parameter is wrong.
    BadParameter,
    /// There is no such object.
    BadResource,
    /// The object is in use.
    ResourceBusy,
    /// The object's state does not allow it.
    BadResourceState,
    /// All objects of that kind are in use.
    NoResources,
    /// The queue pair's state does not allow it.
    BadQpState,
    /// The input is too short.
    BadInputLength,
}

impl Status {
    /// The code in the command's output.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::BadOperation => 0x2,
            Self::BadParameter => 0x3,
            Self::BadResource => 0x5,
            Self::ResourceBusy => 0x6,
            Self::BadResourceState => 0x9,
            Self::NoResources => 0xf,
            Self::BadQpState => 0x10,
            Self::BadInputLength => 0x50,
        }
    }
}
