//! Memory with a number, by which commands name it (UMEM): queues and doorbell records lie in it.

use std::fmt;
use std::os::fd::AsRawFd;

use uverbs_uapi::flags::Access;

use super::Direct;
use super::command::{RegUmem, UmemHandle};
use crate::alloc::Dmabuf;
use crate::error::{DestroyError, Error, Result, Subject, Verb};
use crate::memory::{Memory, Resting};
use crate::mr::RegisterError;
use crate::owned::Owned;

/// The access that a UMEM can have (`mlx5_ib` refuses the rest).
const POSSIBLE: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::RELAXED_ORDERING);

/// Sizes of pages that the device may use: only this machine's, so that objects may begin anywhere in the
/// memory.
fn page_sizes() -> u64 {
    rustix::param::page_size() as u64
}

fn check(length: u64, access: Access) -> Result<()> {
    let refuse =
        |why: &'static str| Err(Error::invalid(Verb::DevxUmemReg, Subject::the("UMEM"), why));
    if length == 0 {
        return refuse("the memory has no bytes");
    }
    if !POSSIBLE.contains(access) {
        return refuse(
            "of access there are local and remote write, remote read, and relaxed ordering",
        );
    }
    if access.contains(Access::REMOTE_WRITE) && !access.contains(Access::LOCAL_WRITE) {
        return refuse("remote write access needs local write access");
    }
    Ok(())
}

impl Direct {
    /// Pins memory, and gives it a number for commands. With an empty `access` the device may read it.
    ///
    /// # Errors
    ///
    /// The access has flags other than local write, remote write and read, and relaxed ordering, or asks for
    /// writes to memory that is read-only; the memory is empty, or cannot be pinned. The error returns it.
    /// Manual page: `mlx5dv_devx_umem_reg(3)`.
    #[doc(alias = "mlx5dv_devx_umem_reg")]
    pub fn register<M: Memory>(
        &self,
        memory: M,
        access: Access,
    ) -> Result<Umem<M>, RegisterError<M>> {
        let (resting, (address, length)) = Resting::new(memory);
        let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mut checked = check(length as u64, access);
        if !M::WRITABLE && access.intersects(writes) {
            let why = "the memory is read-only, and the access flags allow writing";
            checked = Err(Error::invalid(Verb::DevxUmemReg, Subject::the("UMEM"), why));
        }
        let command = RegUmem {
            // Exposed: from here on the device reaches the memory by this number.
            address: address.expose_provenance() as u64,
            length: length as u64,
            access: access.bits(),
            page_sizes: page_sizes(),
            dmabuf: None,
        };
        match checked.and_then(|()| self.context().fd().execute(&command)) {
            Ok((handle, id)) => Ok(Umem {
                object: Owned::backed(self.context(), handle, resting),
                id,
                address,
                length,
            }),
            Err(error) => Err(RegisterError {
                memory: resting.into_inner(),
                error,
            }),
        }
    }

    /// Gives a part of a dma-buf a number for commands.
    ///
    /// # Errors
    ///
    /// As for [`register`](Self::register); also if the part does not lie in the dma-buf, or its exporter may
    /// move the pages. Manual page: `mlx5dv_devx_umem_reg_ex(3)`.
    #[doc(alias = "mlx5dv_devx_umem_reg_ex")]
    pub fn register_dmabuf(
        &self,
        dmabuf: &Dmabuf,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Result<DmabufUmem> {
        check(length, access)?;
        let command = RegUmem {
            address: offset,
            length,
            access: access.bits(),
            page_sizes: page_sizes(),
            dmabuf: Some(dmabuf.for_kernel().as_raw_fd()),
        };
        let (handle, id) = self.context().fd().execute(&command)?;
        Ok(DmabufUmem {
            object: Owned::backed(self.context(), handle, dmabuf.clone()),
            id,
        })
    }
}

/// Memory with a number.
///
/// Dropping it takes the number back, and frees the memory. If the device refuses, since a queue lies in it,
/// the memory is leaked.
pub struct Umem<M: Memory> {
    object: Owned<UmemHandle, Resting<M>>,
    id: u32,
    address: *mut u8,
    length: usize,
}

// SAFETY: the pointer is to memory that is `Send`, and is not dereferenced here.
unsafe impl<M: Memory> Send for Umem<M> {}
// SAFETY: shared references only give numbers and the pointer.
unsafe impl<M: Memory> Sync for Umem<M> {}

impl<M: Memory> Umem<M> {
    /// The number by which commands name it.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Takes the number back, and frees the memory.
    ///
    /// # Errors
    ///
    /// The device refuses, since a queue lies in it; the error returns it. Manual page:
    /// `mlx5dv_devx_umem_dereg(3)`.
    #[doc(alias = "mlx5dv_devx_umem_dereg")]
    pub fn deregister(mut self) -> Result<(), DestroyError<Self>> {
        let result = self.object.destroy();
        DestroyError::of(self, result)
    }
}

impl<M: Memory> fmt::Debug for Umem<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Umem")
            .field("id", &self.id)
            .field("len", &self.length)
            .finish()
    }
}

/// A part of a dma-buf with a number. Dropping it takes the number back.
pub struct DmabufUmem {
    object: Owned<UmemHandle, Dmabuf>,
    id: u32,
}

impl DmabufUmem {
    /// The number by which commands name it.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Takes the number back.
    ///
    /// # Errors
    ///
    /// As for [`Umem::deregister`].
    pub fn deregister(mut self) -> Result<(), DestroyError<Self>> {
        let result = self.object.destroy();
        DestroyError::of(self, result)
    }
}

impl fmt::Debug for DmabufUmem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmabufUmem").field("id", &self.id).finish()
    }
}
