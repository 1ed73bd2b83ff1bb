//! `cargo vm shell`.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use nix::libc::TIOCGWINSZ;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

use super::options::{self, Environment, Kernel, Machine};
use super::run;
use crate::arch::Arch;
use crate::guest::protocol::{Network, Spec, WindowSize};
use crate::guest::{self, Guest, Input};
use crate::store::Store;

nix::ioctl_read_bad!(
    /// Reads the size of a terminal (ioctl_tty(2)).
    get_window_size,
    TIOCGWINSZ,
    nix::pty::Winsize
);

/// Open a shell in a guest
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  cargo vm shell\n  cargo vm shell --kernel 6.1 --hosts 2")]
pub(crate) struct Shell {
    #[command(flatten)]
    kernel: Kernel,
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    environment: Environment,
    /// 2: network namespaces h1 (10.9.0.1, rxe1) and h2 (10.9.0.2, rxe2), joined by veth; the shell runs in
    /// h1
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    hosts: u8,
}

impl Shell {
    /// Boots, runs the shell on this terminal, ends the guest.
    ///
    /// # Errors
    /// If there is no terminal, or the guest fails.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
            bail!("cargo vm shell needs a terminal; cargo vm run -i takes input from a pipe");
        }
        // Blocked in every thread, so that the one that waits for it gets it.
        let resized = SigSet::from(Signal::SIGWINCH);
        resized.thread_block().context("blocking SIGWINCH")?;
        let store = Store::open()?;
        let network = if self.hosts == 2 {
            Network::TwoHosts
        } else {
            Network::OneHost
        };
        let (parts, options) =
            self.machine
                .prepare(&store, Arch::X86_64, &self.kernel.kernel, network)?;
        let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned());
        let spec = Spec {
            words: run::in_first_host(&[shell], network),
            environment: guest::environment(
                &parts.kernel.release,
                None,
                &self.environment.variables,
            ),
            directory: options::current_directory()?,
            input: true,
            terminal: Some(window_size()?),
        };
        let mut guest = Guest::boot(&store, &parts, &options)?;
        eprintln!(
            "vm: Linux {}; leave with exit or Ctrl-D",
            parts.kernel.release
        );
        let raw = Raw::enter()?;
        let process = guest.start(&spec)?;
        run::feed(guest.input(process));
        follow_size(guest.input(process), resized);
        let outcome = guest::to_end(&mut guest, process, None, run::pass_on);
        drop(raw);
        let outcome = outcome?;
        // What a person did to the kernel is theirs to judge: its complaints are shown, and the status stays
        // the shell's.
        options::shut_down(guest)?;
        Ok(run::status(&outcome))
    }
}

/// The terminal in raw mode, until dropped.
struct Raw {
    before: Termios,
}

impl Raw {
    fn enter() -> Result<Self> {
        let before = tcgetattr(std::io::stdin()).context("reading the terminal's settings")?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, &raw)
            .context("putting the terminal into raw mode")?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, &self.before);
    }
}

fn window_size() -> Result<WindowSize> {
    let mut size = nix::pty::Winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let stdin = std::io::stdin();
    let terminal = std::os::fd::AsRawFd::as_raw_fd(&stdin.as_fd());
    // SAFETY: the descriptor is open, and the kernel writes one `winsize` through a live exclusive reference.
    unsafe { get_window_size(terminal, &mut size) }.context("reading the terminal's size")?;
    Ok(WindowSize {
        rows: size.ws_row,
        columns: size.ws_col,
    })
}

/// Tells the guest whenever the terminal changes its size, from a thread that ends with this program.
fn follow_size(input: Input, resized: SigSet) {
    std::thread::spawn(move || {
        while resized.wait().is_ok() {
            if let Ok(size) = window_size()
                && input.resize(size).is_err()
            {
                return;
            }
        }
    });
}
