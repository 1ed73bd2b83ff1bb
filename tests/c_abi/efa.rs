//! Programs of Debian 13 over reliable datagrams, and datagrams, between the functions of the EFA: perftest,
//! and libfabric's ping-pong over its own protocol. Our libibverbs and libefa are on one side or on both.
//!
//! By default each run has ours on one side; with `--full` there are more runs, each with ours as the server,
//! as the client, and as both.
//!
//! Requests of every kind, as libefa and as ours write them, are compared field by field; and a program posts
//! and polls by itself, on the rings that either library tells it of.

use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use serde_json::{Value, json};
use support::peers::{free_port, listens, play};
use support::{Control, Efa, Result, fail, is_full, kernel, same, skip, test_on_efa};

use crate::newer::{libraries_of, loader, root};
use support::library::{Library, c_program};

/// The suite whose programs know of an EFA's WRITEs.
const SUITE: &str = "trixie";

/// A run: its words, whether it needs a kernel that has WRITE, and whether it is one of the small set.
type Run = (&'static str, bool, bool);

/// The tests: a name, and its runs.
const GROUPS: [(&str, &[Run]); 4] = [
    (
        "send",
        &[
            ("ib_send_lat -c SRD -s 64", false, true),
            ("ib_send_bw -c SRD -s 8192 -b -e", false, true),
            ("ib_send_lat -c SRD -s 32 -I 32", false, false),
            ("ib_send_bw -c SRD -s 64 -q 4", false, false),
            ("ib_send_bw -c SRD -s 64 -l 4", false, false),
        ],
    ),
    (
        "read",
        &[
            ("ib_read_bw -c SRD -s 65536", false, true),
            ("ib_read_bw -c SRD -s 64 -e", false, false),
        ],
    ),
    (
        "write",
        &[
            ("ib_write_bw -c SRD -s 65536", true, true),
            ("ib_write_bw -c SRD -s 64 --write_with_imm", true, true),
            (
                "ib_write_bw -c SRD -s 64 --write_with_imm --unsolicited_write",
                true,
                true,
            ),
            ("ib_write_bw -c SRD -s 64 -b", true, false),
        ],
    ),
    (
        "datagrams",
        &[
            ("ib_send_lat -c UD -s 64 -Q 1", false, true),
            ("ib_send_bw -c UD -s 64 -Q 1 -e", false, false),
        ],
    ),
];

pub(crate) fn tests() -> Vec<Trial> {
    let perftest = GROUPS.map(|(name, runs)| {
        test_on_efa(format!("efa::perftest_{name}"), move |efa| {
            all(runs, |words, sides| perftest(efa, words, sides))
        })
    });
    let libfabric = [("messages", "rdm", "8k "), ("datagrams", "dgram", "4k ")];
    let libfabric = libfabric.map(|(name, endpoint, largest)| {
        test_on_efa(format!("efa::libfabric_{name}"), move |efa| {
            let run = [(endpoint, false, true)];
            all(&run, |endpoint, sides| {
                pingpong(efa, endpoint, largest, sides)
            })
        })
    });
    let fields = test_on_efa("efa::fields_as_libefa_has_them", |_| fields());
    let rings = test_on_efa("efa::rings_of_a_program", |_| rings());
    perftest
        .into_iter()
        .chain(libfabric)
        .chain([fields, rings])
        .collect()
}

/// Does each run that there is to be. In the small set the two libraries change sides from run to run.
fn all(runs: &[Run], once: impl Fn(&str, [&Library; 2]) -> Result) -> Result {
    let (ours, theirs) = (Library::ours()?, Library::Theirs);
    let here = |(_, writes, _): &&Run| !writes || kernel() >= (6, 12);
    let chosen = runs.iter().filter(|(_, _, always)| *always || is_full());
    let chosen: Vec<_> = chosen.filter(here).collect();
    if chosen.is_empty() {
        return skip("the driver of Linux 6.1 has no WRITE");
    }
    for (number, (words, ..)) in chosen.into_iter().enumerate() {
        let sides = [[&ours, &theirs], [&theirs, &ours], [&ours, &ours]];
        let chosen = match is_full() {
            true => &sides[..],
            false => &sides[number % 2..][..1],
        };
        for sides in chosen {
            once(words, *sides).map_err(|error| {
                let [server, client] = sides;
                format!("{words}, server {server:?}, client {client:?}: {error}")
            })?;
        }
    }
    Ok(())
}

/// A program of the suite on a library.
fn program(library: &Library, name: &str) -> Result<Command> {
    on(SUITE, library, &root(SUITE)?.join("usr/bin").join(name))
}

/// A program on a library, with what else a suite has. All names are bound when it starts: one that is not
/// there ends it.
fn on(suite: &str, library: &Library, program: &Path) -> Result<Command> {
    let root = root(suite)?;
    let command = |first: &[PathBuf]| loader(&root, first);
    let mut command = match library {
        Library::Theirs => {
            let mut command = command(&[]);
            // libibverbs looks for providers where they are installed, and there is that of the other Debian.
            let provider = libraries_of(&root).join("libibverbs/libefa");
            command.env("IBV_DRIVERS", provider);
            command
        }
        Library::Ours(ours) => {
            are_used(command(std::slice::from_ref(ours)).arg(program), ours)?;
            command(std::slice::from_ref(ours))
        }
        Library::OursWithRdmacm(..) => return fail("there is no librdmacm for an EFA"),
    };
    command.arg(program);
    Ok(command)
}

/// Asks the loader whether a program gets our libraries, of which libefa is one.
fn are_used(command: &mut Command, ours: &Path) -> Result {
    let output = command.env("LD_TRACE_LOADED_OBJECTS", "1").output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    for library in ["libibverbs.so.1", "libefa.so.1"] {
        let line = said.lines().find(|line| line.contains(library));
        if !line.is_some_and(|line| line.contains(&*ours.to_string_lossy())) {
            return fail(format!("{library} is not ours: {said}"));
        }
    }
    Ok(())
}

/// Catches a request or a completion that the one library writes or reads otherwise than the other, and one
/// that never comes.
fn perftest(efa: Efa, words: &str, [server, client]: [&Library; 2]) -> Result {
    let port = free_port()?;
    let (here, there) = efa.ends();
    let side = |library, device: &str| -> Result<Command> {
        let mut words = words.split_whitespace();
        let mut command = program(library, words.next().unwrap_or_default())?;
        // -F: the processor's frequency is no matter.
        command.args(["-F", "-x", "0", "-n", "20", "-d", device]);
        command.args(["-p", &port.to_string()]).args(words);
        Ok(command)
    };
    let (server, mut client) = (side(server, &here)?, side(client, &there)?);
    client.arg("127.0.0.1");
    play(server, client, || listens(port)).map(drop)
}

/// Catches a direct verb that libfabric relies on and that does otherwise here, and data that differ: `-c`
/// has it look at every byte.
fn pingpong(efa: Efa, endpoint: &str, largest: &str, [server, client]: [&Library; 2]) -> Result {
    let port = free_port()?;
    let (here, there) = efa.ends();
    // libfabric's names of a device.
    let suffix = if endpoint == "dgram" {
        "dgrm"
    } else {
        endpoint
    };
    let side = |library, device: &str| -> Result<Command> {
        let mut command = program(library, "fi_pingpong")?;
        command.args(["-p", "efa", "-e", endpoint, "-I", "5", "-S", "all", "-c"]);
        command.args(["-d", &format!("{device}-{suffix}")]);
        // Both are on one host, and are to use the device all the same.
        command.env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
        Ok(command)
    };
    let (mut server, mut client) = (side(server, &here)?, side(client, &there)?);
    server.args(["-B", &port.to_string()]);
    client.args(["-P", &port.to_string(), "127.0.0.1"]);
    let said = play(server, client, || listens(port))?;
    // It says nothing of a size that it leaves out.
    match said.client.lines().any(|line| line.starts_with(largest)) {
        true => Ok(()),
        false => fail(format!("nothing of the size {largest}: {}", said.client)),
    }
}

/// The suite whose libefa tells programs of its rings.
const NEWEST: &str = "sid";

/// Catches a ring, a size or a doorbell that is not what libefa tells of it, by a program that posts and
/// polls itself. No libfabric of Debian's does so yet.
fn rings() -> Result {
    let told = |library: &Library| -> Result<String> {
        let mut command = on(NEWEST, library, &c_program("efa_rings")?)?;
        let output = command.arg("efa_0").output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        match output.status.success() && said.ends_with("ends: well\n") {
            true => Ok(said.into_owned()),
            false => fail(format!("{library:?}: {output:?}")),
        }
    };
    same(
        told(&Library::ours()?)?,
        told(&Library::Theirs)?,
        "what was told",
    )
}

/// What is another number in each run.
struct Names {
    lkey: u32,
    rkey: u32,
    ahn: u32,
    sender: u32,
    receiver: u32,
}

/// A run of the C program: what the device got of it, and what it told.
struct Told {
    requests: Vec<String>,
    words: Vec<String>,
}

/// Catches a field of a request, a descriptor, a doorbell or a completion that is not as libefa has it. Each
/// side numbers its requests as it likes, and the ids of a completion are those of the program.
fn fields() -> Result {
    let (theirs, ours) = (told(&Library::Theirs)?, told(&Library::ours()?)?);
    let least = if kernel() >= (6, 12) { 24 } else { 18 };
    let sends = theirs.requests.iter().filter(|it| it.starts_with("send"));
    same(
        sends.count() > least,
        true,
        "whether there were enough requests",
    )?;
    alike("what the device got", &ours.requests, &theirs.requests)?;
    alike("what was told", &ours.words, &theirs.words)
}

/// Catches the first line that differs.
fn alike(what: &str, ours: &[String], theirs: &[String]) -> Result {
    // To libefa a READ is a SEND when it is done, whose kind it does not read.
    let right = |theirs: &str| match theirs.strip_prefix("READ: ") {
        Some(_) => theirs.replace("opcode 0", "opcode 2"),
        None => theirs.to_owned(),
    };
    for (ours, theirs) in ours.iter().zip(theirs) {
        same(ours.clone(), right(theirs), what)?;
    }
    same(ours.len(), theirs.len(), what)
}

fn told(library: &Library) -> Result<Told> {
    let mut control = Control::open()?;
    let mut command = on(SUITE, library, &c_program("srd")?)?;
    control.ask("tap_start", json!({}))?;
    let output = command.arg("efa_0").output()?;
    let records = control.ask("tap_take", json!({}))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let mut lines = said.lines().map(str::to_owned);
    let first = lines.next().unwrap_or_default();
    let words: Vec<String> = lines.collect();
    if !output.status.success() || words.last().is_none_or(|last| last != "ends: well") {
        return fail(format!("{library:?}: {output:?}"));
    }
    let numbers = first.split_whitespace().skip(1).map(str::parse);
    let [lkey, rkey, ahn, sender, receiver] =
        numbers.collect::<std::result::Result<Vec<_>, _>>()?[..]
    else {
        return fail(format!("no names: {first}"));
    };
    let names = Names {
        lkey,
        rkey,
        ahn,
        sender,
        receiver,
    };
    let records = records.as_array().ok_or("the tap has no list")?;
    let requests = records.iter().filter(|record| record["function"] == 0);
    let requests = requests.map(|record| names.taken_out(record));
    Ok(Told {
        requests: requests
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .flatten()
            .collect(),
        words,
    })
}

impl Names {
    /// A record in words, without what is another number in each run; none if it is not compared.
    fn taken_out(&self, record: &Value) -> Result<Option<String>> {
        let mut bytes = bytes(&record["bytes"])?;
        match record["kind"].as_str() {
            Some("send") => {
                same(&record["qpn"], &json!(self.sender), "the sender")?;
                // The numbers of the request, of 16 bits and of the rest.
                bytes[..2].fill(0);
                bytes[26..32].fill(0);
                take_out(&mut bytes[4..6], self.receiver)?;
                take_out(&mut bytes[12..14], self.ahn)?;
                let (operation, is_inline) = (bytes[2] & 0xf, bytes[2] & 1 << 5 != 0);
                let slices = usize::from(bytes[6]);
                match operation {
                    0 if is_inline => {}
                    0 => (0..slices).try_for_each(|at| {
                        take_out(&mut bytes[36 + 16 * at..40 + 16 * at], self.lkey)
                    })?,
                    _ => {
                        take_out(&mut bytes[36..40], self.rkey)?;
                        take_out(&mut bytes[52..56], self.lkey)?;
                    }
                }
            }
            Some("receive") => {
                same(&record["qpn"], &json!(self.receiver), "the receiver")?;
                bytes[8..10].fill(0);
                // One without memory has no key.
                if bytes[12..15] != [0; 3] {
                    take_out(&mut bytes[12..15], self.lkey)?;
                }
            }
            Some("doorbell") if record["queue"] != "completion" => {
                return Ok(Some(format!(
                    "doorbell {} {}",
                    record["queue"], record["value"]
                )));
            }
            _ => return Ok(None),
        }
        let kind = record["kind"].as_str().unwrap_or_default();
        Ok(Some(format!("{kind} {}: {bytes:02x?}", record["slot"])))
    }
}

/// Clears a field, which must have this number.
fn take_out(field: &mut [u8], number: u32) -> Result {
    let length = field.len();
    same(&*field, &number.to_le_bytes()[..length], "a number")?;
    field.fill(0);
    Ok(())
}

/// The bytes that are written as hexadecimal digits; none if there is no text.
fn bytes(text: &Value) -> Result<Vec<u8>> {
    let digits = text.as_str().unwrap_or_default();
    let byte = |at| Ok(u8::from_str_radix(&digits[at..at + 2], 16)?);
    (0..digits.len() / 2).map(|at| byte(2 * at)).collect()
}
