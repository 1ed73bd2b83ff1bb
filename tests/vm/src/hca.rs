//! The adapter made of software (`tests/connectx`) as an option of the command line and a device of the machine.

use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};
use connectx::{Config, Model, PortKind};

/// No guest has room for more.
const MOST: u16 = 8;

/// Which adapter a guest has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hca {
    functions: u16,
    port: PortKind,
    trace: bool,
}

impl FromStr for Hca {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (text, port) = match text.strip_suffix(",roce") {
            Some(text) => (text, PortKind::Roce),
            None => (text, PortKind::InfiniBand),
        };
        let (name, count) = text.split_once('=').unwrap_or((text, "1"));
        let functions = count
            .parse()
            .ok()
            .filter(|count| (1..=MOST).contains(count));
        match (name, functions) {
            ("connectx", Some(functions)) => Ok(Self {
                functions,
                port,
                trace: false,
            }),
            _ => Err(format!("want connectx[=N][,roce], N up to {MOST}")),
        }
    }
}

impl Hca {
    /// The same adapter, telling what the driver does, or not.
    pub(crate) fn traced(self, trace: bool) -> Self {
        Self { trace, ..self }
    }

    /// Starts the model, with its sockets in this directory.
    ///
    /// # Errors
    /// If a socket cannot be made.
    pub(crate) fn start(&self, directory: &Path) -> Result<Model> {
        let config = Config {
            functions: self.functions,
            port: self.port,
            trace: self.trace,
        };
        Model::start(&config, directory).context("starting the adapter")
    }
}

/// The arguments to QEMU's `-device`, one for each function of the adapter.
pub(crate) fn devices(model: &Model) -> Vec<String> {
    let device = |socket: &std::path::PathBuf| {
        serde_json::json!({
            "driver": "vfio-user-pci",
            // There is no ROM to look for.
            "rombar": 0,
            "socket": { "path": socket, "type": "unix" },
        })
        .to_string()
    };
    model.sockets().iter().map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_functions_is_optional_and_limited() {
        let functions = |text: &str| text.parse::<Hca>().map(|hca| hca.functions);
        assert_eq!(functions("connectx"), Ok(1));
        assert_eq!(functions("connectx=2"), Ok(2));
        for wrong in ["connectx=0", "connectx=99", "connectx=", "rxe"] {
            assert!(functions(wrong).is_err(), "{wrong}");
        }
    }
}
