//! What no driver of this library has a part of its own in so far: commands that go to the kernel as they are, and
//! refusals of what only a driver could do. A driver that has one takes it out here by a `match`.

use uverbs_uapi::handle::{DmHandle, FlowHandle, QpHandle, SrqHandle, WqHandle};

use super::{Device, RecvQueue, SharedRecvQueue, SrqBacking};
use crate::alloc::Buffers;
use crate::command::{
    AllocDm, CommandFd, CreateFlow, CreateRssQp, CreateSrq, CreateWq, CreateXrcTarget, Destroy,
    ModifyWq,
};
use crate::error::{Error, Result, Subject, Verb};

/// Commands that some drivers have data of their own or rings for.
impl Device {
    /// Creates a shared receive queue of the type XRC or tag matching; its number on the wire comes last.
    pub(crate) fn create_xsrq(
        &self,
        fd: &CommandFd,
        command: CreateSrq,
        _buffers: Option<&Buffers>,
    ) -> Result<(SrqHandle, SharedRecvQueue, SrqBacking, u32)> {
        // mlx5's kernel driver asks for the ring before it says whether the device has them.
        if !self.is_mlx5() {
            let command = match self {
                #[cfg(feature = "rxe")]
                Device::Rxe => CreateSrq {
                    driver: super::rxe::srq_data(),
                    ..command
                },
                #[cfg(feature = "mlx5")]
                Device::Mlx5(_) => command,
            };
            let handle = fd.execute(&command)?.handle;
            // Whatever becomes of it, it is of no use here.
            let _ = fd.execute(&Destroy(handle));
        }
        Err(self.without_rings(
            Verb::CreateSrq,
            "shared receive queues for XRC or tag matching",
        ))
    }

    /// Creates a work queue; its number comes second.
    pub(crate) fn create_wq(
        &self,
        fd: &CommandFd,
        command: CreateWq,
        _buffers: Option<&Buffers>,
    ) -> Result<(WqHandle, u32, RecvQueue)> {
        // As above.
        if !self.is_mlx5() {
            let handle = fd.execute(&command)?.handle;
            let _ = fd.execute(&Destroy(handle));
        }
        Err(self.without_rings(Verb::CreateWq, "work queues"))
    }

    /// The error for queues that this library's driver cannot use.
    pub(super) fn without_rings(&self, verb: Verb, what: &'static str) -> Error {
        Error::unsupported(
            verb,
            Subject::the(what),
            "the kernel has them, and this library's driver for the device lacks their rings",
        )
    }

    /// Creates a queue pair over an indirection table.
    pub(crate) fn create_rss_qp(
        &self,
        fd: &CommandFd,
        command: &CreateRssQp,
    ) -> Result<(QpHandle, u32)> {
        if self.is_mlx5() {
            // The kernel's driver would take what it finds in place of the hash for one of an ordinary queue pair.
            let what = "queue pairs over indirection tables";
            return Err(self.lacks(Verb::CreateQp, what));
        }
        fd.execute(command)
    }

    /// Changes a work queue.
    pub(crate) fn modify_wq(&self, fd: &CommandFd, command: &ModifyWq) -> Result<()> {
        fd.execute(command)
    }

    /// Creates a queue pair that is the target of an XRC domain.
    pub(crate) fn create_xrc_target(
        &self,
        fd: &CommandFd,
        command: &CreateXrcTarget,
    ) -> Result<(QpHandle, u32)> {
        // The kernel's driver asks for rings even of a target, which has none.
        if self.is_mlx5() {
            return Err(self.lacks(Verb::CreateQp, "targets of XRC domains"));
        }
        fd.execute(command)
    }

    /// Allocates memory of the device's own.
    pub(crate) fn alloc_dm(&self, fd: &CommandFd, command: &AllocDm) -> Result<DmHandle> {
        fd.execute(command)
    }

    /// Checks with the driver what the kernel's list of handles has told, and asks for the length in bytes.
    pub(crate) fn import_dm(&self, fd: &CommandFd, handle: DmHandle) -> Result<u64> {
        #[cfg(feature = "mlx5")]
        if matches!(self, Device::Mlx5(_)) {
            return super::mlx5::import_dm(fd, handle);
        }
        // No kernel lists device memory of these, so nobody comes here: the generic ABI could not tell the length.
        let _ = (fd, handle);
        Err(self.lacks(Verb::ImportDm, "import of device memory"))
    }

    /// Creates a flow rule.
    pub(crate) fn create_flow(&self, fd: &CommandFd, command: &CreateFlow) -> Result<FlowHandle> {
        fd.execute(command)
    }
}

/// What is nothing but the driver's: the kernel has no command for it.
impl Device {
    /// The key of the memory region that swallows what is written to it and gives zeros.
    pub(crate) fn null_lkey(&self) -> Result<u32> {
        Err(self.lacks(
            Verb::AllocNullMr,
            "a null MR: no key that stands for no memory",
        ))
    }

    /// The device's clock now, in its own ticks.
    pub(crate) fn raw_clock(&self, fd: &CommandFd) -> Result<u64> {
        let clock = match self {
            #[cfg(feature = "rxe")]
            Device::Rxe => None,
            #[cfg(feature = "mlx5")]
            Device::Mlx5(device) => device.clock(fd)?,
        };
        clock.ok_or_else(|| self.lacks(Verb::QueryRtValues, "a clock that programs can read"))
    }

    /// Fails if the driver cannot set the pace of any queue pair that this library creates.
    pub(crate) fn paces(&self) -> Result<()> {
        if self.is_mlx5() {
            // Linux 6.1 calls it an invalid argument.
            let what = "a pace for queue pairs other than those of raw packets";
            return Err(self.lacks(Verb::ModifyQp, what));
        }
        // The kernel says so itself.
        Ok(())
    }

    /// The error for queue pairs that have no options for their connection.
    pub(crate) fn without_ece(&self, verb: Verb) -> Error {
        let what = "enhanced connection establishment (ECE)";
        match self {
            #[cfg(feature = "rxe")]
            Device::Rxe => self.lacks(verb, what),
            #[cfg(feature = "mlx5")]
            Device::Mlx5(_) => Error::unsupported(
                verb,
                Subject::the("device"),
                format!("{what}, which Linux 5.8 and newer firmware brought"),
            ),
        }
    }

    fn is_mlx5(&self) -> bool {
        match self {
            #[cfg(feature = "rxe")]
            Device::Rxe => false,
            #[cfg(feature = "mlx5")]
            Device::Mlx5(_) => true,
        }
    }

    pub(super) fn lacks(&self, verb: Verb, what: &'static str) -> Error {
        Error::unsupported(
            verb,
            Subject::the("device"),
            format!("this library's driver for the device does not have {what}"),
        )
    }
}
