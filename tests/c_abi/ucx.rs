//! UCX of a newer suite, 1.18 of Debian 13, on our libraries and on that suite's own. It is fetched by
//! `cargo vm clients --full`, with the C library and the loader of its suite. Debian 12's is among the
//! programs of `runs.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use support::library::Library;
use support::peers::{free_port, listens, play};
use support::{Result, device, fail, is_full, skip, test};

use crate::newer::{libraries_of, loader, root};
use crate::runs;

/// The tree that has the programs, as the name of a suite.
const TREE: &str = "ucx";

/// The runs: a driver of UCX for the adapter, or those among which its upper layer may choose, the test, and
/// whether there are commands to the device.
///
/// Atomic operations without commands are left out: each process takes for their offset a number that it
/// makes of its own id (`uct_ib_mlx5_flush_rkey_make`), though no key has that offset, so they change other
/// memory. That is so on libmlx5 as well. So those with commands also show that the commands are there.
const RUNS: [(&str, &str, &str); 12] = [
    ("rc_mlx5", "am_lat", "y"),
    ("dc_mlx5", "am_lat", "y"),
    ("ud_mlx5", "am_lat", "y"),
    ("rc_mlx5", "put_lat", "y"),
    ("dc_mlx5", "put_lat", "y"),
    ("rc_mlx5", "fadd", "y"),
    ("dc_mlx5", "fadd", "y"),
    ("rc_x,ud_x", "tag_lat", "y"),
    ("dc_x", "tag_bw", "y"),
    ("rc_mlx5", "am_lat", "n"),
    ("dc_mlx5", "am_lat", "n"),
    ("ud_mlx5", "am_lat", "n"),
];

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("engines::ucx", ucx)]
}

/// Catches direct verbs and commands to the device with which a newer UCX does not do. Each run is also on
/// the suite's libmlx5 on both sides: what the model lacks would fail there too.
fn ucx() -> Result {
    if !is_full() {
        return skip("only in a run of everything, or by its name");
    }
    if device().is_rxe() {
        return skip("only UCX's drivers for the adapter are asked");
    }
    let root = root(TREE)?;
    let Library::OursWithRdmacm(verbs, rdmacm) = Library::ours_with_rdmacm()? else {
        return fail("no libraries of ours");
    };
    let theirs = [libraries_of(&root).join("libibverbs")];
    for (transport, what, commands) in RUNS {
        for libraries in [theirs.as_slice(), &[verbs.clone(), rdmacm.clone()]] {
            let port = free_port()?;
            let words = format!("{transport} {what}");
            let side = |device, server| {
                let program = program(&root, libraries);
                runs::ucx(program, device, &port.to_string(), &words, commands, server)
            };
            let server = side("mlx5_0", None)?;
            let client = side("mlx5_1", Some("127.0.0.1"))?;
            if let Err(error) = play(server, client, || listens(port)) {
                return fail(format!(
                    "{words}, commands {commands}, on {libraries:?}: {error}"
                ));
            }
        }
    }
    Ok(())
}

/// The program. It is linked to Open MPI, which looks for its parts when it starts even if it is not used
/// (`-P 0`).
fn program(root: &Path, libraries: &[PathBuf]) -> Command {
    let mut command = loader(root, libraries);
    command
        .arg(root.join("usr/bin/ucx_perftest"))
        .args(["-P", "0"])
        .env("UCX_MODULE_DIR", libraries_of(root).join("ucx"))
        .env("OPAL_PREFIX", libraries_of(root).join("openmpi"))
        .envs([("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "self")]);
    command
}
