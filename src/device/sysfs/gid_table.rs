//! The GID table of a port by sysfs.

use std::path::Path;

use super::attribute::{entries, parsed, text};
use super::{Sysfs, link_layer, table_index};
use crate::device::failure::{Failure, Malformed};
use crate::gid::{Gid, GidEntry, GidType};

impl Sysfs {
    /// A port's GID table, without its empty entries; `None` if there is no such port.
    pub(in crate::device) fn gid_table(
        &self,
        device: &str,
        port: u32,
    ) -> Result<Option<Vec<GidEntry>>, Failure> {
        let directory = self.port_directory(device, port);
        let Some(names) = entries(&directory.join("gids"))? else {
            return Ok(None);
        };
        let mut table = Vec::new();
        for name in names {
            table.extend(self.gid(&directory, port, &name)?);
        }
        table.sort_unstable_by_key(|entry: &GidEntry| entry.index);
        Ok(Some(table))
    }

    /// One entry of a port's GID table; `None` if it is empty, or there is no such port or index.
    pub(in crate::device) fn gid_entry(
        &self,
        device: &str,
        port: u32,
        index: u32,
    ) -> Result<Option<GidEntry>, Failure> {
        self.gid(&self.port_directory(device, port), port, &index.to_string())
    }

    /// The entry that is called `name` in the port's directory; `None` if it is empty.
    fn gid(&self, directory: &Path, port: u32, name: &str) -> Result<Option<GidEntry>, Failure> {
        let gid: Option<Gid> = parsed(&directory.join("gids").join(name))?;
        let Some(gid) = gid.filter(|gid| !gid.is_zero()) else {
            return Ok(None);
        };
        let attributes = directory.join("gid_attrs");
        let gid_type = match text(&attributes.join("types").join(name))?.as_deref() {
            // Both types have this text; the link layer distinguishes them. An EFA's GIDs are of the type IB.
            Some("IB/RoCE v1") if link_layer(directory)?.as_deref() == Some("Ethernet") => {
                GidType::RoceV1
            }
            Some("IB/RoCE v1") => GidType::Ib,
            Some("RoCE v2") => GidType::RoceV2,
            Some(other) => return Err(Malformed::from(format!("{other:?} is no GID type")).into()),
            // The entry was emptied after its GID was read.
            None => return Ok(None),
        };
        let netdev = self.netdev(&attributes.join("ndevs").join(name))?;
        Ok(Some(GidEntry {
            port,
            index: table_index(name)?,
            gid,
            gid_type,
            netdev_ifindex: netdev.and_then(|netdev| netdev.index).unwrap_or(0),
        }))
    }
}
