//! Our ping-pong against rdma-core's, with each as the server once: messages of all sizes, checked by both
//! sides. On the adapter the two have a function each.

use std::process::ExitCode;

use support::peers::{free_port, listens, play};
use support::pingpong::Pingpong;
use support::{Result, device, run_all, test};

fn main() -> ExitCode {
    run_all([vec![
        test("interop::rc_with_our_server", || plays("rc", true)),
        test("interop::rc_with_our_client", || plays("rc", false)),
        test("interop::uc_with_our_server", || plays("uc", true)),
        test("interop::uc_with_our_client", || plays("uc", false)),
        test("interop::ud_with_our_server", || plays("ud", true)),
        test("interop::ud_with_our_client", || plays("ud", false)),
    ]])
}

/// Exchanges in each game.
const COUNT: u32 = 20;

/// Lengths of messages, within a packet and of many, and whether the sides sleep until they come. A datagram
/// is one packet.
fn games(transport: &str) -> &'static [(u32, bool)] {
    match transport {
        "ud" => &[(1, true), (64, false), (1024, true)],
        _ => &[(1, false), (4096, true), (65536, false)],
    }
}

/// Catches whatever the two stacks understand differently: the exchange of addresses, PSNs, the headers, the
/// order of completions, events.
fn plays(transport: &str, ours_serves: bool) -> Result {
    let here = device().name();
    let there = if device().is_mlx5() { "mlx5_1" } else { here };
    let gid_index = |name: &str| -> Result<Option<u8>> {
        Ok(uverbs::open(name)?.best_gid(1)?.map(|(index, _)| index))
    };
    for &(size, events) in games(transport) {
        let port = free_port()?;
        let server = Pingpong {
            transport,
            device: here,
            gid_index: gid_index(here)?,
            size,
            count: COUNT,
            events,
            port,
        };
        let client = Pingpong {
            device: there,
            gid_index: gid_index(there)?,
            ..server.clone()
        };
        let (server, mut client) = if ours_serves {
            (server.ours()?, client.of_rdma_core())
        } else {
            (server.of_rdma_core(), client.ours()?)
        };
        client.arg("127.0.0.1");
        play(server, client, || listens(port))
            .map_err(|error| format!("{transport}, {size} bytes, events: {events}: {error}"))?;
    }
    Ok(())
}
