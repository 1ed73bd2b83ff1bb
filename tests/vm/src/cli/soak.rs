//! `cargo vm soak`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use super::EXIT_RUNNER_FAILED;
use super::options::{self, Kernel, Machine};
use super::run::{pass_on, status};
use crate::arch::Arch;
use crate::guest::protocol::{Network, Spec};
use crate::guest::{self, Guest, Outcome};
use crate::store::Store;
use crate::suite::{self, Built, Ground};

/// How much longer than asked for it may take: until all requests have completed, and what is held is given
/// back.
const GRACE: Duration = Duration::from_secs(300);

/// Random traffic, failures and destruction on many queue pairs, over a bad wire between two hosts
///
/// It is the test `soak` of `cargo vm test`, for as long as one wants. Every completion is accounted for,
/// every payload looked at, and nothing may be left in the process or in the kernel. The plan follows from
/// the seed, which is printed.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo vm soak\n  cargo vm soak --seconds 60 --seed 7 --kernel 6.12"
)]
pub(crate) struct Soak {
    #[command(flatten)]
    kernel: Kernel,
    #[command(flatten)]
    machine: Machine,
    /// How long, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    seconds: u64,
    /// The seed of the plan; a new one if none is given
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl Soak {
    /// Boots, runs it, ends the guest.
    ///
    /// # Errors
    /// If it does not build, or the guest fails. A soak that fails is a status.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let store = Store::open()?;
        let suites = suite::read(store.workspace())?;
        let built = Built::some(
            store.workspace(),
            suite::Target::Here,
            &suites,
            &[Ground::TwoHosts],
        )?;
        let programs = built.programs(&suites, Ground::TwoHosts)?;
        let program = programs.iter().find(|program| program.name == "soak");
        let program = program.context("the workspace has no test named soak")?;
        let (parts, options) =
            self.machine
                .prepare(&store, Arch::X86_64, &self.kernel.kernel, Network::TwoHosts)?;
        let mut extra = vec![("UVERBS_SOAK_SECONDS".to_owned(), self.seconds.to_string())];
        extra.extend(
            self.seed
                .map(|seed| ("UVERBS_SOAK_SEED".to_owned(), seed.to_string())),
        );
        let spec = Spec {
            words: vec![
                program.path.display().to_string(),
                "soak::".to_owned(),
                "--test-threads=1".to_owned(),
            ],
            environment: guest::environment(&parts.kernel.release, options.hca.as_ref(), &extra),
            directory: program.directory.display().to_string(),
            ..Spec::default()
        };
        let mut guest = Guest::boot(&store, &parts, &options)?;
        let process = guest.start(&spec)?;
        let deadline = Instant::now() + Duration::from_secs(self.seconds) + GRACE;
        let outcome = guest::to_end(&mut guest, process, Some(deadline), pass_on)?;
        if outcome == Outcome::TimedOut {
            eprintln!("vm: killed, long after its time; {}", guest.console());
        }
        let clean = options::shut_down(guest)?;
        Ok(if clean {
            status(&outcome)
        } else {
            ExitCode::from(EXIT_RUNNER_FAILED)
        })
    }
}
