//! The route between this host and a peer: addresses, device and port.

use std::net::SocketAddr;

use super::address::{Address, IbAddr};
use super::id::{self, Id, Place};
use crate::device::Device;
use crate::error::{Result, Subject};

/// The route between this host and a peer: both addresses, and the device and port that lead there.
///
/// [`Resolved`](super::Resolved), [`Request`](super::Request) and [`Link`](super::Link) deref to their route.
#[derive(Clone, Debug)]
pub struct Route {
    local: Address,
    peer: Address,
    device: u32,
    port: u8,
    /// The name of the connection in errors.
    subject: Subject,
}

impl Route {
    /// The route of an identifier that has one. `name` makes the name in errors of a connection with this
    /// peer.
    pub(super) fn of(id: &Id, name: impl FnOnce(Address) -> Subject) -> Result<Option<Self>> {
        let Place {
            local: Some(local),
            peer: Some(peer),
            device: Some((device, port)),
        } = id.place()?
        else {
            return Ok(None);
        };
        Ok(Some(Self {
            local,
            peer,
            device,
            port,
            subject: name(peer),
        }))
    }

    /// The device that leads to the peer. The queue pair to connect must belong to a context of this device.
    ///
    /// # Errors
    ///
    /// The device has been removed meanwhile, or devices cannot be listed.
    pub fn device(&self) -> Result<Device> {
        id::device(self.device, &self.subject)
    }

    /// The device's index, the same as [`Device::index`].
    pub fn device_index(&self) -> u32 {
        self.device
    }

    /// The device's port, counted from 1.
    pub fn port(&self) -> u8 {
        self.port
    }

    /// The local address; for a request, the one that the peer connected to. On a route with InfiniBand
    /// addresses the GID, in the form of an IPv6 address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local.socket()
    }

    /// The peer's address. In a request, a link-local address has no scope. For InfiniBand addresses see
    /// [`local_addr`](Self::local_addr).
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer.socket()
    }

    /// The local InfiniBand address, on a route with such addresses.
    pub fn local_ib(&self) -> Option<IbAddr> {
        self.local.ib()
    }

    /// The peer's InfiniBand address, on a route with such addresses. In a request it has no port.
    pub fn peer_ib(&self) -> Option<IbAddr> {
        self.peer.ib()
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }
}
