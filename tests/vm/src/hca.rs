//! The adapters made of software (`tests/connectx`, `tests/efa`) as an option of the command line and a
//! device of the machine.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result};
use connectx::PortKind;

use crate::modules::{FOR_EFA, FOR_INFINIBAND, FOR_MLX5, FOR_WIRE, Wanted};
use crate::qemu::{Accelerator, Machine};

/// No guest has room for more.
const MOST: u16 = 8;

/// How many functions the adapter of the tests has unless another number is asked for: one for each end of a
/// wire.
pub(crate) const FOR_TESTS: u16 = 2;

/// What an adapter is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// A ConnectX with ports of this kind.
    ConnectX(PortKind),
    /// An EFA.
    Efa,
}

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [
        Self::ConnectX(PortKind::InfiniBand),
        Self::ConnectX(PortKind::Roce),
        Self::Efa,
    ];

    /// The start and the end of its name on the command line, between which the number of functions is.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::ConnectX(PortKind::InfiniBand) => ("connectx", ""),
            Self::ConnectX(PortKind::Roce) => ("connectx", ",roce"),
            Self::Efa => ("efa", ""),
        }
    }

    /// What the names of its devices begin with; their numbers follow.
    pub(crate) fn device_prefix(self) -> &'static str {
        match self {
            Self::ConnectX(_) => "mlx5_",
            Self::Efa => "efa_",
        }
    }
}

/// Which adapter a guest has.
#[derive(Clone, Debug)]
pub(crate) struct Hca {
    kind: Kind,
    /// None if the command line does not say it.
    functions: Option<u16>,
    trace: bool,
    tap: Option<PathBuf>,
    /// Decides the order in which an EFA does things.
    seed: u64,
    /// How many guests share it, each with so many functions.
    guests: u16,
}

impl FromStr for Hca {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("want connectx[=N][,roce] or efa[=N], N up to {MOST}");
        let (name, end) = match text.split_once(',') {
            Some((name, _)) => (name, &text[name.len()..]),
            None => (text, ""),
        };
        let (name, functions) = match name.split_once('=') {
            Some((name, count)) => (name, Some(count.parse().map_err(|_| wrong())?)),
            None => (name, None),
        };
        let mut kinds = Kind::ALL.into_iter();
        let kind = kinds
            .find(|kind| kind.words() == (name, end))
            .ok_or_else(wrong)?;
        if functions.is_some_and(|functions| !(1..=MOST).contains(&functions)) {
            return Err(wrong());
        }
        Ok(Self {
            functions,
            ..Self::of(kind)
        })
    }
}

/// What is put into `VM_HCA` for a program in the guest: `connectx=2,roce`, always with the number.
impl fmt::Display for Hca {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, end) = self.kind.words();
        write!(to, "{start}={}{end}", self.functions())
    }
}

impl Hca {
    fn of(kind: Kind) -> Self {
        Self {
            kind,
            functions: None,
            trace: false,
            tap: None,
            seed: u64::from(UNIX_EPOCH.elapsed().unwrap_or_default().subsec_nanos()),
            guests: 1,
        }
    }

    /// The adapter of the tests of this kind.
    pub(crate) fn for_tests(kind: Kind) -> Self {
        Self::of(kind).or_functions(FOR_TESTS)
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
        match self.kind {
            Kind::ConnectX(PortKind::InfiniBand) => [&FOR_MLX5[..], &FOR_INFINIBAND].concat(),
            Kind::ConnectX(PortKind::Roce) => FOR_MLX5.to_vec(),
            Kind::Efa if self.needs_wire() => [&FOR_EFA[..], &FOR_WIRE].concat(),
            Kind::Efa => FOR_EFA.to_vec(),
        }
    }

    /// Whether guests that share it need a wire besides, to find each other: an EFA has no netdev.
    pub(crate) fn needs_wire(&self) -> bool {
        self.kind == Kind::Efa && self.guests > 1
    }

    /// What it is.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// What its order follows from, if it keeps none by itself.
    pub(crate) fn seed(&self) -> Option<u64> {
        (self.kind == Kind::Efa).then_some(self.seed)
    }

    /// What it is in a word: of a ConnectX its ports.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.kind {
            Kind::ConnectX(PortKind::InfiniBand) => "InfiniBand",
            Kind::ConnectX(PortKind::Roce) => "RoCE",
            Kind::Efa => "EFA",
        }
    }

    /// The same adapter, telling what the driver does, or not, and what it fetches from rings to this file.
    pub(crate) fn watched(self, trace: bool, tap: Option<PathBuf>) -> Self {
        Self { trace, tap, ..self }
    }

    /// The same adapter, doing things in the order that follows from this.
    pub(crate) fn seeded(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Starts the model, with its sockets in this directory.
    ///
    /// # Errors
    /// If a socket cannot be made.
    pub(crate) fn start(&self, directory: &Path) -> Result<Model> {
        let functions = self.functions() * self.guests;
        let (trace, tap) = (self.trace, self.tap.clone());
        let started = match self.kind {
            Kind::ConnectX(port) => {
                let config = connectx::Config {
                    functions,
                    port,
                    trace,
                    tap,
                };
                connectx::Model::start(&config, directory).map(Model::ConnectX)
            }
            Kind::Efa => {
                let config = efa_model::Config {
                    functions,
                    seed: self.seed,
                    trace,
                    tap,
                };
                efa_model::Model::start(&config, directory).map(Model::Efa)
            }
        };
        started.context("starting the adapter")
    }
}

/// A running model of an adapter.
#[derive(Debug)]
pub(crate) enum Model {
    ConnectX(connectx::Model),
    Efa(efa_model::Model),
}

impl Model {
    /// The functions' sockets.
    fn sockets(&self) -> &[PathBuf] {
        match self {
            Self::ConnectX(model) => model.sockets(),
            Self::Efa(model) => model.sockets(),
        }
    }

    /// Takes requests from a program in the guest, until the stream ends.
    ///
    /// # Errors
    /// If the stream cannot be shared.
    pub(crate) fn serve_control(&self, stream: UnixStream) -> io::Result<()> {
        match self {
            Self::ConnectX(model) => model.serve_control(stream),
            Self::Efa(model) => model.serve_control(stream),
        }
    }

    /// Takes the rules that were broken since this was asked last.
    pub(crate) fn take_violations(&self) -> Vec<String> {
        match self {
            Self::ConnectX(model) => model.take_violations(),
            Self::Efa(model) => model.take_violations(),
        }
    }
}

/// The arguments to QEMU's `-device`, one for each function of the adapter that the guest of that number has.
/// With two NUMA nodes the functions are behind a PCI switch on each.
///
/// Where the guest's clock counts instructions, QEMU waits for the adapter's answer to each write. Its work
/// is then done between two instructions. Otherwise the guest goes on meanwhile, and what it counts until a
/// completion is how fast the host runs the adapter.
pub(crate) fn devices(model: &Model, hca: &Hca, guest: u16, machine: &Machine) -> Vec<String> {
    // The driver of an EFA reads a register by asking for it, and has little patience for the answer.
    let waits = machine.accelerator == Accelerator::Icount || hca.kind() == Kind::Efa;
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
        assert_eq!(functions("efa=3"), Ok(3));
        for wrong in [
            "connectx=0",
            "connectx=99",
            "connectx=",
            "connectx2",
            "rxe",
            "efa,roce",
        ] {
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
        assert_eq!(told("efa").as_deref(), Ok("efa=2"));
    }
}
