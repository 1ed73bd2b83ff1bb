//! One function as its QEMU sees it.

use std::io;
use std::sync::Arc;

use vfio_model::interrupt::Vectors;
use vfio_model::memory::GuestMemory;
use vfio_model::pci::Identity;
use vfio_model::server;

use crate::device::{self, Device};
use crate::function::Function;
use crate::pci::IDENTITY;
use crate::registers::Registers;

/// The BAR with the registers.
const REGISTERS: u32 = 0;

/// A function and its registers.
pub(crate) struct Backend {
    device: Arc<Device>,
    index: usize,
    registers: Registers,
}

impl Backend {
    /// The device's function of that number, which it has.
    pub(crate) fn new(device: &Arc<Device>, index: usize) -> Self {
        Self {
            device: Arc::clone(device),
            index,
            registers: Registers::default(),
        }
    }

    /// Does something with the function.
    fn with<T>(&mut self, work: impl FnOnce(&mut Registers, &mut Function) -> T) -> T {
        let mut functions = self.device.lock();
        work(&mut self.registers, &mut functions[self.index])
    }
}

impl server::Backend for Backend {
    const IDENTITY: Identity = IDENTITY;

    fn read(&mut self, bar: u32, offset: u64, data: &mut [u8]) {
        match bar {
            REGISTERS => self.with(|registers, function| registers.read(function, offset, data)),
            _ => data.fill(0),
        }
    }

    fn write(&mut self, bar: u32, offset: u64, data: &[u8]) {
        if bar == REGISTERS {
            let mut functions = self.device.lock();
            let function = &mut functions[self.index];
            let action = self.registers.write(function, offset, data);
            device::act(&mut functions, self.index, action);
        }
    }

    fn given(
        &mut self,
        change: impl FnOnce(&mut GuestMemory, &mut Vectors) -> io::Result<()>,
    ) -> io::Result<()> {
        self.with(|_, function| change(&mut function.memory, &mut function.vectors))
    }

    fn placed(&mut self, bar0: Option<u64>) {
        self.with(|_, function| function.bar0 = bar0);
    }

    fn reset(&mut self) {
        self.with(|registers, function| {
            *registers = Registers::default();
            function.reset();
        });
    }

    fn broken(&mut self, reason: &str) {
        let index = self.index;
        self.with(|_, function| {
            let report = &function.report;
            report.trace(|| format!("function {index} is served no more: {reason}"));
        });
    }
}
