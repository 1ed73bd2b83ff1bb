//! Open MPI: two processes, one on each library or both on ours, that exchange messages of many sizes and
//! look whether what came is what was sent. It has several ways to verbs; each has its test.

use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;
use support::{Result, device, fail, is_full, skip, test};

use support::library::{Library, gid_index};

use crate::runs::COMMANDS_OF_UCX;

/// libfabric over verbs, with its reliable datagrams over queue pairs of UD.
const LIBFABRIC: [&str; 9] = [
    "--mca",
    "pml",
    "cm",
    "--mca",
    "mtl",
    "ofi",
    "--mca",
    "mtl_ofi_provider_include",
    "verbs;ofi_rxd",
];

/// Open MPI's own module for verbs, whose processes find each other by datagrams and then use RC.
const OPENIB: [&str; 15] = [
    "--mca",
    "pml",
    "ob1",
    "--mca",
    "btl",
    "openib,self",
    "--mca",
    "btl_openib_allow_ib",
    "1",
    "--mca",
    "btl_openib_warn_no_device_params_found",
    "0",
    "--mca",
    "btl_openib_warn_default_gid_prefix",
    "0",
];

/// UCX, without its way through memory that processes share.
const UCX: [&str; 9] = [
    "--mca", "pml", "ucx", "--mca", "btl", "self", "--mca", "osc", "ucx",
];

/// NetPIPE: the largest message, and how often each size is sent.
const NETPIPE: [&str; 10] = [
    "NPopenmpi",
    "-i",
    "-l",
    "1",
    "-u",
    "65536",
    "-n",
    "3",
    "-o",
    "/dev/null",
];

/// What limits its time: it does not end by itself if one of its processes waits.
const LIMIT: [&str; 4] = ["timeout", "-k", "5", "140"];

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("mpi::over_ucx", over_ucx),
        test("mpi::over_libfabric", || both_ways(&LIBFABRIC)),
        test("mpi::by_openib", || match device().has_gids() {
            false => both_ways(&OPENIB),
            true => skip(
                "Open MPI's openib connects by the subnet's addresses, which only InfiniBand has",
            ),
        }),
    ]
}

/// UCX's transports, and whether it sends commands to the device. By default the first alone.
const OVER_UCX: [(&str, &str); 4] = [
    ("rc_v,ud_v", "n"),
    ("ud_v", "n"),
    ("rc_mlx5,ud_mlx5", "y"),
    ("dc_mlx5,ud_mlx5", "y"),
];

/// Catches a library over which UCX does not connect, by datagrams, or exchange messages, by RC and
/// datagrams. Both processes are on ours.
fn over_ucx() -> Result {
    if device().is_rxe() {
        return skip("UCX connects by its UD, which times out on soft-RoCE, on libibverbs too");
    }
    let ours = Library::ours()?;
    let name = device().name();
    let port = format!("UCX_NET_DEVICES={name}:1");
    let index = gid_index(name)?.map(|index| format!("UCX_IB_GID_INDEX={index}"));
    let chosen = if is_full() { OVER_UCX.len() } else { 1 };
    for (transports, commands) in &OVER_UCX[..chosen] {
        let mut variables = vec![
            format!("UCX_TLS={transports},self"),
            format!("{COMMANDS_OF_UCX}={commands}"),
            port.clone(),
        ];
        variables.extend(index.clone());
        exchange(&UCX, &variables, [&ours; 2])
            .map_err(|error| format!("{transports}, commands {commands}: {error}"))?;
    }
    Ok(())
}

/// Catches an exchange that goes well between two processes on libibverbs, and not with ours in one of them.
/// By default ours is the first, which begins.
fn both_ways(way: &[&str]) -> Result {
    let ours = Library::ours_with_rdmacm()?;
    ours.is_used_by(Path::new("fi_pingpong"))?;
    let sides = [[&ours, &Library::Theirs], [&Library::Theirs, &ours]];
    let chosen = if is_full() { 2 } else { 1 };
    for sides in &sides[..chosen] {
        let Err(error) = exchange(way, &[], *sides) else {
            continue;
        };
        return match exchange(way, &[], [&Library::Theirs; 2]) {
            Ok(()) => fail(format!("{sides:?}: {error}")),
            Err(theirs) => skip(format!("it does not work on libibverbs either: {theirs}")),
        };
    }
    Ok(())
}

/// Runs NetPIPE, which must have looked at messages of all sizes.
fn exchange(way: &[&str], variables: &[String], sides: [&Library; 2]) -> Result {
    let mut command = Command::new(LIMIT[0]);
    command
        .args(&LIMIT[1..])
        .args(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"])
        .args(["--bind-to", "none"])
        .args(way);
    for (number, library) in sides.into_iter().enumerate() {
        if number > 0 {
            command.arg(":");
        }
        let path = library.path().unwrap_or_default();
        command.args(["-np", "1", "-x", &format!("LD_LIBRARY_PATH={path}")]);
        // What comes before a colon is of the processes before it alone.
        for variable in variables {
            command.args(["-x", variable]);
        }
        command.args(NETPIPE);
    }
    let output = command.output()?;
    // mpirun passes on what they say on both streams.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let sizes = said.lines().filter(|line| line.contains("-->"));
    let (passed, others): (Vec<&str>, Vec<&str>) =
        sizes.partition(|size| size.contains("Integrity check passed"));
    match output.status.success() && others.is_empty() && passed.len() == SIZES {
        true => Ok(()),
        false => fail(format!("{}: {said}", output.status)),
    }
}

/// How many sizes there are: the powers of two, and between two of them the one in the middle.
const SIZES: usize = 32;
