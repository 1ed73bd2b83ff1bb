//! Peers that are looked up: requesting the number of a queue pair for datagrams, or of a target of dynamic
//! connections.

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use uverbs_uapi::rdma_cm::{self as abi, Event, EventResp};

use super::attributes;
use super::command::Connect;
use super::data::{Message, Received};
use super::event;
use super::id::Id;
use super::pending::describe::Describe;
use super::pending::{Failed, Pending, Step, step};
use super::queue_pair;
use super::resolve::Resolved;
use super::space::{KEY, LookedUp};
use crate::ah::AddressVector;
use crate::error::{Result, Subject, Verb};
use crate::qp::transport::{Dc, Ud};
use crate::qp::{Membership, Qp};

impl Resolved<Ud> {
    /// Takes a queue pair from RESET or INIT to RTS, with the Q_Key that all datagrams of the connection
    /// manager use.
    ///
    /// # Errors
    ///
    /// The queue pair belongs to another device, or is in another state.
    pub fn activate(&self, qp: &mut Qp<Ud, impl Membership>) -> Result<()> {
        let device = (self.device_index(), self.port());
        queue_pair::activate(&self.id, Verb::Connect, qp, device)
    }
}

impl<T: LookedUp> Resolved<T> {
    /// Requests the number of the peer's queue pair, or of its target. `data` is private data of the request:
    /// at most 180 bytes, or 216 with InfiniBand addresses, with the restrictions of `connect` on the first
    /// two bytes. The peer gets it padded with zeros.
    ///
    /// # Errors
    ///
    /// The data is too long, or the device has been removed. Manual page: `rdma_connect(3)`.
    pub fn look_up(self, data: &[u8]) -> Result<LookingUp<T>> {
        let message = Message::LOOK_UP.by(&self.route);
        let (private_data, private_data_len) = message.fill(self.id.subject(), data)?;
        self.forget_changes()?;
        self.id.execute(&Connect {
            id: self.id.number(),
            conn_param: abi::ConnParam {
                private_data,
                private_data_len,
                valid: 1,
                ..abi::ConnParam::default()
            },
            ..Default::default()
        })?;
        Ok(LookingUp {
            peer: self.peer_addr(),
            id: self.id,
            of: PhantomData,
        })
    }
}

/// The number of the peer's queue pair, or of its target, has been requested.
///
/// The kernel gives up on a silent host after more than a minute: wait with a limit ([`Pending::within`]).
#[derive(Debug)]
pub struct LookingUp<T> {
    id: Id,
    peer: SocketAddr,
    of: PhantomData<fn() -> T>,
}

impl<T> LookingUp<T> {
    /// Takes pending events; returns the last one once the peer is known.
    fn advance(&self) -> Result<Option<EventResp>> {
        while let Some(raw) = self.id.try_event()? {
            match Event(raw.event) {
                Event::ESTABLISHED if raw.status == 0 => return Ok(Some(raw)),
                Event::ADDR_CHANGE => {}
                _ => return Err(event::failure(Verb::Connect, self.id.subject(), &raw)),
            }
        }
        Ok(None)
    }
}

impl<T> AsFd for LookingUp<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl<T> Describe for LookingUp<T> {
    fn describe(&self) -> (Verb, Subject) {
        (Verb::Connect, self.id.subject().clone())
    }
}

impl<T: LookedUp> Pending for LookingUp<T> {
    type Output = Found<T>;
    type Back = ();

    fn try_finish(self) -> Result<Step<Self>, Failed<()>> {
        let advanced = self.advance();
        step(self, advanced, |looking, raw| {
            Ok(Found::new(looking.peer, raw))
        })
    }

    fn cancel(self) {}
}

/// A peer that answered. It does not know who looked it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<T> {
    peer: SocketAddr,
    path: AddressVector,
    qpn: u32,
    qkey: u32,
    data: Received,
    of: PhantomData<fn() -> T>,
}

impl<T: LookedUp> Found<T> {
    fn new(peer: SocketAddr, raw: &EventResp) -> Self {
        let param = raw.param.ud();
        Self {
            peer,
            path: attributes::path(&param.ah_attr),
            qpn: param.qp_num,
            qkey: param.qkey,
            data: Received::new(param.private_data, param.private_data_len),
            of: PhantomData,
        }
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The path to it, for [`Pd::create_ah`](crate::Pd::create_ah).
    pub fn path(&self) -> &AddressVector {
        &self.path
    }

    /// The number of its queue pair, for [`Ah::to`](crate::Ah::to), or of its target, for
    /// [`Ah::to_target`](crate::Ah::to_target).
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The private data of the peer's answer: the rest of the message's field, padded with zeros.
    pub fn private_data(&self) -> &[u8] {
        self.data.bytes().get(T::OWN..).unwrap_or_default()
    }
}

impl Found<Ud> {
    /// The Q_Key that its queue pair expects.
    pub fn qkey(&self) -> u32 {
        self.qkey
    }
}

impl Found<Dc> {
    /// The access key of its target, for [`Ah::to_target`](crate::Ah::to_target).
    ///
    /// In the answer it comes before the private data, 8 bytes in network order: a peer that does not use
    /// this library must put it there.
    pub fn key(&self) -> u64 {
        let key = self.data.bytes().first_chunk::<KEY>();
        key.map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }
}
