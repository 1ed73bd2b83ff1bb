//! Fields of several structs: addresses, private data of the user, options, the union of an event.

use super::{ConnParam, IB_SERVICE_NAME_SIZE, MAX_PRIVATE_DATA, UdParam};
use core::fmt;
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// An IPv6 address with its port; an IPv4 address takes its first 16 bytes.
///
/// Kernel: `struct sockaddr_in6`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct SockaddrIn6 {
    /// The family.
    pub sin6_family: u16,
    /// The port.
    pub sin6_port: U16,
    /// Flow information, in network byte order.
    pub sin6_flowinfo: u32,
    /// The address.
    pub sin6_addr: [u8; 16],
    /// The scope, an index of a network interface.
    pub sin6_scope_id: u32,
}

/// An address of any family. The bytes after the family's own are 0.
///
/// Kernel: `struct __kernel_sockaddr_storage`.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct SockaddrStorage(pub [u8; 128]);

/// The field for private data of the user.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct PrivateData(pub [u8; MAX_PRIVATE_DATA]);

/// The name of a service. The bytes after it are 0.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct ServiceName(pub [u8; IB_SERVICE_NAME_SIZE]);

/// The data of an event: a union, which depends on the type of the identifier's queue pair.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(4))]
pub struct Param(pub [u8; size_of::<UdParam>()]);

impl Param {
    /// For a connected queue pair.
    #[must_use]
    pub fn conn(&self) -> ConnParam {
        first(&self.0)
    }

    /// For a datagram queue pair, and for a multicast group.
    #[must_use]
    pub fn ud(&self) -> UdParam {
        first(&self.0)
    }
}

/// The struct at the start of the bytes; missing bytes are 0.
fn first<T: FromBytes + IntoBytes>(bytes: &[u8]) -> T {
    let mut value = T::new_zeroed();
    let length = size_of::<T>().min(bytes.len());
    value.as_mut_bytes()[..length].copy_from_slice(&bytes[..length]);
    value
}

/// Options of a queue pair (enhanced connection establishment).
///
/// Kernel: `struct rdma_ucm_ece`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Ece {
    /// The vendor.
    pub vendor_id: u32,
    /// The vendor's options.
    pub attr_mod: u32,
}

/// Implements the traits that arrays of more than 32 bytes do not have.
macro_rules! long_bytes {
    ($($name:ident),*) => {$(
        impl Default for $name {
            fn default() -> Self {
                Self::new_zeroed()
            }
        }

        /// The bytes in hexadecimal, without the zeros at the end.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let end = self.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                f.write_str(stringify!($name))?;
                f.write_str("(")?;
                for byte in &self.0[..end] {
                    write!(f, "{byte:02x}")?;
                }
                f.write_str(")")
            }
        }
    )*};
}

long_bytes!(SockaddrStorage, PrivateData, ServiceName, Param);
