//! Memory regions of the program's own memory. The program is responsible for that memory.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};

use uverbs_uapi::enums::AdviseMrAdvice;
use uverbs_uapi::flags::{Access, AdviseMrFlags, CoreSupport, ReregMrFlags};
use uverbs_uapi::handle::MrHandle;
use uverbs_uapi::types::Sge;
use uverbs_uapi::write as abi;

use super::abi::ibv_pd;
use super::abi::queue::ibv_mr;
use super::failure::{Failure, Result, pointer, status};
use super::object::{CStruct, Object, destroy, object};
use super::pd::{PdObject, pd};
use crate::command::{
    AdviseMr, Destroy, DriverData, DriverReply, QueryMr, RegDmabufMr, RegMr, RegMrReply, ReregMr,
};
use crate::context::Context;
use crate::pd::{PdUse, User};
use crate::probes;

/// A memory region of a C program.
#[repr(C)]
pub(super) struct MrObject {
    c: CStruct<ibv_mr>,
    /// `None` if it has no memory: the kernel does not know it then, and it does not need to keep its PD. Nor
    /// does it need a parent domain, whose allocator and thread domain are for queues.
    kernel: Option<(MrHandle, PdUse)>,
    kind: Kind,
    /// Whether it is in the context's list of regions on demand.
    on_demand: bool,
}

/// The memory of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Memory of this process, addressed by its addresses or by others that the program has chosen.
    Memory,
    /// Memory of this process, with addresses from zero on.
    ZeroBased,
    /// Memory of the device, with addresses from zero on.
    Device,
    /// No memory, or memory with another owner: a dma-buf, or another process's region.
    Elsewhere,
}

impl Kind {
    fn of_memory(access: u32) -> Self {
        match access & Access::ZERO_BASED.bits() {
            0 => Self::Memory,
            _ => Self::ZeroBased,
        }
    }

    /// Whether the region can be registered again.
    fn is_of_memory(self) -> bool {
        matches!(self, Self::Memory | Self::ZeroBased)
    }
}

// SAFETY: the C struct is the first field.
unsafe impl Object for MrObject {
    type C = ibv_mr;
}

/// The context and the kernel's handle of a C program's region that the kernel knows.
///
/// # Safety
///
/// As for [`object`].
#[allow(dead_code, reason = "direct verbs ask, and may not be built in")]
pub(super) unsafe fn kernel_of<'a>(c: *mut ibv_mr) -> Result<(&'a Context, MrHandle)> {
    // SAFETY: the caller vouches for it.
    let object = unsafe { object::<MrObject>(c) }.ok_or(Failure::INVALID)?;
    let (handle, pd) = object.kernel.as_ref().ok_or(Failure::INVALID)?;
    Ok((pd.context(), *handle))
}

/// The properties of a region to register.
#[derive(Clone, Copy)]
struct Wanted {
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
}

/// A driver may ignore the access bits in this range that it does not know.
const OPTIONAL: u32 = Access::OPTIONAL.bits();

fn register(pd: &PdObject, c: *mut ibv_pd, wanted: Wanted) -> Result<*mut ibv_mr> {
    let context = pd.pd().context();
    let knows_optional = context
        .core_support()
        .contains(CoreSupport::OPTIONAL_MR_ACCESS);
    let access = match knows_optional {
        true => wanted.access,
        false => wanted.access & !OPTIONAL,
    };
    let command = RegMr {
        pd: pd.pd().handle(),
        address: wanted.address.addr() as u64,
        length: wanted.length as u64,
        iova: wanted.iova,
        access,
        driver: DriverData::default(),
    };
    let reply = context.driver().reg_mr(context.fd(), command)?;
    let place = (wanted.address, wanted.length);
    let kind = Kind::of_memory(access);
    let on_demand = access & Access::ON_DEMAND.bits() != 0;
    if on_demand {
        context.on_demand().note(reply.lkey);
    }
    Ok(MrObject::give_with(pd, c, place, reply, kind, on_demand))
}

impl MrObject {
    /// Gives a program a region that the kernel has registered: `length` bytes at `addr`.
    pub(super) fn give_new(
        pd: &PdObject,
        c: *mut ibv_pd,
        (addr, length): (*mut c_void, usize),
        reply: RegMrReply,
        kind: Kind,
    ) -> *mut ibv_mr {
        Self::give_with(pd, c, (addr, length), reply, kind, false)
    }

    fn give_with(
        pd: &PdObject,
        c: *mut ibv_pd,
        (addr, length): (*mut c_void, usize),
        reply: RegMrReply,
        kind: Kind,
        on_demand: bool,
    ) -> *mut ibv_mr {
        let mr = ibv_mr {
            context: pd.c_context(),
            pd: c,
            addr,
            length,
            handle: reply.handle.0,
            lkey: reply.lkey,
            rkey: reply.rkey,
        };
        probes::region(mr.lkey, mr.addr.addr(), mr.length);
        Self::give_as(pd, mr, Some(reply.handle), kind, on_demand)
    }

    fn give_as(
        pd: &PdObject,
        c: ibv_mr,
        handle: Option<MrHandle>,
        kind: Kind,
        on_demand: bool,
    ) -> *mut ibv_mr {
        let object = Self {
            c: CStruct::new(c),
            kernel: handle.map(|handle| (handle, pd.pd().user_of_root(User::Mr))),
            kind,
            on_demand,
        };
        Box::new(object).give()
    }

    /// The memory of the region.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// A region that another process has registered.
    pub(super) fn import(pd: &PdObject, c: *mut ibv_pd, handle: MrHandle) -> Result<*mut ibv_mr> {
        let known = pd.pd().context().fd().execute(&QueryMr(handle))?;
        let reply = RegMrReply {
            handle,
            lkey: known.lkey,
            rkey: known.rkey,
            driver: DriverReply::new(),
        };
        let place = (null_mut(), known.length as usize);
        Ok(Self::give_new(pd, c, place, reply, Kind::Elsewhere))
    }

    /// Changes the properties that the flags name.
    fn change(&mut self, change: &Change<'_>) -> Result<()> {
        let Change {
            flags,
            pd,
            wanted:
                Wanted {
                    address,
                    length,
                    iova,
                    access,
                },
        } = *change;
        let (handle, held) = self.kernel.as_mut().ok_or(Failure::INVALID)?;
        let command = ReregMr(abi::ReregMr {
            response: 0,
            mr_handle: handle.0,
            flags: flags.bits(),
            start: address.addr() as u64,
            length: length as u64,
            hca_va: iova,
            pd_handle: pd.map_or(0, |(pd, _)| pd.pd().handle().0),
            access_flags: access,
        });
        let context = held.context();
        let keys = context.driver().rereg_mr(context.fd(), &command)?;
        // SAFETY: the struct is the object's, and the caller has the object exclusively.
        let c = unsafe { &mut *self.c.get() };
        if self.on_demand {
            context.on_demand().forget(c.lkey);
            context.on_demand().note(keys.lkey);
        }
        (c.lkey, c.rkey) = (keys.lkey, keys.rkey);
        if flags.contains(ReregMrFlags::CHANGE_ACCESS) {
            self.kind = Kind::of_memory(access);
        }
        if let Some((pd, pointer)) = pd {
            *held = pd.pd().user_of_root(User::Mr);
            (c.pd, c.context) = (pointer, pd.c_context());
        }
        if flags.contains(ReregMrFlags::CHANGE_TRANSLATION) {
            (c.addr, c.length) = (address, length);
        }
        Ok(())
    }
}

/// The changes with which a region is registered again.
struct Change<'a> {
    flags: ReregMrFlags,
    /// The new domain, and the program's pointer to it.
    pd: Option<(&'a PdObject, *mut ibv_pd)>,
    wanted: Wanted,
}

/// `enum ibv_rereg_mr_err_code`.
mod rereg {
    /// The region is unchanged.
    pub(super) const INPUT: i32 = -1;
    /// Nothing may use the region.
    pub(super) const COMMAND: i32 = -4;
}

/// `ibv_rereg_mr(3)`.
pub unsafe extern "C" fn ibv_rereg_mr(
    c: *mut ibv_mr,
    flags: c_int,
    new_pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let flags = ReregMrFlags::from_bits_retain(flags as u32);
    let moves = flags.contains(ReregMrFlags::CHANGE_TRANSLATION);
    let gives_access = flags.contains(ReregMrFlags::CHANGE_ACCESS);
    // SAFETY: the caller passes a region, which no other thread uses meanwhile, and a PD if the domain should
    // change.
    let (object, pd) = unsafe {
        let pd = flags
            .contains(ReregMrFlags::CHANGE_PD)
            .then(|| pd(new_pd).map(|pd| (pd, new_pd)));
        let object = c.cast::<MrObject>().as_mut();
        (
            object.filter(|object| object.kind.is_of_memory()),
            pd.transpose(),
        )
    };
    let is_right = ReregMrFlags::all().contains(flags)
        && !(moves && (length == 0 || address.is_null()))
        && (access == 0 || gives_access);
    let (Some(object), Ok(pd), true) = (object, pd, is_right) else {
        Failure::INVALID.tell();
        return rereg::INPUT;
    };
    let wanted = Wanted {
        address,
        length,
        iova: address.addr() as u64,
        access: access as u32,
    };
    match object.change(&Change { flags, pd, wanted }) {
        Ok(()) => 0,
        Err(failure) => {
            failure.tell();
            rereg::COMMAND
        }
    }
}

/// `ibv_reg_mr(3)`.
pub unsafe extern "C" fn ibv_reg_mr(
    c: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's contract is that of the function called.
    unsafe { ibv_reg_mr_iova2(c, address, length, address.addr() as u64, access as u32) }
}

/// `ibv_reg_mr_iova(3)`.
pub unsafe extern "C" fn ibv_reg_mr_iova(
    c: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's contract is that of the function called.
    unsafe { ibv_reg_mr_iova2(c, address, length, iova, access as u32) }
}

/// The header's `ibv_reg_mr` and `ibv_reg_mr_iova` call it if the access is not constant.
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    c: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    let wanted = Wanted {
        address,
        length,
        iova,
        access,
    };
    // SAFETY: the caller passes a PD.
    pointer(unsafe { pd(c) }.and_then(|pd| register(pd, c, wanted)))
}

/// `ibv_reg_dmabuf_mr(3)`. The region has no address in this process.
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    c: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller passes a PD.
    unsafe { reg_dmabuf_mr(c, (offset, length), iova, fd, access, DriverData::default()) }
}

/// Like [`ibv_reg_dmabuf_mr`], with the driver's part of the command.
///
/// # Safety
///
/// As for [`ibv_reg_dmabuf_mr`].
pub(super) unsafe fn reg_dmabuf_mr(
    c: *mut ibv_pd,
    (offset, length): (u64, usize),
    iova: u64,
    fd: c_int,
    access: c_int,
    driver: DriverData,
) -> *mut ibv_mr {
    // SAFETY: by this function's contract.
    pointer(unsafe { pd(c) }.and_then(|pd| {
        let command = RegDmabufMr {
            pd: pd.pd().handle(),
            fd,
            offset,
            length: length as u64,
            iova,
            access: access as u32,
            driver,
        };
        let context = pd.pd().context();
        let reply = context.driver().reg_dmabuf_mr(context.fd(), &command)?;
        let place = (without_provenance_mut(offset as usize), length);
        Ok(MrObject::give_new(pd, c, place, reply, Kind::Elsewhere))
    }))
}

/// `ibv_alloc_null_mr(3)`.
pub(super) unsafe extern "C" fn alloc_null_mr(c: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: the caller passes a PD.
    pointer(unsafe { pd(c) }.and_then(|pd| {
        let mr = ibv_mr {
            context: pd.c_context(),
            pd: c,
            addr: null_mut(),
            length: usize::MAX,
            handle: 0,
            lkey: pd.pd().context().driver().null_lkey()?,
            rkey: 0,
        };
        Ok(MrObject::give_as(pd, mr, None, Kind::Elsewhere, false))
    }))
}

/// `ibv_advise_mr(3)`.
pub(super) unsafe extern "C" fn advise_mr(
    c: *mut ibv_pd,
    advice: u32,
    flags: u32,
    list: *mut Sge,
    count: u32,
) -> c_int {
    let count = count as usize;
    // SAFETY: the caller passes a PD and that many slices.
    status(unsafe {
        pd(c).and_then(|pd| {
            let context = pd.pd().context();
            if count > AdviseMr::MAX || list.is_null() && count > 0 {
                return Err(Failure::INVALID);
            }
            let parts = match count {
                0 => Vec::new(),
                _ => std::slice::from_raw_parts(list, count).to_vec(),
            };
            if !context.driver().kernel_checks_advice() {
                let known = context.on_demand();
                if parts.is_empty() || !parts.iter().all(|part| known.has(part.lkey)) {
                    return Err(Failure::UNSUPPORTED);
                }
            }
            Ok(context.fd().execute(&AdviseMr {
                pd: pd.pd().handle(),
                advice: AdviseMrAdvice(advice),
                flags: AdviseMrFlags::from_bits_retain(flags),
                parts,
            })?)
        })
    })
}

/// `ibv_dereg_mr(3)`.
pub unsafe extern "C" fn ibv_dereg_mr(c: *mut ibv_mr) -> c_int {
    // SAFETY: the caller passes an MR, for the last time if this succeeds.
    unsafe {
        destroy(c, |mr: &mut MrObject| match &mr.kernel {
            Some((handle, pd)) => {
                let (known, lkey) = (pd.context().on_demand(), (*c).lkey);
                if mr.on_demand {
                    known.forget(lkey);
                }
                let deregistered = pd.context().fd().execute(&Destroy(*handle));
                if mr.on_demand && deregistered.is_err() {
                    known.note(lkey);
                }
                deregistered?;
                probes::region_gone((*c).lkey);
                Ok(())
            }
            None => Ok(()),
        })
    }
}
