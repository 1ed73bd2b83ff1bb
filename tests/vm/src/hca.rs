//! The adapter made of software (`tests/connectx`) as an option of the command line and a device of the
//! machine.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use connectx::{Config, Model, PortKind};

use crate::modules::{FOR_INFINIBAND, FOR_MLX5, Wanted};
use crate::qemu::{Accelerator, Machine};

/// No guest has room for more.
const MOST: u16 = 8;

/// How many functions the adapter of the tests has unless another number is asked for: one for each end of a
/// wire.
pub(crate) const FOR_TESTS: u16 = 2;

/// Which adapter a guest has.
#[derive(Clone, Debug)]
pub(crate) struct Hca {
    /// None if the command line does not say it.
    functions: Option<u16>,
    port: PortKind,
    trace: bool,
    tap: Option<PathBuf>,
    /// How many guests share it, each with so many functions.
    guests: u16,
}

impl FromStr for Hca {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (text, port) = match text.strip_suffix(",roce") {
            Some(text) => (text, PortKind::Roce),
            None => (text, PortKind::InfiniBand),
        };
        let wrong = || format!("want connectx[=N][,roce], N up to {MOST}");
        let count = text.strip_prefix("connectx").ok_or_else(wrong)?;
        let functions = match count.strip_prefix('=') {
            Some(count) => Some(count.parse().map_err(|_| wrong())?),
            None if count.is_empty() => None,
            None => return Err(wrong()),
        };
        if functions.is_some_and(|functions| !(1..=MOST).contains(&functions)) {
            return Err(wrong());
        }
        Ok(Self {
            functions,
            port,
            trace: false,
            tap: None,
            guests: 1,
        })
    }
}

/// What is put into `VM_HCA` for a program in the guest: `connectx=2,roce`, always with the number.
impl fmt::Display for Hca {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "connectx={}", self.functions())?;
        match self.port {
            PortKind::InfiniBand => Ok(()),
            PortKind::Roce => to.write_str(",roce"),
        }
    }
}

impl Hca {
    /// The adapter of the tests, with ports of this kind.
    pub(crate) fn for_tests(port: PortKind) -> Self {
        Self {
            functions: Some(FOR_TESTS),
            port,
            trace: false,
            tap: None,
            guests: 1,
        }
    }

    /// The same adapter, with so many functions unless it is said how many it has.
    pub(crate) fn or_functions(self, functions: u16) -> Self {
        Self {
            functions: self.functions.or(Some(functions)),
            ..self
        }
    }

    /// The same adapter, shared by so many guests.
    pub(crate) fn shared_by(self, guests: u16) -> Self {
        Self { guests, ..self }
    }

    /// How many guests share it.
    pub(crate) fn guests(&self) -> u16 {
        self.guests
    }

    /// How many functions each guest has.
    pub(crate) fn functions(&self) -> u16 {
        self.functions.unwrap_or(1)
    }

    /// The modules that a guest needs for it.
    pub(crate) fn modules(&self) -> Vec<Wanted> {
        let further: &[Wanted] = match self.port {
            PortKind::InfiniBand => &FOR_INFINIBAND,
            PortKind::Roce => &[],
        };
        FOR_MLX5.iter().chain(further).cloned().collect()
    }

    /// What its ports are.
    pub(crate) fn port(&self) -> PortKind {
        self.port
    }

    /// Its ports in a word.
    pub(crate) fn port_name(&self) -> &'static str {
        match self.port {
            PortKind::InfiniBand => "InfiniBand",
            PortKind::Roce => "RoCE",
        }
    }

    /// The same adapter, telling what the driver does, or not, and what it fetches from rings to this file.
    pub(crate) fn watched(self, trace: bool, tap: Option<PathBuf>) -> Self {
        Self { trace, tap, ..self }
    }

    /// Starts the model, with its sockets in this directory.
    ///
    /// # Errors
    /// If a socket cannot be made.
    pub(crate) fn start(&self, directory: &Path) -> Result<Model> {
        let config = Config {
            functions: self.functions() * self.guests,
            port: self.port,
            trace: self.trace,
            tap: self.tap.clone(),
        };
        Model::start(&config, directory).context("starting the adapter")
    }
}

/// The arguments to QEMU's `-device`, one for each function of the adapter that the guest of that number has.
/// With two NUMA nodes the functions are behind a PCI switch on each.
///
/// Where the guest's clock counts instructions, QEMU waits for the adapter's answer to each write. Its work
/// is then done between two instructions. Otherwise the guest goes on meanwhile, and what it counts until a
/// completion is how fast the host runs the adapter.
pub(crate) fn devices(model: &Model, hca: &Hca, guest: u16, machine: &Machine) -> Vec<String> {
    let waits = machine.accelerator == Accelerator::Icount;
    let device = |socket: &Path, bus: &str| {
        serde_json::json!({
            "driver": "vfio-user-pci",
            "bus": bus,
            // There is no ROM to look for.
            "rombar": 0,
            "x-no-posted-writes": waits,
            "socket": { "path": socket, "type": "unix" },
        })
        .to_string()
    };
    let (first, count) = (guest * hca.functions(), hca.functions());
    let sockets = model.sockets().iter().skip(first.into());
    let sockets = sockets.take(count.into());
    if !machine.two_nodes {
        return sockets.map(|socket| device(socket, "pcie.0")).collect();
    }
    let of_first = usize::from(count.div_ceil(2));
    // The guest's firmware lists the host bridge first that was made last, and the functions keep their
    // order.
    let mut devices = switch(1, count - of_first as u16);
    devices.extend(switch(0, of_first as u16));
    devices.extend(sockets.enumerate().map(|(at, socket)| match at < of_first {
        true => device(socket, &format!("port0-{at}")),
        false => device(socket, &format!("port1-{}", at - of_first)),
    }));
    devices
}

/// A PCI switch on this node, with a port for each function, and one for another device beside them. It is
/// behind a host bridge of its own: the machine's first one belongs to no node.
fn switch(node: u16, functions: u16) -> Vec<String> {
    let first_bus = 64 * (node + 1);
    let host = format!("pxb-pcie,id=host{node},bus=pcie.0,bus_nr={first_bus},numa_node={node}");
    let chassis = 1 + node * 32;
    let root = format!("pcie-root-port,id=root{node},bus=host{node},chassis={chassis}");
    let upstream = format!("x3130-upstream,id=switch{node},bus=root{node}");
    let port = |port| {
        let chassis = chassis + 1 + port;
        format!(
            "xio3130-downstream,id=port{node}-{port},bus=switch{node},chassis={chassis},slot={port}"
        )
    };
    // What a GPU would be on a real machine: something that has a place.
    let beside = format!("pci-testdev,bus=port{node}-{functions}");
    let bridges = [host, root, upstream].into_iter();
    bridges
        .chain((0..=functions).map(port))
        .chain([beside])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_functions_is_optional_and_limited() {
        let functions = |text: &str| text.parse::<Hca>().map(|hca| hca.functions());
        assert_eq!(functions("connectx"), Ok(1));
        assert_eq!(functions("connectx=2"), Ok(2));
        for wrong in ["connectx=0", "connectx=99", "connectx=", "connectx2", "rxe"] {
            assert!(functions(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_program_is_told_all_that_was_asked_for() {
        let told = |text: &str| {
            text.parse()
                .map(|hca: Hca| hca.or_functions(FOR_TESTS).to_string())
        };
        assert_eq!(told("connectx").as_deref(), Ok("connectx=2"));
        assert_eq!(told("connectx=1,roce").as_deref(), Ok("connectx=1,roce"));
    }
}
