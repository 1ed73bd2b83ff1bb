//! Address handles, and the paths that they and connected queue pairs use.

use std::fmt;

use uverbs_uapi::handle::AhHandle;
use uverbs_uapi::types::{AhAttr, GlobalRoute};

use crate::command::{CommandFd, CreateAh, Destroy, DriverData};
use crate::context::Context;
use crate::dc::DcPeer;
use crate::driver;
use crate::error::{DestroyError, Error, Result};
use crate::gid::Gid;
use crate::grh::{GRH_LENGTH, Grh};
use crate::owned::Owned;
use crate::pd::{Pd, PdUse, User};
use crate::wc::Completion;
use crate::work::{DatagramTo, Destination, PdTag};

/// A path to a peer.
///
/// RoCE needs `dgid` and `sgid_index`; InfiniBand needs `dlid`, and across subnets also the GIDs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's GID. If set, packets carry a global route header.
    pub dgid: Option<Gid>,
    /// The header's flow label; 20 bits.
    pub flow_label: u32,
    /// Index of this side's GID in the port's table; it also selects RoCE v1 or v2.
    pub sgid_index: u8,
    /// The header's hop limit. For address handles to unicast GIDs on RoCE, the kernel uses the route's
    /// instead.
    pub hop_limit: u8,
    /// The header's traffic class (on RoCE v2 the DSCP and ECN bits).
    pub traffic_class: u8,
    /// The peer's LID.
    pub dlid: u16,
    /// The service level.
    pub sl: u8,
    /// The low bits of this side's LID.
    pub src_path_bits: u8,
    /// The rate limit, as a code; 0 for the port's own.
    pub static_rate: u8,
    /// Local port, counted from 1.
    pub port: u8,
}

/// The fields of a completion that describe a datagram's path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Way {
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
    has_grh: bool,
}

impl Way {
    #[inline]
    pub(crate) fn of(completion: &Completion) -> Self {
        Self {
            slid: completion.slid(),
            sl: completion.sl(),
            dlid_path_bits: completion.dlid_path_bits(),
            has_grh: completion.has_grh(),
        }
    }
}

impl AddressVector {
    /// The path over `port` from the GID at `sgid_index` to `dgid`, with a hop limit of 64.
    pub fn global(port: u8, sgid_index: u8, dgid: Gid) -> Self {
        Self {
            dgid: Some(dgid),
            sgid_index,
            hop_limit: 64,
            port,
            ..Self::default()
        }
    }

    /// The path over `port` to `dlid` in the same InfiniBand subnet.
    pub fn local(port: u8, dlid: u16) -> Self {
        Self {
            dlid,
            port,
            ..Self::default()
        }
    }

    /// The path back to the sender of a datagram (`ibv_init_ah_from_wc(3)`).
    ///
    /// `grh` is the first 40 bytes of the buffer that it was received into. `sgid_index` is the index of the
    /// GID that it was sent to, or for multicast of the GID to reply from.
    pub fn reply_to(
        completion: &Completion,
        grh: &[u8; GRH_LENGTH],
        port: u8,
        sgid_index: u8,
    ) -> Self {
        Self::back(Way::of(completion), grh, port, sgid_index)
    }

    /// As [`reply_to`](Self::reply_to), from saved fields of the completion.
    pub(crate) fn back(way: Way, grh: &[u8; GRH_LENGTH], port: u8, sgid_index: u8) -> Self {
        let local = Self {
            sl: way.sl,
            src_path_bits: way.dlid_path_bits,
            ..Self::local(port, way.slid)
        };
        match Grh::parse(grh).filter(|_| way.has_grh) {
            Some(grh) => Self {
                dgid: Some(grh.sgid),
                flow_label: grh.flow_label,
                sgid_index,
                hop_limit: u8::MAX,
                traffic_class: grh.traffic_class,
                ..local
            },
            None => local,
        }
    }

    /// Adds the ends of the path to an error that they may have caused.
    pub(crate) fn explain(&self, context: &Context, error: Error) -> Error {
        let Some(to) = self.dgid else { return error };
        if error.is_device_gone() {
            return error;
        }
        let (port, index) = (self.port, self.sgid_index);
        let detail = match context.query_gid(port, index.into()) {
            Err(_) => format!(
                "port {port} has no GID with the index {index}; {}",
                context.gids_in_use(port)
            ),
            Ok(own) => match (own.gid.as_ipv4(), to.as_ipv4()) {
                (Some(_), None) | (None, Some(_)) => format!(
                    "the path leads from the GID {} to {to}, and only one of them is an IPv4 address",
                    own.gid
                ),
                _ => format!("the path leads from the GID {} to {to}", own.gid),
            },
        };
        error.with_detail(detail)
    }

    fn to_abi(&self) -> AhAttr {
        AhAttr {
            grh: GlobalRoute {
                dgid: self.dgid.map_or([0; 16], |gid| gid.raw()),
                flow_label: self.flow_label,
                sgid_index: self.sgid_index,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
                reserved: 0,
            },
            dlid: self.dlid,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            static_rate: self.static_rate,
            is_global: self.dgid.is_some().into(),
            port_num: self.port,
            reserved: 0,
        }
    }
}

impl Pd {
    /// Creates an address handle: a path to send datagrams along.
    ///
    /// On Ethernet the kernel resolves the link-layer address, so this may take as long as a neighbour
    /// lookup. On mlx5 a path within an InfiniBand subnet needs no system call.
    ///
    /// # Errors
    ///
    /// There is no such port or GID index, or no route to the peer. Manual page: `ibv_create_ah(3)`.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, path: &AddressVector) -> Result<Ah> {
        let command = CreateAh {
            pd: self.handle(),
            attributes: path.to_abi(),
            driver: DriverData::default(),
        };
        let context = self.context();
        let created = context.driver().create_ah(context.fd(), command);
        let (handle, vector) = created.map_err(|error| path.explain(context, error))?;
        Ok(Ah {
            object: handle.map(|handle| Owned::new(context, handle)),
            vector,
            pd: self.user(User::Ah),
        })
    }
}

/// An address handle.
///
/// Keep it until the requests that name it have completed. On soft-RoCE a datagram whose address handle is
/// gone takes the whole queue pair to the error state, and [`Qp::state`] does not show it. On an EFA requests
/// of reliable datagrams then complete with an error. On other devices the datagram may be lost.
///
/// An EFA has one address handle for each GID of a protection domain. Several values of this type for it
/// share one, which is destroyed with the last of them.
///
/// [`Qp::state`]: crate::Qp::state
///
/// ```no_run
/// use uverbs::{Caps, ConnectOptions, Inline, Ud};
/// # fn greet(pd: &uverbs::Pd, cq: &uverbs::Cq, peer: &uverbs::Endpoint) -> uverbs::Result<()> {
/// const QKEY: u32 = 0x1111_1111;
/// let options = ConnectOptions::default();
/// let mut qp = pd.create_qp::<Ud>(cq, Caps::default())?;
/// qp.activate(QKEY, &options)?;
///
/// let path = pd.context().path_to(peer, &options)?;
/// let ah = pd.create_ah(&path)?;
/// qp.post(|batch| {
///     batch.signaled(1).to(ah.to(peer.qpn, QKEY)).send(Inline(b"hello"))?;
///     Ok(())
/// })?;
/// # Ok(()) }
/// ```
pub struct Ah {
    /// None if the kernel does not know about it.
    object: Option<Owned<AhHandle>>,
    /// How work requests refer to it.
    vector: driver::Ah,
    pd: PdUse,
}

impl Ah {
    /// The kernel's handle. `None` if the kernel does not know about it: mlx5 handles paths within an
    /// InfiniBand subnet by itself.
    pub fn handle(&self) -> Option<AhHandle> {
        self.object.as_ref().map(Owned::handle)
    }

    /// The destination of a datagram: a queue pair at the end of this path.
    ///
    /// `qkey` is the Q_Key that the peer expects. If its highest bit is set, the Q_Key of the sending QP is
    /// sent instead (rxe sends the given one).
    pub fn to(&self, qpn: u32, qkey: u32) -> UdPeer<'_> {
        UdPeer {
            ah: self,
            qpn,
            qkey,
        }
    }

    /// The destination of a request of a DC initiator: the target at the end of this path that has this
    /// number and access key ([`DcTarget`](crate::dc::DcTarget)).
    pub fn to_target(&self, number: u32, key: u64) -> DcPeer<'_> {
        DcPeer::new(self, number, key)
    }

    /// How requests refer to it.
    #[inline(always)]
    pub(crate) fn vector(&self) -> &driver::Ah {
        &self.vector
    }

    /// The protection domain that it was created in.
    #[inline(always)]
    pub(crate) fn tag(&self) -> PdTag {
        self.pd.tag()
    }

    /// Destroys the address handle. Datagrams that still name it complete with an error.
    ///
    /// # Errors
    ///
    /// The kernel refuses; the error returns the handle. Manual page: `ibv_destroy_ah(3)`.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Ah>> {
        let driver = self.pd.context().driver();
        let result = self.object.as_mut().map_or(Ok(()), |object| {
            object
                .destroy_by(|fd, handle| driver.destroy_ah(handle, || fd.execute(&Destroy(handle))))
        });
        DestroyError::of(self, result)
    }
}

/// Others may use the same address handle of the device, which the driver knows.
impl Drop for Ah {
    fn drop(&mut self) {
        let driver = self.pd.context().driver();
        if let Some(object) = &mut self.object {
            let destroy =
                |fd: &CommandFd, handle| driver.destroy_ah(handle, || fd.destroy_patiently(handle));
            object.end_by(destroy, |_| ());
        }
    }
}

impl fmt::Debug for Ah {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ah")
            .field("handle", &self.handle().map(|handle| handle.0))
            .field("vector", &self.vector)
            .finish()
    }
}

/// The destination of a datagram: a path and the queue pair at its end.
#[derive(Clone, Copy, Debug)]
pub struct UdPeer<'a> {
    ah: &'a Ah,
    qpn: u32,
    qkey: u32,
}

impl UdPeer<'_> {
    #[inline(always)]
    pub(crate) fn destination(&self) -> Destination<'_, driver::Ah> {
        Destination::Datagram(DatagramTo {
            ah: &self.ah.vector,
            qpn: self.qpn,
            qkey: self.qkey,
            pd: self.ah.pd.tag(),
        })
    }
}
