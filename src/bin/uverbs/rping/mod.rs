//! `uverbs rping`: pings by RDMA READ and WRITE over a connection by address, compatible with rdma-core's
//! `rping`.
//!
//! The client sends the place of its text; the server reads it by RDMA READ and confirms; the client sends
//! the place for the answer; the server writes the text there by RDMA WRITE and confirms.
//!
//! | | |
//! |---|---|
//! | [`wire`] | the messages of both sides |
//! | [`end`] | memory, queues, connection |

mod end;
mod wire;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::Args;
use uverbs::Rc;
use uverbs::cm::{self, Listener, Listens, Request};

use crate::failure::{Failure, Kind, Result, Unanswered};
use crate::pingpong::meet;
use crate::{number, output, select};
use end::{End, Next, Setup};
use wire::Text;

/// The smallest size, which has room for the text and a number.
const LEAST: u32 = 26;

/// The largest.
const MOST: u32 = 64 * 1024;

/// The size if nobody names one, as rdma-core's program has it. Its server has room for no more.
const USUAL: u32 = 64;

/// The least room of a server, whose clients may have the size that the manual page of rdma-core's program
/// names.
const ROOM: u32 = 100;

const NOTES: &str = "\
The other side can be the same command or rdma-core's rping with the same -S.

Examples:
  uverbs rping -s -v                        server, on every address of every device
  uverbs rping -c -a 10.9.0.1 -C 10 -v -V   client: ten pings, shown and compared
  rping -s -a 10.9.0.1 -S 4096              server of rdma-core, for
  uverbs rping -c -a 10.9.0.1 -S 4096 -V    a client

";

/// Ping over a connection by address (rdma_cm), compatible with rdma-core's rping.
#[derive(Debug, Args)]
#[command(after_help = NOTES.to_owned() + crate::failure::EXIT_CODES, disable_version_flag = true)]
#[group(skip)]
pub(crate) struct Options {
    /// Wait for a client
    #[arg(
        short,
        long,
        required_unless_present = "client",
        conflicts_with = "client"
    )]
    server: bool,

    /// Connect to a server
    #[arg(short, long, requires = "address")]
    client: bool,

    /// The server's address; a server listens on all addresses by default
    #[arg(short, long, value_name = "ADDR")]
    address: Option<String>,

    /// The port
    #[arg(short, long, value_name = "PORT", default_value_t = 7174,
          value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,

    /// Pings to send; unlimited by default
    #[arg(short = 'C', long, value_name = "N", conflicts_with = "server")]
    count: Option<u64>,

    /// Bytes of a ping, by default as many as rdma-core's rping has (its manual page says 100); a server has
    /// room for at least 100
    #[arg(short = 'S', long, value_name = "BYTES", default_value_t = USUAL, value_parser = number::size)]
    size: u32,

    /// Show the pings
    #[arg(short, long)]
    verbose: bool,

    /// Compare what comes back with what was sent
    #[arg(short = 'V', long, conflicts_with = "server")]
    validate: bool,

    /// Serve further clients, one after the other
    #[arg(short = 'P', long, conflicts_with = "client")]
    persistent: bool,

    /// Seconds without an answer after which the run fails
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = number::positive_seconds)]
    timeout: Duration,

    // The letter is rping's own here.
    /// Print version
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if !(LEAST..=MOST).contains(&options.size) {
        let text = format!("-S is {LEAST} to {MOST} bytes");
        return Err(Failure::new(Kind::Usage, text));
    }
    match options.server {
        true => serve(options),
        false => {
            let server = options.address.as_deref().unwrap_or_default();
            Ok(ping(&meet::resolve(server, options.port)?, options)?)
        }
    }
}

/// The parameters of a side.
fn setup(options: &Options) -> Setup {
    let room = if options.server { ROOM } else { 0 };
    Setup {
        size: options.size.max(room) as usize,
        patience: options.timeout,
    }
}

/// Listens, and, when the result is called, serves the clients one after the other.
pub(crate) fn server(port: u16, timeout: Duration) -> Result<impl FnOnce() -> Result<()> + Send> {
    let options = Options {
        server: true,
        client: false,
        persistent: true,
        ..Options::of_one_ping(port, timeout)
    };
    let listener = listen(&options)?;
    Ok(move || serve_at(&listener, &options))
}

/// One ping to a server, with a comparison of the answer.
pub(crate) fn once(server: SocketAddr, timeout: Duration) -> Result<(), Unanswered> {
    ping(&[server], &Options::of_one_ping(server.port(), timeout))
}

impl Options {
    fn of_one_ping(port: u16, timeout: Duration) -> Self {
        Self {
            server: false,
            client: true,
            address: None,
            port,
            count: Some(1),
            size: USUAL,
            verbose: false,
            validate: true,
            persistent: false,
            timeout,
            version: None,
        }
    }
}

fn serve(options: &Options) -> Result<()> {
    serve_at(&listen(options)?, options)
}

fn listen(options: &Options) -> Result<Listener<Rc>> {
    match options.address.as_deref() {
        Some(address) => meet::listen_by_address(address, options.port),
        None => on_all_addresses(options.port),
    }
}

/// Listens on all addresses of both families, or only of IPv4 if the system has no IPv6.
pub(crate) fn on_all_addresses<T: Listens>(port: u16) -> Result<Listener<T>> {
    let all = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let of_ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let listen = cm::listen(&[all, of_ipv4][..])?.v6only(false);
    listen.start().map_err(select::reason)
}

fn serve_at(listener: &Listener<Rc>, options: &Options) -> Result<()> {
    loop {
        // Without a listener there is no next client either.
        let request = listener.next()?;
        let served = one_client(request, options);
        match served {
            Err(failure) if options.persistent && !failure.is_of_output() => {
                // Continue: the next client may succeed.
                output::complain(failure);
            }
            Ok(()) if options.persistent => {}
            ended => return ended,
        }
    }
}

fn one_client(request: Request<Rc>, options: &Options) -> Result<()> {
    let mut end = End::accept(request, &setup(options))?;
    answer_pings(&mut end, options).map_err(|failure| failure.of_peer(end.peer_addr()))?;
    end.finish()
}

fn answer_pings(end: &mut End, options: &Options) -> Result<()> {
    while let Next::Told(source) = end.told_or_over()? {
        let text = end.read(source)?;
        if options.verbose {
            output::line(format_args!("server ping data: {text}"))?;
        }
        end.go_ahead()?;
        let sink = end.told()?;
        end.write(&text, sink)?;
        end.go_ahead()?;
    }
    Ok(())
}

fn ping(server: &[SocketAddr], options: &Options) -> Result<(), Unanswered> {
    let way = meet::way_to(server, options.timeout)?;
    let mut end = End::connect(way, &setup(options))?;
    send_pings(&mut end, options).map_err(|failure| failure.of_peer(end.peer_addr()))?;
    Ok(end.finish()?)
}

fn send_pings(end: &mut End, options: &Options) -> Result<()> {
    for number in 0..options.count.unwrap_or(u64::MAX) {
        let text = Text::of_ping(number, options.size as usize);
        end.offer(&text)?;
        end.told()?;
        end.await_answer()?;
        end.told()?;
        let answer = end.answer()?;
        if options.validate && answer != text {
            let text = format!("ping {number} came back changed");
            return Err(Failure::new(Kind::Check, text));
        }
        if options.verbose {
            output::line(format_args!("ping data: {answer}"))?;
        }
    }
    Ok(())
}
