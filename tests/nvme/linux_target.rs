//! The example's host on Linux's target.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use support::wait::{PROCESS, until_so};
use support::{Result, pattern, run, skip, test};

use crate::disk::{ADDRESS, DiskFile, Example, SIZE, expect_same, only_in_full};

const PORT: u16 = 4421;
const NAME: &str = "nqn.2026-01.example.uverbs:linux";

/// Where Linux is told what to offer.
const CONFIGURATION: &str = "/sys/kernel/config";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("nvme::we_write_and_read_a_disk_of_linux", writes_and_reads),
        test("nvme::linux_goes_on_when_we_are_killed", killed),
    ]
}

/// A disk that Linux offers, until this is dropped.
struct Offered {
    subsystem: PathBuf,
    port: PathBuf,
}

impl Offered {
    fn new(disk: &DiskFile) -> Result<Self> {
        let all = Path::new(CONFIGURATION).join("nvmet");
        if !all.exists() && Path::new(CONFIGURATION).exists() {
            run(&format!("mount -t configfs none {CONFIGURATION}"))?;
        }
        if !all.exists() {
            return skip("the kernel has no module nvmet_rdma");
        }
        let offered = Self {
            subsystem: all.join("subsystems").join(NAME),
            port: all.join("ports/1"),
        };
        let (namespace, port) = (offered.subsystem.join("namespaces/1"), &offered.port);
        for directory in [&offered.subsystem, &namespace, port] {
            fs::create_dir(directory)?;
        }
        fs::write(offered.subsystem.join("attr_allow_any_host"), "1")?;
        // The files of a file system in memory have no other way.
        fs::write(namespace.join("buffered_io"), "1")?;
        let path = disk.path().display().to_string();
        fs::write(namespace.join("device_path"), path)?;
        fs::write(namespace.join("enable"), "1")?;
        for (attribute, value) in [
            ("addr_trtype", "rdma"),
            ("addr_adrfam", "ipv4"),
            ("addr_traddr", ADDRESS),
            ("addr_trsvcid", &PORT.to_string()),
        ] {
            fs::write(port.join(attribute), value)?;
        }
        symlink(&offered.subsystem, port.join("subsystems").join(NAME))?;
        Ok(offered)
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        // In the opposite order. What cannot be taken back stays in the guest.
        let namespace = self.subsystem.join("namespaces/1");
        let _ = fs::remove_file(self.port.join("subsystems").join(NAME));
        let _ = fs::remove_dir(&self.port);
        let _ = fs::write(namespace.join("enable"), "0");
        let _ = fs::remove_dir(namespace);
        let _ = fs::remove_dir(&self.subsystem);
    }
}

/// Catches commands that Linux reads differently, and keys to memory that are not what they should be.
fn writes_and_reads() -> Result {
    let disk = DiskFile::new("linux")?;
    let _offered = Offered::new(&disk)?;
    // Not a multiple of what one command has.
    let data = pattern(4, (1 << 20) + 4096);
    Example::write(PORT, NAME, data.clone())?.finish()?;
    disk.expect(0, &data)?;
    let other = pattern(5, 4096);
    disk.write(1 << 19, &other)?;
    let found = Example::read(PORT, NAME, data.len())?;
    let expected = [&data[..1 << 19], &other, &data[(1 << 19) + 4096..]].concat();
    expect_same(&found, &expected, "the host reads")
}

/// Catches what a host leaves behind that is killed with many commands under way: the next one has the disk.
fn killed() -> Result {
    only_in_full()?;
    let disk = DiskFile::new("linux")?;
    let _offered = Offered::new(&disk)?;
    let host = Example::write(PORT, NAME, pattern(6, SIZE))?;
    until_so(PROCESS, "something on the disk", || {
        disk.has_something(0, 4096)
    })?;
    host.kill()?;
    let data = pattern(7, 1 << 20);
    Example::write(PORT, NAME, data.clone())?.finish()?;
    disk.expect(0, &data)?;
    let found = Example::read(PORT, NAME, data.len())?;
    expect_same(&found, &data, "the host reads")
}
