//! How long each of several counted processors runs before the next one does, set through QEMU's monitor.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::qemu::TURN;

/// How long QEMU may take to answer: the processors stand still while it does.
const PATIENCE: Duration = Duration::from_secs(60);

/// The turns of a guest's processors.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    pub(super) monitor: PathBuf,
}

impl Turns {
    /// Sets how long a round of all processors takes at most, in microseconds of the counted clock.
    ///
    /// # Errors
    /// If the length is none, or QEMU does not do so.
    pub(crate) fn set(&self, length: &str) -> Result<()> {
        let length: u32 = length.trim().parse().context("the length of a turn")?;
        let stream = UnixStream::connect(&self.monitor).context("connecting to QEMU's monitor")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut monitor = Monitor {
            answers: BufReader::new(stream.try_clone()?),
            requests: stream,
        };
        monitor.ask(json!({ "execute": "qmp_capabilities" }))?;
        for (property, value) in [("interval", json!(length)), ("status", json!("on"))] {
            let arguments = json!({ "path": TURN, "property": property, "value": value });
            monitor.ask(json!({ "execute": "qom-set", "arguments": arguments }))?;
        }
        Ok(())
    }
}

struct Monitor {
    requests: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Monitor {
    /// Sends a command and waits for its answer, past the greeting and events.
    fn ask(&mut self, command: Value) -> Result<()> {
        writeln!(self.requests, "{command}").context("asking QEMU's monitor")?;
        loop {
            let mut line = String::new();
            self.answers
                .read_line(&mut line)
                .context("QEMU's monitor")?;
            let answer: Value = serde_json::from_str(&line)
                .with_context(|| format!("the answer {line:?} of QEMU's monitor"))?;
            if answer.get("return").is_some() {
                return Ok(());
            }
            if let Some(error) = answer.get("error") {
                bail!("QEMU's monitor refuses {command}: {error}");
            }
        }
    }
}
