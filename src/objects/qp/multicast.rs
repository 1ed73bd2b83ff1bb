//! Multicast groups: every member receives the group's datagrams.
//!
//! Receiving takes two memberships. With [`Qp::attach_mcast`] the device delivers the group's datagrams to a
//! queue pair. And the network must bring them to the port: on RoCE the host's IP stack must join the group
//! ([`Context::join_ip_group`]), on InfiniBand the subnet manager must be asked (`cm::join` does either).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::transport::Datagram;
use super::{Membership, Qp, QpShared};
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
    /// A queue pair that joins a group several times gets each datagram once, and is a member until it has
    /// left as often. A `cm::Membership` counts as one time.
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
        self.shared().attach_mcast(gid, mlid)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    ///
    /// The queue pair has not joined it. Manual page: `ibv_detach_mcast(3)`.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&mut self, gid: Gid, mlid: u16) -> Result<()> {
        self.shared().detach_mcast(gid, mlid)
    }
}

/// A multicast group that a queue pair is in. The kernel does not count: it attaches a queue pair to a group
/// once, and the first detachment ends that.
#[derive(Debug)]
pub(super) struct Group {
    gid: Gid,
    mlid: u16,
    /// How often the queue pair has joined and not left.
    times: usize,
}

impl Group {
    fn is(&self, gid: Gid, mlid: u16) -> bool {
        (self.gid, self.mlid) == (gid, mlid)
    }
}

impl QpShared {
    /// See [`Qp::attach_mcast`].
    pub(crate) fn attach_mcast(&self, gid: Gid, mlid: u16) -> Result<()> {
        let mut groups = self.groups();
        if let Some(group) = groups.iter_mut().find(|group| group.is(gid, mlid)) {
            group.times += 1;
            return Ok(());
        }
        let kernel = self.kernel();
        let qp = kernel.handle();
        kernel.execute(&AttachMcast { qp, gid, mlid })?;
        groups.push(Group {
            gid,
            mlid,
            times: 1,
        });
        Ok(())
    }

    /// See [`Qp::detach_mcast`].
    pub(crate) fn detach_mcast(&self, gid: Gid, mlid: u16) -> Result<()> {
        let mut groups = self.groups();
        let joined = groups.iter_mut().find(|group| group.is(gid, mlid));
        if let Some(group) = joined
            && group.times > 1
        {
            group.times -= 1;
            return Ok(());
        }
        // Also for a group that it is not in: the kernel refuses.
        let kernel = self.kernel();
        let qp = kernel.handle();
        kernel.execute(&DetachMcast { qp, gid, mlid })?;
        groups.retain(|group| !group.is(gid, mlid));
        Ok(())
    }

    /// A group that it is in.
    pub(super) fn any_group(&self) -> Option<Gid> {
        self.groups().first().map(|group| group.gid)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use uverbs_uapi::enums::QpType;

    use super::super::shared::tests::shared;
    use super::*;
    use crate::owned::tests::Listener;

    /// Would catch a queue pair that hears a group no more although it has joined it more often than it has
    /// left.
    #[test]
    fn a_group_is_left_as_often_as_it_was_joined() {
        let (_kernel, file) = rustix::pipe::pipe().unwrap();
        let context = Context::over(file);
        let qp = shared(&context, QpType::UD);
        let told = Arc::new(Mutex::new(Vec::new()));
        let commands = Arc::clone(&told);
        let listener = Listener("uverbs::command", move |text: String| {
            let verb = text.split([' ', ':']).find(|word| word.ends_with("_mcast"));
            commands.lock().unwrap().extend(verb.map(String::from));
        });
        let (one, other) = ("239.1.2.3".parse().unwrap(), "239.1.2.4".parse().unwrap());
        let commands = |act: &dyn Fn() -> Result<()>| {
            act().unwrap();
            std::mem::take(&mut *told.lock().unwrap())
        };
        tracing::subscriber::with_default(listener, || {
            assert_eq!(commands(&|| qp.attach_mcast(one, 0)), ["attach_mcast"]);
            assert!(commands(&|| qp.attach_mcast(one, 0)).is_empty());
            assert_eq!(commands(&|| qp.attach_mcast(one, 7)), ["attach_mcast"]);
            assert_eq!(commands(&|| qp.attach_mcast(other, 0)), ["attach_mcast"]);
            assert!(commands(&|| qp.detach_mcast(one, 0)).is_empty());
            assert_eq!(commands(&|| qp.detach_mcast(other, 0)), ["detach_mcast"]);
            assert_eq!(commands(&|| qp.detach_mcast(one, 0)), ["detach_mcast"]);
            assert_eq!(qp.any_group(), Some(one), "that of the other LID");
            // What it is not in is the kernel's to refuse.
            assert_eq!(commands(&|| qp.detach_mcast(one, 0)), ["detach_mcast"]);
        });
    }
}
