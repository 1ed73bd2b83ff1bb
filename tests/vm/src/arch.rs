//! The architectures that a guest may have.

use clap::ValueEnum;

/// What a guest's programs are compiled for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum Arch {
    /// x86-64, as this machine.
    #[default]
    X86_64,
    /// 64-bit Arm, emulated.
    Arm64,
}

impl Arch {
    /// Debian's name.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// What the name of a thing in the store ends in: nothing for this machine's architecture.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::X86_64 => "",
            Self::Arm64 => "-arm64",
        }
    }

    /// The emulator's program.
    pub(crate) fn qemu(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86_64",
            Self::Arm64 => "qemu-system-aarch64",
        }
    }
}
