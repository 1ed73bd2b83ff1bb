//! `cargo vm test`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use connectx::PortKind;

use super::options::{Adapter, Machine};
use crate::fetch;
use crate::guest::protocol::Network;
use crate::hca::{self, Hca};
use crate::results::{self, Group, Verdict};
use crate::store::Store;
use crate::suite::{self, Ground, Limits, Program, Suite};
use crate::support;

/// Run all tests: those of the host, then those of the guest on each kernel, on soft-RoCE and on the adapter
///
/// The last line is `N passed, N failed, N skipped`, over everything. A skipped test says why. The guest's tests are the
/// programs that [package.metadata.vm] in Cargo.toml lists, each kernel is booted once, and what it has to complain
/// about in its log is a failure too. With --hca only those tests run that are for the adapter, on the adapter named; N is 2
/// if it is not given.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo vm test\n  cargo vm test --kernel 6.1 mr::\n  cargo vm test --no-host --kernel latest\n  cargo vm test --hca connectx,roce --kernel 7.2"
)]
pub(crate) struct Test {
    /// A kernel series (6.1, 6.12, 7.2, latest), the path of a system kernel, or all series
    #[arg(long, value_name = "K", default_value = "all")]
    kernel: String,
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    adapter: Adapter,
    /// Leave out the host's part
    #[arg(long)]
    no_host: bool,
    /// The time limit of one test in the guest, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    test_timeout: u64,
    /// Write what worked on which kernel to this file, as a Markdown table
    #[arg(long, value_name = "FILE")]
    support: Option<PathBuf>,
    /// Only tests whose names contain one of these
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// Where programs run: one host or two with soft-RoCE, or one with an adapter.
#[derive(Clone, Debug)]
enum Place {
    One,
    Two,
    Adapter(Hca),
}

impl Place {
    fn hca(&self) -> Option<&Hca> {
        match self {
            Place::One | Place::Two => None,
            Place::Adapter(hca) => Some(hca),
        }
    }
}

impl Test {
    /// Runs them.
    ///
    /// # Errors
    /// If they cannot be run at all. Tests that fail are a status.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let store = Store::open()?;
        let suites = suite::read(store.workspace())?;
        let hca = self.adapter.wanted();
        let mut groups = Vec::new();
        if !self.no_host && hca.is_none() {
            println!("host");
            groups.push(suite::run_on_host(store.workspace(), &suites, &self.names)?);
        }
        let of_host = groups.len();
        let build = |ground| suite::programs(store.workspace(), &suites, ground);
        if hca.is_none() {
            let [one, two] = [Ground::SoftRoce, Ground::TwoHosts].map(build);
            self.on_kernels(&store, &suites, (&Place::One, &one?), &mut groups);
            let mut wired = Vec::new();
            self.on_kernels(&store, &suites, (&Place::Two, &two?), &mut wired);
            // In the tables a kernel is one column.
            for (group, more) in groups[of_host..].iter_mut().zip(wired) {
                group.cases.extend(more.cases);
            }
        }
        let soft = groups.len();
        let adapters = match hca {
            Some(hca) => vec![hca.or_functions(hca::FOR_TESTS)],
            None => [PortKind::InfiniBand, PortKind::Roce]
                .map(Hca::for_tests)
                .to_vec(),
        };
        let programs = build(Ground::Adapter)?;
        for hca in &adapters {
            let place = Place::Adapter(hca.clone());
            self.on_kernels(&store, &suites, (&place, &programs), &mut groups);
        }
        let pairs = build(Ground::Pair)?;
        for hca in adapters {
            let place = Place::Adapter(hca.shared_by(2));
            self.on_kernels(&store, &suites, (&place, &pairs), &mut groups);
        }
        if let Some(path) = &self.support {
            fs::write(path, support::page(&groups[of_host..soft], &groups[soft..]))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let totals = results::totals(&groups);
        print!("\n{}", results::summary(&groups));
        Ok(if totals.clean() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// These programs on each kernel that was asked for.
    fn on_kernels(
        &self,
        store: &Store,
        suites: &[Suite],
        (place, programs): (&Place, &[Program]),
        groups: &mut Vec<Group>,
    ) {
        if programs.is_empty() {
            return;
        }
        let kernels = fetch::kernel::asked_for(&self.kernel);
        groups.extend(
            kernels
                .into_iter()
                .map(|kernel| self.on_kernel(store, suites, kernel, (place, programs))),
        );
    }

    /// The guest's tests on one kernel. A kernel that cannot be had or booted is a failure, and the others go on.
    fn on_kernel(
        &self,
        store: &Store,
        suites: &[Suite],
        kernel: &str,
        (place, programs): (&Place, &[Program]),
    ) -> Group {
        let limits = Limits {
            filters: self.names.clone(),
            test: Duration::from_secs(self.test_timeout),
        };
        let prepared = match place {
            Place::One => self.machine.prepare(store, kernel, Network::OneHost),
            Place::Two => self.machine.prepare(store, kernel, Network::TwoHosts),
            Place::Adapter(hca) => self
                .machine
                .prepare_with_adapter(store, kernel, hca.clone()),
        };
        let run = prepared.and_then(|(parts, options)| {
            suite::compile_c_programs(store, suites, &parts.tools.root)?;
            suite::run_in_guest(store, &parts, &options, programs, &limits)
        });
        run.unwrap_or_else(|error| {
            let name = suite::name_of_guest(kernel, place.hca());
            println!("\n{name}\nFAILED   {error:#}");
            let mut group = Group::new(name);
            group.add("boot", Verdict::Failed(format!("{error:#}")));
            group
        })
    }
}
