//! Valkey over RDMA: a store whose clients connect by librdmacm, on both libraries. It is built by `cargo vm
//! clients --full`.

use std::io::{BufRead, BufReader, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use libtest_mimic::Trial;
use rand::{Rng, SeedableRng, rngs::ChaCha8Rng};
use support::wait::PROCESS;
use support::{Result, fail, same, says, test};

use crate::runs::ADDRESS;
use support::library::{Library, engine};

/// Where the server listens, by rdma_cm alone.
const PORT: &str = "6379";

/// What the server says when clients may connect.
const READY: &str = "Ready to accept connections rdma";

/// What limits a client's time: only one that hangs takes as long.
const LIMIT: [&str; 4] = ["timeout", "-k", "5", "100"];

/// The status of one that has taken as long.
const TIMED_OUT: i32 = 124;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("engines::valkey_test_client", test_client),
        test("engines::valkey_values", values),
        test("engines::valkey_benchmark", benchmark),
        test("engines::valkey_after_a_killed_server", killed),
    ]
}

/// One of its programs.
fn program(name: &str) -> Result<PathBuf> {
    engine(&format!("valkey/{name}"))
}

/// A server, which is killed at the end of the test at the latest.
struct Server {
    child: Child,
    says: Receiver<String>,
}

impl Server {
    /// Starts one that keeps its data in this directory, and waits until it listens.
    fn start(library: &Library, directory: &Path, words: &[&str]) -> Result<Self> {
        let program = program("valkey-server")?;
        library.is_used_by(&program)?;
        let mut command = library.command(program);
        command
            .args(["--port", "0", "--rdma-bind", ADDRESS, "--rdma-port", PORT])
            .args(["--protected-mode", "no", "--save", ""])
            .arg("--dir")
            .arg(directory)
            .args(words);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let (sender, says) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(|line| line.ok());
            // Nobody listens any more when the test has ended.
            lines.for_each(|line| drop(sender.send(line)));
        });
        let server = Self { child, says };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&self) -> Result {
        let deadline = Instant::now() + PROCESS;
        let mut said = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.says.recv_timeout(left) {
                Ok(line) if line.contains(READY) => return Ok(()),
                Ok(line) => said.push(line),
                Err(error) => {
                    let said = said.join("\n");
                    return fail(format!("the server does not listen: {error}\n{said}"));
                }
            }
        }
    }

    /// Ends it by SIGKILL.
    fn kill(&mut self) -> Result {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// The last of what it said.
    fn last_words(&self) -> String {
        let words: Vec<String> = self.says.try_iter().collect();
        words[words.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have been killed before.
        let _ = self.kill();
    }
}

/// The command of a client program on this library, whose time is limited.
fn of_client(library: &Library, name: &str, words: &[&str]) -> Result<Command> {
    let program = program(name)?;
    library.is_used_by(&program)?;
    let mut command = library.command(LIMIT[0]);
    command.args(&LIMIT[1..]).arg(program);
    command.args(["-h", ADDRESS, "-p", PORT]).args(words);
    Ok(command)
}

/// What a client program does whose end is a success.
fn succeeds(mut command: Command) -> Result<Output> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(output),
        false => fail(format!("{}: {}", output.status, in_words(&output))),
    }
}

/// What a client program said.
fn in_words(output: &Output) -> String {
    let words = [&output.stdout, &output.stderr].map(|words| String::from_utf8_lossy(words));
    let words = words.join("\n");
    let shown = words.len().saturating_sub(2000);
    words.get(shown..).unwrap_or(&words).to_owned()
}

/// Asks the server by the command line for one thing.
fn ask(library: &Library, words: &[&str]) -> Result<String> {
    let command = of_client(library, "valkey-cli", &[&["--rdma"], words].concat())?;
    Ok(String::from_utf8(succeeds(command)?.stdout)?
        .trim_end()
        .to_owned())
}

/// Has the command line carry out a list of commands on one connection; gives the answers, each followed by
/// the end of a line.
fn carry_out(library: &Library, commands: &[u8]) -> Result<Vec<u8>> {
    let mut input = tempfile::tempfile()?;
    input.write_all(commands)?;
    input.rewind()?;
    let mut command = of_client(library, "valkey-cli", &["--rdma"])?;
    command.stdin(input);
    Ok(succeeds(command)?.stdout)
}

/// Runs a test with each library as the server's and as the client's, which gets a number of its own.
fn with_all(run: impl Fn(&Library, u64) -> Result) -> Result {
    let ours = Library::ours_with_rdmacm()?;
    for of_server in [&Library::Theirs, &ours] {
        let directory = tempfile::tempdir()?;
        let server = Server::start(of_server, directory.path(), &[])?;
        for (number, of_client) in (0..).zip([&Library::Theirs, &ours]) {
            let name = format!("{of_client:?} to {of_server:?}");
            let result = run(of_client, number);
            result.map_err(|error| format!("{name}: {error}\n{}", server.last_words()))?;
        }
    }
    Ok(())
}

/// Catches what its own test client finds: by two threads, values that come back, and a server that forks to
/// save while they are read.
fn test_client() -> Result {
    with_all(|library, _| {
        let words = ["-t", "2", "-m", "100", "-M", "101"];
        let output = succeeds(of_client(library, "rdma-test", &words)?)?;
        let said = String::from_utf8(output.stdout)?;
        says(&said, &["Valkey Over RDMA test [OK]"])?;
        same(
            said.matches("GET 100 KVs [OK]").count(),
            2,
            "threads that have read",
        )
    })
}

/// How many values are set and read, and how many bytes most of them have. Some have 64 KiB, and two a MiB,
/// which is all that either side takes in before it names new memory.
const VALUES: usize = 1000;
const SIZES: [usize; 9] = [1, 2, 10, 33, 100, 255, 1024, 4096, 10_000];

/// How many are set and read by a command.
const SET_AT_ONCE: usize = 5;
const READ_AT_ONCE: usize = 20;

fn size(key: usize) -> usize {
    match key {
        0 | 1 => 1 << 20,
        _ if key.is_multiple_of(50) => 1 << 16,
        _ => SIZES[key % SIZES.len()],
    }
}

/// The period of a value's bytes: no packet, page or buffer is a multiple of it.
const PERIOD: usize = 251;

/// A value, of any bytes. Those of one client are not those of another.
fn value(client: u64, key: usize) -> Vec<u8> {
    let mut bytes = [0; PERIOD];
    ChaCha8Rng::seed_from_u64(client << 32 | key as u64).fill_bytes(&mut bytes);
    let mut value = bytes.repeat(size(key).div_ceil(PERIOD));
    value.truncate(size(key));
    value
}

/// Catches bytes that are lost or changed on the way to the server or back, whatever their number, and a
/// server that is reached by another way.
fn values() -> Result {
    with_all(|library, number| {
        let values: Vec<Vec<u8>> = (0..VALUES).map(|key| value(number, key)).collect();
        let keys: Vec<usize> = (0..VALUES).collect();
        let set = keys.chunks(SET_AT_ONCE).map(|keys| {
            let values = keys.iter().map(|&key| {
                let value = values[key].escape_ascii();
                format!(" {key} \"{value}\"")
            });
            format!("MSET{}\n", values.collect::<String>())
        });
        let set: Vec<String> = set.collect();
        let answers = carry_out(library, set.concat().as_bytes())?;
        let right = "OK\n".repeat(set.len());
        same(
            String::from_utf8_lossy(&answers),
            right.into(),
            "answers to MSET",
        )?;
        let get = keys.chunks(READ_AT_ONCE).map(|keys| {
            let keys = keys.iter().map(|key| format!(" {key}"));
            format!("MGET{}\n", keys.collect::<String>())
        });
        let answers = carry_out(library, get.collect::<String>().as_bytes())?;
        let mut rest = answers.as_slice();
        for (key, value) in values.iter().enumerate() {
            let after = rest.strip_prefix(value.as_slice());
            rest = match after.and_then(|rest| rest.strip_prefix(b"\n")) {
                Some(rest) => rest,
                None => return fail(format!("value {key} of {} bytes is another", value.len())),
            };
        }
        same(rest.len(), 0, "bytes behind the last value")?;
        let of_server = ask(library, &["INFO", "server"])?;
        says(&of_server, &["name=rdma", &format!("bind={ADDRESS}")])?;
        says(
            &ask(library, &["INFO", "keyspace"])?,
            &[&format!("keys={VALUES},")],
        )
    })
}

/// Requests of each kind, over four connections, sixteen at a time.
const REQUESTS: &str = "1024";

/// Catches a request or an answer that is lost where many are under way on several connections: the benchmark
/// would wait for it, or end with an error, and the server counts what came.
fn benchmark() -> Result {
    with_all(|library, _| {
        ask(library, &["CONFIG", "RESETSTAT"])?;
        let load = format!("-n {REQUESTS} -c 4 -P 16 -t set,get,mset -d 512 -r 100");
        let words: Vec<&str> = ["--rdma", "-q"]
            .into_iter()
            .chain(load.split(' '))
            .collect();
        let command = of_client(library, "valkey-benchmark", &words)?;
        let said = String::from_utf8(succeeds(command)?.stdout)?;
        same(
            said.matches("requests per second").count(),
            3,
            "measurements",
        )?;
        let stats = ask(library, &["INFO", "commandstats"])?;
        for command in ["set", "get", "mset"] {
            let line = format!("cmdstat_{command}:calls={REQUESTS},");
            let line = stats.lines().find(|counted| counted.starts_with(&line));
            let Some(line) = line else {
                return fail(format!("{REQUESTS} times {command}: {stats}"));
            };
            says(&line, &["rejected_calls=0", "failed_calls=0"])?;
        }
        Ok(())
    })
}

/// How often is counted before the server is killed.
const COUNTED: u64 = 50;

/// Catches a client that hangs when its server is killed in the midst of its requests, what a killed server
/// leaves that keeps the next one from its address, and a request that was answered and not kept.
fn killed() -> Result {
    let ours = Library::ours_with_rdmacm()?;
    // If it is not there, that is told as it is, and as no failure of two libraries.
    program("valkey-server")?;
    for (of_server, of_client) in ours.pairs() {
        killed_between(of_server, of_client)
            .map_err(|error| format!("{of_client:?} to {of_server:?}: {error}"))?;
    }
    Ok(())
}

fn killed_between(of_server: &Library, library: &Library) -> Result {
    let directory = tempfile::tempdir()?;
    let keeps = ["--appendonly", "yes"];
    let mut server = Server::start(of_server, directory.path(), &keeps)?;
    same(
        ask(library, &["SET", "kept", "value"])?.as_str(),
        "OK",
        "the answer to SET",
    )?;
    let mut command = of_client(
        library,
        "valkey-cli",
        &["--rdma", "-r", "-1", "INCR", "count"],
    )?;
    let mut counter = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let answers = counter.stdout.take().ok_or("no output")?;
    let mut last = 0;
    for answer in BufReader::new(answers).lines() {
        let Ok(answer) = answer?.parse() else {
            break;
        };
        same(answer, last + 1, "a count")?;
        last = answer;
        if last == COUNTED {
            server.kill()?;
        }
    }
    let output = counter.wait_with_output()?;
    let said = in_words(&output);
    if last < COUNTED || output.status.success() || output.status.code() == Some(TIMED_OUT) {
        return fail(format!(
            "the client has counted to {last}, {}: {said}",
            output.status
        ));
    }
    says(&said, &["Error: "])?;
    let _next = Server::start(of_server, directory.path(), &keeps)?;
    same(
        ask(library, &["GET", "kept"])?.as_str(),
        "value",
        "what was kept",
    )?;
    let count: u64 = ask(library, &["GET", "count"])?.parse()?;
    // The last request may have been kept, and its answer not have arrived.
    match [last, last + 1].contains(&count) {
        true => Ok(()),
        false => fail(format!("{count} is kept, and {last} was answered")),
    }
}
