//! Ping-pongs: rdma-core's programs and this project's, which take the same options and play with each other.

use std::process::Command;

use crate::{Result, program};

/// One side of a game.
#[derive(Clone, Debug)]
pub struct Pingpong<'a> {
    /// `rc`, `uc` or `ud`.
    pub transport: &'a str,
    /// The device of this side.
    pub device: &'a str,
    /// The index of the own GID; none on InfiniBand.
    pub gid_index: Option<u8>,
    /// Bytes of a message. A datagram is one packet.
    pub size: u32,
    /// Messages each way.
    pub count: u32,
    /// Sleeping until completions come, instead of polling.
    pub events: bool,
    /// The TCP port by which the sides find each other.
    pub port: u16,
}

impl Pingpong<'_> {
    /// rdma-core's program.
    pub fn of_rdma_core(&self) -> Command {
        let mut command = Command::new(format!("ibv_{}_pingpong", self.transport));
        self.options(&mut command);
        command
    }

    /// This project's program.
    ///
    /// # Errors
    /// If it has not been built.
    pub fn ours(&self) -> Result<Command> {
        let mut command = Command::new(program::uverbs()?);
        command.args(["pingpong", self.transport]);
        self.options(&mut command);
        Ok(command)
    }

    /// What is the same for both. Every byte is checked.
    fn options(&self, command: &mut Command) {
        command.args(["-d", self.device, "-c"]);
        for (option, value) in [
            ("-s", self.size),
            ("-n", self.count),
            ("-p", self.port.into()),
        ] {
            command.arg(option).arg(value.to_string());
        }
        if let Some(index) = self.gid_index {
            command.arg("-g").arg(index.to_string());
        }
        if self.events {
            command.arg("-e");
        }
    }
}
