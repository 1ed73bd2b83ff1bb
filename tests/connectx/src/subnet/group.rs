//! Multicast groups as the administrator knows them: which ports have joined, and what their datagrams have
//! in common.

use std::collections::BTreeMap;

use super::mad::{self, Request, Status};
use super::path::{self, LIFE_TIME, MTU as LARGEST_MTU, RATE};
use super::{FIRST_GROUP_LID, Host};
use crate::layout::mad::{Component, mcmember_record as record};

/// The first LID behind those of groups.
const END_OF_LIDS: u16 = 0xffff;

/// The group in which all ports with IP over InfiniBand are.
const BROADCAST: [u8; 16] = [
    0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
];
const BROADCAST_KEY: u64 = 0x0b1b;
/// 2048 bytes; at most a group has what a path has, and for the rest it has that from the start.
const MTU: u64 = 4;

/// How a port can be in a group.
mod join {
    /// It sends and receives, and the group is there for it.
    pub(super) const FULL: u8 = 1 << 0;
    /// It sends and receives while others are full members.
    pub(super) const NON: u8 = 1 << 1;
    /// It sends, and the group is there for it.
    pub(super) const SEND_ONLY_FULL: u8 = 1 << 3;
    /// Who keeps a group, or makes it.
    pub(super) const KEEPS: u8 = FULL | SEND_ONLY_FULL;
    /// Who receives.
    pub(super) const RECEIVES: u8 = FULL | NON;
}

/// A group.
#[derive(Clone, Debug)]
struct Group {
    lid: u16,
    q_key: u64,
    p_key: u64,
    mtu: u64,
    rate: u64,
    life_time: u64,
    traffic_class: u64,
    service_level: u64,
    flow_label: u64,
    hop_limit: u64,
    /// Whether it is there without members.
    stays: bool,
    /// The ports in it by their GIDs, and how.
    members: BTreeMap<[u8; 16], u8>,
}

/// All groups, by their GIDs.
#[derive(Debug)]
pub(super) struct Groups {
    groups: BTreeMap<[u8; 16], Group>,
}

impl Default for Groups {
    /// The broadcast group, without members.
    fn default() -> Self {
        let broadcast = Group {
            lid: FIRST_GROUP_LID,
            q_key: BROADCAST_KEY,
            p_key: path::PKEY,
            mtu: MTU,
            rate: RATE,
            life_time: LIFE_TIME,
            traffic_class: 0,
            service_level: 0,
            flow_label: 0,
            hop_limit: 0,
            stays: true,
            members: BTreeMap::new(),
        };
        Self {
            groups: BTreeMap::from([(BROADCAST, broadcast)]),
        }
    }
}

impl Groups {
    /// Whether a datagram to that LID and group gets to a port. One to a group that nobody has made gets
    /// everywhere.
    pub(super) fn reach(&self, lid: u16, group: [u8; 16], port: [u8; 16]) -> bool {
        let Some(group) = self.groups.get(&group) else {
            return true;
        };
        let state = group.members.get(&port).copied().unwrap_or(0);
        group.lid == lid && state & join::RECEIVES != 0
    }

    /// Takes a port out of all groups.
    pub(super) fn leave_all(&mut self, port: [u8; 16]) {
        for group in self.groups.values_mut() {
            group.members.remove(&port);
        }
        self.forget_unused();
    }

    /// Finds the groups that a request describes, each once, without its members.
    pub(super) fn find(&self, request: &Request<'_>) -> Vec<Vec<u8>> {
        let port = request.given_gid(record::PORT_GID);
        let found = self.groups.iter().filter(|(mgid, group)| {
            request
                .given_gid(record::MGID)
                .is_none_or(|wanted| wanted == **mgid)
                && request.allows(record::MLID, group.lid.into())
                && group.suits(request)
                && port.is_none_or(|port| group.members.contains_key(&port))
        });
        found
            .map(|(mgid, group)| {
                // Who is not trusted is told of no port but the one that it names.
                let state = port.and_then(|port| group.members.get(&port));
                group.encode(mgid, port.unwrap_or_default(), state.copied().unwrap_or(0))
            })
            .collect()
    }

    /// Lets a port join a group, which is made if it is not there.
    ///
    /// # Errors
    /// If the request lacks components, asks for what the group is not, or is not the port's own.
    pub(super) fn join(
        &mut self,
        hosts: &[Host],
        from: u16,
        request: &Request<'_>,
    ) -> Result<Vec<u8>, Status> {
        let (mgid, port, state) = membership(hosts, from, request)?;
        if !self.groups.contains_key(&mgid) {
            let group = Group::asked_for(request, state, self.free_lid()?)?;
            self.groups.insert(mgid, group);
        }
        let group = self.groups.get_mut(&mgid).ok_or(Status::NoResources)?;
        if !request.allows(record::MLID, group.lid.into()) || !group.suits(request) {
            return Err(Status::RequestInvalid);
        }
        let states = group.members.entry(port).or_insert(0);
        *states |= state;
        let states = *states;
        Ok(group.encode(&mgid, port, states))
    }

    /// Lets a port leave a group.
    ///
    /// # Errors
    /// If the request lacks components, is not the port's own, or it is not in the group like that.
    pub(super) fn leave(
        &mut self,
        hosts: &[Host],
        from: u16,
        request: &Request<'_>,
    ) -> Result<Vec<u8>, Status> {
        let (mgid, port, state) = membership(hosts, from, request)?;
        let group = self.groups.get_mut(&mgid).ok_or(Status::RequestInvalid)?;
        let states = group.members.get_mut(&port);
        let states = states.filter(|states| **states & state == state);
        let states = states.ok_or(Status::RequestInvalid)?;
        *states &= !state;
        let left = *states;
        if left == 0 {
            group.members.remove(&port);
        }
        let answer = group.encode(&mgid, port, left);
        self.forget_unused();
        Ok(answer)
    }

    fn free_lid(&self) -> Result<u16, Status> {
        let mut lids = FIRST_GROUP_LID..END_OF_LIDS;
        let is_free = |lid: &u16| self.groups.values().all(|group| group.lid != *lid);
        lids.find(is_free).ok_or(Status::NoResources)
    }

    /// Takes groups away that nobody keeps.
    fn forget_unused(&mut self) {
        self.groups.retain(|_, group| {
            let mut states = group.members.values();
            group.stays || states.any(|state| state & join::KEEPS != 0)
        });
    }
}

/// What a request to join or leave names: the group, the port, and how it is in it.
fn membership(
    hosts: &[Host],
    from: u16,
    request: &Request<'_>,
) -> Result<([u8; 16], [u8; 16], u8), Status> {
    const MULTICAST: u8 = 0xff;
    let mgid = request.needed_gid(record::MGID)?;
    let port = request.needed_gid(record::PORT_GID)?;
    let state = request.needed(record::JOIN_STATE)? as u8;
    if mgid[0] != MULTICAST {
        return Err(Status::InvalidGid);
    }
    let host = hosts.iter().find(|host| host.gid == port);
    // Nobody may join for another port.
    if host.ok_or(Status::InvalidGid)?.lid != from
        || request
            .given(record::PROXY_JOIN)
            .is_some_and(|proxy| proxy != 0)
    {
        return Err(Status::Denied);
    }
    if state == 0 {
        return Err(Status::RequestInvalid);
    }
    Ok((mgid, port, state))
}

impl Group {
    /// A new group as a request describes it.
    fn asked_for(request: &Request<'_>, state: u8, lid: u16) -> Result<Self, Status> {
        let (q_key, p_key) = (request.needed(record::QKEY)?, request.needed(record::PKEY)?);
        let service_level = request.needed(record::SL)?;
        let flow_label = request.needed(record::FLOW_LABEL)?;
        let traffic_class = request.needed(record::TRAFFIC_CLASS)?;
        let group = Self {
            lid,
            q_key,
            p_key,
            mtu: chosen(request, record::MTU_SELECTOR, record::MTU, MTU, LARGEST_MTU),
            rate: chosen(request, record::RATE_SELECTOR, record::RATE, RATE, RATE),
            life_time: LIFE_TIME,
            traffic_class,
            service_level,
            flow_label,
            hop_limit: request.given(record::HOP_LIMIT).unwrap_or(0),
            stays: false,
            members: BTreeMap::new(),
        };
        let is_possible = group.p_key == path::PKEY
            && (1..=LARGEST_MTU).contains(&group.mtu)
            && (1..=mad::speed(RATE)).contains(&mad::speed(group.rate));
        if state & join::KEEPS == 0 || !is_possible || !group.suits(request) {
            return Err(Status::RequestInvalid);
        }
        Ok(group)
    }

    /// Whether the group is as a request wants it.
    fn suits(&self, request: &Request<'_>) -> bool {
        let same = [
            (record::QKEY, self.q_key),
            (record::PKEY, self.p_key),
            (record::TRAFFIC_CLASS, self.traffic_class),
            (record::SL, self.service_level),
            (record::FLOW_LABEL, self.flow_label),
            (record::HOP_LIMIT, self.hop_limit),
        ];
        same.into_iter()
            .all(|(component, value)| request.allows(component, value))
            && request.selects(record::MTU_SELECTOR, record::MTU, self.mtu, mad::as_it_is)
            && request.selects(record::RATE_SELECTOR, record::RATE, self.rate, mad::speed)
            && request.selects(
                record::PACKET_LIFE_TIME_SELECTOR,
                record::PACKET_LIFE_TIME,
                self.life_time,
                mad::as_it_is,
            )
    }

    fn encode(&self, mgid: &[u8; 16], port: [u8; 16], state: u8) -> Vec<u8> {
        let mut bytes = vec![0; record::SIZE];
        for ((at, _), gid) in [(record::MGID, mgid), (record::PORT_GID, &port)] {
            bytes[at..at + 16].copy_from_slice(gid);
        }
        for (component, value) in [
            (record::QKEY, self.q_key),
            (record::MLID, self.lid.into()),
            (record::MTU_SELECTOR, mad::EXACTLY),
            (record::MTU, self.mtu),
            (record::TRAFFIC_CLASS, self.traffic_class),
            (record::PKEY, self.p_key),
            (record::RATE_SELECTOR, mad::EXACTLY),
            (record::RATE, self.rate),
            (record::PACKET_LIFE_TIME_SELECTOR, mad::EXACTLY),
            (record::PACKET_LIFE_TIME, self.life_time),
            (record::SL, self.service_level),
            (record::FLOW_LABEL, self.flow_label),
            (record::HOP_LIMIT, self.hop_limit),
            (record::SCOPE, u64::from(mgid[1] & 0xf)),
            (record::JOIN_STATE, state.into()),
        ] {
            component.field.set(&mut bytes, value);
        }
        bytes
    }
}

/// The quantity of a new group: what is asked for exactly, the largest that there is, or the usual one.
fn chosen(
    request: &Request<'_>,
    selector: Component,
    value: Component,
    usual: u64,
    largest: u64,
) -> u64 {
    match (request.given(selector), request.given(value)) {
        (Some(mad::EXACTLY), Some(value)) => value,
        (Some(mad::GREATER), Some(_)) => largest,
        (Some(mad::LESS), Some(value)) => usual.min(value.saturating_sub(1)),
        (Some(_), Some(_)) => largest,
        _ => usual,
    }
}
