//! The way between this host and a peer: addresses, device and port.

use std::net::SocketAddr;

use super::id::{self, Id, Place};
use crate::device::Device;
use crate::error::{Result, Subject};

/// The way between this host and a peer: both addresses, and the device and the port that lead there.
///
/// [`Resolved`](super::Resolved), [`Request`](super::Request) and [`Link`](super::Link) are used as the route that
/// they have.
#[derive(Clone, Debug)]
pub struct Route {
    local: SocketAddr,
    peer: SocketAddr,
    device: u32,
    port: u8,
    /// How errors name the connection.
    subject: Subject,
}

impl Route {
    /// The route of an identifier that has one. `name` is how errors name a connection with this peer.
    pub(super) fn of(id: &Id, name: impl FnOnce(SocketAddr) -> Subject) -> Result<Option<Self>> {
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

    /// The device that leads to the peer. The queue pair to connect must be one of a context of it.
    ///
    /// # Errors
    ///
    /// It has been removed meanwhile, or devices cannot be listed.
    pub fn device(&self) -> Result<Device> {
        id::device(self.device, &self.subject)
    }

    /// The device's index, as [`Device::index`] has it.
    pub fn device_index(&self) -> u32 {
        self.device
    }

    /// The device's port, counted from 1.
    pub fn port(&self) -> u8 {
        self.port
    }

    /// The own address; of a request, the one that the peer asked at.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The peer's address. The link-local one of a request has no scope.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }
}
