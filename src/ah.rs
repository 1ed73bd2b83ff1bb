//! Address handles, and the paths that they and connected queue pairs are made with.

use std::fmt;

use uverbs_uapi::handle::AhHandle;
use uverbs_uapi::types::{AhAttr, GlobalRoute};

use crate::command::{CreateAh, DriverData};
use crate::driver;
use crate::error::{DestroyError, Result};
use crate::gid::Gid;
use crate::grh::{GRH_LENGTH, Grh};
use crate::owned::Owned;
use crate::pd::{Pd, PdUse, User};
use crate::wc::Completion;
use crate::work::Destination;

/// A path to a peer.
///
/// RoCE needs `dgid` and `sgid_index`; InfiniBand needs `dlid`, and the GIDs across subnets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's GID; with it packets carry a global route header.
    pub dgid: Option<Gid>,
    /// The header's flow label; 20 bits.
    pub flow_label: u32,
    /// Index of the own GID in the port's table; it also decides between RoCE v1 and v2.
    pub sgid_index: u8,
    /// The header's hop limit. For address handles to unicast GIDs on RoCE the kernel takes the route's
    /// instead.
    pub hop_limit: u8,
    /// The header's traffic class (on RoCE v2 the DSCP and ECN bits).
    pub traffic_class: u8,
    /// The peer's LID.
    pub dlid: u16,
    /// The service level.
    pub sl: u8,
    /// The low bits of the own LID to use.
    pub src_path_bits: u8,
    /// The rate limit, as a code; 0 for the port's own.
    pub static_rate: u8,
    /// Local port, counted from 1.
    pub port: u8,
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

    /// The path over `port` to `dlid` in the own InfiniBand subnet.
    pub fn local(port: u8, dlid: u16) -> Self {
        Self {
            dlid,
            port,
            ..Self::default()
        }
    }

    /// The path back to whoever sent a datagram (`ibv_init_ah_from_wc(3)`).
    ///
    /// `grh` are the first 40 bytes of the buffer that it was received into, `sgid_index` the index of the
    /// own GID that it was sent to, or for multicast the one to answer from.
    pub fn reply_to(
        completion: &Completion,
        grh: &[u8; GRH_LENGTH],
        port: u8,
        sgid_index: u8,
    ) -> Self {
        let local = Self {
            sl: completion.sl(),
            src_path_bits: completion.dlid_path_bits(),
            ..Self::local(port, completion.slid())
        };
        match Grh::parse(grh).filter(|_| completion.has_grh()) {
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
    /// Creates an address handle: a path that datagrams can be sent along.
    ///
    /// The kernel resolves the link-layer address here, so this may take as long as a neighbour lookup.
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
        let (handle, vector) = context.driver().create_ah(context.fd(), command)?;
        Ok(Ah {
            object: Owned::new(context, handle),
            vector,
            pd: self.user(User::Ah),
        })
    }
}

/// An address handle.
pub struct Ah {
    object: Owned<AhHandle>,
    /// As work requests name it.
    vector: driver::Ah,
    pd: PdUse,
}

impl Ah {
    /// The kernel's handle.
    pub fn handle(&self) -> AhHandle {
        self.object.handle()
    }

    /// A queue pair behind this path, for datagrams to it.
    ///
    /// `qkey` is the key that the peer expects; with its highest bit set the own QP's key is sent instead
    /// (not on rxe, which sends what is given).
    pub fn to(&self, qpn: u32, qkey: u32) -> UdPeer<'_> {
        UdPeer {
            ah: self,
            qpn,
            qkey,
        }
    }

    /// Destroys the address handle. Datagrams that still name it complete with an error.
    ///
    /// # Errors
    ///
    /// The kernel refuses; the error gives the handle back. Manual page: `ibv_destroy_ah(3)`.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Ah>> {
        self.object.destroy().map_err(|error| DestroyError {
            object: self,
            error,
        })
    }
}

impl fmt::Debug for Ah {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ah")
            .field("handle", &self.handle().0)
            .field("vector", &self.vector)
            .finish()
    }
}

/// Where a datagram goes: a path and the queue pair at its end.
#[derive(Clone, Copy, Debug)]
pub struct UdPeer<'a> {
    ah: &'a Ah,
    qpn: u32,
    qkey: u32,
}

impl UdPeer<'_> {
    #[inline(always)]
    pub(crate) fn destination(&self) -> Destination<'_, driver::Ah> {
        Destination {
            ah: &self.ah.vector,
            qpn: self.qpn,
            qkey: self.qkey,
            pd: self.ah.pd.tag(),
        }
    }
}
