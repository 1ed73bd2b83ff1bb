//! rdma-core's and libfabric's programs between two functions: each operation, with polling and with events.

use std::process::Command;

use libtest_mimic::Trial;
use support::peers::{free_port, listens, play};
use support::pingpong::Pingpong;
use support::{Efa, Result, kernel, run, skip, test_on_efa};

use crate::newer::program;

/// A run: the test's name, the command without what all have, and whether it needs a kernel that has WRITE.
const RUNS: [(&str, &str, bool); 13] = [
    ("send", "ib_send_lat -c SRD -s 64", false),
    ("send_inline", "ib_send_lat -c SRD -s 32 -I 32", false),
    ("send_events", "ib_send_bw -c SRD -s 64 -e", false),
    ("send_both_ways", "ib_send_bw -c SRD -s 8192 -b", false),
    ("send_queue_pairs", "ib_send_bw -c SRD -s 64 -q 4", false),
    ("send_list", "ib_send_bw -c SRD -s 64 -l 4", false),
    ("read", "ib_read_bw -c SRD -s 65536", false),
    ("read_events", "ib_read_bw -c SRD -s 64 -e", false),
    ("write", "ib_write_bw -c SRD -s 65536", true),
    ("write_both_ways", "ib_write_bw -c SRD -s 64 -b", true),
    (
        "write_imm",
        "ib_write_bw -c SRD -s 64 --write_with_imm",
        true,
    ),
    (
        "write_imm_unsolicited",
        "ib_write_bw -c SRD -s 64 --write_with_imm --unsolicited_write",
        true,
    ),
    ("ud", "ib_send_lat -c UD -s 64 -Q 1", false),
];

pub(crate) fn tests() -> Vec<Trial> {
    let both = RUNS.iter().flat_map(|&(name, run, writes)| {
        ["", "_back"].map(|way| {
            test_on_efa(format!("perftest::{name}{way}"), move |efa| {
                if writes && kernel() < (6, 2) {
                    skip("the driver of Linux 6.1 has no WRITE")?;
                }
                measure(efa, run, !way.is_empty())
            })
        })
    });
    let messages = test_on_efa("libfabric::pingpong_of_all_sizes", |efa| {
        pingpong(efa, "rdm", "8k ")
    });
    let datagrams = test_on_efa("libfabric::pingpong_of_datagrams", |efa| {
        pingpong(efa, "dgram", "4k ")
    });
    let ours = [
        ("uverbs::pingpong_of_datagrams", "ud", 1000, false),
        ("uverbs::pingpong_of_reliable_datagrams", "srd", 8192, false),
        ("uverbs::pingpong_with_events", "srd", 64, true),
    ]
    .map(|(name, transport, size, events)| {
        test_on_efa(name, move |efa| own_pingpong(efa, transport, size, events))
    });
    let devices = test_on_efa(
        "devices::each_function_is_an_efa_with_an_active_port",
        active,
    );
    both.chain([messages, datagrams, devices])
        .chain(ours)
        .collect()
}

/// Catches a function that the kernel's driver or libefa does not take for its own.
fn active(efa: Efa) -> Result {
    for device in efa.devices() {
        let said = run(&format!("ibv_devinfo -d {device}"))?;
        for line in [
            "vendor_part_id:61345",
            "state:PORT_ACTIVE(4)",
            "transport:unspecified(4)",
        ] {
            let has = |said: &str| said.replace(char::is_whitespace, "") == line;
            if !said.lines().any(has) {
                return Err(format!("{device} has no line `{line}`: {said}").into());
            }
        }
    }
    Ok(())
}

/// Catches requests that never complete, or with an error. The figures themselves mean nothing here.
fn measure(efa: Efa, run: &str, back: bool) -> Result {
    let (mut here, mut there) = efa.ends();
    if back {
        std::mem::swap(&mut here, &mut there);
    }
    perftest(run, 20, [&here, &there])
}

/// Runs a program of perftest, so many times, between a server's device and a client's.
pub(crate) fn perftest(run: &str, count: u32, [here, there]: [&str; 2]) -> Result {
    let port = free_port()?;
    let side = |device: &str| -> Result<Command> {
        let mut words = run.split_whitespace();
        let mut command = program(words.next().unwrap_or_default())?;
        // -F: the processor's frequency is no matter.
        command.args(["-F", "-x", "0", "-d", device]);
        command.args(["-p", &port.to_string(), "-n", &count.to_string()]);
        command.args(words);
        Ok(command)
    };
    let (server, mut client) = (side(here)?, side(there)?);
    client.arg("127.0.0.1");
    play(server, client, || listens(port)).map(drop)
}

/// Catches a device on which libfabric's own protocol over SRD does not run, which counts on no order, or its
/// datagrams, whose data it looks for behind 40 bytes. It goes up to a large message.
fn pingpong(efa: Efa, endpoint: &str, largest: &str) -> Result {
    let port = free_port()?;
    let side = |device: &str| -> Result<Command> {
        let mut command = program("fi_pingpong")?;
        // -c: every byte is looked at.
        command.args(["-p", "efa", "-e", endpoint, "-I", "5", "-S", "all", "-c"]);
        command.args(["-d", &device_of(device, endpoint)]);
        // Both are on one host, and are to use the device all the same.
        command.env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
        Ok(command)
    };
    let (here, there) = efa.ends();
    let (mut server, mut client) = (side(&here)?, side(&there)?);
    server.args(["-B", &port.to_string()]);
    client.args(["-P", &port.to_string(), "127.0.0.1"]);
    let said = play(server, client, || listens(port))?;
    // It says nothing of a size that it leaves out.
    match said.client.lines().any(|line| line.starts_with(largest)) {
        true => Ok(()),
        false => Err(format!("nothing of the size {largest}: {}", said.client).into()),
    }
}

/// libfabric's name of a device for endpoints of a kind.
fn device_of(device: &str, endpoint: &str) -> String {
    match endpoint {
        "dgram" => format!("{device}-dgrm"),
        _ => format!("{device}-{endpoint}"),
    }
}

/// Catches a header before a datagram that this library does not count with, or one that SRD does not have.
fn own_pingpong(efa: Efa, transport: &str, size: u32, events: bool) -> Result {
    let (here, there) = efa.ends();
    let port = free_port()?;
    let side = |device| Pingpong {
        transport,
        device,
        gid_index: Some(0),
        size,
        count: 50,
        events,
        port,
    };
    let server = side(&here).ours()?;
    let mut client = side(&there).ours()?;
    client.arg("127.0.0.1");
    play(server, client, || listens(port)).map(drop)
}
