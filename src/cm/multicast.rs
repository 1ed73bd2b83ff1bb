//! Multicast groups by their IP addresses.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::rdma_cm::{Event, EventResp, JoinFlags, PortSpace};

use super::address::{self, Address, Wire};
use super::attributes;
use super::command::{JoinMcast, resolve_addr};
use super::event;
use super::id::{self, Id, OWN};
use super::pending::describe::Describe;
use super::pending::{Failed, Pending, Step, step};
use super::queue_pair;
use super::resolve::addresses;
use crate::ah::AddressVector;
use crate::device::Device;
use crate::error::{Errno, Error, Result, Subject, Verb};
use crate::gid::Gid;
use crate::qp::QpShared;
use crate::qp::transport::Ud;
use crate::qp::{self, Qp};

/// The number that events of a membership carry.
const MEMBERSHIP: u64 = OWN + 1;

/// How long the kernel may take to find the device.
const PATIENCE_MS: u32 = 2000;

/// Starts the description of a membership in a multicast group. As with [`listen`](super::listen) and
/// [`resolve`](super::resolve), `group` is an address or a name; the first address of a name is used. Groups
/// have no ports: the port is ignored. The scope of an IPv6 group (`[ff02::7%2]:0`), the index of a network
/// interface, says on which link.
///
/// ```no_run
/// use std::time::Duration;
/// use uverbs::{Caps, cm::{self, Pending}};
///
/// let group = cm::join("239.9.8.7:0")?.start()?.within(Duration::from_secs(5))?;
/// let context = group.device()?.open()?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
/// let mut qp = pd.create_qp(&cq, Caps::default())?;
/// group.activate(&mut qp)?;
/// let membership = group.attach(&qp)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The name has no address.
pub fn join(group: impl ToSocketAddrs + fmt::Debug) -> Result<Join> {
    let addresses = addresses(Verb::JoinMulticast, group)?;
    Ok(Join {
        // `addresses` never returns an empty list.
        group: without_port(addresses[0].socket()),
        source: None,
        send_only: false,
    })
}

/// The address with its scope. Neither groups nor sources have a port here.
fn without_port(mut address: SocketAddr) -> SocketAddr {
    address.set_port(0);
    address
}

/// The description of a membership.
///
/// ```no_run
/// use uverbs::cm::{self, Pending};
///
/// // To send only, from the device that has this address.
/// let join = cm::join("239.9.8.7:0")?.source("10.9.0.1:0".parse()?).send_only(true);
/// let group = join.start()?.wait()?;
/// println!("{} on {}", group.gid(), group.device()?.name());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "no group is joined before `start`"]
#[derive(Clone, Debug)]
pub struct Join {
    group: SocketAddr,
    source: Option<SocketAddr>,
    send_only: bool,
}

impl Join {
    /// The own address to join from; it decides which device is used. The port is ignored. A link-local
    /// address needs its scope.
    pub fn source(mut self, own: SocketAddr) -> Self {
        self.source = Some(without_port(own));
        self
    }

    /// Joins to send only: nothing is received from the group.
    pub fn send_only(mut self, only: bool) -> Self {
        self.send_only = only;
        self
    }

    /// Starts joining.
    ///
    /// # Errors
    ///
    /// There is no connection manager ([`Cause::Unsupported`](crate::Cause::Unsupported)); the address is not
    /// a multicast address; no device has a route to the group. A group with an IPv6 address on RoCE v2 is
    /// also unsupported, but only waiting for the join reports it. Manual page: `rdma_join_multicast(3)`.
    #[doc(alias = "rdma_join_multicast")]
    pub fn start(self) -> Result<Joining> {
        let subject = self.subject();
        if !self.group.ip().is_multicast() {
            let why = "the address is not one of a group";
            return Err(Error::invalid(Verb::JoinMulticast, subject, why));
        }
        if let Some(own) = self.source {
            address::check_own(Verb::ResolveAddr, &subject, Address::Ip(own))?;
        }
        let id = Id::create(PortSpace::UDP, QpType::UD, subject)?;
        let (source, peer) = (self.source.map(Wire::from), Wire::from(self.group));
        id.execute(&resolve_addr(id.number(), PATIENCE_MS, source, peer))?;
        Ok(Joining { id, how: self })
    }

    /// The group in errors: as an address without a port, with its scope if it has one.
    fn subject(&self) -> Subject {
        match self.group {
            SocketAddr::V6(group) if group.scope_id() != 0 => {
                let name = format_args!("{}%{}", group.ip(), group.scope_id());
                Subject::named("multicast group", name)
            }
            group => Subject::named("multicast group", group.ip()),
        }
    }
}

/// `ENOTSUPP`, which the kernel otherwise keeps internal: `cma_iboe_join_multicast` knows only IGMP.
const NOT_SUPPORTED: Errno = Errno::from_raw_os_error(524);

/// A group is being joined.
#[derive(Debug)]
pub struct Joining {
    id: Id,
    how: Join,
}

impl Joining {
    /// Takes pending events; returns the last one once the group is joined.
    fn advance(&self) -> Result<Option<EventResp>> {
        while let Some(raw) = self.id.try_event()? {
            match (Event(raw.event), raw.uid) {
                (Event::ADDR_RESOLVED, OWN) if raw.status == 0 => self.ask()?,
                (Event::MULTICAST_JOIN, MEMBERSHIP) if raw.status == 0 => return Ok(Some(raw)),
                (Event::ADDR_CHANGE, _) => {}
                (Event::ADDR_ERROR, _) => {
                    return Err(event::failure(Verb::ResolveAddr, self.id.subject(), &raw));
                }
                _ => return Err(event::failure(Verb::JoinMulticast, self.id.subject(), &raw)),
            }
        }
        Ok(None)
    }

    fn ask(&self) -> Result<()> {
        let flags = match self.how.send_only {
            true => JoinFlags::SENDONLY_FULLMEMBER,
            false => JoinFlags::FULLMEMBER,
        };
        let group = Wire::from(self.how.group);
        let command = JoinMcast {
            id: self.id.number(),
            uid: MEMBERSHIP,
            addr_size: group.length,
            join_flags: flags.0 as u16,
            addr: group.bytes,
            ..Default::default()
        };
        let Err(error) = self.id.execute(&command) else {
            return Ok(());
        };
        Err(match error.errno() {
            Some(errno @ NOT_SUPPORTED) => Error::unsupported_by_kernel(
                Verb::JoinMulticast,
                self.id.subject().clone(),
                errno,
                "groups with IPv6 addresses on ports of RoCE v2",
            ),
            _ => error,
        })
    }

    fn joined(self, raw: &EventResp) -> Result<Group> {
        let Some(device) = self.id.place()?.device else {
            return Err(self.id.error(Verb::JoinMulticast, Errno::IO));
        };
        let param = raw.param.ud();
        let path = attributes::path(&param.ah_attr);
        let Some(gid) = path.dgid else {
            let subject = self.id.subject().clone();
            let what = "a group without a GID";
            return Err(Error::malformed(Verb::JoinMulticast, subject, what));
        };
        Ok(Group {
            id: self.id,
            send_only: self.how.send_only,
            device,
            gid,
            qpn: param.qp_num,
            qkey: param.qkey,
            path,
        })
    }
}

impl AsFd for Joining {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl Describe for Joining {
    fn describe(&self) -> (Verb, Subject) {
        (Verb::JoinMulticast, self.id.subject().clone())
    }
}

impl Pending for Joining {
    type Output = Group;
    type Back = ();

    fn try_finish(self) -> Result<Step<Self>, Failed<()>> {
        let advanced = self.advance();
        step(self, advanced, Self::joined)
    }

    fn cancel(self) {}
}

/// A group that has been joined by a port: datagrams can be sent to it, and received once a queue pair is
/// attached. Dropping it leaves the group.
///
/// ```no_run
/// use uverbs::{Inline, Qp, Ud, cm::{Group, Membership}};
/// # fn greet(group: Group, pd: &uverbs::Pd, qp: &mut Qp<Ud>) -> Result<Membership, Box<dyn std::error::Error>> {
/// group.activate(qp)?;                        // then post receives, with 40 bytes more each
/// let ah = pd.create_ah(group.path())?;
/// qp.one(1).to(ah.to(group.qpn(), group.qkey())).send(Inline(b"hello, all"))?;
/// // ... `ah` stays until the request has completed
/// Ok(group.attach(qp)?)                       // it receives as long as this is there
/// # }
/// ```
#[derive(Debug)]
pub struct Group {
    id: Id,
    send_only: bool,
    device: (u32, u8),
    gid: Gid,
    qpn: u32,
    qkey: u32,
    path: AddressVector,
}

impl Group {
    /// The device that leads to the group. Queue pairs for the group must belong to a context of this device.
    ///
    /// # Errors
    ///
    /// It has been removed meanwhile, or devices cannot be listed.
    pub fn device(&self) -> Result<Device> {
        id::device(self.device.0, self.id.subject())
    }

    /// The device's port, counted from 1.
    pub fn port(&self) -> u8 {
        self.device.1
    }

    /// The group's GID.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// The path to the group, for [`Pd::create_ah`](crate::Pd::create_ah).
    pub fn path(&self) -> &AddressVector {
        &self.path
    }

    /// The queue pair number that addresses all members of the group, for [`Ah::to`](crate::Ah::to).
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The group's Q_Key.
    pub fn qkey(&self) -> u32 {
        self.qkey
    }

    /// Takes a queue pair from RESET or INIT to RTS, with the group's Q_Key.
    ///
    /// # Errors
    ///
    /// The queue pair belongs to another device, or is in another state.
    pub fn activate(&self, qp: &mut Qp<Ud, impl qp::Membership>) -> Result<()> {
        queue_pair::activate(&self.id, Verb::JoinMulticast, qp, self.device)
    }

    /// Makes a queue pair receive the group's datagrams. For a group that was joined only to send, nothing is
    /// attached.
    ///
    /// # Errors
    ///
    /// The queue pair belongs to another device, or the device's limit of groups is reached. The error
    /// returns the group. Manual page: `ibv_attach_mcast(3)`.
    pub fn attach(self, qp: &Qp<Ud, impl qp::Membership>) -> Result<Membership, Failed<Self>> {
        let attached = match self.send_only {
            true => Ok(None),
            false => self.attached(qp).map(Some),
        };
        match attached {
            Ok(attached) => Ok(Membership {
                _attached: attached,
                group: self,
                lost: AtomicBool::new(false),
            }),
            Err(error) => Err(Failed { back: self, error }),
        }
    }

    fn attached(&self, qp: &Qp<Ud, impl qp::Membership>) -> Result<Attached> {
        let verb = Verb::AttachMcast;
        id::check_device(verb, self.id.subject(), qp.context(), self.device.0)?;
        let (gid, mlid) = (self.gid, self.path.dlid);
        qp.shared().attach_mcast(gid, mlid)?;
        Ok(Attached {
            qp: Arc::clone(qp.shared()),
            gid,
            mlid,
        })
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

/// A queue pair's membership in a multicast group. Dropping it detaches the queue pair, unless that has
/// another membership in the group, and then leaves the group. Like a half of the queue pair, it keeps the
/// queue pair alive.
#[derive(Debug)]
pub struct Membership {
    // Before the group, so that it is dropped first: the queue pair is detached before the group is left.
    _attached: Option<Attached>,
    group: Group,
    /// It has been lost. Relaxed: a flag that guards no memory.
    lost: AtomicBool,
}

impl Membership {
    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Whether the membership has been lost, without waiting: the subnet manager revoked it, or the device is
    /// being removed.
    ///
    /// # Errors
    ///
    /// The process's credentials have changed since it joined (`EACCES`).
    pub fn is_lost(&self) -> Result<bool> {
        while let Some(raw) = self.group.id.try_event()? {
            if matches!(
                Event(raw.event),
                Event::MULTICAST_ERROR | Event::DEVICE_REMOVAL
            ) {
                self.lost.store(true, Ordering::Relaxed);
            }
        }
        Ok(self.lost.load(Ordering::Relaxed))
    }

    /// Waits for at most `limit` until [`is_lost`](Self::is_lost) may have changed.
    ///
    /// # Errors
    ///
    /// The kernel has no memory left.
    pub fn wait_for(&self, limit: Duration) -> Result<()> {
        self.group.id.wait(Some(limit))
    }
}

impl AsFd for Membership {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}

/// A queue pair that is attached to a group.
struct Attached {
    qp: Arc<QpShared>,
    gid: Gid,
    mlid: u16,
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (qp, gid) = (self.qp.handle().0, self.gid);
        write!(f, "QP {qp} in {gid}")
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(error) = self.qp.detach_mcast(self.gid, self.mlid) {
            tracing::debug!(target: "uverbs", %error, "a QP could not be detached from its group");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a link that is lost on the way to the kernel, and a port that gets there.
    #[test]
    fn a_group_is_on_a_link() {
        let join = join("[ff02::7%3]:9").unwrap();
        let join = join.source("[fe80::1%3]:5".parse().unwrap());
        assert_eq!(Some(join.group), "[ff02::7%3]:0".parse().ok());
        assert_eq!(join.source, "[fe80::1%3]:0".parse().ok());
        let subject = join.subject().to_string();
        assert_eq!(subject, "multicast group ff02::7%3");
        let wire = Wire::from(join.group);
        assert_eq!(wire.bytes.0[24..28], 3_u32.to_ne_bytes());
    }
}
