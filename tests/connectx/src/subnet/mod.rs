//! The administrator of an InfiniBand subnet, as far as hosts ask it: paths, and membership of multicast
//! groups.
//!
//! It has a LID of its own, and answers what is sent to queue pair 1 there. There is no manager that would
//! look for ports and give out LIDs: all that is as it is from the start.

mod group;
mod mad;
mod path;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::group::Groups;
use self::mad::{Method, Request, Status};
use crate::layout::mad::{LENGTH, class_port_info, mcmember_record, path_record};
use crate::port::Port;

/// The first LID of multicast groups.
pub(crate) const FIRST_GROUP_LID: u16 = 0xc000;
/// The LID of the manager and administrator: the last that is not a group's.
pub(crate) const MANAGER_LID: u16 = FIRST_GROUP_LID - 1;

/// A port in the subnet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Host {
    lid: u16,
    gid: [u8; 16],
}

impl Host {
    /// That port.
    pub(crate) fn of(port: &Port) -> Self {
        Self {
            lid: port.lid,
            gid: port.gid(),
        }
    }
}

/// What the administrator knows; shared by all functions of a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subnet {
    groups: Arc<Mutex<Groups>>,
}

impl Subnet {
    /// Answers a packet that the port with that LID has sent, given all ports that have a link. None if it is
    /// nothing to answer.
    pub(crate) fn answer(&self, hosts: &[Host], from: u16, packet: &[u8]) -> Option<[u8; LENGTH]> {
        let request = Request::read(packet)?;
        let answer = self.carry_out(hosts, from, &request);
        Some(answer.unwrap_or_else(|status| request.refused(status)))
    }

    /// Whether a datagram to that LID and group gets to this port.
    pub(crate) fn reaches(&self, lid: u16, group: [u8; 16], port: &Port) -> bool {
        self.lock().reach(lid, group, port.gid())
    }

    /// Takes a port out of all groups, since it has lost its link or started anew.
    pub(crate) fn leave_all(&self, port: &Port) {
        self.lock().leave_all(port.gid());
    }

    fn carry_out(
        &self,
        hosts: &[Host],
        from: u16,
        request: &Request<'_>,
    ) -> Result<[u8; LENGTH], Status> {
        const CLASS_PORT_INFO: u64 = 0x01;
        const PATH_RECORD: u64 = 0x35;
        const MCMEMBER_RECORD: u64 = 0x38;
        let (method, attribute) = request.asks()?;
        match (method, attribute) {
            (Method::Get, CLASS_PORT_INFO) => Ok(request.answered(method, &description())),
            (Method::Get, PATH_RECORD) => {
                let found = path::find(hosts, method, request)?;
                Ok(request.answered(method, single(&found)?))
            }
            (Method::GetTable, PATH_RECORD) => {
                let found = path::find(hosts, method, request)?;
                request.answered_with_table(&found, path_record::SIZE)
            }
            (Method::Get, MCMEMBER_RECORD) => {
                let found = self.lock().find(request);
                Ok(request.answered(method, single(&found)?))
            }
            (Method::GetTable, MCMEMBER_RECORD) => {
                let found = self.lock().find(request);
                request.answered_with_table(&found, mcmember_record::SIZE)
            }
            (Method::Set, MCMEMBER_RECORD) => {
                let joined = self.lock().join(hosts, from, request)?;
                Ok(request.answered(method, &joined))
            }
            (Method::Delete, MCMEMBER_RECORD) => {
                let left = self.lock().leave(hosts, from, request)?;
                Ok(request.answered(method, &left))
            }
            _ => Err(Status::UnsupportedAttribute),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one record that was found.
fn single(found: &[Vec<u8>]) -> Result<&[u8], Status> {
    match found {
        [] => Err(Status::NoRecords),
        [record] => Ok(record),
        _ => Err(Status::TooManyRecords),
    }
}

/// The administrator itself (ClassPortInfo).
fn description() -> Vec<u8> {
    /// Ports may join as members that only send, and for which a group is kept.
    const SEND_ONLY_FULL_MEMBERS: u64 = 1 << 12;
    /// 4.096 us times 2 to this power.
    const ANSWERS_WITHIN: u64 = 16;
    let mut bytes = vec![0; class_port_info::SIZE];
    for (field, value) in [
        (class_port_info::BASE_VERSION, mad::BASE_VERSION),
        (class_port_info::CLASS_VERSION, mad::CLASS_VERSION),
        (class_port_info::CAPABILITY_MASK2, SEND_ONLY_FULL_MEMBERS),
        (class_port_info::RESP_TIME_VALUE, ANSWERS_WITHIN),
    ] {
        field.set(&mut bytes, value);
    }
    bytes
}

#[cfg(test)]
mod tests;
