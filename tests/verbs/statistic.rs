//! `uverbs statistic` beside what the kernel shows by itself, and what this process does.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;
use support::program::uverbs;
use support::role::finish;
use support::wait::{PROCESS, until_within};
use support::{Result, device, open, same, skip, test};
use uverbs::Access;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("statistic::ports_count_what_sysfs_shows", ports),
        test("statistic::objects_are_those_of_this_process", objects),
        test("statistic::rates_of_what_changes", rates),
        test("statistic::text_for_prometheus", openmetrics),
        test("statistic::as_prometheus_reads_it", as_prometheus_reads_it),
        test("statistic::queue_pairs_without_counters", queue_pairs),
    ]
}

fn statistic(words: &str) -> Result<String> {
    let mut command = Command::new(uverbs()?);
    command.arg("statistic").args(words.split_whitespace());
    finish(command.args(["-d", device().name()]))
}

fn json(words: &str) -> Result<Vec<Value>> {
    Ok(serde_json::from_str(&statistic(&format!(
        "{words} --json"
    ))?)?)
}

/// Catches counters that are left out, and those of another port. The modelled adapter counts nothing.
fn ports() -> Result {
    let mut expected = BTreeSet::new();
    for folder in ["counters", "hw_counters"] {
        let folder = format!("/sys/class/infiniband/{}/ports/1/{folder}", device().name());
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let entry = entry?;
            let name = entry.file_name().into_string().map_err(|_| "an odd name")?;
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            if name != "lifespan" && text.trim().parse::<u64>().is_ok() {
                expected.insert(name);
            }
        }
    }
    let readings = json("port")?;
    let of_port = readings.iter().filter(|it| it["port"] == 1);
    let names = of_port
        .filter_map(|it| it["counter"].as_str())
        .map(str::to_owned);
    same(names.collect(), expected.clone(), "counters")?;
    same(
        expected.contains("sent_pkts"),
        device().is_rxe(),
        "packets of soft-RoCE",
    )
}

/// Catches objects that are another's, and memory that is not counted.
fn objects() -> Result {
    const BYTES: usize = 123 << 10;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let _mr = pd.register(vec![0_u8; BYTES], Access::LOCAL_WRITE)?;
    let readings = json("object")?;
    let own = std::process::id();
    let value = |counter: &str| {
        let own = readings
            .iter()
            .filter(|it| it["pid"] == own && it["counter"] == counter);
        own.filter_map(|it| it["value"].as_u64()).sum::<u64>()
    };
    // Other tests of this process may have some at the same time.
    same(value("pd") >= 1, true, &format!("{readings:?}"))?;
    same(value("mr") >= 1, true, &format!("{readings:?}"))?;
    same(
        value("registered_bytes") >= BYTES as u64,
        true,
        &format!("{readings:?}"),
    )
}

/// Catches that an object which comes is no change, and one that goes.
fn rates() -> Result {
    let mut command = Command::new(uverbs()?);
    command.args(["statistic", "object", "-w=0.5", "--for", "4", "--json"]);
    command
        .args(["-d", device().name()])
        .stdout(std::process::Stdio::piped());
    let child = command.spawn()?;
    std::thread::sleep(std::time::Duration::from_secs(2));
    let mr = open()?
        .alloc_pd()?
        .register(vec![0_u8; 4096], Access::LOCAL_WRITE)?;
    let output = child.wait_with_output()?;
    drop(mr);
    let said = String::from_utf8(output.stdout)?;
    let own = std::process::id();
    let is_it = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap_or_default();
        let changes = value["changes"].as_array().cloned().unwrap_or_default();
        changes
            .iter()
            .any(|it| it["pid"] == own && it["counter"] == "mr" && it["rate"].as_f64() > Some(0.0))
    };
    same(said.lines().any(is_it), true, &said)
}

fn openmetrics() -> Result {
    let text = statistic("--openmetrics")?;
    same(text.ends_with("# EOF\n"), true, &text)?;
    let label = format!("device=\"{}\"", device().name());
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    same(samples.is_empty(), false, "no samples")?;
    for sample in samples {
        let (name, value) = sample.rsplit_once(' ').ok_or("no value")?;
        let is_right =
            name.starts_with("rdma_") && name.contains(&label) && value.parse::<f64>().is_ok();
        same(is_right, true, sample)?;
    }
    Ok(())
}

/// Catches a text that a reader of the format takes for something else than it is: a counter without its
/// type, or a label that ends too soon. The reader is Prometheus itself, told once that the text is of its
/// own format, as node_exporter reads it, and once that it is OpenMetrics.
fn as_prometheus_reads_it() -> Result {
    let text = statistic("--openmetrics")?;
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = match promtool {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return skip("no promtool here: it is fetched for a run of everything (--full)");
        }
        promtool => promtool?,
    };
    let mut input = promtool.stdin.take().ok_or("no input")?;
    input.write_all(text.as_bytes())?;
    drop(input);
    let output = promtool.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    same(output.status.success(), true, &format!("promtool: {said}"))?;

    let expected: BTreeSet<(String, String)> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').ok_or("no value")?;
            let name = name.split('{').next().unwrap_or(name);
            Ok((name.to_owned(), value.to_owned()))
        })
        .collect::<Result<_>>()?;
    let prometheus = Prometheus::start(text)?;
    for format in FORMATS {
        let query = format!("{{job=\"{}\",__name__=~\"rdma_.*\"}}", format.0);
        let found = until_within(PROCESS, "what Prometheus has read", || {
            let answer = prometheus.ask(&format!("query?query={}", escaped(&query)))?;
            let samples = answer["data"]["result"].as_array().cloned();
            let samples = samples.unwrap_or_default();
            let found: BTreeSet<(String, String)> = samples
                .iter()
                .filter_map(|of| {
                    Some((of["metric"]["__name__"].as_str()?, of["value"][1].as_str()?))
                })
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
            Ok((!found.is_empty()).then_some(found))
        })?;
        same(found, expected.clone(), format.0)?;
    }
    let known = prometheus.ask("metadata")?;
    let known = known["data"].as_object().ok_or("no metadata")?;
    for (name, _) in expected {
        let kind = if name.ends_with("_total") {
            "counter"
        } else {
            "gauge"
        };
        let told = &known.get(&name).ok_or_else(|| format!("no {name}"))?[0];
        same(told["type"].as_str(), Some(kind), &name)?;
    }
    Ok(())
}

/// The formats of a text, with what a server says of them. The names are those of Prometheus's jobs.
const FORMATS: [(&str, &str); 2] = [
    ("text", "text/plain; version=0.0.4"),
    (
        "openmetrics",
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
    ),
];

/// A Prometheus of the distribution that reads a text again and again, in each format.
struct Prometheus {
    child: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    fn start(text: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let target = listener.local_addr()?;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Who hangs up early asks again.
                let _ = serve(stream, &text);
            }
        });
        let directory = tempfile::tempdir()?;
        let jobs: String = FORMATS
            .iter()
            .map(|(name, _)| {
                format!(
                    "- job_name: {name}\n  metrics_path: /{name}\n  static_configs: \
                     [{{targets: ['{target}']}}]\n"
                )
            })
            .collect();
        let settings = directory.path().join("prometheus.yml");
        let text = format!("global: {{scrape_interval: 1s}}\nscrape_configs:\n{jobs}");
        std::fs::write(&settings, text)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", settings.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.path().display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=error")
            .spawn()?;
        Ok(Self {
            child,
            port,
            _directory: directory,
        })
    }

    /// An answer of its interface; an empty one as long as it does not listen.
    fn ask(&self, what: &str) -> Result<Value> {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else {
            std::thread::sleep(Duration::from_millis(200));
            return Ok(Value::Null);
        };
        write!(stream, "GET /api/v1/{what} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        // Until it is ready it answers by a sentence.
        Ok(serde_json::from_str(body).unwrap_or_default())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It has ended already, if it could not start.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Gives the text in the format that is asked for.
fn serve(stream: TcpStream, text: &str) -> Result {
    let mut lines = BufReader::new(&stream).lines();
    let asked = lines.next().ok_or("nothing is asked")??;
    while lines
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    let format = FORMATS.iter().find(|(name, _)| asked.contains(name));
    let (_, kind) = format.ok_or("no such format")?;
    let length = text.len();
    write!(
        &stream,
        "HTTP/1.0 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{text}"
    )?;
    Ok(())
}

/// A query in an address.
fn escaped(query: &str) -> String {
    query
        .bytes()
        .map(|byte| match byte.is_ascii_alphanumeric() {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

/// No queue pair of a guest is bound to a counter: the answer is an empty list, not a failure.
fn queue_pairs() -> Result {
    same(json("qp")?, Vec::new(), "counters")
}
