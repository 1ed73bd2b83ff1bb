//! Address handles.

use std::ffi::c_int;

use uverbs_uapi::flags::WcFlags;
use uverbs_uapi::handle::AhHandle;
use uverbs_uapi::types::{AhAttr, GlobalRoute};

use super::abi::attr::{ibv_ah_attr, ibv_global_route};
use super::abi::context::ibv_context;
use super::abi::ibv_pd;
use super::abi::port::ibv_gid;
use super::abi::queue::ibv_ah;
use super::abi::work::ibv_wc;
use super::context::{ContextObject, context};
use super::failure::{Failure, Result, minus_one, pointer};
use super::object::{CStruct, Object, destroy, object};
use super::pd::pd;
use crate::command::{CreateAh, Destroy, DriverData};
use crate::driver::{self, Listed};
use crate::error::Errno;
use crate::gid::{Gid, GidEntry, GidType};
use crate::grh::{GRH_LENGTH, Grh, GrhNetwork};
use crate::pd::{PdUse, User};
use crate::work::{DatagramTo, Destination, PdTag, TargetAt};

/// An address handle of a C program.
#[repr(C)]
pub(super) struct AhObject {
    c: CStruct<ibv_ah>,
    /// `None` if the kernel does not know it. Then it does not need to keep its PD.
    kernel: Option<(AhHandle, PdUse)>,
    /// The protection domain that it was created in.
    pd: PdTag,
    /// Its form in requests.
    vector: driver::Ah,
}

// SAFETY: the C struct is the first field.
unsafe impl Object for AhObject {
    type C = ibv_ah;
}

impl AhObject {
    /// The destination of a datagram: a queue pair that this address handle leads to.
    #[inline(always)]
    pub(super) fn to<D: Listed>(&self, qpn: u32, qkey: u32) -> Result<Destination<'_, D::Ah>> {
        let (ah, pd) = (self.of::<D>()?, self.pd);
        Ok(Destination::Datagram(DatagramTo { ah, qpn, qkey, pd }))
    }

    /// A target of dynamic connections that it leads to.
    #[inline(always)]
    pub(super) fn to_target<D: Listed>(
        &self,
        number: u32,
        key: u64,
        stream: u16,
    ) -> Result<Destination<'_, D::Ah>> {
        Ok(Destination::Target(TargetAt {
            ah: self.of::<D>()?,
            number,
            key,
            stream,
            pd: self.pd,
        }))
    }

    /// The part of the driver `D` in it. A handle of another driver belongs to another PD.
    #[inline(always)]
    fn of<D: Listed>(&self) -> Result<&D::Ah> {
        D::get(&self.vector).ok_or(Failure::INVALID)
    }

    /// Its form in requests.
    #[allow(dead_code, reason = "direct verbs ask, and may not be built in")]
    pub(super) fn vector(&self) -> &driver::Ah {
        &self.vector
    }
}

/// The object of a C program's address handle.
///
/// # Safety
///
/// As for [`object`].
#[inline(always)]
pub(super) unsafe fn ah<'a>(c: *mut ibv_ah) -> Result<&'a AhObject> {
    // SAFETY: the caller vouches for it.
    unsafe { object::<AhObject>(c) }.ok_or(Failure::INVALID)
}

/// A path in the kernel's form.
pub(super) fn path(attr: &ibv_ah_attr) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            // SAFETY: all bytes of the union are initialised, whichever variant was written.
            dgid: unsafe { attr.grh.dgid.raw },
            flow_label: attr.grh.flow_label,
            sgid_index: attr.grh.sgid_index,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
            reserved: 0,
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global,
        port_num: attr.port_num,
        reserved: 0,
    }
}

/// `ibv_create_ah(3)`.
pub unsafe extern "C" fn ibv_create_ah(c: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller passes a PD and a path.
    pointer(unsafe {
        pd(c).and_then(|pd| {
            let attributes = path(attr.as_ref().ok_or(Failure::INVALID)?);
            let context = pd.pd().context();
            let (driver, fd) = (context.driver(), context.fd());
            let (handle, vector) = match driver.ah_without_kernel(fd, &attributes)? {
                Some(vector) => (None, vector),
                None => driver.create_ah(
                    fd,
                    CreateAh {
                        pd: pd.pd().handle(),
                        attributes,
                        driver: DriverData::default(),
                    },
                )?,
            };
            let ah = ibv_ah {
                context: pd.c_context(),
                pd: c,
                handle: handle.map_or(0, |handle| handle.0),
            };
            let object = AhObject {
                c: CStruct::new(ah),
                kernel: handle.map(|handle| (handle, pd.pd().user_of_root(User::Ah))),
                pd: pd.pd().tag(),
                vector,
            };
            Ok(Box::new(object).give())
        })
    })
}

/// `ibv_destroy_ah(3)`.
pub unsafe extern "C" fn ibv_destroy_ah(c: *mut ibv_ah) -> c_int {
    // SAFETY: the caller passes an address handle, for the last time if this succeeds.
    unsafe {
        destroy(c, |ah: &mut AhObject| match &ah.kernel {
            Some((handle, pd)) => {
                let (driver, fd) = (pd.context().driver(), pd.context().fd());
                Ok(driver.destroy_ah(*handle, || fd.execute(&Destroy(*handle)))?)
            }
            None => Ok(()),
        })
    }
}

/// The path back to the sender of a datagram.
fn path_back(
    context: &ContextObject,
    port: u8,
    completion: &ibv_wc,
    grh: Option<&[u8; GRH_LENGTH]>,
) -> Result<ibv_ah_attr> {
    let mut attr = ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: [0; 16] },
            flow_label: 0,
            sgid_index: 0,
            hop_limit: 0,
            traffic_class: 0,
        },
        dlid: completion.slid,
        sl: completion.sl,
        src_path_bits: completion.dlid_path_bits,
        static_rate: 0,
        is_global: 0,
        port_num: port,
    };
    if WcFlags::from_bits_retain(completion.wc_flags).contains(WcFlags::GRH) {
        let bytes = grh.ok_or(Failure::INVALID)?;
        let grh = Grh::parse(bytes).ok_or(Failure::INVALID)?;
        let types = types(&grh, bytes[NEXT_HEADER])?;
        let table = context.context().gid_table()?;
        attr.is_global = 1;
        attr.grh = ibv_global_route {
            dgid: ibv_gid {
                raw: grh.sgid.raw(),
            },
            flow_label: grh.flow_label,
            sgid_index: index_of(table.iter(), port, grh.dgid, types).ok_or(Failure::INVALID)?,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
        };
    }
    Ok(attr)
}

/// The byte of an IPv6 header, or of InfiniBand's, that names the next header.
const NEXT_HEADER: usize = 6;
/// The header after InfiniBand's own, and after the IPv6 header of RoCE v2: UDP.
const IB: u8 = 0x1b;
const UDP: u8 = 17;

/// The types of GID table entries that datagrams with this header are sent to.
fn types(grh: &Grh, next_header: u8) -> Result<&'static [GidType]> {
    match (grh.network, next_header) {
        (GrhNetwork::Ipv4, _) | (GrhNetwork::Ipv6, UDP) => Ok(&[GidType::RoceV2]),
        (GrhNetwork::Ipv6, IB) => Ok(&[GidType::Ib, GidType::RoceV1]),
        (GrhNetwork::Ipv6, _) => Err(Failure(Errno::PROTONOSUPPORT)),
    }
}

/// The index in a port's table of the GID that a datagram was sent to, by an entry of one of these types: the
/// table may have the GID once for each version of RoCE.
fn index_of<'a>(
    mut entries: impl Iterator<Item = &'a GidEntry>,
    port: u8,
    gid: Gid,
    types: &[GidType],
) -> Option<u8> {
    let found = entries.find(|entry| {
        entry.port == u32::from(port) && entry.gid == gid && types.contains(&entry.gid_type)
    });
    found.and_then(|entry| u8::try_from(entry.index).ok())
}

/// `ibv_init_ah_from_wc(3)`.
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    c: *mut ibv_context,
    port: u8,
    completion: *mut ibv_wc,
    grh: *mut [u8; GRH_LENGTH],
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller passes an open context, a completion, a header if there is one, and room for a path.
    minus_one(unsafe {
        context(c).and_then(|context| {
            *attr = path_back(context, port, &*completion, grh.as_ref())?;
            Ok(())
        })
    })
}

/// `ibv_create_ah_from_wc(3)`.
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    c: *mut ibv_pd,
    completion: *mut ibv_wc,
    grh: *mut [u8; GRH_LENGTH],
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: the caller passes a PD, a completion, and a header if there is one.
    let path = unsafe {
        pd(c).and_then(|pd| {
            let context = context(pd.c_context())?;
            path_back(context, port, &*completion, grh.as_ref())
        })
    };
    match path {
        // SAFETY: the caller passes a PD.
        Ok(mut path) => unsafe { ibv_create_ah(c, &raw mut path) },
        Err(failure) => pointer(Err(failure)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GID: Gid = Gid::new([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

    /// An IPv6 header, or InfiniBand's, with this next header.
    fn header(next: u8) -> [u8; GRH_LENGTH] {
        let mut bytes = [0; GRH_LENGTH];
        (bytes[0], bytes[NEXT_HEADER]) = (0x60, next);
        bytes[24..].copy_from_slice(&GID.raw());
        bytes
    }

    fn entry(port: u32, index: u32, gid_type: GidType) -> GidEntry {
        GidEntry {
            port,
            index,
            gid: GID,
            gid_type,
            netdev_ifindex: 0,
        }
    }

    #[test]
    fn an_answer_leaves_as_the_datagram_came() {
        let table = [
            entry(2, 1, GidType::RoceV2),
            entry(1, 2, GidType::RoceV2),
            entry(1, 3, GidType::RoceV1),
        ];
        let index = |next| {
            let grh = Grh::parse(&header(next)).unwrap();
            types(&grh, next).map(|types| index_of(table.iter(), 1, grh.dgid, types))
        };
        assert_eq!(index(UDP), Ok(Some(2)));
        assert_eq!(index(IB), Ok(Some(3)));
        assert_eq!(index(6), Err(Failure(Errno::PROTONOSUPPORT)));
        let infiniband = [entry(1, 0, GidType::Ib)];
        assert_eq!(index_of(infiniband.iter(), 1, GID, &[GidType::Ib]), Some(0));
        assert_eq!(index_of(infiniband.iter(), 2, GID, &[GidType::Ib]), None);
    }
}
