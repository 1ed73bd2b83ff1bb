//! Ceph's messenger over RDMA: the measurement of it, whose client sends messages that its server answers, on
//! both libraries. `cargo vm clients --full` fetches it, with the C library and the loader of its suite.

use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::Trial;
use support::library::{Library, gid_index};
use support::peers::{free_port, listens};
use support::running::Recorded;
use support::{Result, device, fail, is_full, skip, test};

use crate::newer::{libraries_of, loader, root};
use crate::runs::ADDRESS;

/// The tree that has the programs, as the name of a suite.
const TREE: &str = "ceph";

const SERVER: &str = "ceph_perf_msgr_server";
const CLIENT: &str = "ceph_perf_msgr_client";

/// How both are told to go by RDMA, with so few buffers that they fit into a guest: by default these take
/// 4 GiB. They talk to no monitor, and use no key.
const SETTINGS: [&str; 9] = [
    "--ms_type=async+rdma",
    "--ms_async_rdma_buffer_size=32768",
    "--ms_async_rdma_send_buffers=512",
    "--ms_async_rdma_receive_buffers=1024",
    "--ms_async_rdma_receive_queue_len=256",
    "--ms_async_op_threads=1",
    "--no-mon-config",
    "--keyring=/dev/null",
    "--log_to_stderr=true",
];

/// Bytes of a message: some fit into one buffer, and some take several.
const SIZES: [&str; 3] = ["100", "4096", "262144"];

/// Messages of a client, and how many are under way at a time.
const MESSAGES: &str = "200";
const AT_A_TIME: &str = "8";

/// More messages than a client sends until it is killed.
const ENDLESS: &str = "1000000000";

/// What a client says whose messages have all been answered.
const ANSWERED: &str = "Total op 200 run time";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("engines::ceph_messages", messages),
        test("engines::ceph_after_a_killed_client", killed_client),
        test("engines::ceph_after_a_killed_server", killed_server),
    ]
}

/// The tree of the programs.
fn programs() -> Result<PathBuf> {
    match is_full() {
        true => root(TREE),
        false => skip("only in a run of everything, or by its name"),
    }
}

/// Starts a program on this library.
fn start(library: &Library, program: &str, words: &[&str]) -> Result<Recorded> {
    let root = programs()?;
    let mut first: Vec<PathBuf> = library.path().iter().map(PathBuf::from).collect();
    first.push(libraries_of(&root).join("ceph"));
    let mut command: Command = loader(&root, &first);
    command.arg(root.join("usr/bin").join(program));
    command.args(SETTINGS);
    let name = device().name();
    command.arg(format!("--ms_async_rdma_device_name={name}"));
    let index = gid_index(name)?.unwrap_or(0);
    command.arg(format!("--ms_async_rdma_gid_idx={index}"));
    command.args(words).env("CEPH_CONF", "/dev/null");
    Recorded::start(command)
}

/// A server that listens on this port.
fn server(library: &Library, port: u16) -> Result<Recorded> {
    let mut server = start(library, SERVER, &[&format!("{ADDRESS}:{port}"), "1", "0"])?;
    server.until("the server to listen", |_| listens(port))?;
    server.running().uses(library)?;
    Ok(server)
}

/// A client with one thread, that sends so many messages of a size.
fn client(library: &Library, port: u16, messages: &str, size: &str) -> Result<Recorded> {
    let words = [
        &format!("{ADDRESS}:{port}"),
        "1",
        AT_A_TIME,
        messages,
        "0",
        size,
    ];
    start(library, CLIENT, &words)
}

/// A client that sends messages of this size until it is killed, connected by a queue pair.
fn endless(library: &Library, port: u16, size: &str) -> Result<Recorded> {
    let mut client = client(library, port, ENDLESS, size)?;
    client.until("a connection by RDMA", has_connection)?;
    Ok(client)
}

fn has_connection(side: &Recorded) -> Result<bool> {
    side.running().has_connection_on(device().name())
}

/// Has a client send messages of all sizes, each of which is answered.
fn all_are_answered(library: &Library, port: u16) -> Result {
    for size in SIZES {
        let mut client = client(library, port, MESSAGES, size)?;
        let status = client.end()?;
        let said = client.said()?;
        if !status.success() || !said.contains(ANSWERED) {
            return fail(format!(
                "messages of {size} bytes: it ended with {status}: {said}"
            ));
        }
    }
    Ok(())
}

/// Catches what Ceph understands differently over the two libraries: a shared receive queue, event channels,
/// and buffers whose completions it waits for. Bytes are looked at by Ceph alone, if it does.
fn messages() -> Result {
    programs()?;
    let ours = Library::ours()?;
    for (of_server, of_client) in ours.pairs() {
        let port = free_port()?;
        let server = server(of_server, port)?;
        let mut result = all_are_answered(of_client, port);
        if result.is_ok() && !of_rdma(of_client, &server, port)? {
            result = fail("no side has a queue pair");
        }
        result.map_err(|error| {
            let said = server.said().unwrap_or_default();
            format!("{of_client:?} to {of_server:?}: {error}\nthe server says: {said}")
        })?;
    }
    Ok(())
}

/// Whether both sides have queue pairs while a client sends: else Ceph would have gone by TCP.
fn of_rdma(library: &Library, server: &Recorded, port: u16) -> Result<bool> {
    let endless = endless(library, port, SIZES[0])?;
    endless.running().uses(library)?;
    let is_connected = has_connection(server)?;
    endless.kill()?;
    Ok(is_connected)
}

/// Catches a server that is spoiled by a client which is killed in the midst of its messages.
fn killed_client() -> Result {
    programs()?;
    let ours = Library::ours()?;
    for library in [&Library::Theirs, &ours] {
        let port = free_port()?;
        let server = server(library, port)?;
        let endless = endless(library, port, SIZES[2])?;
        endless.kill()?;
        all_are_answered(library, port).map_err(|error| {
            format!("{library:?}: {error}\nthe server says: {:?}", server.said())
        })?;
    }
    Ok(())
}

/// Catches what a server leaves that is killed in the midst of messages, and that keeps the next one from its
/// port, or clients from it. That the client comes back is not asked: with libibverbs on soft-RoCE it had not
/// within two minutes.
fn killed_server() -> Result {
    programs()?;
    let ours = Library::ours()?;
    for library in [&Library::Theirs, &ours] {
        let port = free_port()?;
        let first = server(library, port)?;
        let endless = endless(library, port, SIZES[2])?;
        first.kill()?;
        endless.kill()?;
        let next = server(library, port)?;
        all_are_answered(library, port)
            .map_err(|error| format!("{library:?}: {error}\nthe server says: {:?}", next.said()))?;
    }
    Ok(())
}
