//! The vfio-user server of one function: what QEMU asks for, passed on to the parts that know.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR2_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_READ,
    VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

use crate::device::{self, Device};
use crate::interrupt::VECTORS;
use crate::pci::{BAR0_SIZE, BAR2_SIZE, CONFIG_SIZE, Config};
use crate::registers::Registers;

/// Serves a function on a socket, from a thread of its own that ends with QEMU's connection.
///
/// # Errors
/// If the socket cannot be made.
pub(crate) fn start(device: &Arc<Device>, index: usize, socket: &Path) -> Result<(), String> {
    let server =
        Server::new(socket, true, interrupts(), regions()).map_err(|error| error.to_string())?;
    let mut backend = Backend {
        device: Arc::clone(device),
        index,
        config: Config::new(),
        registers: Registers::default(),
    };
    std::thread::spawn(move || {
        if let Err(error) = server.run(&mut backend) {
            let functions = backend.device.lock();
            if let Some(function) = functions.get(index) {
                function
                    .report
                    .trace(|| format!("function {index} is served no more: {error}"));
            }
        }
    });
    Ok(())
}

fn regions() -> Vec<ServerRegion> {
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| {
            let size = match index {
                VFIO_PCI_BAR0_REGION_INDEX => BAR0_SIZE,
                VFIO_PCI_BAR2_REGION_INDEX => BAR2_SIZE,
                VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_SIZE as u64,
                _ => 0,
            };
            let flags = if size == 0 {
                0
            } else {
                VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE
            };
            ServerRegion {
                region_info: vfio_region_info {
                    argsz: size_of::<vfio_region_info>() as u32,
                    flags,
                    index,
                    cap_offset: 0,
                    size,
                    offset: 0,
                },
                sparse_areas: Vec::new(),
                mmap_fd: None,
            }
        })
        .collect()
}

fn interrupts() -> Vec<IrqInfo> {
    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| {
            let count = if index == VFIO_PCI_MSIX_IRQ_INDEX {
                VECTORS as u32
            } else {
                0
            };
            IrqInfo {
                index,
                flags: VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE,
                count,
            }
        })
        .collect()
}

/// One function as its QEMU sees it.
struct Backend {
    device: Arc<Device>,
    index: usize,
    config: Config,
    registers: Registers,
}

impl Backend {
    /// Does something with the function.
    fn with<T>(
        &mut self,
        work: impl FnOnce(&mut Registers, &mut crate::function::Function) -> T,
    ) -> io::Result<T> {
        let mut functions = self.device.lock();
        let function = functions
            .get_mut(self.index)
            .ok_or_else(|| io::Error::other("no such function"))?;
        Ok(work(&mut self.registers, function))
    }
}

impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => self.config.read(offset, data),
            VFIO_PCI_BAR0_REGION_INDEX => {
                self.with(|registers, function| registers.read(function, offset, data))?;
            }
            _ => data.fill(0),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => {
                self.config.write(offset, data);
                let bar0 = self.config.bar0();
                self.with(|_, function| function.bar0 = bar0)?;
            }
            VFIO_PCI_BAR0_REGION_INDEX => {
                let index = self.index;
                let mut functions = self.device.lock();
                let function = functions
                    .get_mut(index)
                    .ok_or_else(|| io::Error::other("no such function"))?;
                let action = self.registers.write(function, offset, data);
                device::act(&mut functions, index, action);
            }
            _ => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        _flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> io::Result<()> {
        // ROMs come without a file; no driver has its queues there.
        match fd {
            Some(file) => {
                self.with(|_, function| function.memory.map(&file, offset, address, size))?
            }
            None => Ok(()),
        }
    }

    fn dma_unmap(&mut self, _flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        self.with(|_, function| function.memory.unmap(address, size))
    }

    fn reset(&mut self) -> io::Result<()> {
        self.config = Config::new();
        self.with(|registers, function| {
            *registers = Registers::default();
            function.bar0 = None;
            function.reset();
        })
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> io::Result<()> {
        if index != VFIO_PCI_MSIX_IRQ_INDEX {
            return Ok(());
        }
        self.with(|_, function| {
            if flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 {
                function.vectors.set(start, count, fds);
            } else if count == 0 {
                function.vectors.clear();
            }
        })
    }
}
