//! The ping-pongs of rdma-core, with every byte checked, between two functions.

use std::process::Command;

use libtest_mimic::Trial;
use support::peers::{free_port, listens, play, play_of_xrc};
use support::{Hca, Result, test_on_adapter};

/// A ping-pong: the test's name, the program, and its arguments.
const GAMES: [(&str, &str, &[&str]); 13] = [
    ("rc", "ibv_rc_pingpong", &["-s", "4096"]),
    ("rc_events", "ibv_rc_pingpong", &["-s", "100", "-e"]),
    ("rc_large", "ibv_rc_pingpong", &["-s", "1000000", "-n", "4"]),
    ("uc", "ibv_uc_pingpong", &["-s", "4096"]),
    ("uc_events", "ibv_uc_pingpong", &["-s", "100", "-e"]),
    ("ud", "ibv_ud_pingpong", &["-s", "1024"]),
    ("ud_events", "ibv_ud_pingpong", &["-s", "100", "-e"]),
    ("srq", "ibv_srq_pingpong", &["-s", "4096", "-q", "4"]),
    (
        "srq_events",
        "ibv_srq_pingpong",
        &["-s", "100", "-q", "4", "-e"],
    ),
    // So small that libmlx5 has them put into completions.
    ("rc_small", "ibv_rc_pingpong", &["-s", "32"]),
    ("uc_small", "ibv_uc_pingpong", &["-s", "31"]),
    ("srq_small", "ibv_srq_pingpong", &["-s", "20", "-q", "4"]),
    ("rc_by_gid", "ibv_rc_pingpong", &["-s", "100", "-g", "0"]),
];

pub(crate) fn tests() -> Vec<Trial> {
    let games = GAMES.iter().map(|&(name, program, arguments)| {
        test_on_adapter(format!("pingpong::{name}"), move |hca| {
            exchange(hca, program, arguments)
        })
    });
    let of_xrc = [("xsrq", &[] as &[&str]), ("xsrq_events", &["-e"])];
    let of_xrc = of_xrc.map(|(name, arguments)| {
        test_on_adapter(format!("pingpong::{name}"), move |hca| {
            exchange_of_xrc(hca, arguments)
        })
    });
    games.chain(of_xrc).collect()
}

/// Catches what the model of XRC understands otherwise than libmlx5 does. The program has options of its own:
/// it checks no bytes.
fn exchange_of_xrc(hca: Hca, arguments: &[&str]) -> Result {
    hca.needs_two()?;
    let port = free_port()?;
    let side = |device: &str| -> Result<Command> {
        let mut command = Command::new("ibv_xsrq_pingpong");
        command.args(["-d", device, "-p", &port.to_string(), "-n", "20"]);
        if let Some(index) = hca.gid_index(device)? {
            command.args(["-g", &index.to_string()]);
        }
        command.args(arguments);
        Ok(command)
    };
    let (here, there) = hca.ends();
    let (server, mut client) = (side(&here)?, side(&there)?);
    client.arg("127.0.0.1");
    play_of_xrc(server, client, || listens(port), &there).map(drop)
}

/// Catches data that arrive at the wrong place or not at all, completions and events that are missing, and
/// addresses that lead elsewhere.
fn exchange(hca: Hca, program: &str, arguments: &[&str]) -> Result {
    let port = free_port()?;
    let side = |device: &str| -> Result<Command> {
        let mut command = Command::new(program);
        command.args(["-d", device, "-p", &port.to_string(), "-n", "20", "-c"]);
        if let Some(index) = hca.gid_index(device)? {
            command.args(["-g", &index.to_string()]);
        }
        command.args(arguments);
        Ok(command)
    };
    let (here, there) = hca.ends();
    let (server, mut client) = (side(&here)?, side(&there)?);
    client.arg("127.0.0.1");
    play(server, client, || listens(port)).map(drop)
}
