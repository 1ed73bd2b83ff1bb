//! The adapter made of software as a test in the guest sees it.

use std::fs;

use crate::{Result, skip};

/// The adapter that the guest has.
#[derive(Clone, Copy, Debug)]
pub struct Hca {
    /// How many functions: the devices are `mlx5_0` and so on.
    pub functions: u16,
    /// Whether its ports are Ethernet ones.
    pub roce: bool,
}

impl Hca {
    /// Reads `VM_HCA`, as `connectx=2,roce`. None where there is no adapter.
    pub fn of_guest() -> Option<Self> {
        std::env::var_os("VM_GUEST")?;
        let text = std::env::var("VM_HCA").ok()?;
        let (text, roce) = match text.strip_suffix(",roce") {
            Some(text) => (text, true),
            None => (text.as_str(), false),
        };
        let functions = text.strip_prefix("connectx=")?.parse().ok()?;
        Some(Self { functions, roce })
    }

    /// The names of its devices.
    pub fn devices(self) -> impl Iterator<Item = String> {
        (0..self.functions).map(|number| format!("mlx5_{number}"))
    }

    /// The devices at both ends of a wire: two if there are two.
    pub fn ends(self) -> (String, String) {
        let last = self.functions.min(2) - 1;
        ("mlx5_0".to_owned(), format!("mlx5_{last}"))
    }

    /// Skips a test of two functions where there is one.
    ///
    /// # Errors
    /// [`crate::outcome::Skip`] if there is one.
    pub fn needs_two(self) -> Result {
        match self.functions {
            0 | 1 => skip("needs two functions"),
            _ => Ok(()),
        }
    }

    /// The index of a GID of a RoCE port: that of the IPv4 address, of RoCE 2. None on InfiniBand, which has
    /// LIDs. Found without this library, for programs that do not use it either.
    ///
    /// # Errors
    /// If a RoCE port has none.
    pub fn gid_index(self, device: &str) -> Result<Option<u32>> {
        if !self.roce {
            return Ok(None);
        }
        let port = format!("/sys/class/infiniband/{device}/ports/1");
        let is_it = |index: &u32| {
            let read = |path: String| fs::read_to_string(path).unwrap_or_default();
            read(format!("{port}/gids/{index}")).starts_with("0000:0000:0000:0000:0000:ffff:")
                && read(format!("{port}/gid_attrs/types/{index}")).trim() == "RoCE v2"
        };
        let found = (0..16).find(is_it);
        Ok(Some(found.ok_or("no GID of an IPv4 address")?))
    }
}

/// Why a test of copies to registers cannot run.
pub const NO_COPIES: &str = "the kernel has found that write combining does not work here";

/// Skips a test of requests that are copied to the device's registers, where programs have none for it. The
/// kernel's driver tries once whether writes are combined, for 100 ms; on a busy machine it may find that
/// they are not, and gives out no such registers then.
///
/// # Errors
/// [`crate::outcome::Skip`] then; else if the device cannot be used.
pub fn needs_copies(device: &str) -> Result {
    let context = uverbs::open(device)?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(1)?);
    let _qp = pd.create_qp::<uverbs::Rc>(&cq, uverbs::Caps::default())?;
    // The page of the context is one; the queue pair's register is on another.
    match registers(&context)? {
        0 | 1 => skip(NO_COPIES),
        _ => Ok(()),
    }
}

/// Mappings of the device's file, which are those of registers.
///
/// # Errors
/// If the process cannot read its mappings.
pub fn registers(context: &uverbs::Context) -> std::io::Result<usize> {
    let path = context.device().path();
    let path = path.map_or_else(String::new, |path| path.display().to_string());
    let maps = fs::read_to_string("/proc/self/maps")?;
    Ok(maps.lines().filter(|line| line.ends_with(&path)).count())
}
