//! `uverbs completions`: a script that completes this command line in a shell.

use std::io;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::failure::Result;
use crate::output;

/// Print a completion script for a shell.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  uverbs completions bash > ~/.local/share/bash-completion/completions/uverbs"
)]
pub(crate) struct Options {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut script = io::Cursor::new(Vec::new());
    clap_complete::generate(
        options.shell,
        &mut crate::Cli::command(),
        "uverbs",
        &mut script,
    );
    output::raw(script.get_ref())
}
