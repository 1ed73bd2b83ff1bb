//! Building what is measured: the crate `uverbs-bench`, and the C programs beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::store::Store;
use crate::{process, suite};

const PACKAGE: &str = "uverbs-bench";

/// Options for both C programs: what a distribution builds rdma-core itself with.
const C_OPTIONS: [&str; 3] = ["-O2", "-Wall", "-Wextra"];

/// The programs: that of the measurements, and a directory with all others.
#[derive(Debug)]
pub(crate) struct Programs {
    measure: PathBuf,
    others: PathBuf,
}

impl Programs {
    /// Builds them. The C program that is measured against is linked to the libibverbs that the guest has.
    ///
    /// # Errors
    /// If one does not build; a C compiler is needed.
    pub(crate) fn build(store: &Store, tools: &Path) -> Result<Self> {
        let workspace = store.workspace();
        let others = store.directory("bench")?;
        let measure = suite::binary(workspace, PACKAGE, PACKAGE)?;
        let starts = [
            ("start-up", suite::binary(workspace, PACKAGE, "start-up")?),
            (
                "start-up-static",
                suite::static_binary(workspace, PACKAGE, "start-up")?,
            ),
        ];
        for (name, path) in starts {
            fs::copy(&path, others.join(name))
                .with_context(|| format!("copying {}", path.display()))?;
        }
        let sources = workspace.join("benches");
        compile(&sources.join("bare.c"), &others.join("bare"), |command| {
            command.arg("-static");
        })?;
        compile(
            &sources.join("rdma_core.c"),
            &others.join("rdma_core"),
            |command| {
                // Headers and library of the guest; a machine that has them itself has nothing there.
                let mut library = std::ffi::OsString::from("-L");
                library.push(tools.join("usr/lib/x86_64-linux-gnu"));
                command
                    .arg("-isystem")
                    .arg(tools.join("usr/include"))
                    .arg(library)
                    .args(["-Wl,--allow-shlib-undefined", "-libverbs"]);
            },
        )?;
        Ok(Self { measure, others })
    }

    /// The command that measures.
    pub(crate) fn measure(&self) -> [String; 4] {
        let path = |path: &Path| path.display().to_string();
        [
            path(&self.measure),
            "measure".to_owned(),
            "--programs".to_owned(),
            path(&self.others),
        ]
    }
}

fn compile(source: &Path, program: &Path, options: impl FnOnce(&mut Command)) -> Result<()> {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(C_OPTIONS).arg(source).arg("-o").arg(program);
    options(&mut command);
    let step = process::describe(&command);
    let status = command
        .status()
        .with_context(|| format!("running `{step}`"))?;
    if !status.success() {
        bail!("`{step}` ended with {status}");
    }
    Ok(())
}
