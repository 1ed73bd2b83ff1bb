//! Connections made by rdma_cm, by the programs of rdma-core and perftest: the kernel's connection manager,
//! its messages to queue pair 1, and addresses that are found by ARP.

use std::process::Command;

use libtest_mimic::Trial;
use support::peers::{listens_by_address, play, play_in_turns};
use support::{Hca, Result, test_on_adapter};

/// A run: the test's name, the server's command and the client's; `@` stands for the server's address.
const RUNS: [(&str, &str, &str); 8] = [
    (
        "rping",
        "rping -s -C 5 -S 2000 -V -a @",
        "rping -c -C 5 -S 2000 -V -a @",
    ),
    (
        "ucmatose",
        "ucmatose -C 2 -S 100 -b @",
        "ucmatose -C 2 -S 100 -s @",
    ),
    ("udaddy", "udaddy -C 5 -b @", "udaddy -C 5 -s @"),
    ("rdma_client", "rdma_server -s @", "rdma_client -s @"),
    (
        "rstream",
        "rstream -C 5 -S 1000 -b @",
        "rstream -C 5 -S 1000 -s @",
    ),
    (
        "send_lat",
        "ib_send_lat -F -R -n 20",
        "ib_send_lat -F -R -n 20 @",
    ),
    (
        "write_bw",
        "ib_write_bw -F -R -n 20 -q 2",
        "ib_write_bw -F -R -n 20 -q 2 @",
    ),
    (
        "read_lat",
        "ib_read_lat -F -R -n 20",
        "ib_read_lat -F -R -n 20 @",
    ),
];

pub(crate) fn tests() -> Vec<Trial> {
    RUNS.iter()
        .map(|&(name, server, client)| {
            test_on_adapter(format!("cm::{name}"), move |hca| {
                connect(hca, server, client)
            })
        })
        .collect()
}

/// Catches messages of the connection manager that go astray, and connections between the wrong queue pairs.
/// The server is in the namespace of the second function.
fn connect(hca: Hca, server: &str, client: &str) -> Result {
    hca.needs_two()?;
    let is_of_perftest = server.starts_with("ib_");
    let command = |words: String| {
        let words = words.replace('@', "10.9.0.2");
        let mut words = words.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command
    };
    // `ip netns exec` would mount a /sys that does not show the devices, which are in the initial namespace.
    let server = command(format!("busybox nsenter --net=/run/netns/h2 {server}"));
    let client = command(client.to_owned());
    let played = match is_of_perftest {
        true => play_in_turns(server, client, listens_by_address),
        false => play(server, client, listens_by_address),
    };
    played.map(drop)
}
