//! `uverbs completions`: a script that completes this command line in a shell.

use clap::Args;
use clap_complete::Shell;
use clap_complete::env::Shells;

use crate::complete::VARIABLE;
use crate::failure::{Failure, Kind, Result};
use crate::output;

/// The name of the program that the shell calls.
const NAME: &str = "uverbs";

const EXAMPLES: &str = "\
Examples:
  echo 'source <(uverbs completions bash)' >> ~/.bashrc
  echo 'source <(uverbs completions zsh)' >> ~/.zshrc
  echo 'uverbs completions fish | source' > ~/.config/fish/completions/uverbs.fish

";

/// Print a completion script for a shell
///
/// With it the shell asks this program for what may come, so that it knows the host's devices, ports and
/// GIDs. It belongs to the version that has printed it: let the shell read it when it starts.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES.to_owned() + crate::failure::EXIT_CODES)]
pub(crate) struct Options {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let name = options.shell.to_string();
    let shells = Shells::builtins();
    let completer = shells.completer(&name).ok_or_else(|| {
        let text = format_args!("there are no completions for {name}");
        Failure::new(Kind::Failed, text)
    })?;
    let mut script = Vec::new();
    let written = completer.write_registration(VARIABLE, NAME, NAME, NAME, &mut script);
    written.map_err(|error| Failure::new(Kind::Failed, error))?;
    output::raw(&script)
}
