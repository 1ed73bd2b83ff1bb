//! The GID tables of ports.

use std::ffi::c_int;

use uverbs_uapi::enums::GidType as Number;

use super::abi::context::ibv_context;
use super::abi::port::{gid_type_sysfs, ibv_gid, ibv_gid_entry};
use super::context::{ContextObject, context};
use super::failure::{Failure, Result, minus_one, status};
use crate::command::QueryGid;
use crate::error::Errno;
use crate::gid::{GidEntry, GidType};

fn c_entry(entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid {
            raw: entry.gid.raw(),
        },
        gid_index: entry.index,
        port_num: entry.port,
        gid_type: match entry.gid_type {
            GidType::Ib => Number::IB.0,
            GidType::RoceV1 => Number::ROCE_V1.0,
            GidType::RoceV2 => Number::ROCE_V2.0,
            GidType::Other(number) => number,
        },
        ndev_ifindex: entry.netdev_ifindex,
    }
}

/// An entry; `ENODATA` means that it is empty.
fn entry(context: &ContextObject, port: u32, index: u32) -> Result<ibv_gid_entry> {
    let port = port.try_into().map_err(|_| Failure::INVALID)?;
    let entry = context.context().query_gid(port, index)?;
    Ok(c_entry(&entry))
}

/// As [`entry`], for functions to which an empty entry (`None`) is no failure: it costs one command, and the
/// log has no line of it.
fn entry_if_any(context: &ContextObject, port: u8, index: u32) -> Result<Option<ibv_gid_entry>> {
    let command = QueryGid {
        port: port.into(),
        index,
    };
    match context.context().fd().execute(&command) {
        Ok(entry) => Ok(Some(c_entry(&entry.into()))),
        Err(error) if error.errno() == Some(Errno::NODATA) => Ok(None),
        Err(_) => entry(context, port.into(), index).map(Some),
    }
}

/// `ibv_query_gid(3)`. An empty entry is all zeros, and no error.
pub unsafe extern "C" fn ibv_query_gid(
    c: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: the caller passes an open context and room for a GID.
    minus_one(unsafe {
        context(c).and_then(|context| {
            let index = index.try_into().map_err(|_| Failure::INVALID)?;
            let entry = entry_if_any(context, port, index)?;
            *gid = entry.map_or(ibv_gid { raw: [0; 16] }, |entry| entry.gid);
            Ok(())
        })
    })
}

/// `ibv_query_gid_ex(3)`.
pub unsafe extern "C" fn _ibv_query_gid_ex(
    c: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    // SAFETY: the caller passes an open context and room for an entry of that size.
    status(unsafe {
        context(c).and_then(|context| {
            check(flags, entry_size)?;
            *to = entry(context, port, index)?;
            Ok(())
        })
    })
}

/// `ibv_query_gid_table(3)`: the number of entries, or a negative errno.
pub unsafe extern "C" fn _ibv_query_gid_table(
    c: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    // SAFETY: the caller passes an open context and room for that many entries of that size.
    let counted = unsafe {
        context(c).and_then(|context| {
            check(flags, entry_size)?;
            let table = context.context().gid_table()?;
            if table.len() > room {
                return Err(Failure::INVALID);
            }
            for (at, entry) in table.iter().enumerate() {
                let to = entries.byte_add(at * entry_size);
                *to = c_entry(entry);
            }
            Ok(table.len() as isize)
        })
    };
    counted.unwrap_or_else(|failure| -(failure.tell() as isize))
}

/// There are no flags yet, and no shorter entries.
fn check(flags: u32, entry_size: usize) -> Result<()> {
    match flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
        true => Err(Failure::INVALID),
        false => Ok(()),
    }
}

/// `ibv_devinfo` gets the types of GIDs from this function, which no manual page describes.
pub unsafe extern "C" fn ibv_query_gid_type(
    c: *mut ibv_context,
    port: u8,
    index: u32,
    to: *mut c_int,
) -> c_int {
    // SAFETY: the caller passes an open context and room for the type.
    minus_one(unsafe {
        context(c).and_then(|context| {
            *to = match entry_if_any(context, port, index)? {
                Some(entry) if entry.gid_type == Number::ROCE_V2.0 => gid_type_sysfs::ROCE_V2,
                _ => gid_type_sysfs::IB_ROCE_V1,
            };
            Ok(())
        })
    })
}
