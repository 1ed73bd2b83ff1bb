//! Requests to the adapter made of software, from within the guest. `tests/connectx/README.md` has them all.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::{Result, fail};

/// The channel on which the model takes requests; one at a time may be open in the guest.
#[derive(Debug)]
pub struct Control {
    port: File,
    /// What came of a line so far.
    rest: Vec<u8>,
    next: u64,
}

impl Control {
    /// Opens the channel.
    ///
    /// # Errors
    /// If the guest has none, or another process uses it.
    pub fn open() -> Result<Self> {
        let ports = fs::read_dir("/sys/class/virtio-ports")?.flatten();
        let ours = ports.into_iter().find(|port| {
            fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim() == "vm.hca")
        });
        let name = ours.ok_or("the guest has no port vm.hca")?.file_name();
        let path = PathBuf::from("/dev").join(name);
        Ok(Self {
            port: File::options().read(true).write(true).open(path)?,
            rest: Vec::new(),
            // Not that of a process before, whose last reply may still be under way.
            next: u64::from(std::process::id()) << 32,
        })
    }

    /// Asks for something, and gives the answer.
    ///
    /// # Errors
    /// If the model says that it cannot be done.
    pub fn ask(&mut self, what: &str, fields: Value) -> Result<Value> {
        self.next += 1;
        let mut request = fields;
        request["id"] = json!(self.next);
        request["do"] = json!(what);
        writeln!(self.port, "{request}")?;
        loop {
            let line = self.line()?;
            let mut reply: Value = serde_json::from_slice(&line)?;
            if reply["id"] != request["id"] {
                continue;
            }
            return match reply.get("error") {
                Some(error) => fail(format!("the adapter refuses {what}: {error}")),
                None => Ok(reply["ok"].take()),
            };
        }
    }

    fn line(&mut self) -> Result<Vec<u8>> {
        // What has been looked at is not looked at again: a line with a tap's records is long.
        let mut looked_at = 0;
        loop {
            let new = &self.rest[looked_at..];
            if let Some(end) = new.iter().position(|byte| *byte == b'\n') {
                let rest = self.rest.split_off(looked_at + end + 1);
                return Ok(std::mem::replace(&mut self.rest, rest));
            }
            looked_at = self.rest.len();
            let mut bytes = [0; 32768];
            let length = match self.port.read(&mut bytes) {
                // The test may be one that signals interrupt.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read?,
            };
            if length == 0 {
                return fail("the adapter closed its channel");
            }
            self.rest.extend_from_slice(&bytes[..length]);
        }
    }
}
