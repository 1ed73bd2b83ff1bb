//! Measurements: building the programs of `benches/`, reading their records, and showing them.

mod build;
pub(crate) mod docs;
mod plot;
pub(crate) mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

pub(crate) use self::build::Programs;

/// A row, as `benches` prints it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Record {
    /// Which table.
    pub(crate) group: String,
    /// What was measured.
    pub(crate) row: String,
    /// What the numbers count.
    pub(crate) unit: String,
    /// The number of each program, by the program's column.
    pub(crate) values: BTreeMap<String, f64>,
    /// Ours over that of `against`.
    pub(crate) ratio: Option<f64>,
    /// The column that the ratio is over.
    pub(crate) against: String,
    /// What is aimed at.
    pub(crate) goal: Option<Goal>,
    /// Other numbers, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) details: BTreeMap<String, serde_json::Value>,
}

/// What is aimed at, and whether it was come to.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Goal {
    /// In words.
    pub(crate) text: String,
    /// Whether the number is within it.
    pub(crate) met: bool,
}

/// The records of one guest, and what it ran on.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Measured {
    /// The guest's kernel.
    pub(crate) kernel: String,
    /// What ran the guest.
    pub(crate) accelerator: String,
    /// The arguments of `cargo vm`.
    pub(crate) command: Vec<String>,
    /// The rows.
    pub(crate) records: Vec<Record>,
}

impl Measured {
    /// Reads what was measured earlier, of several runs in their order.
    ///
    /// # Errors
    /// If a file is not there or has something else.
    pub(crate) fn read(files: &[PathBuf]) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for path in files {
            let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
            let of_run: Vec<Self> = serde_json::from_slice(&text)
                .with_context(|| format!("reading {}", path.display()))?;
            all.extend(of_run);
        }
        Ok(all)
    }
}

/// Reads records, one to a line.
///
/// # Errors
/// If a line is none.
pub(crate) fn records(lines: &str) -> Result<Vec<Record>> {
    let read =
        |line| serde_json::from_str(line).with_context(|| format!("reading the record {line:?}"));
    lines.lines().map(read).collect()
}
