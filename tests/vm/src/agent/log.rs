//! Sends the kernel's log to the host, from the first line of the boot on.

use std::fs::File;
use std::io::{self, Read, Write};
use std::thread::JoinHandle;

use super::Host;
use crate::guest::protocol::{Frame, Kind};
use crate::klog::MARK;

/// Written into the log by [`Follower::finish`], so that the follower knows that it has seen everything
/// before.
const LAST_LINE: &str = "vm: end of the log";

/// Marks in the log what runs from now on.
pub(crate) fn mark(text: &str) {
    // A log without marks is still a log.
    let _ = write_line(&format!("{INFORMATIONAL}{MARK}{text}"));
}

/// The level of such lines, as the kernel reads it: not for the console.
const INFORMATIONAL: &str = "<6>";

/// A thread that follows the log.
pub(crate) struct Follower {
    thread: JoinHandle<()>,
}

/// Starts following.
///
/// # Errors
/// If /dev/kmsg cannot be opened.
pub(crate) fn follow(host: &Host) -> io::Result<Follower> {
    let log = File::open("/dev/kmsg")?;
    let host = host.clone();
    Ok(Follower {
        thread: std::thread::spawn(move || send_all(log, &host)),
    })
}

impl Follower {
    /// Returns when all that is in the log so far has been sent.
    pub(crate) fn finish(self) {
        let written = write_line(&format!("{INFORMATIONAL}{LAST_LINE}"));
        if written.is_ok() {
            let _ = self.thread.join();
        }
    }
}

/// Writes a line into the log. It has to be one write, and without the line's end the kernel would wait for
/// more of it.
fn write_line(text: &str) -> io::Result<()> {
    File::options()
        .write(true)
        .open("/dev/kmsg")?
        .write_all(format!("{text}\n").as_bytes())
}

/// One read gives one record (dev-kmsg in the kernel's ABI documents); EPIPE says that records were
/// overwritten.
fn send_all(mut log: File, host: &Host) {
    let mut record = [0; 8192];
    loop {
        let content = match log.read(&mut record) {
            Ok(length) => line(&String::from_utf8_lossy(&record[..length])),
            Err(error) if error.raw_os_error() == Some(nix::libc::EPIPE) => {
                "vm: some lines of the log were lost".to_owned()
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        if content.ends_with(LAST_LINE) {
            return;
        }
        host.send(&Frame {
            kind: Kind::Log,
            process: 0,
            content: content.into_bytes(),
        });
    }
}

/// A record as dmesg shows it: `[    1.234567] text`.
fn line(record: &str) -> String {
    let first = record.lines().next().unwrap_or_default();
    let (header, text) = first.split_once(';').unwrap_or(("", first));
    let microseconds: u64 = header
        .split(',')
        .nth(2)
        .and_then(|time| time.parse().ok())
        .unwrap_or_default();
    format!(
        "[{:5}.{:06}] {text}",
        microseconds / 1_000_000,
        microseconds % 1_000_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_becomes_a_line_of_dmesg() {
        let record = "6,339,5140900,-;NET: Registered protocol family 10\n SUBSYSTEM=net\n";
        assert_eq!(
            line(record),
            "[    5.140900] NET: Registered protocol family 10"
        );
    }
}
