//! Datagrams: asking a peer for its queue pair.

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
use crate::ah::AddressVector;
use crate::error::{Result, Subject, Verb};
use crate::qp::transport::Ud;
use crate::qp::{Membership, Qp};

impl Resolved<Ud> {
    /// Takes a queue pair from RESET or INIT to RTS, with the Q_Key that all datagrams of the connection
    /// manager use.
    ///
    /// # Errors
    ///
    /// It is of another device, or in another state.
    pub fn activate(&self, qp: &mut Qp<Ud, impl Membership>) -> Result<()> {
        let device = (self.device_index(), self.port());
        queue_pair::activate(&self.id, Verb::Connect, qp, device)
    }

    /// Asks the peer for its queue pair. `data` is private data of the request: at most 180 bytes, or 216 by
    /// InfiniBand addresses, with the restrictions of [`connect`](Self::connect) on the first two bytes. The
    /// peer gets it padded with zeros.
    ///
    /// # Errors
    ///
    /// The data is too long, or the device has been removed. Manual page: `rdma_connect(3)`.
    pub fn look_up(self, data: &[u8]) -> Result<LookingUp> {
        let message = Message::LOOK_UP.by(&self.route);
        let (private_data, private_data_len) = message.fill(self.id.subject(), data)?;
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
        })
    }
}

/// The peer has been asked for its queue pair.
///
/// The kernel gives up on a silent host after more than a minute: wait with a limit ([`Pending::within`]).
#[derive(Debug)]
pub struct LookingUp {
    id: Id,
    peer: SocketAddr,
}

impl LookingUp {
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

impl AsFd for LookingUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl Describe for LookingUp {
    fn describe(&self) -> (Verb, Subject) {
        (Verb::Connect, self.id.subject().clone())
    }
}

impl Pending for LookingUp {
    type Output = Found;
    type Back = ();

    fn try_finish(self) -> Result<Step<Self>, Failed<()>> {
        let advanced = self.advance();
        step(self, advanced, |looking, raw| {
            Ok(Found::new(looking.peer, raw))
        })
    }

    fn cancel(self) {}
}

/// A peer for datagrams. It does not know who has looked it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    peer: SocketAddr,
    path: AddressVector,
    qpn: u32,
    qkey: u32,
    data: Received,
}

impl Found {
    fn new(peer: SocketAddr, raw: &EventResp) -> Self {
        let param = raw.param.ud();
        Self {
            peer,
            path: attributes::path(&param.ah_attr),
            qpn: param.qp_num,
            qkey: param.qkey,
            data: Received::new(param.private_data, param.private_data_len),
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

    /// The number of its queue pair, for [`Ah::to`](crate::Ah::to).
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The key that its queue pair expects.
    pub fn qkey(&self) -> u32 {
        self.qkey
    }

    /// The private data of the peer's answer: the whole field of the message, padded with zeros.
    pub fn private_data(&self) -> &[u8] {
        self.data.bytes()
    }
}
