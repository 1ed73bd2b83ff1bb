//! The options of `uverbs pingpong`: letters and names are those of rdma-core's programs.

use std::time::Duration;

use clap::{Args, ValueEnum};
use uverbs::qp::{Mtu, QpType};

use crate::complete;
use crate::number;

const NOTES: &str = "\
The other side can be the same command or rdma-core's ibv_rc_pingpong, ibv_uc_pingpong or
ibv_ud_pingpong with the same -s, -n and -m; on RoCE those need -g too. Server and client may
be started in either order within --connect-timeout.

With -c the client sends different bytes in each message and expects them back. The server accepts
these bytes or those of the C programs. The measured time includes the comparison.

Examples:
  uverbs pingpong rc                        server
  uverbs pingpong rc 10.9.0.1               client: 1000 messages of 4096 bytes
  uverbs pingpong rc 10.9.0.1 -s 64K -c     larger ones, each checked
  uverbs pingpong rc 10.9.0.1 --cm          both with --cm: connected by address, without TCP
  uverbs pingpong rc fe80::1:2:3:4 --cm=gid both with --cm=gid: by InfiniBand addresses
  uverbs pingpong ud 10.9.0.1 -e            datagrams, waiting for events
  uverbs pingpong srd 10.9.0.1              reliable datagrams, on an EFA
  ibv_uc_pingpong -g 1                      server of rdma-core, for
  uverbs pingpong uc 10.9.0.1 --json        a client with results for a program

";

/// Exchange messages with a peer and measure how long they take.
///
/// Without SERVER it waits for a client. It listens on all addresses.
#[derive(Clone, Debug, Args)]
#[command(after_help = NOTES.to_owned() + crate::failure::EXIT_CODES)]
pub(crate) struct Options {
    /// The transport
    pub(super) transport: Transport,

    /// Name or address of the server's host
    pub(super) server: Option<String>,

    /// The device; by default the first
    #[arg(short, long, alias = "ib-dev", add = complete::devices())]
    pub(super) device: Option<String>,

    /// The device's port
    #[arg(short = 'i', long = "ib-port", value_name = "PORT", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..), add = complete::ports())]
    pub(super) ib_port: u8,

    /// Index of this side's GID (see `uverbs gids`); by default the best on Ethernet
    #[arg(short = 'g', long = "gid-idx", value_name = "INDEX", add = complete::gids())]
    pub(super) gid_index: Option<u8>,

    /// Bytes of a message, such as 4096 or 64K; 4096 by default, 1024 for ud and srd
    #[arg(short, long, value_name = "BYTES", value_parser = number::size)]
    size: Option<u32>,

    /// The largest packet of the path, for rc and uc; 1024 by default
    #[arg(short, long, value_name = "BYTES", value_parser = mtu)]
    pub(super) mtu: Option<Mtu>,

    /// Receives to keep posted; 500 by default, and always 1 for srd
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rx_depth: Option<u32>,

    /// Messages to exchange
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) iters: u64,

    /// Service level
    #[arg(short = 'l', long, value_name = "SL", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(..=15))]
    pub(super) sl: u8,

    /// Wait for completion events instead of polling
    #[arg(short, long)]
    pub(super) events: bool,

    /// Check every byte of every message
    #[arg(short = 'c', long = "chk")]
    pub(super) check: bool,

    /// Connect by rdma_cm: SERVER is the address of a device's network interface, or with gid the GID of an
    /// InfiniBand port, and the port is rdma_cm's
    #[arg(long, value_name = "BY", num_args = 0..=1, require_equals = true, default_missing_value = "ip",
          conflicts_with_all = ["device", "ib_port", "gid_index", "mtu", "sl"])]
    pub(super) cm: Option<By>,

    /// TCP port for the exchange of endpoints
    #[arg(short, long, value_name = "PORT", default_value_t = 18515,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: u16,

    /// Seconds that the client tries to reach the server
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = number::seconds,
          requires = "server")]
    pub(super) connect_timeout: Duration,

    /// Seconds without a message after which the run fails
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = number::positive_seconds)]
    pub(super) timeout: Duration,

    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Options {
    /// Bytes of a message.
    pub(super) fn size(&self) -> u32 {
        self.size.unwrap_or(match self.transport {
            Transport::Rc | Transport::Uc => 4096,
            Transport::Ud | Transport::Srd => 1024,
        })
    }

    /// Receives that are kept posted.
    pub(super) fn receives(&self) -> u32 {
        match self.transport {
            Transport::Rc | Transport::Uc | Transport::Ud => self.rx_depth.unwrap_or(500),
            Transport::Srd => 1,
        }
    }

    /// The same options for another port of the device.
    pub(super) fn over_port(&self, ib_port: u8) -> Self {
        Self {
            ib_port,
            ..self.clone()
        }
    }
}

/// What addresses of rdma_cm are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum By {
    /// IP addresses
    Ip,
    /// GIDs of InfiniBand ports
    Gid,
}

/// The transports of the ping-pong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Transport {
    /// Reliable connection
    Rc,
    /// Unreliable connection: a lost message ends the run
    Uc,
    /// Unreliable datagram: like uc, and a message must fit into a packet
    Ud,
    /// Reliable datagram, which EFA has; one receive is posted at a time, since they are used in any order
    Srd,
}

impl Transport {
    /// Whether the path of packets belongs to a queue pair, and not to each message.
    pub(super) fn is_connected(self) -> bool {
        matches!(self, Self::Rc | Self::Uc)
    }

    pub(super) fn qp_type(self) -> QpType {
        match self {
            Self::Rc => QpType::RC,
            Self::Uc => QpType::UC,
            Self::Ud => QpType::UD,
            Self::Srd => QpType::DRIVER,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Srd => "srd",
        }
    }
}

fn mtu(text: &str) -> Result<Mtu, String> {
    let all = [
        Mtu::MTU_256,
        Mtu::MTU_512,
        Mtu::MTU_1024,
        Mtu::MTU_2048,
        Mtu::MTU_4096,
    ];
    let bytes: Option<u32> = text.parse().ok();
    all.into_iter()
        .find(|mtu| bytes.is_some() && mtu.bytes() == bytes)
        .ok_or_else(|| "one of 256, 512, 1024, 2048 and 4096".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus() {
        assert_eq!(mtu("1024"), Ok(Mtu::MTU_1024));
        for text in ["", "0", "128", "1025", "8192", "x"] {
            assert!(mtu(text).is_err(), "{text}");
        }
    }
}
