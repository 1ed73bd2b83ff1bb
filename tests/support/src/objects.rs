//! The kernel's own count of its objects, as iproute2's `rdma` shows it.

use crate::{Result, device, run, until};

/// How many objects of each kind there are, of all processes and the kernel's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objects {
    /// What the command line asks for.
    of: String,
    /// A line for each device: `0: rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0 srq 0`.
    counts: String,
}

impl Objects {
    /// Those of the device under test, now.
    ///
    /// # Errors
    /// If `rdma` cannot tell.
    pub fn now() -> Result<Self> {
        Self::on(device().name())
    }

    /// Those of a device by its name.
    ///
    /// # Errors
    /// If `rdma` cannot tell.
    pub fn on(device: &str) -> Result<Self> {
        Ok(Self {
            of: device.to_owned(),
            counts: run(&format!("rdma resource show {device}"))?,
        })
    }

    /// Those of all devices.
    ///
    /// # Errors
    /// If `rdma` cannot tell.
    pub fn of_all_devices() -> Result<Self> {
        Self::on("")
    }

    /// The number of one kind: `pd`, `cq`, `qp`, `mr`, `srq` or `ctx`.
    ///
    /// # Errors
    /// If the kernel does not tell this kind.
    pub fn count(&self, kind: &str) -> Result<usize> {
        let words: Vec<&str> = self.counts.split_whitespace().collect();
        let pairs = words.iter().zip(words.iter().skip(1));
        let numbers: Vec<usize> = pairs
            .filter(|(name, _)| **name == kind)
            .map(|(_, number)| number.parse())
            .collect::<std::result::Result<_, _>>()?;
        match numbers.is_empty() {
            true => Err(format!("no {kind} in {:?}", self.counts).into()),
            false => Ok(numbers.iter().sum()),
        }
    }

    /// The numbers of several kinds.
    ///
    /// # Errors
    /// As of [`Self::count`].
    pub fn counts<const N: usize>(&self, kinds: [&str; N]) -> Result<[usize; N]> {
        let mut counts = [0; N];
        for (count, kind) in counts.iter_mut().zip(kinds) {
            *count = self.count(kind)?;
        }
        Ok(counts)
    }

    /// Waits until there are as many as these again. The kernel counts down when an object's last user is
    /// gone, which may be a packet still under way.
    ///
    /// # Errors
    /// If something is left, or missing.
    pub fn await_back(&self) -> Result {
        let mut last = String::new();
        let back = until("the kernel's count of objects", || {
            last = Self::on(&self.of)?.counts;
            Ok((last == self.counts).then_some(()))
        });
        back.map_err(|error| format!("{error}:\n{last}and before:\n{}", self.counts).into())
    }
}
