//! Flow steering: rules that send packets to a queue pair by their headers.
//!
//! A [`FlowRule`] says what to look for and what to do; [`Qp::create_flow`] installs it. The filters are the
//! structs of the kernel's ABI, each with a mask of the bits that count, in network order.

use std::fmt;
use std::sync::Arc;

use uverbs_uapi::enums::FlowSpecType;
use uverbs_uapi::handle::FlowHandle;
use uverbs_uapi::write as abi;
use zerocopy::{Immutable, IntoBytes};

pub use uverbs_uapi::enums::FlowAttrType;
pub use uverbs_uapi::flags::FlowAttrFlags;

use crate::command::{CreateFlow, DriverData, Specs};
use crate::counters::{Counters, CountersShared};
use crate::error::{DestroyError, Error, Result, Verb};
use crate::owned::Owned;
use crate::qp::{Membership, Qp, QpShared, Transport};

/// What a header must have in the bits of a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowMatch {
    /// Ethernet: value and mask.
    Ethernet(abi::FlowEthFilter, abi::FlowEthFilter),
    /// IPv4: value and mask.
    Ipv4(abi::FlowIpv4Filter, abi::FlowIpv4Filter),
    /// IPv6: value and mask.
    Ipv6(abi::FlowIpv6Filter, abi::FlowIpv6Filter),
    /// TCP: value and mask.
    Tcp(abi::FlowTcpUdpFilter, abi::FlowTcpUdpFilter),
    /// UDP: value and mask.
    Udp(abi::FlowTcpUdpFilter, abi::FlowTcpUdpFilter),
    /// VXLAN: value and mask.
    Vxlan(abi::FlowTunnelFilter, abi::FlowTunnelFilter),
    /// GRE: value and mask.
    Gre(abi::FlowGreFilter, abi::FlowGreFilter),
    /// MPLS: value and mask.
    Mpls(abi::FlowMplsFilter, abi::FlowMplsFilter),
    /// IPsec ESP: value and mask.
    Esp(abi::FlowSpecEspFilter, abi::FlowSpecEspFilter),
}

/// The description of a flow rule: which packets it takes, and what happens to them.
///
/// ```
/// use uverbs::uapi::write::FlowTcpUdpFilter;
/// use uverbs::{flow::{FlowMatch, FlowRule}};
///
/// let port_4791 = FlowTcpUdpFilter { dst_port: 4791.into(), ..Default::default() };
/// let all_bits = FlowTcpUdpFilter { dst_port: 0xffff.into(), ..Default::default() };
/// let rule = FlowRule::new(1).matching(FlowMatch::Udp(port_4791, all_bits));
/// # let _ = rule;
/// ```
#[derive(Clone, Debug)]
pub struct FlowRule {
    attr: abi::FlowAttr,
    count: usize,
    specs: Specs,
    counters: Vec<Arc<CountersShared>>,
}

impl FlowRule {
    /// A rule for packets that arrive at this port, counted from 1. Without a match it takes none or all,
    /// which depends on its [kind](Self::kind).
    pub fn new(port: u8) -> Self {
        Self {
            attr: abi::FlowAttr {
                port,
                ..Default::default()
            },
            count: 0,
            specs: Specs::new(),
            counters: Vec::new(),
        }
    }

    /// By its matches ([`NORMAL`](FlowAttrType::NORMAL) by default), or everything of some sort.
    pub fn kind(mut self, kind: FlowAttrType) -> Self {
        self.attr.type_ = kind.0;
        self
    }

    /// The order among rules, 0 first.
    pub fn priority(mut self, priority: u16) -> Self {
        self.attr.priority = priority;
        self
    }

    /// How it works.
    pub fn flags(mut self, flags: FlowAttrFlags) -> Self {
        self.attr.flags = flags.bits();
        self
    }

    /// Takes only packets with such a header. Add headers from the outer to the inner.
    pub fn matching(self, header: FlowMatch) -> Self {
        self.header(header, FlowSpecType(0))
    }

    /// Takes only packets with such a header inside their tunnel.
    pub fn matching_inner(self, header: FlowMatch) -> Self {
        self.header(header, FlowSpecType::INNER)
    }

    fn header(self, header: FlowMatch, within: FlowSpecType) -> Self {
        use FlowMatch as M;
        use FlowSpecType as T;
        let kind = |kind: T| T(kind.0 | within.0);
        match header {
            M::Ethernet(value, mask) => self.filter(kind(T::ETH), &value, &mask),
            M::Ipv4(value, mask) => self.filter(kind(T::IPV4), &value, &mask),
            M::Ipv6(value, mask) => self.filter(kind(T::IPV6), &value, &mask),
            M::Tcp(value, mask) => self.filter(kind(T::TCP), &value, &mask),
            M::Udp(value, mask) => self.filter(kind(T::UDP), &value, &mask),
            M::Vxlan(value, mask) => self.filter(kind(T::VXLAN_TUNNEL), &value, &mask),
            M::Gre(value, mask) => self.filter(kind(T::GRE), &value, &mask),
            M::Mpls(value, mask) => self.filter(kind(T::MPLS), &value, &mask),
            M::Esp(value, mask) => self.filter(kind(T::ESP), &value, &mask),
        }
    }

    /// Marks the completions of the packets.
    pub fn tag(self, tag: u32) -> Self {
        self.spec(FlowSpecType::ACTION_TAG, [tag, 0].as_bytes())
    }

    /// Drops the packets.
    pub fn drop_packets(self) -> Self {
        self.spec(FlowSpecType::ACTION_DROP, &[])
    }

    /// Counts the packets in a set of counters, which the rule binds.
    pub fn count(mut self, counters: &Counters) -> Self {
        self.counters.push(Arc::clone(counters.shared()));
        let handle = counters.handle().0;
        self.spec(FlowSpecType::ACTION_COUNT, [handle, 0].as_bytes())
    }

    fn filter<F: IntoBytes + Immutable>(self, kind: FlowSpecType, value: &F, mask: &F) -> Self {
        let mut both = Specs::from_slice(value.as_bytes());
        both.extend_from_slice(mask.as_bytes());
        self.spec(kind, &both)
    }

    /// Adds a specification: a header with type and length, and its contents.
    fn spec(mut self, kind: FlowSpecType, body: &[u8]) -> Self {
        let header = abi::FlowSpecHdr {
            type_: kind.0,
            // The longest is an IPv6 filter with its mask.
            size: (size_of::<abi::FlowSpecHdr>() + body.len()) as u16,
            reserved: 0,
        };
        self.specs.extend_from_slice(header.as_bytes());
        self.specs.extend_from_slice(body);
        self.count += 1;
        self
    }
}

impl<T: Transport, M: Membership> Qp<T, M> {
    /// Sends packets to this queue pair, which takes raw packets or datagrams.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device has no flow steering, like rxe; the
    /// process may not see the network's packets (`EPERM`, `CAP_NET_RAW`); the device cannot do what the rule
    /// needs. Manual page: `ibv_create_flow(3)`.
    #[doc(alias = "ibv_create_flow")]
    pub fn create_flow(&self, rule: &FlowRule) -> Result<Flow> {
        let subject = || self.shared().subject();
        let context = self.context();
        let counters = rule.counters.iter();
        let parts = counters.map(|set| ("a set of counters", Some(set.context())));
        context.check_parts(Verb::CreateFlow, subject, parts)?;
        let (Ok(size), Ok(num_of_specs)) =
            (u16::try_from(rule.specs.len()), u8::try_from(rule.count))
        else {
            let why = "the rule has more parts than the kernel can count";
            return Err(Error::invalid(Verb::CreateFlow, subject(), why));
        };
        let command = CreateFlow {
            qp: self.handle(),
            rule: abi::FlowAttr {
                size,
                num_of_specs,
                ..rule.attr
            },
            specs: rule.specs.clone(),
            driver: DriverData::default(),
        };
        let handle = context.fd().execute(&command)?;
        Ok(Flow {
            object: Owned::new(context, handle),
            qp: Arc::clone(self.shared()),
            _counters: rule.counters.clone(),
        })
    }
}

/// A flow rule that is in force. Dropping it removes it.
pub struct Flow {
    object: Owned<FlowHandle>,
    qp: Arc<QpShared>,
    _counters: Vec<Arc<CountersShared>>,
}

impl Flow {
    /// The kernel's handle.
    pub fn handle(&self) -> FlowHandle {
        self.object.handle()
    }

    /// Removes the rule.
    ///
    /// # Errors
    ///
    /// The kernel refuses; the error returns the rule. Manual page: `ibv_destroy_flow(3)`.
    #[doc(alias = "ibv_destroy_flow")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        let result = self.object.destroy();
        DestroyError::of(self, result)
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow")
            .field("handle", &self.handle().0)
            .field("qp", &self.qp.handle().0)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel takes a specification only with exactly the length of its struct.
    #[test]
    fn specifications_have_the_lengths_of_their_structs() {
        let lengths = |rule: FlowRule| {
            let header = rule.specs[4..6].try_into().map(u16::from_ne_bytes);
            (usize::from(header.unwrap()), rule.specs.len())
        };
        let of = |header| lengths(FlowRule::new(1).matching(header));
        use FlowMatch as M;
        let both = |size: usize| (size, size);
        let eth = M::Ethernet(Default::default(), Default::default());
        assert_eq!(of(eth), both(size_of::<abi::FlowSpecEth>()));
        let ipv4 = M::Ipv4(Default::default(), Default::default());
        assert_eq!(of(ipv4), both(size_of::<abi::FlowSpecIpv4>()));
        let ipv6 = M::Ipv6(Default::default(), Default::default());
        assert_eq!(of(ipv6), both(size_of::<abi::FlowSpecIpv6>()));
        let tcp = M::Tcp(Default::default(), Default::default());
        assert_eq!(of(tcp), both(size_of::<abi::FlowSpecTcpUdp>()));
        let vxlan = M::Vxlan(Default::default(), Default::default());
        assert_eq!(of(vxlan), both(size_of::<abi::FlowSpecTunnel>()));
        let gre = M::Gre(Default::default(), Default::default());
        assert_eq!(of(gre), both(size_of::<abi::FlowSpecGre>()));
        let mpls = M::Mpls(Default::default(), Default::default());
        assert_eq!(of(mpls), both(size_of::<abi::FlowSpecMpls>()));
        let esp = M::Esp(Default::default(), Default::default());
        assert_eq!(of(esp), both(size_of::<abi::FlowSpecEsp>()));
        let tag = lengths(FlowRule::new(1).tag(7));
        assert_eq!(tag, both(size_of::<abi::FlowSpecActionTag>()));
        let drop = lengths(FlowRule::new(1).drop_packets());
        assert_eq!(drop, both(size_of::<abi::FlowSpecActionDrop>()));
    }

    #[test]
    fn a_header_within_a_tunnel_says_so() {
        let udp = FlowMatch::Udp(Default::default(), Default::default());
        let rule = FlowRule::new(1).matching_inner(udp);
        assert_eq!(rule.specs[..4], 0x141_u32.to_ne_bytes());
    }
}
