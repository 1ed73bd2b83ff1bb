//! llama.cpp's backend for remote procedure calls: its own tests of operators, whose tensors go to a server
//! and come back by RDMA, and are compared with what this process has computed. `cargo vm clients --full`
//! builds both programs.

use std::process::Command;

use libtest_mimic::Trial;
use support::peers::{free_port, listens};
use support::running::Recorded;
use support::{Result, device, fail, skip, test};

use crate::runs::ADDRESS;
use support::library::{Library, engine, gid_index};

/// Where the programs are, in the directory of clients.
const DIRECTORY: &str = "llama/programs";

/// Tests of operators that move tensors and compute little, the last one of 4 MiB. By their full names: to
/// look for all tests of an operator takes a minute in a guest.
const OPERATORS: [&str; 8] = [
    "DUP(type=f32,ne=[10,10,20,1])",
    "DUP(type=f16,ne=[10,10,20,1])",
    "DUP(type=i16,ne=[10,8,3,1],permute=[1,2,0,3])",
    "DUP(type=f32,ne=[10,10,5,1],permute=[0,2,1,3])",
    "ROLL(shift0=3,shift1=-2,shift3=1,shift4=-1,permute=0)",
    "ROLL(shift0=3,shift1=-2,shift3=1,shift4=-1,permute=1)",
    "ARANGE(type=f32,start=0.000000,stop=10.000000,step=1.000000)",
    "ARANGE(type=f32,start=0.000000,stop=1048576.000000,step=1.000000)",
];

/// What a side says when it goes on by RDMA. Else it stays on TCP, and works.
const ACTIVATED: &str = "RDMA activated";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("engines::llama", operators),
        test("engines::llama_after_a_killed_server", killed),
    ]
}

/// A program of llama.cpp's, on this library.
fn program(library: &Library, name: &str) -> Result<Command> {
    let program = engine(&format!("{DIRECTORY}/{name}"))?;
    if gid_index(device().name())?.is_none() {
        return skip("it looks for a GID that is an IP address, which InfiniBand has not");
    }
    library.is_used_by(&program)?;
    let mut command = library.command(program);
    // It would look for a debugger when it ends because the server has gone.
    command.env("GGML_NO_BACKTRACE", "1");
    Ok(command)
}

/// A server on this port, which listens.
fn server(library: &Library, port: u16) -> Result<Recorded> {
    let mut command = program(library, "rpc-server")?;
    command.args(["--host", ADDRESS, "--port", &port.to_string()]);
    command.args(["--device", "CPU", "--threads", "1"]);
    let mut server = Recorded::start(command)?;
    server.until("the server to listen", |_| listens(port))?;
    Ok(server)
}

/// The tests of operators on the server of this port.
fn client(library: &Library, port: u16) -> Result<Recorded> {
    let mut command = program(library, "operators")?;
    command.env("UVERBS_RPC_SERVER", format!("{ADDRESS}:{port}"));
    command.args(["test", "-o", &OPERATORS.join(",")]);
    Recorded::start(command)
}

/// Has a client run all its tests, over a connection by RDMA.
fn all_pass(library: &Library, port: u16) -> Result {
    let mut client = client(library, port)?;
    let status = client.end()?;
    let said = client.said()?;
    let all = format!("{0}/{0} tests passed", OPERATORS.len());
    match status.success() && said.contains(&all) && said.contains(ACTIVATED) {
        true => Ok(()),
        false => fail(format!("it ended with {status}: {said}")),
    }
}

/// Catches what llama.cpp understands differently over the two libraries: the GID of an address, receives
/// that are posted again, inline data, a completion channel; and a tensor's bytes that are wrong.
fn operators() -> Result {
    let ours = Library::ours()?;
    for (of_server, of_client) in ours.pairs() {
        let port = free_port()?;
        let server = server(of_server, port)?;
        let result = all_pass(of_client, port);
        result.map_err(|error| {
            let said = server.said().unwrap_or_default();
            format!("{of_client:?} to {of_server:?}: {error}\nthe server says: {said}")
        })?;
        if !server.said()?.contains(ACTIVATED) {
            return fail(format!("the server stayed on TCP: {}", server.said()?));
        }
    }
    Ok(())
}

/// Catches a client that hangs when the server is killed to which it is connected, and a server that the one
/// before has spoiled.
fn killed() -> Result {
    let ours = Library::ours()?;
    let port = free_port()?;
    let server_that_goes = server(&ours, port)?;
    let mut client = client(&ours, port)?;
    client.until("the client to be connected", |client| {
        Ok(client.said()?.contains(ACTIVATED))
    })?;
    drop(server_that_goes);
    let status = client.end()?;
    if status.success() || !client.said()?.contains(ACTIVATED) {
        return fail(format!(
            "{status}, but the server has gone: {}",
            client.said()?
        ));
    }
    let _next = server(&ours, port)?;
    all_pass(&ours, port)
}
