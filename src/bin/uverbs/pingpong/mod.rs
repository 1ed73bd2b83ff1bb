//! `uverbs pingpong`: messages back and forth, like rdma-core's `ibv_rc_pingpong` and its relatives.
//!
//! | | |
//! |---|---|
//! | [`options`] | the command line |
//! | [`meet`] | the TCP connection |
//! | [`by_address`] | rdma_cm instead of it |
//! | [`exchange`] | the messages over it |
//! | [`link`] | memory, queues, connection |
//! | [`game`] | the order of the messages |
//! | [`payload`] | the contents of messages, and their check |
//! | [`report`], [`progress`] | what is shown |

mod by_address;
pub(crate) mod exchange;
mod game;
mod link;
pub(crate) mod meet;
mod options;
mod payload;
mod progress;
mod report;

use std::net::TcpStream;

use uverbs::Endpoint;

pub(crate) use options::Options;

use crate::failure::{Failure, Kind, Result};
use crate::{output, select};
use exchange::ExchangeError;
use game::Rules;
use link::Link;
use options::Transport;
use report::Report;

pub(crate) fn run(options: &Options) -> Result<()> {
    if !options.transport.is_connected() && options.mtu.is_some() {
        let text = "-m is for rc and uc: a datagram's packet is as large as the port allows";
        return Err(Failure::new(Kind::Usage, text));
    }
    if options.transport == Transport::Srd && options.rx_depth.is_some() {
        let text =
            "-r is not for srd: one receive is posted at a time, since they are used in any order";
        return Err(Failure::new(Kind::Usage, text));
    }
    let (mut link, remote) = match options.cm {
        Some(by) => {
            let (link, remote) = by_address::meet(options, by)?;
            tell(options, "local address:  ", &link.local())?;
            tell(options, "remote address: ", &remote)?;
            (link, remote)
        }
        None => over_tcp(options)?,
    };
    let rules = Rules {
        client: options.server.is_some(),
        iters: options.iters,
        check: options.check,
        patience: options.timeout,
    };
    let score = game::play(&mut link, &rules).map_err(|failure| match &link.manager {
        Some(manager) => failure.of_peer(manager.peer_addr()),
        None => failure,
    })?;
    let device = link.device().to_owned();
    let report = Report {
        options,
        device: &device,
        port: link.port(),
        local: link.local(),
        remote,
        score,
    };
    match options.json {
        true => output::json(&report.to_json()),
        false => output::line(report),
    }
}

/// Finds the peer over a TCP connection.
fn over_tcp(options: &Options) -> Result<(Link, Endpoint)> {
    let device = select::one(options.device.as_deref())?;
    let mut link = Link::open(&device, options)?;
    tell(options, "local address:  ", &link.local())?;
    let remote = match &options.server {
        Some(server) => as_client(server, &mut link, options)?,
        None => as_server(&mut link, options)?,
    };
    Ok((link, remote))
}

/// Prints the address of one side, unless a program reads the output.
fn tell(options: &Options, whose: &str, endpoint: &Endpoint) -> Result<()> {
    match options.json {
        true => Ok(()),
        false => output::line(format_args!("  {whose}{}", report::endpoint_text(endpoint))),
    }
}

/// Waits for a client. The link is connected before the client gets the endpoint, so no message of the client
/// is lost.
fn as_server(link: &mut Link, options: &Options) -> Result<Endpoint> {
    let listener = meet::listen_on(options.port)?;
    let mut stream = with_patience(meet::accept(&listener)?, options)?;
    let remote = exchange::receive_endpoint(&mut stream)?;
    tell(options, "remote address: ", &remote)?;
    link.connect(&remote)?;
    exchange::send_endpoint(&mut stream, &link.local())?;
    exchange::receive_done(&mut stream)?;
    Ok(remote)
}

/// Connects to a server, which connects its link before it answers.
fn as_client(server: &str, link: &mut Link, options: &Options) -> Result<Endpoint> {
    let stream = meet::connect(server, options.port, options.connect_timeout)?;
    let mut stream = with_patience(stream, options)?;
    exchange::send_endpoint(&mut stream, &link.local())?;
    let remote = exchange::receive_endpoint(&mut stream)?;
    tell(options, "remote address: ", &remote)?;
    link.connect(&remote)?;
    exchange::send_done(&mut stream)?;
    Ok(remote)
}

/// Sets the time limits of the exchange.
fn with_patience(stream: TcpStream, options: &Options) -> Result<TcpStream> {
    let patience = Some(options.timeout);
    stream
        .set_read_timeout(patience)
        .and_then(|()| stream.set_write_timeout(patience))
        .map_err(|error| Failure::new(Kind::Failed, format_args!("the TCP connection: {error}")))?;
    Ok(stream)
}

impl From<ExchangeError> for Failure {
    fn from(error: ExchangeError) -> Self {
        Failure::new(Kind::Peer, error)
    }
}
