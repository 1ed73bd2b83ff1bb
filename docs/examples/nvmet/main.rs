//! A disk over RDMA: an NVMe target, to which Linux connects with its own driver, and a host.
//!
//! The target has one namespace, and of NVMe over Fabrics what a host needs for it: Connect and properties;
//! Identify, log pages (errors, health, firmware), features and keep-alive; read, write, write zeroes and
//! flush, with up to 4 KiB of data in a command. It has no discovery and no authentication.
//!
//! ```text
//! nvmet serve ADDRESS:PORT FILE [NQN]     # the file as a disk, for any host
//! nvmet write ADDRESS:PORT NQN < DATA     # writes a disk of any target, from its first block on
//! nvmet read ADDRESS:PORT NQN BYTES       # the first bytes of a disk, to standard output
//! nvmet [ADDRESS]                         # a target and a host in this program, for a moment
//! ```
//!
//! Linux connects to it as to any other target:
//!
//! ```text
//! modprobe nvme-rdma
//! nvme connect -t rdma -a ADDRESS -s 4420 -n nqn.2026-01.example.uverbs:disk
//! mkfs.ext4 /dev/nvme0n1
//! ```

#![forbid(unsafe_code)]

mod controller;
mod disk;
mod host;
mod target;
mod wire;

use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use disk::Disk;
use host::Host;
use target::Target;
use uverbs::{Rc, cm};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// How long a side waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);

/// The name of a disk, if none is given.
const NAME: &str = "nqn.2026-01.example.uverbs:disk";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", address, file] => serve(address.parse()?, file, NAME),
        ["serve", address, file, name] => serve(address.parse()?, file, name),
        ["write", address, name] => {
            let mut data = Vec::new();
            std::io::stdin().read_to_end(&mut data)?;
            let mut host = Host::connect(address.parse()?, name)?;
            host.write(&data)?;
            host.leave()
        }
        ["read", address, name, bytes] => {
            let mut host = Host::connect(address.parse()?, name)?;
            let data = host.read(bytes.parse()?)?;
            std::io::stdout().write_all(&data)?;
            host.leave()
        }
        [] => both(first_address()?),
        [address] => both(address.parse()?),
        _ => Err(
            "usage: nvmet [serve ADDRESS:PORT FILE [NQN] | write ADDRESS:PORT NQN | \
                  read ADDRESS:PORT NQN BYTES | ADDRESS]"
                .into(),
        ),
    }
}

/// Serves a file until it is told to end.
fn serve(address: SocketAddr, file: &str, name: &str) -> Result<()> {
    let disk = Disk::open(Path::new(file))?;
    let listener = cm::listen::<Rc>(address)?.start()?;
    println!("{name} at {}", listener.local_addr());
    let target = Arc::new(Target::new(name, disk));
    runtime()?.block_on(target::run(listener, target))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    Ok(runtime)
}

/// An IPv4 address of this host that an RDMA device has.
fn first_address() -> Result<IpAddr> {
    for device in uverbs::devices()? {
        let gids = device.gid_table(1)?;
        if let Some(address) = gids.iter().find_map(|entry| entry.gid.as_ipv4()) {
            return Ok(address.into());
        }
    }
    Err("no RDMA device of this host has an IPv4 address: name one".into())
}

/// Writes to a disk of this program's and reads it back.
fn both(address: IpAddr) -> Result<()> {
    const BYTES: usize = 4 << 20;
    let path = std::env::temp_dir().join(format!("nvmet-{}", std::process::id()));
    std::fs::File::create(&path)?.set_len(BYTES as u64)?;
    let disk = Disk::open(&path);
    // The target has it open; nobody else needs it.
    std::fs::remove_file(&path)?;
    let listener = cm::listen::<Rc>((address, 0))?.start()?;
    let server = listener.local_addr();
    let target = Arc::new(Target::new(NAME, disk?));
    let runtime = runtime()?;
    runtime.spawn(target::run(listener, target));

    let mut host = Host::connect(server, NAME)?;
    let words = (0..BYTES as u64 / 8).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let data: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    let begun = std::time::Instant::now();
    host.write(&data)?;
    let written = begun.elapsed();
    if host.read(BYTES)? != data {
        return Err("what is read is not what was written".into());
    }
    let read = begun.elapsed() - written;
    println!("{BYTES} bytes written in {written:.1?}, and read in {read:.1?}");
    host.leave()
}
