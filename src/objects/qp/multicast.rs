//! Multicast groups: every member receives the group's datagrams.
//!
//! Receiving takes two memberships. With [`Qp::attach_mcast`] the device delivers the group's datagrams to a
//! queue pair. And the network must bring them to the port: on RoCE the host's IP stack must join the group
//! ([`Context::join_ip_group`]), on InfiniBand the subnet manager must be asked (`cm::join` does either).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::transport::Datagram;
use super::{Membership, Qp};
use crate::command::{AttachMcast, DetachMcast};
use crate::context::Context;
use crate::error::{Error, Result, Subject, Verb};
use crate::gid::Gid;

/// The queue pair number in datagrams to a multicast group. It stands for all queue pairs that have joined.
/// See [`Ah::to`](crate::Ah::to).
pub const MULTICAST_QPN: u32 = 0xff_ffff;

impl Context {
    /// Makes the host's IP stack join a multicast group on a RoCE port. A queue pair in the group needs this:
    /// without it the host does not ask the network for the group's packets, and soft-RoCE drops them.
    ///
    /// The membership belongs to a UDP socket and ends when the returned value is dropped.
    ///
    /// ```no_run
    /// # use uverbs::{Context, Gid, Qp, Ud};
    /// # fn join(context: &Context, qp: &mut Qp<Ud>) -> uverbs::Result<()> {
    /// let group = Gid::from(std::net::Ipv4Addr::new(239, 1, 2, 3));
    /// let _membership = context.join_ip_group(1, group)?;
    /// qp.attach_mcast(group, 0)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The GID is not a multicast address; the port has no network device in this network namespace, as on
    /// InfiniBand; the IP stack refuses. Manual page: `ip(7)`, `IP_ADD_MEMBERSHIP`.
    #[doc(alias = "IP_ADD_MEMBERSHIP")]
    pub fn join_ip_group(&self, port: u8, group: Gid) -> Result<IpGroup> {
        const VERB: Verb = Verb::AttachMcast;
        let subject = || Subject::named("multicast group", group);
        let refuse = |why: &'static str| Error::invalid(VERB, subject(), why);
        let table = self.gid_table()?;
        let interface = table
            .iter()
            .find(|entry| entry.port == u32::from(port) && entry.netdev_ifindex != 0)
            .ok_or_else(|| {
                refuse("the port has no network device; on InfiniBand the subnet manager is asked")
            })?
            .netdev_ifindex;
        let (family, is_multicast) = match group.as_ipv4() {
            Some(address) => (AddressFamily::INET, address.is_multicast()),
            None => (AddressFamily::INET6, Ipv6Addr::from(group).is_multicast()),
        };
        if !is_multicast {
            return Err(refuse("the GID is no multicast address"));
        }
        let failed = |errno| Error::os(VERB, subject(), errno);
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(failed)?;
        match group.as_ipv4() {
            Some(address) => sockopt::set_ip_add_membership_with_ifindex(
                &socket,
                &address,
                &Ipv4Addr::UNSPECIFIED,
                interface,
            ),
            None => sockopt::set_ipv6_add_membership(&socket, &group.into(), interface),
        }
        .map_err(failed)?;
        Ok(IpGroup {
            group,
            _socket: socket,
        })
    }
}

/// The IP stack's membership in a multicast group. Dropping it leaves the group.
#[derive(Debug)]
pub struct IpGroup {
    group: Gid,
    _socket: OwnedFd,
}

impl IpGroup {
    /// The group.
    pub fn group(&self) -> Gid {
        self.group
    }
}

impl<T: Datagram, M: Membership> Qp<T, M> {
    /// Joins a multicast group: from then on the queue pair receives the group's datagrams, as does every
    /// other member. On RoCE the host must join as well: [`Context::join_ip_group`].
    ///
    /// `mlid` is the group's LID on InfiniBand, which the subnet manager assigns; 0 on RoCE. Senders use
    /// [`MULTICAST_QPN`] and a path to the group's GID.
    ///
    /// # Errors
    ///
    /// The GID is not a multicast one, or the device's limit of groups is reached. Manual page:
    /// `ibv_attach_mcast(3)`.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&mut self, gid: Gid, mlid: u16) -> Result<()> {
        let qp = self.handle();
        self.shared()
            .kernel()
            .execute(&AttachMcast { qp, gid, mlid })
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    ///
    /// The queue pair has not joined it. Manual page: `ibv_detach_mcast(3)`.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&mut self, gid: Gid, mlid: u16) -> Result<()> {
        let qp = self.handle();
        self.shared()
            .kernel()
            .execute(&DetachMcast { qp, gid, mlid })
    }
}
