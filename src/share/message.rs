//! The messages of a broker: one request, one reply, each one datagram of a bounded size.
//!
//! A request is 16 bytes: magic, version, a reserved field and the key. A reply is a header of 16 bytes
//! (magic, version, status, the handle of the protection domain, the number of memory regions) and 76 bytes
//! for each region: its handle, its local key, its length, flags, and its name, padded with zeros. Numbers
//! are little-endian. With a reply that grants come file descriptors: the command file, then one for each
//! region whose flags announce it.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::key::ShareKey;

const MAGIC: [u8; 4] = *b"uvpd";
const VERSION: u16 = 2;

/// The most regions of an offer.
pub(super) const MAX_REGIONS: usize = 64;

/// The longest name of a region, in bytes.
pub(super) const MAX_NAME: usize = 56;

/// The longest message.
pub(super) const MAX_MESSAGE: usize = size_of::<Header>() + MAX_REGIONS * size_of::<Entry>();

/// The length of a request.
pub(super) const REQUEST: usize = size_of::<RawRequest>();

/// The most file descriptors that come with a reply.
pub(super) const MAX_FILES: usize = 1 + MAX_REGIONS;

/// A file descriptor for the region's memory comes with the reply.
const HAS_MEMORY: u32 = 1;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRequest {
    magic: [u8; 4],
    version: U16,
    reserved: U16,
    key: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    version: U16,
    status: U16,
    pd: U32,
    regions: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Entry {
    handle: U32,
    lkey: U32,
    length: U64,
    flags: U32,
    name: [u8; MAX_NAME],
}

/// A message that does not follow this protocol; the text says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadMessage(pub(super) &'static str);

/// Encodes a request.
pub(super) fn request(key: &ShareKey) -> [u8; REQUEST] {
    let raw = RawRequest {
        magic: MAGIC,
        version: VERSION.into(),
        reserved: 0.into(),
        key: key.expose().into(),
    };
    zerocopy::transmute!(raw)
}

/// Reads a request.
pub(super) fn parse_request(bytes: &[u8]) -> Result<ShareKey, BadMessage> {
    let raw = RawRequest::ref_from_bytes(bytes).map_err(|_| BadMessage("its length is wrong"))?;
    if raw.magic != MAGIC {
        return Err(BadMessage("it does not start as a message does"));
    }
    if raw.version.get() != VERSION || raw.reserved.get() != 0 {
        return Err(BadMessage("it is of another version"));
    }
    Ok(ShareKey::new(raw.key.get()))
}

/// Why a request was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The key is wrong or the user is not allowed. Both have the same answer, which so reveals nothing.
    Denied,
    /// The request is malformed.
    Malformed,
    /// The number of joiners has reached the exporter's limit.
    Full,
    /// The key was not checked; the joiner may repeat the request.
    Later,
}

/// A memory region in an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) name: String,
    pub(super) handle: u32,
    /// Together with the length it distinguishes this region from a later one with the same handle.
    pub(super) lkey: u32,
    pub(super) length: u64,
    /// A file descriptor of its memory comes with the reply.
    pub(super) has_memory: bool,
}

/// The contents of a granted reply, without the file descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) pd: u32,
    pub(super) regions: Vec<Region>,
}

impl Grant {
    /// The file descriptors that come with it.
    pub(super) fn files(&self) -> usize {
        1 + self
            .regions
            .iter()
            .filter(|region| region.has_memory)
            .count()
    }

    /// Encodes the reply that grants.
    pub(super) fn encode(&self) -> Result<Vec<u8>, BadMessage> {
        if self.regions.len() > MAX_REGIONS {
            return Err(BadMessage("an offer has at most 64 regions"));
        }
        let mut bytes = header(0, self.pd, self.regions.len() as u32);
        for region in &self.regions {
            bytes.extend_from_slice(entry(region)?.as_bytes());
        }
        Ok(bytes)
    }
}

impl Refusal {
    const ALL: [Self; 4] = [Self::Denied, Self::Malformed, Self::Full, Self::Later];

    fn status(self) -> u16 {
        match self {
            Self::Denied => 1,
            Self::Malformed => 2,
            Self::Full => 3,
            Self::Later => 4,
        }
    }

    /// Encodes the reply that refuses.
    pub(super) fn encode(self) -> Vec<u8> {
        header(self.status(), 0, 0)
    }
}

fn header(status: u16, pd: u32, regions: u32) -> Vec<u8> {
    let header = Header {
        magic: MAGIC,
        version: VERSION.into(),
        status: status.into(),
        pd: pd.into(),
        regions: regions.into(),
    };
    header.as_bytes().to_vec()
}

fn entry(region: &Region) -> Result<Entry, BadMessage> {
    let text = region.name.as_bytes();
    if text.is_empty() || text.len() > MAX_NAME || text.contains(&0) {
        return Err(BadMessage(
            "a region's name has 1 to 56 bytes and none that is 0",
        ));
    }
    let mut name = [0; MAX_NAME];
    name[..text.len()].copy_from_slice(text);
    let flags = if region.has_memory { HAS_MEMORY } else { 0 };
    Ok(Entry {
        handle: region.handle.into(),
        lkey: region.lkey.into(),
        length: region.length.into(),
        flags: flags.into(),
        name,
    })
}

/// Reads a reply.
pub(super) fn parse_reply(bytes: &[u8]) -> Result<Result<Grant, Refusal>, BadMessage> {
    let (header, rest) =
        Header::ref_from_prefix(bytes).map_err(|_| BadMessage("it is too short"))?;
    if header.magic != MAGIC {
        return Err(BadMessage("it does not start as a message does"));
    }
    if header.version.get() != VERSION {
        return Err(BadMessage("it is of another version"));
    }
    let entries = <[Entry]>::ref_from_bytes(rest).map_err(|_| BadMessage("its length is wrong"))?;
    if entries.len() != header.regions.get() as usize || entries.len() > MAX_REGIONS {
        return Err(BadMessage("its length is wrong"));
    }
    match header.status.get() {
        0 => Ok(Ok(Grant {
            pd: header.pd.get(),
            regions: entries.iter().map(region).collect::<Result<_, _>>()?,
        })),
        status => Refusal::ALL
            .into_iter()
            .find(|refusal| refusal.status() == status && entries.is_empty())
            .map(Err)
            .ok_or(BadMessage("its status is unknown")),
    }
}

fn region(entry: &Entry) -> Result<Region, BadMessage> {
    let end = entry.name.iter().position(|byte| *byte == 0);
    let (name, padding) = entry.name.split_at(end.unwrap_or(MAX_NAME));
    let name = str::from_utf8(name).map_err(|_| BadMessage("a name is not UTF-8"))?;
    if name.is_empty() || padding.iter().any(|byte| *byte != 0) {
        return Err(BadMessage("a name is empty or not filled up with zeros"));
    }
    match entry.flags.get() {
        flags @ (0 | HAS_MEMORY) => Ok(Region {
            name: name.into(),
            handle: entry.handle.get(),
            lkey: entry.lkey.get(),
            length: entry.length.get(),
            has_memory: flags == HAS_MEMORY,
        }),
        _ => Err(BadMessage("a region has flags that are unknown")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn regions() -> impl Strategy<Value = Vec<Region>> {
        let numbers = (any::<u32>(), any::<u32>(), any::<u64>());
        let region = ("[a-zà-ü/._-]{1,28}", numbers, any::<bool>());
        let region = region.prop_map(|(name, (handle, lkey, length), has_memory)| Region {
            name,
            handle,
            lkey,
            length,
            has_memory,
        });
        prop::collection::vec(region, 0..=MAX_REGIONS)
    }

    proptest! {
        #[test]
        fn a_grant_comes_back_as_it_was(pd: u32, regions in regions()) {
            let grant = Grant { pd, regions };
            let bytes = grant.encode().unwrap();
            prop_assert!(bytes.len() <= MAX_MESSAGE);
            prop_assert_eq!(parse_reply(&bytes), Ok(Ok(grant)));
        }

        #[test]
        fn a_cut_grant_is_never_taken(regions in regions(), cut: prop::sample::Index) {
            let bytes = Grant { pd: 1, regions }.encode().unwrap();
            prop_assert!(parse_reply(&bytes[..cut.index(bytes.len())]).is_err());
        }

        /// A reply that was parsed from arbitrary bytes encodes to the same bytes: nothing has two encodings.
        #[test]
        fn arbitrary_replies_are_refused_or_exact(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            start: bool,
        ) {
            let mut bytes = bytes;
            if start && bytes.len() >= 8 {
                bytes[..8].copy_from_slice(b"uvpd\x02\0\0\0");
            }
            match parse_reply(&bytes) {
                Ok(Ok(grant)) => prop_assert_eq!(grant.encode().unwrap(), bytes),
                Ok(Err(refusal)) => prop_assert_eq!(&refusal.encode()[..8], &bytes[..8]),
                Err(_) => {}
            }
        }

        #[test]
        fn arbitrary_requests_are_refused_or_exact(bytes in prop::collection::vec(any::<u8>(), 0..32)) {
            if let Ok(key) = parse_request(&bytes) {
                prop_assert_eq!(request(&key).to_vec(), bytes);
            }
        }

        #[test]
        fn a_request_with_one_wrong_byte_is_another_or_none(key: u64, at in 0..REQUEST, with in 1..=255u8) {
            let mut bytes = request(&ShareKey::new(key));
            bytes[at] ^= with;
            match parse_request(&bytes) {
                Ok(other) => prop_assert_ne!(other.expose(), key),
                Err(_) => prop_assert!(at < 8),
            }
        }
    }

    #[test]
    fn refusals_come_back() {
        for refusal in Refusal::ALL {
            assert_eq!(parse_reply(&refusal.encode()), Ok(Err(refusal)));
        }
        assert!(parse_reply(&header(5, 0, 0)).is_err());
    }

    #[test]
    fn names_that_cannot_be_told_apart_are_refused() {
        for name in ["", "a\0b", &"x".repeat(MAX_NAME + 1)] {
            let region = Region {
                name: name.into(),
                handle: 1,
                lkey: 2,
                length: 3,
                has_memory: false,
            };
            assert!(entry(&region).is_err(), "{name:?}");
        }
    }
}
