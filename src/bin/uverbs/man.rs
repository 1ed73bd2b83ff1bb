//! `uverbs man`: manual pages, made from the help.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use crate::failure::{Failure, Kind, Result};

const EXAMPLE: &str = "\
Example:
  uverbs man ~/.local/share/man/man1

";

/// Write manual pages into a directory: one for each subcommand.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE.to_owned() + crate::failure::EXIT_CODES)]
pub(crate) struct Options {
    /// The directory, which is made if it is not there
    directory: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let directory = &options.directory;
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(crate::Cli::command(), directory));
    written.map_err(|error| {
        Failure::new(
            Kind::Failed,
            format_args!("{}: {error}", directory.display()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subcommand_has_a_page() {
        let directory = std::env::temp_dir().join(format!("uverbs-man-{}", std::process::id()));
        run(&Options {
            directory: directory.clone(),
        })
        .unwrap();
        let page = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
        assert!(page("uverbs.1").contains("perf"));
        assert!(page("uverbs-perf-latency.1").contains("ound trips"));
        assert!(page("uverbs-rping.1").contains(".TH"));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
