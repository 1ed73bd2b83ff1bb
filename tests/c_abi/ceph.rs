//! Ceph's messenger over RDMA: the measurement of it, whose client sends messages that its server answers, on
//! both libraries. `cargo vm clients --full` fetches it, with the C library and the loader of its suite.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use libtest_mimic::Trial;
use support::library::{Library, gid_index};
use support::peers::{free_port, listens};
use support::wait::{PROCESS, until_so};
use support::{Result, device, fail, is_full, skip, test};
use tempfile::NamedTempFile;
use uverbs::qp::QpState;

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

/// A program, which is killed at the end of the test at the latest.
struct Side {
    child: Child,
    /// What it says, on both streams.
    said: NamedTempFile,
}

impl Side {
    fn start(library: &Library, program: &str, words: &[&str]) -> Result<Self> {
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
        let said = NamedTempFile::new()?;
        let stream = || fs::OpenOptions::new().append(true).open(said.path());
        let child = command
            .args(words)
            .env("CEPH_CONF", "/dev/null")
            .stdout(stream()?)
            .stderr(stream()?)
            .spawn()?;
        Ok(Self { child, said })
    }

    fn said(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(&self.said)?).into_owned())
    }

    /// Waits until it is connected by a queue pair.
    fn is_connected(&mut self) -> Result {
        until_so(PROCESS, "a connection by RDMA", || {
            if let Some(status) = self.child.try_wait()? {
                return fail(format!("it ended with {status}: {}", self.said()?));
            }
            self.has_connection()
        })
    }

    fn has_connection(&self) -> Result<bool> {
        let qps = uverbs::device::find(device().name())?.resources()?.qps()?;
        // The kernel names the thread that has made it.
        let threads = PathBuf::from(format!("/proc/{}/task", self.child.id()));
        let is_own = |thread| threads.join(format!("{thread}")).exists();
        let mut own = qps.iter().filter(|qp| qp.owner.pid().is_some_and(is_own));
        Ok(own.any(|qp| qp.state == QpState::RTS))
    }

    /// Waits for the end, as long as a process may take.
    fn end(&mut self) -> Result<ExitStatus> {
        let child = &mut self.child;
        until_so(PROCESS, "the client to end", || {
            Ok(child.try_wait()?.is_some())
        })?;
        Ok(self.child.wait()?)
    }

    /// Ends it by SIGKILL.
    fn kill(mut self) -> Result {
        if let Some(status) = self.child.try_wait()? {
            return fail(format!("it ended with {status}: {}", self.said()?));
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Fails unless the process has this library's libibverbs, and not the other.
    fn uses(&self, library: &Library) -> Result {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.child.id()))?;
        let mut lines = maps.lines().filter(|line| line.contains("libibverbs.so"));
        let is_ours = *library != Library::Theirs;
        let is_right = |line: &str| line.contains("/c-abi/") == is_ours;
        match lines.next().is_some_and(is_right) && lines.all(is_right) {
            true => Ok(()),
            false => fail(format!("a side does not use {library:?}")),
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // It has ended already, if all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that listens on this port.
fn server(library: &Library, port: u16) -> Result<Side> {
    let mut server = Side::start(library, SERVER, &[&format!("{ADDRESS}:{port}"), "1", "0"])?;
    until_so(PROCESS, "the server to listen", || {
        match server.child.try_wait()? {
            None => listens(port),
            Some(status) => fail(format!("it ended with {status}: {}", server.said()?)),
        }
    })?;
    server.uses(library)?;
    Ok(server)
}

/// A client with one thread, that sends so many messages of a size.
fn client(library: &Library, port: u16, messages: &str, size: &str) -> Result<Side> {
    let words = [
        &format!("{ADDRESS}:{port}"),
        "1",
        AT_A_TIME,
        messages,
        "0",
        size,
    ];
    Side::start(library, CLIENT, &words)
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
fn of_rdma(library: &Library, server: &Side, port: u16) -> Result<bool> {
    let mut endless = client(library, port, ENDLESS, SIZES[0])?;
    endless.is_connected()?;
    endless.uses(library)?;
    let is_connected = server.has_connection()?;
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
        let mut endless = client(library, port, ENDLESS, SIZES[2])?;
        endless.is_connected()?;
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
        let mut endless = client(library, port, ENDLESS, SIZES[2])?;
        endless.is_connected()?;
        first.kill()?;
        endless.kill()?;
        let next = server(library, port)?;
        all_are_answered(library, port)
            .map_err(|error| format!("{library:?}: {error}\nthe server says: {:?}", next.said()))?;
    }
    Ok(())
}
