//! `cargo vm clean`.

use std::fs;
use std::io;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::accel;
use crate::store::Store;

/// Remove what was fetched and found out, that is target/vm
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo vm clean            everything; the next run fetches again\n  \
    cargo vm clean --trial    only forget whether KVM works"
)]
pub(crate) struct Clean {
    /// Only forget the trial of KVM, so that the next run makes it again
    #[arg(long)]
    trial: bool,
}

impl Clean {
    /// Removes it.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let store = Store::open()?;
        let _lock = store.lock()?;
        let (path, removed) = if self.trial {
            let path = store.path(format!("{}.json", accel::STAMP));
            let removed = fs::remove_file(&path);
            (path, removed)
        } else {
            (store.root().to_path_buf(), fs::remove_dir_all(store.root()))
        };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.with_context(|| format!("removing {}", path.display()))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
