//! `uverbs doctor`: why RDMA does not work here, and what will get in the way later.
//!
//! Each check examines one thing and reports what it found, with a verdict and, unless all is well, a remedy.
//! The checks of the host are in [`host`] and [`library`]; of a device and its ports in [`adapter`],
//! [`netdev`], [`pci`] and [`on_demand`]; of the path to a peer in [`peer`] and [`datagram`], whose other end
//! is [`serve`]. Files are read below a root, which tests replace ([`Files`]).

mod adapter;
mod datagram;
mod host;
mod library;
mod netdev;
mod on_demand;
mod pci;
mod peer;
mod report;
mod serve;

use std::fmt::{self, Display};

use clap::Args;
use serde_json::{Value, json};

use crate::complete;
use crate::failure::{Failure, Kind, Result};
use crate::files::Files;
use crate::output;
use crate::pingpong::meet;

const NOTES: &str = "\
It ends with 1 if something is broken, which a host without devices is too; warnings alone do not count.
It creates and destroys a protection domain and a memory region on each device, on soft-RoCE with on-demand
paging also two queue pairs that write to each other, and for a peer those that it pings with. It changes
nothing else.

Examples:
  uverbs doctor                 what is wrong on this host
  uverbs doctor --serve         answer pings, on another host, for
  uverbs doctor 10.9.0.1        what is wrong on the way there

";

/// Find out why RDMA does not work here, and what will get in the way later.
#[derive(Debug, Args)]
#[command(after_help = NOTES.to_owned() + crate::failure::EXIT_CODES)]
pub(crate) struct Options {
    /// Name or address of a peer (fe80::1%eth0 if it is link-local): look for a way to it, ask its connection
    /// manager for an answer, and ping what answers pings there
    #[arg(group = "pings")]
    peer: Option<String>,

    /// Be the peer: answer the pings of other hosts, by datagrams and over connections
    #[arg(long, group = "pings", conflicts_with_all = ["peer", "device", "verbose", "json", "report"])]
    serve: bool,

    /// The port of pings; rping's by default, whose servers answer those over a connection
    #[arg(short, long, value_name = "PORT", default_value_t = 7174, requires = "pings",
          value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,

    /// The device; all by default
    #[arg(short, long, add = complete::devices())]
    device: Option<String>,

    /// Show what is well, too
    #[arg(short, long)]
    verbose: bool,

    /// Print JSON, with all checks
    #[arg(long)]
    json: bool,

    /// Print everything that a report of a fault should have; it has names and addresses of this host
    #[arg(long, conflicts_with = "json")]
    report: bool,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// All is well.
    Good,
    /// It cannot be seen from here.
    Unknown,
    /// It works, and something will be slow or will fail later.
    Warning,
    /// It does not work.
    Broken,
}

impl Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Good => "good",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Broken => "BROKEN",
        })
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    check: &'static str,
    /// What was checked: a device, a port, a file.
    subject: String,
    verdict: Verdict,
    found: String,
    /// What to do. Empty if all is well.
    remedy: String,
}

/// A check of a subject, which becomes a finding.
#[derive(Clone, Debug)]
struct Check {
    name: &'static str,
    subject: String,
}

impl Check {
    fn new(name: &'static str, subject: impl Display) -> Self {
        let subject = subject.to_string();
        Self { name, subject }
    }

    fn good(self, found: impl Display) -> Finding {
        self.finding(Verdict::Good, found, "")
    }

    fn unknown(self, found: impl Display) -> Finding {
        self.finding(Verdict::Unknown, found, "")
    }

    fn warning(self, found: impl Display, remedy: impl Display) -> Finding {
        self.finding(Verdict::Warning, found, remedy)
    }

    fn broken(self, found: impl Display, remedy: impl Display) -> Finding {
        self.finding(Verdict::Broken, found, remedy)
    }

    fn finding(self, verdict: Verdict, found: impl Display, remedy: impl Display) -> Finding {
        Finding {
            check: self.name,
            subject: self.subject,
            verdict,
            found: found.to_string(),
            remedy: remedy.to_string(),
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.serve {
        return serve::run(options.port);
    }
    let files = Files::of_this_host();
    // A name without an address is not a fault of this host's RDMA.
    let addresses = match &options.peer {
        Some(peer) => meet::resolve(peer, options.port)?,
        None => Vec::new(),
    };
    let mut findings = host::findings(&files);
    findings.extend(adapter::findings(&files, options.device.as_deref())?);
    findings.extend(peer::findings(&addresses));
    match (options.json, options.report) {
        (true, _) => output::json(&findings.iter().map(to_json).collect())?,
        (false, true) => {
            show(&findings, true)?;
            report::print(&files, options.device.as_deref())?;
        }
        (false, false) => show(&findings, options.verbose)?,
    }
    let broken = findings.iter().filter(|it| it.verdict == Verdict::Broken);
    match broken.count() {
        0 => Ok(()),
        count => {
            let all = findings.len();
            let message = format!("{count} of {all} checks found something broken");
            Err(Failure::new(Kind::Failed, message))
        }
    }
}

/// The findings as a table, worst first, and the remedies below it.
fn show(findings: &[Finding], all: bool) -> Result<()> {
    let mut shown: Vec<&Finding> = findings
        .iter()
        .filter(|finding| all || finding.verdict > Verdict::Unknown)
        .collect();
    shown.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
    if shown.is_empty() {
        let count = findings.len();
        let unknown = findings.iter().filter(|it| it.verdict == Verdict::Unknown);
        let but = match unknown.count() {
            0 => String::new(),
            unknown => format!(", as far as can be seen: {unknown} are unknown"),
        };
        return output::line(format_args!(
            "{count} checks, and all is well{but} (-v shows them)"
        ));
    }
    let rows = shown.iter().map(|finding| {
        [
            finding.verdict.to_string(),
            finding.check.to_owned(),
            finding.subject.clone(),
            finding.found.clone(),
        ]
    });
    output::table(["VERDICT", "CHECK", "OF", "FOUND"], rows.collect())?;
    for finding in shown {
        if !finding.remedy.is_empty() {
            let Finding {
                check,
                subject,
                remedy,
                ..
            } = finding;
            output::line(format_args!("\n{check}, {subject}: {remedy}"))?;
        }
    }
    Ok(())
}

fn to_json(finding: &Finding) -> Value {
    json!({
        "check": finding.check,
        "of": finding.subject,
        "verdict": finding.verdict.to_string().to_lowercase(),
        "found": finding.found,
        "remedy": Some(&finding.remedy).filter(|remedy| !remedy.is_empty()),
    })
}
