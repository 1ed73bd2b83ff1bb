//! Connecting a queue pair in one call: what peers exchange, and the three transitions to RTS with common
//! attributes. For other attributes use [`Qp::modify`].

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::str::FromStr;

use uverbs_uapi::enums::{LinkLayer, Mtu, QpState, QpType};
use uverbs_uapi::flags::Access;
use uverbs_uapi::write as abi;

use super::attr::{dest, has_short_numbers};
use super::transition::needed;
use super::transport::{Connected, Datagram, Dc, Transport};
use super::{Membership, Qp, QpAttr};
use crate::ah::AddressVector;
use crate::command::WrittenModifyQp;
use crate::context::Context;
use crate::error::{Cause, Error, ParseError, Result, Subject, Verb};
use crate::gid::{Gid, GidEntry, GidType};
use crate::query::PortAttr;

/// What a peer must know about a queue pair to connect to it.
///
/// Exchange it over any other connection. Its text form is the one of rdma-core's ping-pong programs: LID, QP
/// number, PSN and GID in hexadecimal.
///
/// ```
/// let endpoint: uverbs::Endpoint = "0000:000011:a3f2c1:00000000000000000000ffff0a090001".parse()?;
/// assert_eq!(endpoint.qpn, 0x11);
/// assert_eq!(endpoint.gid, Some("10.9.0.1".parse()?));
/// assert_eq!(endpoint.to_string(), "0000:000011:a3f2c1:00000000000000000000ffff0a090001");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The port's LID; 0 on RoCE.
    pub lid: u16,
    /// The queue pair's number; 24 bits.
    pub qpn: u32,
    /// The packet sequence number with which it starts to send; 24 bits.
    pub psn: u32,
    /// The port's GID, if packets carry a global route header.
    pub gid: Option<Gid>,
}

/// The binary form, for peers: LID (2), number (4), PSN (4) and GID (16, zeros for none), in network byte
/// order. It is stable.
impl Endpoint {
    /// The binary form.
    pub fn to_bytes(self) -> [u8; 26] {
        let mut bytes = [0; 26];
        bytes[..2].copy_from_slice(&self.lid.to_be_bytes());
        bytes[2..6].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[6..10].copy_from_slice(&self.psn.to_be_bytes());
        bytes[10..].copy_from_slice(&self.gid.unwrap_or_default().raw());
        bytes
    }

    /// The endpoint with this binary form; `None` if the number or the PSN has more than 24 bits.
    pub fn from_bytes(bytes: [u8; 26]) -> Option<Self> {
        let word =
            |at| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[10..]);
        let (qpn, psn, gid) = (word(2), word(6), Gid::new(gid));
        (qpn >> 24 == 0 && psn >> 24 == 0).then_some(Self {
            lid: u16::from_be_bytes([bytes[0], bytes[1]]),
            qpn,
            psn,
            gid: (!gid.is_zero()).then_some(gid),
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, qpn, psn, gid } = self;
        write!(f, "{lid:04x}:{qpn:06x}:{psn:06x}:")?;
        gid.unwrap_or_default()
            .raw()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What is expected of a text.
const NO_ENDPOINT: ParseError = ParseError::new(
    "not an endpoint: expected LID:QPN:PSN:GID with 4, 6, 6 and 32 hexadecimal digits",
);

impl FromStr for Endpoint {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut fields = text.split(':');
        let mut field = |digits: usize| {
            let field = fields.next().filter(|field| field.len() == digits)?;
            field
                .bytes()
                .all(|byte| byte.is_ascii_hexdigit())
                .then_some(())?;
            u128::from_str_radix(field, 16).ok()
        };
        let read = (field(4), field(6), field(6), field(32));
        let ((Some(lid), Some(qpn), Some(psn), Some(gid)), None) = (read, fields.next()) else {
            return Err(NO_ENDPOINT);
        };
        let gid = Gid::new(gid.to_be_bytes());
        // The lengths of the fields bound the numbers.
        Ok(Self {
            lid: lid as u16,
            qpn: qpn as u32,
            psn: psn as u32,
            gid: (!gid.is_zero()).then_some(gid),
        })
    }
}

/// How to connect.
///
/// ```no_run
/// use uverbs::{Access, ConnectOptions, Endpoint, Qp, Rc};
/// # fn connect(qp: &mut Qp<Rc>, exchange: impl Fn(Endpoint) -> Endpoint) -> uverbs::Result<()> {
/// let options = ConnectOptions {
///     gid_index: Some(3),
///     access: Access::REMOTE_WRITE,
///     max_rd_atomic: 16,
///     max_dest_rd_atomic: 16,
///     ..ConnectOptions::default()
/// };
/// let peer = exchange(qp.endpoint_with(&options)?);
/// qp.connect_with(&peer, &options)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Local port, counted from 1.
    pub port: u8,
    /// Index of this side's GID. `None` takes the best one of the port: RoCE v2 over IPv4, then over IPv6,
    /// then over their link-local addresses, then RoCE v1; on InfiniBand none, unless the peer has a GID.
    pub gid_index: Option<u8>,
    /// The largest packet; `None` takes the port's active MTU, and more is refused. Both sides must use the
    /// same.
    pub path_mtu: Option<Mtu>,
    /// What the peer may do.
    pub access: Access,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Service level.
    pub sl: u8,
    /// Traffic class of the global route header.
    pub traffic_class: u8,
    /// Hop limit of the global route header.
    pub hop_limit: u8,
    /// See [`QpAttr::timeout`].
    pub timeout: u8,
    /// See [`QpAttr::retry_cnt`]. On soft-RoCE 7 means forever: then a dead peer is never noticed.
    pub retry_cnt: u8,
    /// See [`QpAttr::rnr_retry`]. It has no effect on datagrams that are not reliable.
    pub rnr_retry: u8,
    /// See [`QpAttr::min_rnr_timer`].
    pub min_rnr_timer: u8,
    /// See [`QpAttr::max_rd_atomic`]. At most the peer's `max_dest_rd_atomic`.
    pub max_rd_atomic: u8,
    /// See [`QpAttr::max_dest_rd_atomic`]. At least the peer's `max_rd_atomic`.
    pub max_dest_rd_atomic: u8,
    /// The result of [`queried`](Self::queried). It is used only if `port` and `gid_index` are still the
    /// same; otherwise, and if it is `None`, each call queries the device.
    pub local: Option<LocalEnd>,
}

/// Port 1, its best GID and its MTU. The peer may read, write and do atomics where the memory allows it. A
/// timeout of 268 ms with 6 retries, so a dead peer is noticed after about two seconds; endless retries while
/// the peer has no receive posted. One READ or atomic in flight in each direction.
impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            port: 1,
            gid_index: None,
            path_mtu: None,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            pkey_index: 0,
            sl: 0,
            traffic_class: 0,
            hop_limit: 64,
            timeout: 16,
            retry_cnt: 6,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            local: None,
        }
    }
}

impl ConnectOptions {
    /// Queries the port and the GID now, for all connections with these options by queue pairs of this
    /// context. (Those of another device need options of their own.) [`Qp::endpoint_with`] and
    /// [`Qp::connect_with`] then do not repeat these queries, which pays off with many queue pairs.
    /// Connecting only checks whether the index still holds the GID. If the GID is gone or the port has
    /// changed, which an [event](crate::event::AsyncEventType) reports, query again.
    ///
    /// ```no_run
    /// use uverbs::{ConnectOptions, Qp, Rc};
    /// # fn endpoints(context: &uverbs::Context, qps: &[Qp<Rc>]) -> uverbs::Result<()> {
    /// let options = ConnectOptions::default().queried(context)?;
    /// let endpoints = qps.iter().map(|qp| qp.endpoint_with(&options));
    /// # for endpoint in endpoints { endpoint?; }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Qp::endpoint_with`].
    pub fn queried(self, context: &Context) -> Result<Self> {
        let local = Some(LocalEnd::query(context, &self)?);
        Ok(Self { local, ..self })
    }
}

impl Context {
    /// The default GID of a port, which [`ConnectOptions::gid_index`] uses if it is `None`. Of several of one
    /// kind it is the first whose network interface is up and in this network namespace. On InfiniBand there
    /// is none, since peers in the subnet need none. On a port that is neither InfiniBand nor Ethernet it is
    /// the port's GID.
    ///
    /// # Errors
    ///
    /// There is no such port, or it has no GID. The GIDs of an Ethernet port come from its network device,
    /// which may be missing.
    pub fn best_gid(&self, port: u8) -> Result<Option<(u8, Gid)>> {
        let best = self.best_gid_of(port, &self.query_port(port)?)?;
        Ok(best.map(|entry| (entry.index as u8, entry.gid)))
    }

    /// The best GID of a port whose attributes are known; its index is at most 255.
    fn best_gid_of(&self, port: u8, attr: &PortAttr) -> Result<Option<GidEntry>> {
        if attr.link_layer == LinkLayer::INFINIBAND {
            return Ok(None);
        }
        let table = self.gid_table()?;
        let of_port = table.iter().filter(|entry| entry.port == u32::from(port));
        match best(of_port, is_here) {
            Some(entry) => Ok(Some(*entry)),
            None => Err(Error::new(
                Verb::QueryGidTable,
                Subject::numbered("port", port.into()),
                Cause::NotFound("a GID: the port has none, nor a network device".into()),
            )),
        }
    }
}

/// The best of the entries of a port. Among several of the best rank, one whose address is on this host comes
/// first.
fn best<'t>(
    of_port: impl Iterator<Item = &'t GidEntry>,
    is_here: impl Fn(IpAddr) -> bool,
) -> Option<&'t GidEntry> {
    let mut entries: Vec<_> = of_port
        .filter(|entry| entry.index <= u8::MAX.into())
        .collect();
    entries.sort_by_key(|entry| (rank(entry.gid_type, entry.gid), entry.index));
    let first = entries.first()?;
    let rank_of = |entry: &GidEntry| rank(entry.gid_type, entry.gid);
    let alike = entries
        .iter()
        .take_while(|entry| rank_of(entry) == rank_of(first));
    let here = match alike.clone().count() {
        // There is no choice, wherever its address is.
        1 => None,
        _ => alike
            .into_iter()
            .find(|entry| is_here(address_of(entry.gid))),
    };
    here.or(Some(first)).copied()
}

/// The address of the network interface that has a GID.
fn address_of(gid: Gid) -> IpAddr {
    gid.as_ipv4()
        .map_or_else(|| Ipv6Addr::from(gid).into(), IpAddr::from)
}

/// Whether an interface of this network namespace has the address and is up: then a socket can bind to it. If
/// namespaces share a device, its table also has the GIDs of other namespaces' interfaces, and the kernel
/// refuses paths from them.
fn is_here(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// How good a GID is for being reached, the best first. Routers forward packets of RoCE v2, but not to
/// link-local addresses; and where both kinds exist, IPv4 is more often configured end to end.
fn rank(gid_type: GidType, gid: Gid) -> (bool, bool, bool) {
    let ipv4 = gid.as_ipv4();
    let is_link_local = match ipv4 {
        Some(address) => address.is_link_local(),
        None => gid.raw()[..2] == [0xfe, 0x80],
    };
    (gid_type != GidType::RoceV2, is_link_local, ipv4.is_none())
}

/// This side's end of a path, as selected by the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Local {
    port: u8,
    /// The options' GID index.
    asked: Option<u8>,
    gid_index: Option<u8>,
    /// The GID at the index and its type, if peers get it. Each version of RoCE has an entry with the GID.
    gid: Option<(Gid, GidType)>,
    active_mtu: Mtu,
}

impl Local {
    /// Whether these options select the same end.
    fn is_for(&self, options: &ConnectOptions) -> bool {
        (self.port, self.asked) == (options.port, options.gid_index)
    }

    /// The GID that peers get.
    fn told(&self) -> Option<Gid> {
        self.gid.map(|(gid, _)| gid)
    }

    /// The index at which its GID is now. Addresses come and go, and then an index holds another GID, while
    /// the peer would answer to the one that it knows.
    fn index_now(
        &self,
        context: &Context,
        subject: impl FnOnce() -> Subject,
    ) -> Result<Option<u8>> {
        let (Some(index), Some((gid, gid_type))) = (self.gid_index, self.gid) else {
            return Ok(self.gid_index);
        };
        let entry = context.query_gid(self.port, index.into());
        if entry.is_ok_and(|entry| self.has(&entry)) {
            return Ok(Some(index));
        }
        match self.find(&context.gid_table()?) {
            Some(index) => Ok(Some(index)),
            None => Err(Error::invalid(
                Verb::ModifyQp,
                subject(),
                format!(
                    "the port no longer has the GID {gid} ({gid_type}) that the peer was told: tell it a new \
                     endpoint"
                ),
            )),
        }
    }

    /// Whether an entry of its port is the GID that peers get.
    fn has(&self, entry: &GidEntry) -> bool {
        self.gid == Some((entry.gid, entry.gid_type))
    }

    /// The index of the GID that peers get in a table.
    fn find(&self, table: &[GidEntry]) -> Option<u8> {
        let mut of_port = table
            .iter()
            .filter(|entry| entry.port == u32::from(self.port));
        let entry = of_port.find(|entry| self.has(entry) && entry.index <= u8::MAX.into())?;
        Some(entry.index as u8)
    }

    /// The MTU of a path from here.
    fn mtu(&self, asked: Option<Mtu>, subject: impl FnOnce() -> Subject) -> Result<Mtu> {
        mtu_of(asked, self.active_mtu, subject)
    }
}

/// The MTU of a path: a port sends no packets that are longer than its own MTU.
fn mtu_of(asked: Option<Mtu>, active: Mtu, subject: impl FnOnce() -> Subject) -> Result<Mtu> {
    match asked {
        Some(asked) if asked.0 > active.0 => Err(Error::invalid(
            Verb::ModifyQp,
            subject(),
            format!("path_mtu is {asked:?}, and the port has {active:?}"),
        )),
        asked => Ok(asked.unwrap_or(active)),
    }
}

/// The result of a query of this side's end of a path: see [`ConnectOptions::queried`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalEnd {
    local: Local,
    lid: u16,
}

impl LocalEnd {
    /// The end that the options select: as they know it, or as it is now.
    pub(crate) fn find(context: &Context, options: &ConnectOptions) -> Result<Self> {
        match Self::known(options) {
            Some(end) => Ok(end),
            None => Self::query(context, options),
        }
    }

    /// The end that the options select, as they know it.
    fn known(options: &ConnectOptions) -> Option<Self> {
        options.local.filter(|end| end.local.is_for(options))
    }

    /// The end that the options select, as it is now.
    fn query(context: &Context, options: &ConnectOptions) -> Result<Self> {
        let port = context.query_port(options.port)?;
        let own = match options.gid_index {
            Some(index) => Some(context.query_gid(options.port, index.into())?),
            None => context.best_gid_of(options.port, &port)?,
        };
        let local = Local {
            port: options.port,
            asked: options.gid_index,
            gid_index: own.map(|entry| entry.index as u8),
            gid: own.map(|entry| (entry.gid, entry.gid_type)),
            active_mtu: port.active_mtu,
        };
        Ok(Self {
            local,
            lid: port.lid,
        })
    }
}

impl LocalEnd {
    /// The endpoint, for peers, of a target of dynamic connections here with this number.
    pub(crate) fn of_target(&self, number: u32) -> Endpoint {
        Endpoint {
            lid: self.lid,
            qpn: number,
            psn: 0,
            gid: self.local.told(),
        }
    }

    /// The changes that make a target of dynamic connections receive here.
    pub(crate) fn target_changes(&self, options: &ConnectOptions) -> Result<[abi::ModifyQp; 2]> {
        // The kernel requires a path, of which only the near end matters.
        let path = path_from(self.local.gid_index, &self.of_target(0), options)?;
        let path_mtu = self
            .local
            .mtu(options.path_mtu, || Subject::the("DC target"))?;
        let first = to_init(options, None);
        let last = QpAttr {
            state: Some(QpState::RTR),
            path: Some(path),
            path_mtu: Some(path_mtu),
            min_rnr_timer: Some(options.min_rnr_timer),
            ..QpAttr::default()
        };
        Ok([first.to_abi(), last.to_abi()])
    }
}

impl<T: Transport, M: Membership> Qp<T, M> {
    /// What the peer must know to connect, over port 1, with its best GID and a random PSN.
    ///
    /// # Errors
    ///
    /// The port cannot be queried, or has no GID although it needs one.
    pub fn endpoint(&self) -> Result<Endpoint> {
        self.endpoint_with(&ConnectOptions::default())
    }

    /// What the peer must know to connect, over a port and GID of your choice.
    ///
    /// The first call draws the PSN; later calls return the same one. The port and the GID are queried now,
    /// unless the options [have them](ConnectOptions::queried), and the next [`Qp::connect_with`] with the
    /// same port and GID index uses the result. So the peer gets the GID that this side uses.
    ///
    /// # Errors
    ///
    /// As for [`Qp::endpoint`], and there is no GID at that index.
    pub fn endpoint_with(&self, options: &ConnectOptions) -> Result<Endpoint> {
        let LocalEnd { local, lid } = LocalEnd::find(self.context(), options)?;
        self.shared.remember(local);
        Ok(Endpoint {
            lid,
            qpn: self.qpn(),
            psn: self.psn()?,
            gid: local.told(),
        })
    }

    /// This side's end of the path: as [`Qp::endpoint`] last returned it, as the options know it, or as it is
    /// now. What was returned is used until a connection succeeds, since it may differ for the next one.
    fn local(&self, options: &ConnectOptions) -> Result<Local> {
        if let Some(known) = self.known(options) {
            return Ok(known);
        }
        let context = self.context();
        let port = context.query_port(options.port)?;
        let gid_index = match options.gid_index {
            Some(index) => Some(index),
            None => context
                .best_gid_of(options.port, &port)?
                .map(|entry| entry.index as u8),
        };
        Ok(Local {
            port: options.port,
            asked: options.gid_index,
            gid_index,
            gid: None,
            active_mtu: port.active_mtu,
        })
    }

    /// This side's end of the path if no query is needed: as [`Qp::endpoint`] last returned it, or as the
    /// options know it.
    fn known(&self, options: &ConnectOptions) -> Option<Local> {
        let told = self.shared.told().filter(|told| told.is_for(options));
        told.or_else(|| Some(LocalEnd::known(options)?.local))
    }

    /// The PSN that this side starts to send with.
    fn psn(&self) -> Result<u32> {
        let shared = &self.shared;
        shared.psn(|| draw_psn(shared.context(), || shared.subject()))
    }

    /// Takes a connected queue pair from RESET to INIT.
    pub(crate) fn init(&mut self, options: &ConnectOptions) -> Result<()>
    where
        T: Connected,
    {
        self.modify(&to_init(options, None))
    }
}

#[inline(always)]
fn to_init(options: &ConnectOptions, qkey: Option<u32>) -> QpAttr {
    QpAttr {
        state: Some(QpState::INIT),
        port: Some(options.port),
        pkey_index: Some(options.pkey_index),
        access: qkey.is_none().then_some(options.access),
        qkey,
        ..QpAttr::default()
    }
}

// The bounds are on the methods, so that the compiler shows the traits' own messages.

impl<T: Transport, M: Membership> Qp<T, M> {
    /// Connects to a peer with the default options: from RESET to RTS.
    ///
    /// The peer connects to this side's [`Qp::endpoint`]. Post receives before the peer sends: connect, post,
    /// and then let the peer know.
    ///
    /// # Errors
    ///
    /// The peer's endpoint lacks a GID, or also a LID, or there is no route to it. The queue pair then stays
    /// in the state that it reached, which is INIT at most in these cases; call [`Qp::reset`] before another
    /// attempt. The peer may keep this side's endpoint, as long as this queue pair has not been in the state
    /// RTR. Retry after `ETIMEDOUT`: on Ethernet the kernel requests the peer's link-layer address once, and
    /// gives up after a second.
    pub fn connect(&mut self, peer: &Endpoint) -> Result<()>
    where
        T: Connected,
    {
        self.connect_with(peer, &ConnectOptions::default())
    }

    /// Connects to a peer with options of your choice; use the same with [`Qp::endpoint_with`].
    ///
    /// # Errors
    ///
    /// As for [`Qp::connect`].
    pub fn connect_with(&mut self, peer: &Endpoint, options: &ConnectOptions) -> Result<()>
    where
        T: Connected,
    {
        let sq_psn = self.psn()?;
        let local = self.local(options)?;
        let subject = || self.shared.subject();
        let gid_index = local.index_now(self.context(), subject)?;
        let path_mtu = local.mtu(options.path_mtu, subject)?;
        let path = path_from(gid_index, peer, options)?;
        let steps = Steps::new(self.transport(), peer, options, (path, path_mtu), sq_psn);
        self.shared.connect(steps)?;
        self.shared.forget();
        Ok(())
    }
}

/// The changes that take a connected queue pair from RESET to RTS. The attributes of all three are in one
/// struct: the kernel reads only those that a change's mask names.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    transport: QpType,
    change: WrittenModifyQp,
}

impl Steps {
    /// The changes for a path with its MTU.
    #[inline]
    fn new(
        transport: QpType,
        peer: &Endpoint,
        options: &ConnectOptions,
        (path, path_mtu): (AddressVector, Mtu),
        sq_psn: u32,
    ) -> Self {
        let change = WrittenModifyQp::from(abi::ModifyQp {
            port_num: options.port,
            pkey_index: options.pkey_index,
            qp_access_flags: options.access.bits(),
            dest: dest(&path),
            path_mtu: path_mtu.0 as u8,
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: options.max_dest_rd_atomic,
            min_rnr_timer: options.min_rnr_timer,
            sq_psn,
            timeout: options.timeout,
            retry_cnt: options.retry_cnt,
            rnr_retry: options.rnr_retry,
            max_rd_atomic: options.max_rd_atomic,
            ..Default::default()
        });
        Self { transport, change }
    }

    /// Whether the kernel would accept their values in the state RESET.
    pub(super) fn are_usual(&self) -> bool {
        has_short_numbers(&self.change.core)
    }

    /// Makes the changes in order, until one fails.
    pub(crate) fn each(
        mut self,
        mut make: impl FnMut(&mut WrittenModifyQp) -> Result<()>,
    ) -> Result<()> {
        let mut from = QpState::RESET;
        for to in [QpState::INIT, QpState::RTR, QpState::RTS] {
            self.change.core.qp_state = to.0 as u8;
            self.change.core.attr_mask = needed(self.transport, from, to).bits();
            make(&mut self.change)?;
            from = to;
        }
        Ok(())
    }
}

/// This side's end of a path, and whatever else a peer must know, for objects that are not a [`Qp`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    local: Local,
    endpoint: Endpoint,
}

impl End {
    /// Looks up the end of a queue pair with this number, and draws its PSN.
    pub(crate) fn find(
        context: &Context,
        options: &ConnectOptions,
        qpn: u32,
        subject: impl FnOnce() -> Subject,
    ) -> Result<Self> {
        let LocalEnd { local, lid } = LocalEnd::find(context, options)?;
        let psn = draw_psn(context, subject)?;
        let gid = local.told();
        Ok(Self {
            local,
            endpoint: Endpoint { lid, qpn, psn, gid },
        })
    }

    /// Whether these options select the same end.
    pub(crate) fn is_for(&self, options: &ConnectOptions) -> bool {
        self.local.is_for(options)
    }

    /// What the peer must know.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The transitions that connect it.
    pub(crate) fn steps(
        &self,
        transport: QpType,
        peer: &Endpoint,
        options: &ConnectOptions,
        (context, subject): (&Context, impl Fn() -> Subject),
    ) -> Result<Steps> {
        let gid_index = self.local.index_now(context, &subject)?;
        let path = path_from(gid_index, peer, options)?;
        let mtu = self.local.mtu(options.path_mtu, &subject)?;
        let psn = self.endpoint.psn;
        Ok(Steps::new(transport, peer, options, (path, mtu), psn))
    }
}

/// A random PSN.
fn draw_psn(context: &Context, subject: impl FnOnce() -> Subject) -> Result<u32> {
    match context.random() {
        Ok(number) => Ok(number & 0x00ff_ffff),
        Err(errno) => Err(Error::os(Verb::ModifyQp, subject(), errno)),
    }
}

impl Context {
    /// The path to a peer, for an address handle or a connection.
    ///
    /// # Errors
    ///
    /// The peer has no GID and the port is an Ethernet port, or the peer has no LID either. Or this side's
    /// GID cannot be found: the port has none, or no longer has the one that the
    /// [options](ConnectOptions::queried) know.
    pub fn path_to(&self, peer: &Endpoint, options: &ConnectOptions) -> Result<AddressVector> {
        let own = match (LocalEnd::known(options), options.gid_index) {
            (Some(end), _) => end
                .local
                .index_now(self, || Subject::named("path to", peer))?,
            (None, Some(index)) => Some(index),
            (None, None) => self.best_gid(options.port)?.map(|(index, _)| index),
        };
        path_from(own, peer, options)
    }
}

/// The path to a peer from the GID with this index, if there is one.
fn path_from(own: Option<u8>, peer: &Endpoint, options: &ConnectOptions) -> Result<AddressVector> {
    let invalid = |why: &'static str| {
        let endpoint = Subject::named("endpoint", peer);
        Err(Error::invalid(Verb::ModifyQp, endpoint, why))
    };
    let local = AddressVector {
        sl: options.sl,
        ..AddressVector::local(options.port, peer.lid)
    };
    match (peer.gid, own) {
        (Some(dgid), sgid_index) => Ok(AddressVector {
            dgid: Some(dgid),
            sgid_index: sgid_index.unwrap_or(0),
            hop_limit: options.hop_limit,
            traffic_class: options.traffic_class,
            ..local
        }),
        (None, None) if peer.lid != 0 => Ok(local),
        (None, None) => {
            invalid("it has neither a GID nor a LID: a subnet manager gives a port its LID")
        }
        (None, Some(_)) => invalid("it has no GID, which this side's port or GID index calls for"),
    }
}

impl<T: Transport, M: Membership> Qp<T, M> {
    /// Takes a datagram queue pair from RESET to RTS. Datagrams to it must carry `qkey`.
    ///
    /// # Errors
    ///
    /// There is no such port or partition key, or `path_mtu` exceeds the port's MTU. Or the datagrams are
    /// reliable, `rnr_retry` is not 7, and the device cannot be told.
    pub fn activate(&mut self, qkey: u32, options: &ConnectOptions) -> Result<()>
    where
        T: Datagram,
    {
        let sq_psn = self.psn()?;
        let limit = self.longest_datagram(options)?;
        let rnr_retry = self.rnr_retry(options)?;
        self.modify(&to_init(options, Some(qkey)))?;
        self.modify(&QpAttr {
            state: Some(QpState::RTR),
            ..QpAttr::default()
        })?;
        self.modify(&QpAttr {
            state: Some(QpState::RTS),
            sq_psn: Some(sq_psn),
            rnr_retry,
            ..QpAttr::default()
        })?;
        self.shared.forget();
        self.shared.limit_messages(limit);
        Ok(())
    }

    /// The retries to set if the peer has no receive posted. Only reliable datagrams are sent again.
    pub(super) fn rnr_retry(&self, options: &ConnectOptions) -> Result<Option<u8>> {
        if self.transport() != QpType::DRIVER {
            return Ok(None);
        }
        match (self.context().driver().sets_rnr_retry(), options.rnr_retry) {
            (true, retries) => Ok(Some(retries)),
            // The device sends them again forever.
            (false, 7) => Ok(None),
            (false, _) => Err(Error::unsupported(
                Verb::ModifyQp,
                self.shared.subject(),
                "a number of retries (`rnr_retry`) of this device's reliable datagrams",
            )),
        }
    }

    /// The most bytes of a message: an MTU of a datagram on most devices, whatever the port takes of a
    /// device's own type.
    fn longest_datagram(&self, options: &ConnectOptions) -> Result<u32> {
        if self.transport() != QpType::UD || self.context().driver().has_long_datagrams() {
            return Ok(self.context().query_port(options.port)?.max_msg_sz);
        }
        let known = self.known(options).map(|known| known.active_mtu);
        let active = match known {
            Some(mtu) => mtu,
            None => self.context().query_port(options.port)?.active_mtu,
        };
        let mtu = mtu_of(options.path_mtu, active, || self.shared.subject())?;
        Ok(mtu.bytes().unwrap_or(u32::MAX))
    }
}

impl<M: Membership> Qp<Dc, M> {
    /// Takes an initiator of dynamic connections from RESET to RTS. The access in the options has no effect:
    /// an initiator has no peer, and targets decide what initiators may do.
    ///
    /// # Errors
    ///
    /// There is no such port or partition key, the numbers are too large for the device, or `path_mtu`
    /// exceeds the port's MTU.
    pub fn activate_initiator(&mut self, options: &ConnectOptions) -> Result<()> {
        let sq_psn = self.psn()?;
        let local = self.local(options)?;
        let path_mtu = local.mtu(options.path_mtu, || self.shared.subject())?;
        self.modify(&QpAttr {
            access: None,
            ..to_init(options, None)
        })?;
        self.modify(&QpAttr {
            state: Some(QpState::RTR),
            path_mtu: Some(path_mtu),
            ..QpAttr::default()
        })?;
        self.modify(&QpAttr {
            state: Some(QpState::RTS),
            sq_psn: Some(sq_psn),
            timeout: Some(options.timeout),
            retry_cnt: Some(options.retry_cnt),
            rnr_retry: Some(options.rnr_retry),
            max_rd_atomic: Some(options.max_rd_atomic),
            ..QpAttr::default()
        })?;
        self.shared.forget();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::driver::samples;
    use crate::qp::attr::Change;
    use crate::qp::transport::Rc;
    use crate::qp::{RecvHalf, SendHalf};

    #[test]
    fn the_text_form_goes_both_ways() {
        let endpoint = Endpoint {
            lid: 0x12,
            qpn: 0xabcdef,
            psn: 1,
            gid: None,
        };
        assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
        let endpoint = Endpoint {
            gid: Some("fe80::1".parse().unwrap()),
            ..endpoint
        };
        assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
    }

    /// `QpShared::connect` does not check the transitions when a queue pair is in RESET.
    #[test]
    fn the_steps_are_what_the_transitions_take() {
        let peer: Endpoint = "0000:000011:a3f2c1:00000000000000000000ffff0a090001"
            .parse()
            .unwrap();
        let options = ConnectOptions::default();
        for transport in [QpType::RC, QpType::UC, QpType::XRC_SEND, QpType::XRC_RECV] {
            let path = path_from(Some(1), &peer, &options).unwrap();
            let steps = Steps::new(transport, &peer, &options, (path, Mtu::MTU_1024), 7);
            assert!(steps.are_usual());
            let mut from = QpState::RESET;
            let made = steps.each(|step| {
                let step = &step.core;
                step.check(|| Subject::numbered("QP", 3), transport, from)?;
                from = step.state().unwrap();
                Ok(())
            });
            made.unwrap();
            assert_eq!(from, QpState::RTS, "{transport:?}");
        }
    }

    /// Would catch a path that the kernel accepts and that leads nowhere.
    #[test]
    fn a_peer_without_an_address_is_refused() {
        let options = ConnectOptions::default();
        let peer = Endpoint {
            lid: 0x12,
            qpn: 0x11,
            psn: 1,
            gid: None,
        };
        assert_eq!(path_from(None, &peer, &options).unwrap().dlid, 0x12);
        let nowhere = Endpoint { lid: 0, ..peer };
        for (own, why) in [(None, "nor a LID"), (Some(1), "no GID")] {
            let error = path_from(own, &nowhere, &options).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    /// Would catch a default GID that no router forwards, although another GID can be reached from
    /// everywhere.
    #[test]
    fn a_routable_gid_of_the_newer_version_is_the_best() {
        let gids = [
            (GidType::RoceV2, "::ffff:10.9.0.1"),
            (GidType::RoceV2, "2001:db8::1"),
            (GidType::RoceV2, "::ffff:169.254.7.7"),
            (GidType::RoceV2, "fe80::1"),
            (GidType::RoceV1, "::ffff:10.9.0.1"),
        ];
        let ranks = gids.map(|(version, gid)| rank(version, gid.parse().unwrap()));
        assert!(ranks.is_sorted(), "{ranks:?}");
        assert!(ranks.windows(2).all(|pair| pair[0] < pair[1]), "{ranks:?}");
    }

    /// Would catch longer packets than a port sends.
    #[test]
    fn a_path_has_no_larger_mtu_than_its_port() {
        let local = Local {
            port: 1,
            asked: None,
            gid_index: None,
            gid: None,
            active_mtu: Mtu::MTU_1024,
        };
        let mtu = |asked| local.mtu(asked, || Subject::the("QP")).ok();
        assert_eq!(mtu(None), Some(Mtu::MTU_1024));
        assert_eq!(mtu(Some(Mtu::MTU_256)), Some(Mtu::MTU_256));
        assert_eq!(mtu(Some(Mtu::MTU_2048)), None);
    }

    /// Would catch an end that is used for another port or GID.
    #[test]
    fn an_end_that_was_queried_is_for_its_port_and_gid_only() {
        let end = LocalEnd {
            local: Local {
                port: 1,
                asked: None,
                gid_index: Some(3),
                gid: None,
                active_mtu: Mtu::MTU_1024,
            },
            lid: 0,
        };
        let options = ConnectOptions {
            local: Some(end),
            ..ConnectOptions::default()
        };
        assert_eq!(LocalEnd::known(&options), Some(end));
        for (port, gid_index) in [(2, None), (1, Some(3))] {
            let other = ConnectOptions {
                port,
                gid_index,
                ..options.clone()
            };
            assert_eq!(LocalEnd::known(&other), None, "{port} {gid_index:?}");
        }
    }

    /// Would catch a connection by another version of RoCE than the peer was told, and one on InfiniBand that
    /// is refused although the GID has only moved.
    #[test]
    fn the_gid_that_was_told_is_found_by_its_type() {
        let gid: Gid = "10.9.0.1".parse().unwrap();
        let entry = |port, index, gid_type| GidEntry {
            gid,
            index,
            port,
            gid_type,
            netdev_ifindex: 0,
        };
        let told = |gid_type| Local {
            port: 1,
            asked: Some(2),
            gid_index: Some(2),
            gid: Some((gid, gid_type)),
            active_mtu: Mtu::MTU_1024,
        };
        let [v1, v2] = [GidType::RoceV1, GidType::RoceV2];
        let table = [
            entry(2, 0, v1),
            entry(1, 2, v2),
            entry(1, 3, v1),
            entry(1, 256, GidType::Ib),
        ];
        assert_eq!(told(v1).find(&table), Some(3));
        assert_eq!(told(v2).find(&table), Some(2));
        assert_eq!(told(GidType::Ib).find(&table), None);
        assert_eq!(told(GidType::Ib).find(&[entry(1, 7, GidType::Ib)]), Some(7));
        // The other version has come to its index.
        assert!(!told(v1).has(&table[1]) && told(v2).has(&table[1]));
    }

    /// Would catch another attempt to connect that uses another GID than the peer has been told.
    #[test]
    fn what_was_told_holds_until_a_connection_succeeds() {
        let (kernel, file) = rustix::pipe::pipe().unwrap();
        let shared = crate::qp::shared::tests::shared(&Context::over(file), QpType::RC);
        let shared = Arc::new(shared);
        let queue = samples::send_queues().pop().unwrap();
        let mut qp = Qp::<Rc> {
            send: SendHalf::new(queue, &shared, None),
            recv: RecvHalf::new(None, &shared),
            shared,
        };
        qp.shared.store(QpState::RESET);
        let options = ConnectOptions::default();
        let local = Local {
            port: options.port,
            asked: options.gid_index,
            gid_index: None,
            gid: None,
            active_mtu: Mtu::MTU_1024,
        };
        qp.shared.remember(local);
        let peer = Endpoint {
            lid: 0x12,
            qpn: 0x11,
            psn: 1,
            gid: None,
        };
        let nowhere = Endpoint { lid: 0, ..peer };
        qp.connect_with(&nowhere, &options).unwrap_err();
        assert_eq!(qp.known(&options), Some(local));
        qp.connect_with(&peer, &options).unwrap();
        assert_eq!(qp.known(&options), None);
        qp.shared.store(QpState::RESET);
        qp.shared.remember(local);
        drop(kernel);
        qp.connect_with(&peer, &options).unwrap_err();
        assert_eq!(qp.known(&options), Some(local));
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        let good = "0000:000011:a3f2c1:00000000000000000000ffff0a090001";
        assert!(good.parse::<Endpoint>().is_ok());
        for bad in [
            "",
            ":::",
            "0000:000011:a3f2c1",
            &good[1..],
            &format!("{good}:"),
            &good.replace('f', "+"),
            &good.replace("0000:", "00é:"),
        ] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }

    /// Catches a GID of an interface that is down or in another network namespace, where another GID would
    /// do, and look-ups of addresses where there is no choice.
    #[test]
    fn a_gid_whose_address_is_here_comes_first() {
        let entry = |index, gid: &str| GidEntry {
            gid: gid.parse().unwrap(),
            index,
            port: 1,
            gid_type: GidType::RoceV2,
            netdev_ifindex: 0,
        };
        let table = [
            entry(0, "fe80::1"),
            entry(1, "10.9.0.1"),
            entry(2, "10.9.0.2"),
            entry(3, "2001:db8::1"),
        ];
        let chosen = |here: &[&str]| {
            let here: Vec<IpAddr> = here.iter().map(|text| text.parse().unwrap()).collect();
            best(table.iter(), |address| here.contains(&address)).map(|entry| entry.index)
        };
        assert_eq!(chosen(&["10.9.0.1", "10.9.0.2"]), Some(1));
        assert_eq!(chosen(&["10.9.0.2", "2001:db8::1"]), Some(2));
        assert_eq!(chosen(&["2001:db8::1"]), Some(1));
        let alone = best(table[..2].iter(), |_| panic!("there is no choice"));
        assert_eq!(alone.map(|entry| entry.index), Some(1));
        assert_eq!(best(table[..0].iter(), |_| true), None);
        assert_eq!(
            address_of(table[3].gid),
            "2001:db8::1".parse::<IpAddr>().unwrap()
        );
    }
}
