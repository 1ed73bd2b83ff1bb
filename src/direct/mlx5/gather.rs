//! Keys that cover parts of several regions, one behind the other.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;

use uverbs_uapi::flags::Access;
use zerocopy::IntoBytes;

use super::Direct;
use super::layout::{CreateMkeyIn, CreateMkeyOut, Input, Klm, Mkc, Structure};
use super::object::DevxObject;
use super::refusal::CommandError;
use crate::error::{DestroyError, Result};
use crate::memory::Memory;
use crate::mr::{Mr, OutOfBounds, RemoteKey, RemoteSlice};
use crate::pd::{Pd, PdUse, User};
use crate::work::PdTag;

/// Why a list of parts is none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GatherError {
    /// A part does not lie within its region, or has no bytes, or 4 GiB or more.
    OutOfBounds(OutOfBounds),
    /// A region is of another protection domain.
    ForeignPd,
    /// A region does not give this side the access that the key is to give peers.
    Access(Access),
    /// There are no parts, or more than this many fit into a command.
    Count(usize),
    /// The command failed.
    Command(CommandError),
}

impl fmt::Display for GatherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBounds(error) => fmt::Display::fmt(error, f),
            Self::ForeignPd => f.write_str("a region belongs to another protection domain"),
            Self::Access(access) => {
                write!(
                    f,
                    "a region was registered without {access:?}, which the key is to give"
                )
            }
            Self::Count(most) => write!(f, "a key covers 1 to {most} parts"),
            Self::Command(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl std::error::Error for GatherError {}

/// A part of a region that a key is to cover.
struct Part {
    address: u64,
    length: u32,
    lkey: u32,
    access: Access,
    pd: PdTag,
    region: Arc<dyn Any + Send + Sync>,
}

/// The description of a key that covers parts of several regions.
///
/// To peers it looks like one region: its addresses count from 0, and the parts follow each other in the
/// order in which they were added.
///
/// ```no_run
/// use std::sync::Arc;
/// use uverbs::{Access, direct::mlx5::Direct};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = uverbs::open("mlx5_0")?;
/// let pd = context.alloc_pd()?;
/// let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
/// let [first, second] = [0, 1].map(|_| pd.register(vec![0u8; 4096], access).map(Arc::new));
/// let (first, second) = (first?, second?);
/// let direct = Direct::of(&context)?;
/// let key = direct.gather(&pd, Access::REMOTE_READ).part(&first, 0..100)?.part(&second, 0..4096)?.create()?;
/// println!("{}", key.remote());        // 4196 bytes at address 0
/// # Ok(()) }
/// ```
#[must_use = "nothing is created before `create`"]
pub struct Gathers<'a> {
    direct: &'a Direct,
    pd: &'a Pd,
    access: Access,
    parts: Vec<Part>,
}

impl fmt::Debug for Gathers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathers")
            .field("access", &self.access)
            .field("parts", &self.parts.len())
            .finish()
    }
}

impl Direct {
    /// Starts the description of a key that covers parts of several regions of a protection domain, with the
    /// access that peers get by it: of remote read, write and atomic operations.
    #[doc(alias = "mlx5dv_create_mkey")]
    pub fn gather<'a>(&'a self, pd: &'a Pd, access: Access) -> Gathers<'a> {
        Gathers {
            direct: self,
            pd,
            access,
            parts: Vec::new(),
        }
    }
}

/// What a region must give this side for what its key gives peers.
fn needed(access: Access) -> Access {
    match access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
        true => Access::LOCAL_WRITE,
        false => Access::empty(),
    }
}

impl Gathers<'_> {
    /// Adds a part of a region, in bytes from its start. The key keeps the region.
    ///
    /// # Errors
    ///
    /// The part does not lie within the region, has no bytes, or has 4 GiB or more.
    pub fn part<M: Memory + Sync>(
        mut self,
        region: &Arc<Mr<M>>,
        range: Range<usize>,
    ) -> Result<Self, GatherError> {
        let slice = region
            .slice(range.clone())
            .map_err(GatherError::OutOfBounds)?;
        if slice.is_empty() {
            return Err(GatherError::OutOfBounds(OutOfBounds {
                start: range.start as u64,
                end: range.end as u64,
                length: region.len() as u64,
            }));
        }
        let (address, length, lkey) = (slice.address(), slice.len() as u32, slice.lkey().0);
        self.parts.push(Part {
            address,
            length,
            lkey,
            access: region.access(),
            pd: region.pd_tag(),
            region: Arc::clone(region) as Arc<dyn Any + Send + Sync>,
        });
        Ok(self)
    }

    /// Creates the key.
    ///
    /// # Errors
    ///
    /// A region is of another domain, or has less access; there are no parts, or more than fit into a
    /// command; the device refuses. Manual page: `mlx5dv_create_mkey(3)`.
    pub fn create(self) -> Result<GatheredKey, GatherError> {
        let Self {
            direct,
            pd,
            access,
            parts,
        } = self;
        if parts.is_empty() || parts.len() > CreateMkeyIn::MOST_UNITS {
            return Err(GatherError::Count(CreateMkeyIn::MOST_UNITS));
        }
        if parts.iter().any(|part| part.pd != pd.tag()) {
            return Err(GatherError::ForeignPd);
        }
        let needed = needed(access);
        if parts.iter().any(|part| !part.access.contains(needed)) {
            return Err(GatherError::Access(needed));
        }
        let pdn = direct
            .pdn(pd)
            .map_err(|error| GatherError::Command(error.into()))?;
        let length: u64 = parts.iter().map(|part| u64::from(part.length)).sum();
        let command = command(pdn, access, length, &parts);
        let mut output = CreateMkeyOut::default();
        let object = direct.create_object(&command, output.as_mut_bytes());
        let object = object.map_err(GatherError::Command)?;
        let regions = parts.into_iter().map(|part| part.region).collect();
        Ok(GatheredKey {
            object,
            // The low byte is 0.
            rkey: RemoteKey((output.get(CreateMkeyOut::MKEY_INDEX) as u32) << 8),
            length,
            regions: ManuallyDrop::new(regions),
            _pd: pd.user(User::Mr),
        })
    }
}

/// The command that creates the key.
fn command(pdn: u32, access: Access, length: u64, parts: &[Part]) -> Vec<u8> {
    /// Parts of other keys.
    const PARTS: u64 = 2;
    /// Any queue pair.
    const ANY: u64 = 0xff_ffff;
    let mut command = CreateMkeyIn::new();
    let context = command.inner_mut(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
    let gives = |right: Access| u64::from(access.contains(right));
    let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    context
        .set(Mkc::ACCESS_MODE_1_0, PARTS)
        .set(Mkc::LR, 1)
        .set(Mkc::LW, writes.into())
        .set(Mkc::RR, gives(Access::REMOTE_READ))
        .set(Mkc::RW, gives(Access::REMOTE_WRITE))
        .set(Mkc::A, gives(Access::REMOTE_ATOMIC))
        .set(Mkc::QPN, ANY)
        .set(Mkc::PD, pdn.into())
        .set(Mkc::LEN, length);
    let list: Vec<Klm> = parts
        .iter()
        .map(|part| {
            let mut unit = Klm::default();
            unit.set(Klm::BCOUNT, part.length.into())
                .set(Klm::KEY, part.lkey.into())
                .set(Klm::VA, part.address);
            unit
        })
        .collect();
    command.with_list(&list)
}

/// A key that covers parts of several regions, which it keeps registered. Dropping it destroys it; should the
/// device refuse, the regions are leaked rather than freed under it.
///
/// Requests of peers that name it when it is destroyed fail.
pub struct GatheredKey {
    object: DevxObject,
    rkey: RemoteKey,
    length: u64,
    /// They go behind the key.
    regions: ManuallyDrop<Vec<Arc<dyn Any + Send + Sync>>>,
    _pd: PdUse,
}

impl GatheredKey {
    /// The key for a peer.
    pub fn rkey(&self) -> RemoteKey {
        self.rkey
    }

    /// Bytes of all parts.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Never true: a part has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// All parts as a peer addresses them, from address 0 on. Send it to the peer.
    pub fn remote(&self) -> RemoteSlice {
        RemoteSlice {
            address: 0,
            length: self.length,
            rkey: self.rkey,
        }
    }

    /// The object, for commands that ask for its state.
    pub fn object(&self) -> &DevxObject {
        &self.object
    }

    /// Destroys the key, and lets go of the regions.
    ///
    /// # Errors
    ///
    /// The kernel or the device refuses; the error returns it.
    #[doc(alias = "mlx5dv_destroy_mkey")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        let result = self.object.destroy_in_place();
        DestroyError::of(self, result)
    }
}

impl Drop for GatheredKey {
    fn drop(&mut self) {
        if self.object.end() {
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.regions) };
        }
    }
}

impl fmt::Debug for GatheredKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatheredKey")
            .field("rkey", &self.rkey)
            .field("len", &self.length)
            .field("parts", &self.regions.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_the_parts_and_the_rights() {
        let part = |lkey, address, length| Part {
            address,
            length,
            lkey,
            access: Access::LOCAL_WRITE,
            pd: PdTag::new(3, 4),
            region: Arc::new(()),
        };
        let parts = [
            part(0x1100, 0x7f00_0000_0010, 0x20),
            part(0x2200, 0x1000, 0x30),
        ];
        let bytes = command(0x12_3456, Access::REMOTE_READ, 0x50, &parts);
        let mut expected = vec![0; 0x110 + 4 * 16];
        expected[..2].copy_from_slice(&[2, 0]);
        expected[0x63] = 4;
        let context = &mut expected[0x10..0x50];
        // Reads of peers and of this side; mode 2; any queue pair; domain; length; room.
        context[2] = 0b0001_0110;
        context[4..7].copy_from_slice(&[0xff; 3]);
        context[0xd..0x10].copy_from_slice(&[0x12, 0x34, 0x56]);
        context[0x1f] = 0x50;
        context[0x37] = 4;
        let list = &mut expected[0x110..];
        list[3] = 0x20;
        list[6..8].copy_from_slice(&[0x11, 0]);
        list[10..16].copy_from_slice(&[0x7f, 0, 0, 0, 0, 0x10]);
        list[19] = 0x30;
        list[22..24].copy_from_slice(&[0x22, 0]);
        list[30..32].copy_from_slice(&[0x10, 0]);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn writes_of_peers_need_regions_that_may_be_written() {
        assert_eq!(needed(Access::REMOTE_READ), Access::empty());
        assert_eq!(needed(Access::REMOTE_WRITE), Access::LOCAL_WRITE);
        assert_eq!(needed(Access::REMOTE_ATOMIC), Access::LOCAL_WRITE);
    }
}
