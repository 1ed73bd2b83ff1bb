//! Linux's host on the example's target.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;

use libtest_mimic::Trial;
use support::wait::{PROCESS, until_so};
use support::{Result, fail, is_full, pattern, run, skip, test};

use crate::disk::{ADDRESS, DiskFile, Example, SIZE, expect_same, only_in_full};

const PORT: u16 = 4420;
const NAME: &str = "nqn.2026-01.example.uverbs:ours";

/// Where Linux is told to connect.
const FABRICS: &str = "/dev/nvme-fabrics";

/// Where Linux writes on a disk, behind what it reads.
const WRITTEN: usize = SIZE / 2;

/// Bytes that are written at a time.
const PIECE: usize = 128 << 10;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("nvme::linux_reads_and_writes_our_disk", reads_and_writes),
        test("nvme::linux_has_a_file_system_on_our_disk", file_system),
        test("nvme::linux_comes_back_to_our_disk", comes_back),
    ]
}

/// A disk that Linux has by NVMe over RDMA, until this is dropped.
struct Attached {
    /// The controller in sysfs.
    controller: PathBuf,
    device: PathBuf,
}

impl Attached {
    fn new(name: &str) -> Result<Self> {
        let fabrics = File::options().read(true).write(true).open(FABRICS);
        let Ok(mut fabrics) = fabrics else {
            return skip("the kernel has no module nvme_rdma");
        };
        let host = "11111111-2222-3333-4444-555555555555";
        let options = format!(
            "transport=rdma,traddr={ADDRESS},trsvcid={PORT},nqn={name},\
             hostnqn=nqn.2014-08.org.nvmexpress:uuid:{host},hostid={host},\
             reconnect_delay=1,ctrl_loss_tmo=300"
        );
        fabrics.write_all(options.as_bytes())?;
        // "instance=0,cntlid=1"
        let mut said = [0; 64];
        let length = fabrics.read(&mut said)?;
        let said = String::from_utf8_lossy(&said[..length]).into_owned();
        let number = said.strip_prefix("instance=");
        let number = number.and_then(|rest| rest.split(',').next());
        let number = number.ok_or_else(|| format!("Linux says {said:?}"))?;
        let mut attached = Self {
            controller: PathBuf::from(format!("/sys/class/nvme/nvme{number}")),
            device: PathBuf::new(),
        };
        until_so(PROCESS, "the block device", || {
            let found = attached.find_device()?;
            attached.device = found.unwrap_or_default();
            Ok(attached.device.exists())
        })?;
        Ok(attached)
    }

    /// The block device of the controller, once there is one.
    fn find_device(&self) -> Result<Option<PathBuf>> {
        for entry in fs::read_dir(&self.controller)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            let device = Path::new("/dev").join(&*name);
            if name.starts_with("nvme") && name.ends_with("n1") && device.exists() {
                return Ok(Some(device));
            }
        }
        Ok(None)
    }

    /// What Linux says of the controller: `live`, or `connecting` after it has lost it.
    fn state(&self) -> Result<String> {
        let state = fs::read_to_string(self.controller.join("state"))?;
        Ok(state.trim().to_owned())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // What cannot be detached stays in the guest, and its kernel's log tells of it.
        let _ = fs::write(self.controller.join("delete_controller"), "1");
    }
}

/// Catches commands that are misread, data that go elsewhere, and answers that come before their data.
fn reads_and_writes() -> Result {
    let disk = DiskFile::new("ours")?;
    let length = if is_full() { SIZE / 2 } else { 8 * PIECE };
    let (before, after) = (pattern(1, length), pattern(2, length));
    disk.write(0, &before)?;
    let _target = Example::serve(PORT, &disk, NAME)?;
    let attached = Attached::new(NAME)?;
    let model = fs::read_to_string(attached.controller.join("model"))?;
    if model.trim() != "uverbs example" {
        return fail(format!("the disk is a {model}"));
    }

    let device = File::options()
        .read(true)
        .write(true)
        .open(&attached.device)?;
    let mut found = vec![0; length];
    device.read_exact_at(&mut found, 0)?;
    expect_same(&found, &before, "Linux reads")?;
    // Many commands at once, of all lengths that Linux makes of it, and a short one.
    device.write_all_at(&after, WRITTEN as u64)?;
    device.write_all_at(&[7; 512], 1024)?;
    device.sync_all()?;
    disk.expect(WRITTEN, &after)?;
    disk.expect(1024, &[7; 512])?;
    disk.expect(1536, &before[1536..])?;
    drop(device);

    // Write Zeroes: no data travel.
    let zeroed = format!("fallocate --zero-range -o {WRITTEN} -l {PIECE}");
    run(&format!("{zeroed} {}", attached.device.display()))?;
    run(&format!(
        "blockdev --flushbufs {}",
        attached.device.display()
    ))?;
    disk.expect(WRITTEN, &[0; PIECE])?;
    disk.expect(WRITTEN + PIECE, &after[PIECE..])
}

/// Catches what only a file system asks of a disk: flushes, and writes in any order at any place.
fn file_system() -> Result {
    only_in_full()?;
    let systems = fs::read_to_string("/proc/filesystems")?;
    if !systems.contains("\text4\n") {
        return skip("the kernel has no module ext4");
    }
    let disk = DiskFile::new("ours")?;
    let _target = Example::serve(PORT, &disk, NAME)?;
    let attached = Attached::new(NAME)?;
    let device = attached.device.display();
    run(&format!("mkfs.ext4 -q {device}"))?;
    let place = tempfile::tempdir()?;
    let mount = format!("mount {device} {}", place.path().display());
    let unmount = format!("umount {}", place.path().display());
    run(&mount)?;
    let written = in_files(place.path());
    run(&unmount)?;
    let written = written?;
    run(&format!("e2fsck -fn {device}"))?;
    // Nothing is left in memory: it comes from the disk.
    run(&format!("blockdev --flushbufs {device}"))?;
    run(&mount)?;
    let found = (|| {
        for (name, bytes) in &written {
            let found = fs::read(place.path().join(name))?;
            expect_same(&found, bytes, &format!("the file {name} has"))?;
        }
        Ok(())
    })();
    run(&unmount)?;
    drop(attached);
    // The disk is as Linux left it.
    run(&format!("e2fsck -fn {}", disk.path().display()))?;
    found
}

/// Writes files, and gives their names and contents.
fn in_files(directory: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for (number, length) in (0..).zip([1, 511, 4096, 70_000, 1 << 20]) {
        let (name, bytes) = (format!("file-{number}"), pattern(number, length));
        let mut file = File::create(directory.join(&name))?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        files.push((name, bytes));
    }
    Ok(files)
}

/// Catches a target that leaves something behind when it is killed under load, or does not take back a host.
fn comes_back() -> Result {
    const LENGTH: usize = 16 * PIECE;
    only_in_full()?;
    let disk = DiskFile::new("ours")?;
    let target = Example::serve(PORT, &disk, NAME)?;
    let attached = Attached::new(NAME)?;
    let device = File::options().write(true).open(&attached.device)?;
    let expected = pattern(3, LENGTH);
    thread::scope(|scope| {
        let written = scope.spawn(|| -> Result {
            for (number, piece) in expected.chunks(PIECE).enumerate() {
                device.write_all_at(piece, (number * PIECE) as u64)?;
                device.sync_all()?;
            }
            Ok(())
        });
        until_so(PROCESS, "the third piece on the disk", || {
            disk.has_something(2 * PIECE, PIECE)
        })?;
        target.kill()?;
        if disk.has_something(LENGTH - PIECE, PIECE)? {
            return fail("all was written before the target was killed");
        }
        until_so(PROCESS, "Linux to miss the target", || {
            Ok(attached.state()? != "live")
        })?;
        let _target = Example::serve(PORT, &disk, NAME)?;
        until_so(PROCESS, "Linux to be back", || {
            Ok(attached.state()? == "live")
        })?;
        let written = written.join();
        written.map_err(|_| "the thread that writes has panicked")??;
        disk.expect(0, &expected)?;
        // While there is a target that lets it go.
        drop(attached);
        Ok(())
    })
}
