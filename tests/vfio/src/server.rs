//! The vfio-user server of one function: what QEMU asks for, passed on to the function.

use std::fs::File;
use std::io;
use std::path::Path;

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR2_REGION_INDEX, VFIO_PCI_BAR4_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

use crate::interrupt::Vectors;
use crate::memory::GuestMemory;
use crate::pci::{CONFIG_SIZE, Config, Identity};

/// What a function does with what QEMU asks for.
pub trait Backend: Send + 'static {
    /// What it is.
    const IDENTITY: Identity;

    /// Reads from a BAR.
    fn read(&mut self, bar: u32, offset: u64, data: &mut [u8]);

    /// Writes to a BAR.
    fn write(&mut self, bar: u32, offset: u64, data: &[u8]);

    /// Changes what QEMU has given the function: the guest's memory and the vectors.
    fn given(
        &mut self,
        change: impl FnOnce(&mut GuestMemory, &mut Vectors) -> io::Result<()>,
    ) -> io::Result<()>;

    /// BAR 0 is at this bus address now, or answers no more.
    fn placed(&mut self, _bar0: Option<u64>) {}

    /// Forgets all that the driver did. Memory and vectors are QEMU's, and stay.
    fn reset(&mut self);

    /// The connection has broken, for this reason.
    fn broken(&mut self, reason: &str);
}

/// Serves a function on a socket, from a thread of its own that ends with QEMU's connection.
///
/// # Errors
/// If the socket cannot be made.
pub fn start<B: Backend>(backend: B, socket: &Path) -> Result<(), String> {
    let server = Server::new(
        socket,
        true,
        interrupts(&B::IDENTITY),
        regions(&B::IDENTITY),
    )
    .map_err(|error| error.to_string())?;
    let mut function = Function {
        config: Config::new(&B::IDENTITY),
        backend,
    };
    std::thread::spawn(move || {
        if let Err(error) = server.run(&mut function) {
            function.backend.broken(&error.to_string());
        }
    });
    Ok(())
}

fn regions(identity: &Identity) -> Vec<ServerRegion> {
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| {
            let size = match index {
                VFIO_PCI_BAR0_REGION_INDEX => identity.bars[0],
                VFIO_PCI_BAR2_REGION_INDEX => identity.bars[1],
                VFIO_PCI_BAR4_REGION_INDEX => identity.bars[2],
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

fn interrupts(identity: &Identity) -> Vec<IrqInfo> {
    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| {
            let count = if index == VFIO_PCI_MSIX_IRQ_INDEX {
                identity.vectors.into()
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
struct Function<B> {
    config: Config,
    backend: B,
}

impl<B: Backend> ServerBackend for Function<B> {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => self.config.read(offset, data),
            VFIO_PCI_BAR0_REGION_INDEX..=VFIO_PCI_BAR4_REGION_INDEX => {
                self.backend.read(region, offset, data);
            }
            _ => data.fill(0),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => {
                self.config.write(offset, data);
                self.backend.placed(self.config.bar0());
            }
            VFIO_PCI_BAR0_REGION_INDEX..=VFIO_PCI_BAR4_REGION_INDEX => {
                self.backend.write(region, offset, data);
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
            Some(file) => self
                .backend
                .given(|memory, _| memory.map(&file, offset, address, size)),
            None => Ok(()),
        }
    }

    fn dma_unmap(&mut self, _flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        self.backend.given(|memory, _| {
            memory.unmap(address, size);
            Ok(())
        })
    }

    fn reset(&mut self) -> io::Result<()> {
        self.config = Config::new(&B::IDENTITY);
        self.backend.placed(None);
        self.backend.reset();
        Ok(())
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
        self.backend.given(|_, vectors| {
            if flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 {
                vectors.set(start, count, fds);
            } else if count == 0 {
                vectors.clear();
            }
            Ok(())
        })
    }
}
