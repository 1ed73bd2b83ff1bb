//! perftest between two functions: each operation on each transport that has it, with polling and with
//! events, with one queue pair and with several.

use std::process::Command;

use libtest_mimic::Trial;
use support::peers::{free_port, listens, play};
use support::{Hca, Result, test_on_adapter};

/// A run: the test's name, and the command without what all have. `ib_send_lat -e` takes events of two queues
/// on one channel for each other, and then waits in vain now and then.
const RUNS: [(&str, &str); 29] = [
    ("send_rc", "ib_send_lat -s 64"),
    ("send_rc_events", "ib_send_bw -s 64 -e"),
    ("send_rc_inline", "ib_send_lat -s 100 -I 128"),
    ("send_rc_not_inline", "ib_send_lat -s 100 -I 0"),
    ("send_rc_list", "ib_send_bw -s 64 -l 8 -n 40"),
    ("send_rc_both_ways", "ib_send_bw -s 64 -b"),
    ("send_rc_queue_pairs", "ib_send_bw -s 64 -q 4"),
    ("send_rc_srq", "ib_send_bw -s 64 -q 3 --use-srq"),
    ("send_rc_few_signaled", "ib_send_bw -s 64 -n 100 -Q 20"),
    ("send_uc", "ib_send_lat -c UC -s 64"),
    ("send_ud", "ib_send_lat -c UD -s 64"),
    ("send_ud_events", "ib_send_bw -c UD -s 64 -e"),
    ("send_ud_queue_pairs", "ib_send_bw -c UD -s 64 -q 2"),
    ("write_rc", "ib_write_lat -s 64"),
    ("write_rc_large", "ib_write_bw -s 1048576 -n 5"),
    ("write_rc_both_ways", "ib_write_bw -s 64 -b"),
    ("write_rc_queue_pairs", "ib_write_bw -s 64 -q 4"),
    ("write_uc_inline", "ib_write_lat -c UC -s 200 -I 220"),
    ("write_uc_list", "ib_write_bw -c UC -s 64 -l 4"),
    ("write_dc", "ib_write_bw -c DC -s 64"),
    ("send_dc", "ib_send_bw -c DC -s 64"),
    ("read_rc", "ib_read_lat -s 64"),
    ("read_rc_events", "ib_read_lat -s 64 -e"),
    ("read_rc_outstanding", "ib_read_bw -s 4096 -o 4 -q 2"),
    ("compare_and_swap", "ib_atomic_lat -A CMP_AND_SWAP"),
    ("fetch_and_add", "ib_atomic_lat -A FETCH_AND_ADD"),
    ("atomic_events", "ib_atomic_lat -A FETCH_AND_ADD -e"),
    ("atomic_many", "ib_atomic_bw -A CMP_AND_SWAP -q 2"),
    ("atomic_list", "ib_atomic_bw -A FETCH_AND_ADD -l 4"),
];

pub(crate) fn tests() -> Vec<Trial> {
    RUNS.iter()
        .map(|&(name, run)| {
            test_on_adapter(format!("perftest::{name}"), move |hca| measure(hca, run))
        })
        .collect()
}

/// Catches requests that never complete, or with an error. The figures themselves mean nothing here.
fn measure(hca: Hca, run: &str) -> Result {
    let port = free_port()?;
    let side = |device: &str| -> Result<Command> {
        let mut words = run.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or_default());
        // -F: the processor's frequency is no matter.
        command.args(["-F", "-d", device, "-p", &port.to_string(), "-n", "20"]);
        if let Some(index) = hca.gid_index(device)? {
            command.args(["-x", &index.to_string()]);
        }
        command.args(words);
        Ok(command)
    };
    let (here, there) = hca.ends();
    let (server, mut client) = (side(&here)?, side(&there)?);
    client.arg("127.0.0.1");
    play(server, client, || listens(port)).map(drop)
}
