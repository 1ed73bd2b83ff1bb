//! Building what is measured: the crate `uverbs-bench`, and the C programs beside it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::store::Store;
use crate::suite::CLibrary;
use crate::{c, suite};

const PACKAGE: &str = "uverbs-bench";

/// The programs: that of the measurements, and a directory with all others.
#[derive(Debug)]
pub(crate) struct Programs {
    measure: PathBuf,
    others: PathBuf,
}

impl Programs {
    /// Builds what the groups need that are wanted. The C programs to measure against are linked to the
    /// libraries that the guest has.
    ///
    /// # Errors
    /// If one does not build; a C compiler is needed.
    pub(crate) fn build(store: &Store, tools: &Path, wants: impl Fn(&str) -> bool) -> Result<Self> {
        let workspace = store.workspace();
        let others = store.directory("bench")?;
        let measure = suite::binary(workspace, PACKAGE, PACKAGE)?;
        if wants("start-up") {
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
        }
        if wants("perf") {
            let path = suite::binary(workspace, "uverbs-cli", "uverbs")?;
            fs::copy(&path, others.join("uverbs"))
                .with_context(|| format!("copying {}", path.display()))?;
        }
        if wants("c-abi") {
            let libraries = others.join("c-abi");
            for (library, file) in CLibrary::build_all(workspace)? {
                if library.is_beside_verbs() {
                    library.install(&file, &libraries)?;
                }
            }
        }
        let sources = workspace.join("benches");
        c::compile(&sources.join("bare.c"), &others.join("bare"), |command| {
            command.arg("-static");
        })?;
        for name in ["rdma_core", "srd", "dc"] {
            let source = sources.join(name).with_extension("c");
            c::compile_with_libibverbs(&source, &others.join(name), tools, &[])?;
        }
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
