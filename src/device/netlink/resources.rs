//! Parses the kernel's answers about the objects on a device.
//!
//! Source: `fill_res_info` and the `fill_res_*_entry` of `drivers/infiniband/core/nldev.c`. An answer about
//! objects names the device and holds a table of entries. All attributes of an entry are optional in the
//! kernel; those that no kernel omits are required here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use uverbs_uapi::nldev::attr;

use super::answers::Field;
use super::message::{Attribute, attributes};
use crate::device::failure::Malformed;
use crate::device::resource::{
    CmIdResource, ContextResource, CqResource, MrResource, PdResource, QpCounters, QpResource,
    ResourceCount, ResourceOwner, SrqResource,
};

/// The entries of all tables of one kind in an answer.
fn table<T>(
    payload: &[u8],
    (table, entry): (u16, u16),
    parse: impl Fn(Attribute<'_>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let mut entries = Vec::new();
    for attribute in attributes(payload) {
        let it = attribute?;
        if it.kind != table {
            continue;
        }
        for nested in it.nested() {
            let nested = nested?;
            if nested.kind == entry {
                entries.push(parse(nested)?);
            }
        }
    }
    Ok(entries)
}

/// How many objects there are, from the answer to `RDMA_NLDEV_CMD_RES_GET`.
pub(super) fn summary(payload: &[u8]) -> Result<Vec<ResourceCount>, Malformed> {
    table(
        payload,
        (attr::RES_SUMMARY, attr::RES_SUMMARY_ENTRY),
        |entry| {
            let mut name = Field::new("kind of object");
            let mut count = Field::new("number of objects");
            for attribute in entry.nested() {
                let it = attribute?;
                match it.kind {
                    attr::RES_SUMMARY_ENTRY_NAME => name.set(|what| it.text(what))?,
                    attr::RES_SUMMARY_ENTRY_CURR => count.set(|what| it.u64(what))?,
                    _ => {}
                }
            }
            Ok(ResourceCount {
                kind: name.required()?.to_owned(),
                count: count.required()?,
            })
        },
    )
}

/// The owner of an object, from the two attributes about it.
struct Owner<'a> {
    process: Field<u32>,
    kernel: Field<&'a str>,
}

impl<'a> Owner<'a> {
    const fn new() -> Self {
        Self {
            process: Field::new("process id"),
            kernel: Field::new("name of a part of the kernel"),
        }
    }

    fn take(&mut self, it: Attribute<'a>) -> Result<(), Malformed> {
        match it.kind {
            attr::RES_PID => self.process.set(|what| it.u32(what)),
            attr::RES_KERN_NAME => self.kernel.set(|what| it.text(what)),
            _ => Ok(()),
        }
    }

    fn told(self) -> ResourceOwner {
        match (self.kernel.value, self.process.value) {
            (Some(name), _) => ResourceOwner::Kernel(name.to_owned()),
            (None, Some(pid)) => ResourceOwner::Process(pid),
            (None, None) => ResourceOwner::Unknown,
        }
    }
}

/// Protection domains, from the answer to `RDMA_NLDEV_CMD_RES_PD_GET`.
pub(super) fn pds(payload: &[u8]) -> Result<Vec<PdResource>, Malformed> {
    table(payload, (attr::RES_PD, attr::RES_PD_ENTRY), |entry| {
        let mut owner = Owner::new();
        let mut pdn = Field::new("PD's number");
        let mut users = Field::new("PD's users");
        let mut lkey = Field::new("local key of all memory");
        let mut rkey = Field::new("remote key of all memory");
        let mut ctxn = Field::new("context's number");
        for attribute in entry.nested() {
            let it = attribute?;
            match it.kind {
                attr::RES_PDN => pdn.set(|what| it.u32(what))?,
                attr::RES_USECNT => users.set(|what| it.u64(what))?,
                attr::RES_LOCAL_DMA_LKEY => lkey.set(|what| it.u32(what))?,
                attr::RES_UNSAFE_GLOBAL_RKEY => rkey.set(|what| it.u32(what))?,
                attr::RES_CTXN => ctxn.set(|what| it.u32(what))?,
                _ => owner.take(it)?,
            }
        }
        Ok(PdResource {
            pdn: pdn.required()?,
            users: users.required()?,
            local_dma_lkey: lkey.value,
            unsafe_global_rkey: rkey.value,
            ctxn: ctxn.value,
            owner: owner.told(),
        })
    })
}

/// Memory regions, from the answer to `RDMA_NLDEV_CMD_RES_MR_GET`.
pub(super) fn mrs(payload: &[u8]) -> Result<Vec<MrResource>, Malformed> {
    table(payload, (attr::RES_MR, attr::RES_MR_ENTRY), |entry| {
        let mut owner = Owner::new();
        let mut mrn = Field::new("MR's number");
        let mut length = Field::new("MR's length");
        let mut lkey = Field::new("local key");
        let mut rkey = Field::new("remote key");
        let mut pdn = Field::new("PD's number");
        for attribute in entry.nested() {
            let it = attribute?;
            match it.kind {
                attr::RES_MRN => mrn.set(|what| it.u32(what))?,
                attr::RES_MRLEN => length.set(|what| it.u64(what))?,
                attr::RES_LKEY => lkey.set(|what| it.u32(what))?,
                attr::RES_RKEY => rkey.set(|what| it.u32(what))?,
                attr::RES_PDN => pdn.set(|what| it.u32(what))?,
                _ => owner.take(it)?,
            }
        }
        Ok(MrResource {
            mrn: mrn.required()?,
            length: length.required()?,
            lkey: lkey.value,
            rkey: rkey.value,
            pdn: pdn.value,
            owner: owner.told(),
        })
    })
}

/// Completion queues, from the answer to `RDMA_NLDEV_CMD_RES_CQ_GET`.
pub(super) fn cqs(payload: &[u8]) -> Result<Vec<CqResource>, Malformed> {
    table(payload, (attr::RES_CQ, attr::RES_CQ_ENTRY), |entry| {
        let mut owner = Owner::new();
        let mut cqn = Field::new("CQ's number");
        let mut cqe = Field::new("CQ's entries");
        let mut users = Field::new("CQ's users");
        let mut poll_context = Field::new("way of polling");
        let mut adaptive = Field::new("adaptive moderation");
        let mut ctxn = Field::new("context's number");
        for attribute in entry.nested() {
            let it = attribute?;
            match it.kind {
                attr::RES_CQN => cqn.set(|what| it.u32(what))?,
                attr::RES_CQE => cqe.set(|what| it.u32(what))?,
                attr::RES_USECNT => users.set(|what| it.u64(what))?,
                attr::RES_POLL_CTX => poll_context.set(|what| it.u8(what))?,
                attr::DEV_DIM => adaptive.set(|what| Ok(it.u8(what)? != 0))?,
                attr::RES_CTXN => ctxn.set(|what| it.u32(what))?,
                _ => owner.take(it)?,
            }
        }
        Ok(CqResource {
            cqn: cqn.required()?,
            cqe: cqe.required()?,
            users: users.required()?,
            poll_context: poll_context.value,
            adaptive_moderation: adaptive.value,
            ctxn: ctxn.value,
            owner: owner.told(),
        })
    })
}

/// Queue pairs, from the answer to `RDMA_NLDEV_CMD_RES_QP_GET`.
pub(super) fn qps(payload: &[u8]) -> Result<Vec<QpResource>, Malformed> {
    table(payload, (attr::RES_QP, attr::RES_QP_ENTRY), |entry| {
        let mut owner = Owner::new();
        let mut port = Field::new("port");
        let mut lqpn = Field::new("QP's number");
        let mut rqpn = Field::new("peer's QP number");
        let mut rq_psn = Field::new("PSN to receive");
        let mut sq_psn = Field::new("PSN to send");
        let mut path_mig_state = Field::new("state of path migration");
        let mut transport = Field::new("QP's type");
        let mut state = Field::new("QP's state");
        let mut pdn = Field::new("PD's number");
        for attribute in entry.nested() {
            let it = attribute?;
            match it.kind {
                attr::PORT_INDEX => port.set(|what| it.u32(what))?,
                attr::RES_LQPN => lqpn.set(|what| it.u32(what))?,
                attr::RES_RQPN => rqpn.set(|what| it.u32(what))?,
                attr::RES_RQ_PSN => rq_psn.set(|what| it.u32(what))?,
                attr::RES_SQ_PSN => sq_psn.set(|what| it.u32(what))?,
                attr::RES_PATH_MIG_STATE => path_mig_state.set(|what| it.u8(what))?,
                attr::RES_TYPE => transport.set(|what| it.u8(what))?,
                attr::RES_STATE => state.set(|what| it.u8(what))?,
                attr::RES_PDN => pdn.set(|what| it.u32(what))?,
                _ => owner.take(it)?,
            }
        }
        Ok(QpResource {
            port: port.value.filter(|&port| port != 0),
            lqpn: lqpn.required()?,
            rqpn: rqpn.value,
            rq_psn: rq_psn.value,
            sq_psn: sq_psn.value,
            path_mig_state: path_mig_state.value.map(Into::into),
            transport: transport.required()?.into(),
            state: state.required()?.into(),
            pdn: pdn.value,
            owner: owner.told(),
        })
    })
}

/// Shared receive queues, from the answer to `RDMA_NLDEV_CMD_RES_SRQ_GET`.
pub(super) fn srqs(payload: &[u8]) -> Result<Vec<SrqResource>, Malformed> {
    table(payload, (attr::RES_SRQ, attr::RES_SRQ_ENTRY), |entry| {
        let mut owner = Owner::new();
        let mut srqn = Field::new("SRQ's number");
        let mut kind = Field::new("SRQ's type");
        let mut pdn = Field::new("PD's number");
        let mut cqn = Field::new("CQ's number");
        let mut qps = Field::new("SRQ's QPs");
        for attribute in entry.nested() {
            let it = attribute?;
            match it.kind {
                attr::RES_SRQN => srqn.set(|what| it.u32(what))?,
                attr::RES_TYPE => kind.set(|what| it.u8(what))?,
                attr::RES_PDN => pdn.set(|what| it.u32(what))?,
                attr::RES_CQN => cqn.set(|what| it.u32(what))?,
                attr::RES_QP => qps.set(|_| ranges(it))?,
                _ => owner.take(it)?,
            }
        }
        Ok(SrqResource {
            srqn: srqn.required()?,
            kind: kind.value.map(Into::into),
            pdn: pdn.value,
            cqn: cqn.value,
            qps: qps.value.unwrap_or_default(),
            owner: owner.told(),
        })
    })
}

/// Ranges of queue pairs' numbers: each is one number or two.
fn ranges(table: Attribute<'_>) -> Result<Vec<RangeInclusive<u32>>, Malformed> {
    let mut ranges = Vec::new();
    for entry in table.nested() {
        let mut one = Field::new("QP's number");
        let mut lowest = Field::new("lowest QP number");
        let mut highest = Field::new("highest QP number");
        for attribute in entry?.nested() {
            let it = attribute?;
            match it.kind {
                attr::RES_LQPN => one.set(|what| it.u32(what))?,
                attr::MIN_RANGE => lowest.set(|what| it.u32(what))?,
                attr::MAX_RANGE => highest.set(|what| it.u32(what))?,
                _ => {}
            }
        }
        ranges.push(match one.value {
            Some(one) => one..=one,
            None => lowest.required()?..=highest.required()?,
        });
    }
    Ok(ranges)
}

/// Contexts, from the answer to `RDMA_NLDEV_CMD_RES_CTX_GET`.
pub(super) fn contexts(payload: &[u8]) -> Result<Vec<ContextResource>, Malformed> {
    table(payload, (attr::RES_CTX, attr::RES_CTX_ENTRY), |entry| {
        let mut owner = Owner::new();
        let mut ctxn = Field::new("context's number");
        for attribute in entry.nested() {
            let it = attribute?;
            match it.kind {
                attr::RES_CTXN => ctxn.set(|what| it.u32(what))?,
                _ => owner.take(it)?,
            }
        }
        Ok(ContextResource {
            ctxn: ctxn.required()?,
            owner: owner.told(),
        })
    })
}

/// Identifiers of the connection manager, from the answer to `RDMA_NLDEV_CMD_RES_CM_ID_GET`.
pub(super) fn cm_ids(payload: &[u8]) -> Result<Vec<CmIdResource>, Malformed> {
    table(payload, (attr::RES_CM_ID, attr::RES_CM_ID_ENTRY), |entry| {
        let mut owner = Owner::new();
        let mut cm_idn = Field::new("connection identifier's number");
        let mut port = Field::new("port");
        let mut lqpn = Field::new("QP's number");
        let mut transport = Field::new("QP's type");
        let mut state = Field::new("state of a connection");
        let mut port_space = Field::new("port space");
        let mut source = Field::new("own address");
        let mut destination = Field::new("peer's address");
        for attribute in entry.nested() {
            let it = attribute?;
            match it.kind {
                attr::RES_CM_IDN => cm_idn.set(|what| it.u32(what))?,
                attr::PORT_INDEX => port.set(|what| it.u32(what))?,
                attr::RES_LQPN => lqpn.set(|what| it.u32(what))?,
                attr::RES_TYPE => transport.set(|what| it.u8(what))?,
                attr::RES_STATE => state.set(|what| it.u8(what))?,
                attr::RES_PS => port_space.set(|what| it.u32(what))?,
                attr::RES_SRC_ADDR => source.set(|what| address(it, what))?,
                attr::RES_DST_ADDR => destination.set(|what| address(it, what))?,
                _ => owner.take(it)?,
            }
        }
        Ok(CmIdResource {
            cm_idn: cm_idn.required()?,
            port: port.value.filter(|&port| port != 0),
            lqpn: lqpn.value.filter(|&lqpn| lqpn != 0),
            transport: transport.value.map(Into::into),
            state: state.required()?,
            port_space: port_space.required()?,
            source: source.value.flatten(),
            destination: destination.value.flatten(),
            owner: owner.told(),
        })
    })
}

/// The IP address and port in a `sockaddr_storage`; `None` if it is of another family.
fn address(attribute: Attribute<'_>, what: &str) -> Result<Option<SocketAddr>, Malformed> {
    const IPV4: u16 = libc::AF_INET as u16;
    const IPV6: u16 = libc::AF_INET6 as u16;
    let bytes = attribute.bytes();
    let short = || Malformed::from(format!("the {what} is cut off"));
    let part = |at: usize, length: usize| bytes.get(at..at + length).ok_or_else(short);
    let family = part(0, 2)?;
    let port = part(2, 2)?;
    let port = u16::from_be_bytes([port[0], port[1]]);
    let ip: IpAddr = match u16::from_ne_bytes([family[0], family[1]]) {
        IPV4 => {
            let octets: [u8; 4] = part(4, 4)?.try_into().map_err(|_| short())?;
            Ipv4Addr::from(octets).into()
        }
        IPV6 => {
            let octets: [u8; 16] = part(8, 16)?.try_into().map_err(|_| short())?;
            Ipv6Addr::from(octets).into()
        }
        _ => return Ok(None),
    };
    Ok(Some(SocketAddr::new(ip, port)))
}

/// The sets of counters of queue pairs, from the answers to `RDMA_NLDEV_CMD_STAT_GET`.
pub(super) fn qp_counters(payload: &[u8]) -> Result<Vec<QpCounters>, Malformed> {
    let names = (attr::STAT_COUNTER, attr::STAT_COUNTER_ENTRY);
    table(payload, names, |entry| {
        let mut port = Field::new("port of a counter");
        let mut id = Field::new("number of a counter");
        let mut owner = Owner::new();
        let (mut qps, mut counters) = (Vec::new(), Vec::new());
        for attribute in entry.nested() {
            let it = attribute?;
            match it.kind {
                attr::PORT_INDEX => port.set(|what| it.u32(what))?,
                attr::STAT_COUNTER_ID => id.set(|what| it.u32(what))?,
                attr::RES_QP => qps.extend(counted_qps(it)?),
                attr::STAT_HWCOUNTERS => counters.extend(values(it)?),
                _ => owner.take(it)?,
            }
        }
        Ok(QpCounters {
            port: port.required()?,
            id: id.required()?,
            qps,
            counters,
            owner: owner.told(),
        })
    })
}

/// The numbers of the queue pairs that a counter is bound to.
fn counted_qps(table: Attribute<'_>) -> Result<Vec<u32>, Malformed> {
    let mut numbers = Vec::new();
    for entry in table.nested() {
        for attribute in entry?.nested() {
            let it = attribute?;
            if it.kind == attr::RES_LQPN {
                numbers.push(it.u32("number of a queue pair")?);
            }
        }
    }
    Ok(numbers)
}

/// The values of a counter, with their names.
fn values(table: Attribute<'_>) -> Result<Vec<(String, u64)>, Malformed> {
    let mut values = Vec::new();
    for entry in table.nested() {
        let mut name = Field::new("name of a value");
        let mut value = Field::new("value of a counter");
        for attribute in entry?.nested() {
            let it = attribute?;
            match it.kind {
                attr::STAT_HWCOUNTER_ENTRY_NAME => name.set(|what| it.text(what))?,
                attr::STAT_HWCOUNTER_ENTRY_VALUE => value.set(|what| it.u64(what))?,
                _ => {}
            }
        }
        values.push((name.required()?.to_owned(), value.required()?));
    }
    Ok(values)
}
