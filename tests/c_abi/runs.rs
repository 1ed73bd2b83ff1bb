//! Programs of the distribution that talk to each other, one on each library: perftest, ping-pongs,
//! UCX, fio, and those that connect by librdmacm, the distribution's or ours.
//!
//! By default each run has our library on one side; with `--full` there are more runs, each with ours as the
//! server and as the client.

use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;
use support::peers::{free_port, listens, listens_by_address, play, play_in_turns, play_of_xrc};
use support::{Result, device, fail, is_full, open, skip, test};

use support::library::{Library, gid_index};

/// A run: the command of both sides, without what all of its family have.
struct Run {
    words: &'static str,
    /// Whether it is one of the small set.
    always: bool,
}

const fn always(words: &'static str) -> Run {
    Run {
        words,
        always: true,
    }
}

const fn in_full(words: &'static str) -> Run {
    Run {
        words,
        always: false,
    }
}

/// How programs of a family are told what to do.
#[derive(Clone, Copy)]
enum Family {
    Perftest,
    Pingpong,
    /// A ping-pong of XRC, which has other options, and perftest with it: on the adapter alone.
    Xrc,
    PerftestOfXrc,
    /// perftest with dynamic connections: on the adapter alone.
    PerftestOfDc,
    /// Programs of librdmacm, and of perftest that connect by it, over the distribution's librdmacm.
    Rdmacm,
    /// The same, with our librdmacm beside our libibverbs.
    OwnRdmacm,
    /// The same with XRC: on the adapter alone.
    OwnRdmacmOfXrc,
    /// The same by addresses of InfiniBand: on its ports alone.
    OwnRdmacmByGid,
    Ucx,
    /// The same with both sides on ours, and its upper layer: on the adapter alone. On soft-RoCE its
    /// datagrams time out with libibverbs as well, and the upper layer connects by them.
    UcxOnOurs,
    /// Its own drivers for the adapter, which create queues and receive pools by commands to the device.
    UcxByCommands,
    /// libfabric's ping-pong over our librdmacm: its endpoints connect by it.
    Libfabric,
    /// qperf's measurements of RC, which connect by our librdmacm. Its others name ports by LIDs alone.
    Qperf,
    /// fio's engine for RDMA over the distribution's librdmacm, and over ours.
    Fio,
    FioOfOwnRdmacm,
}

/// A test's name, its family and its runs.
type Group = (&'static str, Family, &'static [Run]);

/// `ib_send_lat -e` is not among them: it waits for the events of two queues on one channel, takes either for
/// the other, and then waits in vain or posts too much, on libibverbs as well.
const GROUPS: [Group; 19] = [
    (
        "perftest::send",
        Family::Perftest,
        &[
            always("ib_send_lat -s 64 -I 64"),
            always("ib_send_bw -s 64 -e"),
            always("ib_send_bw -s 64 -q 3 --use-srq"),
            always("ib_send_bw -c UD -s 64"),
            in_full("ib_send_lat -s 64 --use_old_post_send"),
            in_full("ib_send_bw -s 4096 -l 8 -n 40"),
            in_full("ib_send_bw -s 64 -b"),
            in_full("ib_send_bw -s 64 -n 100 -Q 20"),
            in_full("ib_send_lat -c UC -s 64"),
            in_full("ib_send_lat -c UD -s 64"),
            in_full("ib_send_bw -c UD -s 64 -e"),
        ],
    ),
    (
        "perftest::write",
        Family::Perftest,
        &[
            always("ib_write_lat -s 64"),
            always("ib_write_bw -s 65536 -n 10"),
            in_full("ib_write_bw -s 64 --use_old_post_send"),
            in_full("ib_write_bw -s 64 -q 4"),
            in_full("ib_write_lat -c UC -s 200 -I 220"),
            in_full("ib_write_bw -c UC -s 64 -l 4"),
        ],
    ),
    (
        "perftest::read",
        Family::Perftest,
        &[
            always("ib_read_lat -s 64"),
            always("ib_read_bw -s 4096 -o 4 -q 2"),
            in_full("ib_read_lat -s 64 -e"),
            in_full("ib_read_bw -s 64 --use_old_post_send"),
        ],
    ),
    (
        "perftest::atomic",
        Family::Perftest,
        &[
            always("ib_atomic_lat -A CMP_AND_SWAP"),
            always("ib_atomic_bw -A FETCH_AND_ADD -q 2"),
            in_full("ib_atomic_lat -A FETCH_AND_ADD -e"),
            in_full("ib_atomic_bw -A FETCH_AND_ADD --use_old_post_send"),
        ],
    ),
    (
        "pingpong::of_rdma_core",
        Family::Pingpong,
        &[
            always("ibv_rc_pingpong -s 4096"),
            always("ibv_uc_pingpong -s 100 -e"),
            always("ibv_ud_pingpong -s 1024"),
            always("ibv_srq_pingpong -s 100 -q 4 -e"),
            in_full("ibv_rc_pingpong -s 100 -e"),
            in_full("ibv_rc_pingpong -s 100 -N"),
            in_full("ibv_rc_pingpong -s 1000000 -n 4"),
            in_full("ibv_ud_pingpong -s 100 -e"),
            in_full("ibv_srq_pingpong -s 4096 -q 4"),
        ],
    ),
    (
        "pingpong::of_xrc",
        Family::Xrc,
        &[
            always("ibv_xsrq_pingpong -s 4096"),
            always("ibv_xsrq_pingpong -s 100 -e"),
        ],
    ),
    (
        "perftest::xrc",
        Family::PerftestOfXrc,
        &[
            always("ib_send_bw -c XRC -s 64"),
            always("ib_write_bw -c XRC -s 4096 -q 2"),
            in_full("ib_send_lat -c XRC -s 64 -I 64"),
            in_full("ib_read_bw -c XRC -s 64"),
            in_full("ib_send_bw -c XRC -s 64 --use_old_post_send"),
        ],
    ),
    (
        "perftest::dc",
        Family::PerftestOfDc,
        &[
            always("ib_write_bw -c DC -s 64"),
            always("ib_send_bw -c DC -s 64"),
            in_full("ib_read_bw -c DC -s 64"),
            in_full("ib_write_lat -c DC -s 64"),
        ],
    ),
    (
        "rdmacm::programs",
        Family::Rdmacm,
        &[
            always("rping -C 5 -S 2000 -V"),
            always("ucmatose -C 2 -S 100"),
            always("udaddy -C 5"),
            always("ib_send_lat -F -R -n 20"),
            in_full("ib_write_bw -F -R -n 20 -q 2"),
            in_full("ib_read_lat -F -R -n 20"),
        ],
    ),
    (
        "rdmacm::ours",
        Family::OwnRdmacm,
        &[
            always("rping -C 5 -S 2000 -V"),
            always("rdma_client"),
            always("udaddy -C 5"),
            in_full("rping -C 5 -q"),
            in_full("ucmatose -m -C 2 -S 100"),
            in_full("ib_send_lat -F -R -n 20"),
            in_full("ib_write_bw -F -R -n 20 -q 2"),
        ],
    ),
    (
        "rdmacm::of_xrc",
        Family::OwnRdmacmOfXrc,
        &[
            always("rdma_xclient -c x"),
            always("rdma_xclient -c x -p 7472"),
        ],
    ),
    (
        "rdmacm::by_gids",
        Family::OwnRdmacmByGid,
        &[
            always("ucmatose -f gid -C 2 -S 100"),
            always("udaddy -f gid -C 5"),
            in_full("ucmatose -f gid -P ib -C 2 -S 100"),
        ],
    ),
    (
        "libfabric::pingpong",
        Family::Libfabric,
        &[
            always("-p verbs -e msg -S 64"),
            in_full("-p verbs;ofi_rxd -e rdm -S 64"),
            in_full("-p verbs -e msg -S 65536"),
            in_full("-p verbs;ofi_rxm -e rdm -S 64"),
        ],
    ),
    (
        "qperf::measurements",
        Family::Qperf,
        &[
            always("rc_lat"),
            always("rc_rdma_write_bw"),
            always("rc_rdma_read_lat"),
            in_full("rc_bw"),
            in_full("rc_rdma_write_poll_lat"),
            in_full("rc_fetch_add_mr"),
            in_full("ver_rc_compare_swap"),
        ],
    ),
    (
        "fio::engine",
        Family::Fio,
        &[
            always("write --size=256k"),
            always("read --size=256k"),
            always("send --size=64k"),
            in_full("write --size=4m --bs=64k"),
            in_full("read --size=1m --bs=1000"),
            in_full("send --size=1m --bs=64k"),
        ],
    ),
    (
        "fio::own_rdmacm",
        Family::FioOfOwnRdmacm,
        &[
            always("write --size=256k"),
            always("read --size=256k"),
            always("send --size=64k"),
        ],
    ),
    (
        "ucx::tests",
        Family::Ucx,
        &[
            always("rc_verbs am_lat"),
            always("rc_verbs put_lat"),
            in_full("rc_verbs am_bw"),
            in_full("rc_verbs put_bw"),
            in_full("rc_verbs get"),
            in_full("rc_verbs fadd"),
        ],
    ),
    (
        "ucx::on_ours",
        Family::UcxOnOurs,
        &[
            always("rc_verbs am_lat"),
            always("ud_verbs am_lat"),
            always("rc_v,ud_v tag_lat"),
            in_full("rc_verbs am_bw"),
            in_full("rc_verbs put_lat"),
            in_full("ud_verbs am_bw"),
            in_full("rc_v,ud_v tag_bw"),
            in_full("rc_v,ud_v ucp_am_lat"),
            in_full("rc_v,ud_v ucp_put_lat"),
            in_full("ud_v tag_lat"),
            // Its own drivers, over the rings of queues.
            in_full("rc_mlx5 am_lat"),
            in_full("rc_mlx5 put_lat"),
            in_full("ud_mlx5 am_lat"),
            in_full("dc_mlx5 am_lat"),
            in_full("dc_mlx5 put_lat"),
        ],
    ),
    (
        "ucx::by_commands",
        Family::UcxByCommands,
        &[
            always("rc_mlx5 am_lat"),
            always("ud_mlx5 am_lat"),
            always("dc_mlx5 am_lat"),
            in_full("rc_mlx5 am_bw"),
            in_full("rc_mlx5 put_lat"),
            in_full("rc_mlx5 fadd"),
            in_full("dc_mlx5 am_bw"),
            in_full("dc_mlx5 put_lat"),
            in_full("dc_mlx5 fadd"),
        ],
    ),
];

pub(crate) fn tests() -> Vec<Trial> {
    GROUPS
        .map(|(name, family, runs)| test(name, move || all(family, runs)))
        .into()
}

/// Runs a group. In the small set the two libraries change sides from run to run.
fn all(family: Family, runs: &[Run]) -> Result {
    if matches!(family, Family::UcxByCommands) && device().is_rxe() {
        return skip("only UCX's drivers for the adapter send commands to a device");
    }
    if matches!(family, Family::UcxOnOurs) && device().is_rxe() {
        return skip("UCX connects by its UD, which times out on soft-RoCE, on libibverbs too");
    }
    let of_adapter = matches!(
        family,
        Family::Xrc | Family::PerftestOfXrc | Family::PerftestOfDc | Family::OwnRdmacmOfXrc
    );
    if of_adapter && device().is_rxe() {
        return skip("soft-RoCE has neither XRC nor DC");
    }
    if matches!(family, Family::OwnRdmacmByGid) && device().has_gids() {
        return skip("the device's port is none of InfiniBand");
    }
    if family.is_of_fio() && !Path::new(FIO).is_file() {
        return skip("fio is not there: `cargo vm fetch --full` fetches it");
    }
    let ours = match family {
        Family::Libfabric | Family::Qperf | Family::FioOfOwnRdmacm => Library::ours_with_rdmacm()?,
        _ if family.is_of_own_rdmacm() => Library::ours_with_rdmacm()?,
        _ => Library::ours()?,
    };
    if family.is_of_own_rdmacm() {
        ours.is_used_by(Path::new("rping"))?;
    }
    if family.is_of_fio() {
        ours.is_used_by(Path::new(FIO))?;
    }
    let chosen = runs.iter().filter(|run| run.always || is_full());
    if matches!(family, Family::UcxOnOurs) {
        return chosen
            .into_iter()
            .try_for_each(|run| once(family, run.words, [&ours, &ours]));
    }
    if matches!(family, Family::UcxByCommands) {
        // Also libmlx5 on both sides: what the model lacks would fail there too.
        let all = if is_full() { 4 } else { 2 };
        return chosen.into_iter().try_for_each(|run| {
            let mut pairs = ours.pairs().into_iter().take(all);
            pairs.try_for_each(|(server, client)| once(family, run.words, [server, client]))
        });
    }
    let mut ran = 0;
    for (number, run) in chosen.enumerate() {
        for ours_serves in [number % 2 == 0, number % 2 != 0] {
            let sides = match ours_serves {
                true => [&ours, &Library::Theirs],
                false => [&Library::Theirs, &ours],
            };
            ran += usize::from(as_theirs_alone(family, run.words, sides)?);
            if !is_full() {
                break;
            }
        }
    }
    match ran {
        0 => fail("no run of the group works, on libibverbs neither: is the program there?"),
        _ => Ok(()),
    }
}

/// Catches a run that works between two programs on libibverbs, and not with ours on one side. What does not
/// work there is not asked of ours: false.
fn as_theirs_alone(family: Family, words: &str, sides: [&Library; 2]) -> Result<bool> {
    let Err(error) = once(family, words, sides) else {
        return Ok(true);
    };
    match once(family, words, [&Library::Theirs; 2]) {
        Ok(()) => fail(format!(
            "{words}, server {:?}, client {:?}: {error}",
            sides[0], sides[1]
        )),
        Err(theirs) => {
            println!("{words} does not work on libibverbs either: {theirs}");
            Ok(false)
        }
    }
}

fn once(family: Family, words: &str, [server, client]: [&Library; 2]) -> Result {
    if matches!(family, Family::Rdmacm) || family.is_of_own_rdmacm() {
        let address = family.address()?;
        let server = of_librdmacm(server, words, &address, false);
        let client = of_librdmacm(client, words, &address, true);
        let played = match words.starts_with("ib_") {
            true => play_in_turns(server, client, listens_by_address),
            false => play(server, client, listens_by_address),
        };
        return played.map(drop);
    }
    let port = free_port()?;
    let ends = ends();
    let server = family.side(server, &ends.0, port, words, None)?;
    let client = family.side(client, &ends.1, port, words, Some("127.0.0.1"))?;
    if let Family::Xrc = family {
        return play_of_xrc(server, client, || listens(port), &ends.1).map(drop);
    }
    let ready = || match family.is_of_fio() {
        true => listens_by_address(),
        false => listens(port),
    };
    play(server, client, ready).map(drop)
}

/// The IP address of the device.
pub(crate) const ADDRESS: &str = "10.9.0.1";

/// The command of a side that is named by an address.
fn of_librdmacm(library: &Library, words: &str, address: &str, connects: bool) -> Command {
    let (program, words) = words.split_once(' ').unwrap_or((words, ""));
    let mut command = match (program, connects) {
        ("rdma_client", false) => library.command("rdma_server"),
        ("rdma_xclient", false) => library.command("rdma_xserver"),
        _ => library.command(program),
    };
    let words = words.split_whitespace();
    match (program, connects) {
        ("rping", true) => command.args(["-c", "-a", address]).args(words),
        ("rping", false) => command.args(["-s", "-a", address]).args(words),
        ("ucmatose" | "udaddy", true) => command.args(words).args(["-s", address]),
        ("ucmatose" | "udaddy", false) => command.args(words).args(["-b", address]),
        // This server has no option for its address, and takes every one.
        ("rdma_xclient", false) => command.args(words),
        ("rdma_client" | "rdma_xclient", _) => command.args(words).args(["-s", address]),
        (_, true) => command.args(words).arg(address),
        (_, false) => command.args(words),
    };
    command
}

/// The devices at both ends of a wire: the adapter has two functions.
fn ends() -> (String, String) {
    let here = device().name().to_owned();
    let there = if device().is_mlx5() { "mlx5_1" } else { &here };
    (here.clone(), there.to_owned())
}

impl Family {
    /// Whether its programs connect by our librdmacm, and are named by addresses.
    fn is_of_own_rdmacm(self) -> bool {
        matches!(
            self,
            Self::OwnRdmacm | Self::OwnRdmacmOfXrc | Self::OwnRdmacmByGid
        )
    }

    fn is_of_fio(self) -> bool {
        matches!(self, Self::Fio | Self::FioOfOwnRdmacm)
    }

    /// The address of the device.
    fn address(self) -> Result<String> {
        match self {
            Self::OwnRdmacmByGid => Ok(open()?.query_gid(1, 0)?.gid.to_string()),
            _ => Ok(ADDRESS.into()),
        }
    }

    /// The command of one side; the client is told where the server is.
    fn side(
        self,
        library: &Library,
        device: &str,
        port: u16,
        words: &str,
        server: Option<&str>,
    ) -> Result<Command> {
        let port = port.to_string();
        match self {
            Self::Perftest | Self::PerftestOfXrc | Self::PerftestOfDc => {
                Self::of_rdma_core(library, device, &port, words, ("-x", &["-F"]), server)
            }
            Self::Pingpong => {
                Self::of_rdma_core(library, device, &port, words, ("-g", &["-c"]), server)
            }
            Self::Xrc => Self::of_rdma_core(library, device, &port, words, ("-g", &[]), server),
            Self::Ucx | Self::UcxOnOurs => {
                let program = library.command("ucx_perftest");
                ucx(program, device, &port, words, "n", server)
            }
            // UCX would go on without commands if one of the first were refused.
            Self::UcxByCommands => {
                let program = library.command("ucx_perftest");
                ucx(program, device, &port, words, "y", server)
            }
            Self::Libfabric => Ok(libfabric(library, &port, words, server.is_some())),
            Self::Qperf => Ok(qperf(library, &port, words, server.is_some())),
            Self::Fio | Self::FioOfOwnRdmacm => Ok(fio(library, &port, words, server.is_some())),
            Self::Rdmacm | Self::OwnRdmacm | Self::OwnRdmacmOfXrc | Self::OwnRdmacmByGid => {
                let address = self.address()?;
                Ok(of_librdmacm(library, words, &address, server.is_some()))
            }
        }
    }

    /// Those of rdma-core and perftest, which differ in an option for the GID and those that all have.
    fn of_rdma_core(
        library: &Library,
        device: &str,
        port: &str,
        words: &str,
        (gid, always): (&str, &[&str]),
        server: Option<&str>,
    ) -> Result<Command> {
        let mut words = words.split_whitespace();
        let mut command = library.command(words.next().unwrap_or_default());
        command.args(always);
        command.args(["-d", device, "-p", port, "-n", "20"]);
        if let Some(index) = gid_index(device)? {
            command.arg(gid).arg(index.to_string());
        }
        command.args(words).args(server);
        Ok(command)
    }
}

/// The command of a side of libfabric's ping-pong.
fn libfabric(library: &Library, port: &str, words: &str, connects: bool) -> Command {
    let mut command = library.command("fi_pingpong");
    command.args(words.split_whitespace()).args(["-I", "10"]);
    match connects {
        true => command.args(["-P", port, ADDRESS]),
        false => command.args(["-B", port]),
    };
    command
}

/// How long qperf waits for an answer from its other side, in seconds. By itself it gives up after 5.
const PATIENCE_OF_QPERF: &str = "100";

/// The command of a side of qperf. The client has the server end behind the measurement.
fn qperf(library: &Library, port: &str, words: &str, connects: bool) -> Command {
    let mut command = library.command("qperf");
    if connects {
        command.arg(ADDRESS);
    }
    command.args(["-lp", port]);
    match connects {
        true => command
            .args(["-to", PATIENCE_OF_QPERF])
            .args(["-t", "1", "-cm", "1", words, "quit"]),
        // Until the client tells its own.
        false => command.args(["-lto", PATIENCE_OF_QPERF]),
    };
    command
}

/// fio's engine for RDMA.
const FIO: &str = "/usr/bin/fio";

/// The command of a side of fio. Its server posts one receive for each message before the first comes, since
/// the client's connection does not wait for receives; and it looks at what it has received, which it does
/// not see of other transfers.
fn fio(library: &Library, port: &str, words: &str, connects: bool) -> Command {
    let (verb, sizes) = words.split_once(' ').unwrap_or((words, ""));
    let mut command = library.command(FIO);
    command.args(["--ioengine=rdma", "--thread", "--bs=4k"]);
    command.args([&format!("--port={port}"), "--verify_state_save=0"]);
    match connects {
        true => command
            .args(["--name=client", "--rw=write", "--iodepth=4"])
            .args([&format!("--hostname={ADDRESS}"), &format!("--verb={verb}")]),
        false => command.args(["--name=server", "--rw=read", "--iodepth=16"]),
    };
    if verb == "send" {
        command.args(["--verify=crc32c", "--do_verify=0", "--verify_fatal=1"]);
    }
    command.args(sizes.split_whitespace());
    command
}

/// Whether UCX sends commands to the device.
pub(crate) const COMMANDS_OF_UCX: &str = "UCX_IB_MLX5_DEVX";

/// UCX's lower layer, by one transport, or its upper layer, by several that it may choose of, with commands
/// to the device or without. `command` starts `ucx_perftest`.
pub(crate) fn ucx(
    mut command: Command,
    device: &str,
    port: &str,
    words: &str,
    commands: &str,
    server: Option<&str>,
) -> Result<Command> {
    command.env(COMMANDS_OF_UCX, commands);
    if let Some(index) = gid_index(device)? {
        command.env("UCX_IB_GID_INDEX", index.to_string());
    }
    let (transport, words) = words.split_once(' ').unwrap_or((words, ""));
    let place = format!("{device}:1");
    match transport.ends_with("_verbs") || transport.ends_with("_mlx5") {
        true => command.args(["-d", &place, "-x", transport]),
        false => command
            .env("UCX_TLS", format!("{transport},self"))
            .env("UCX_NET_DEVICES", &place),
    };
    command
        .args(server)
        .args(["-p", port, "-n", "50", "-w", "5", "-t", words]);
    Ok(command)
}
