//! The adapter made of software as a test in the guest sees it: what there is, and what can be asked of it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;

use serde_json::{Value, json};

/// The result of anything here.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The adapter that the guest has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hca {
    /// How many functions: the devices are `mlx5_0` and so on.
    pub(crate) functions: u16,
    /// Whether its ports are Ethernet ones.
    pub(crate) roce: bool,
}

impl Hca {
    /// Reads `VM_HCA`, as `connectx=2,roce`. None where there is no adapter.
    pub(crate) fn of_guest() -> Option<Self> {
        std::env::var_os("VM_GUEST")?;
        let text = std::env::var("VM_HCA").ok()?;
        let (text, roce) = match text.strip_suffix(",roce") {
            Some(text) => (text, true),
            None => (text.as_str(), false),
        };
        let functions = text.strip_prefix("connectx=")?.parse().ok()?;
        Some(Self { functions, roce })
    }
}

/// Why a test of copies to registers cannot run.
pub(crate) const NO_COPIES: &str = "the kernel has found that write combining does not work here";

/// Whether programs may copy requests to the device's registers. The kernel's driver tries once whether writes are combined,
/// for 100 ms; on a busy machine it may find that they are not, and gives out no such registers then.
///
/// # Errors
/// If the device cannot be used.
pub(crate) fn takes_copies(device: &str) -> Result<bool> {
    let context = uverbs::open(device)?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(1)?);
    let _qp = pd.create_qp::<uverbs::Rc>(&cq, uverbs::Caps::default())?;
    // The page of the context is one; the queue pair's register is on another.
    Ok(registers(&context)? > 1)
}

/// Mappings of the device's file, which are those of registers.
///
/// # Errors
/// If the process cannot read its mappings.
pub(crate) fn registers(context: &uverbs::Context) -> std::io::Result<usize> {
    let path = context.device().path();
    let path = path.map_or_else(String::new, |path| path.display().to_string());
    let maps = fs::read_to_string("/proc/self/maps")?;
    Ok(maps.lines().filter(|line| line.ends_with(&path)).count())
}

/// The channel on which the model takes requests; one at a time may be open in the guest.
#[derive(Debug)]
pub(crate) struct Control {
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
    pub(crate) fn open() -> Result<Self> {
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
    pub(crate) fn ask(&mut self, what: &str, fields: Value) -> Result<Value> {
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
                Some(error) => Err(format!("the adapter refuses {what}: {error}").into()),
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
            let length = self.port.read(&mut bytes)?;
            if length == 0 {
                return Err("the adapter closed its channel".into());
            }
            self.rest.extend_from_slice(&bytes[..length]);
        }
    }
}
