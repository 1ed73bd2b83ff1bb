//! The table as it lies in memory: buckets of a few entries, each with a checksum.
//!
//! The server changes an entry while clients may be reading it, and a READ is not atomic. A client sees by
//! the checksum whether it has got an entry whole; if not, it reads again.

use uverbs::{Access, Mr, Pd, RemoteSlice};

use super::Result;

const BUCKETS: usize = 256;
const ENTRIES: usize = 4;
/// Bytes of an entry: checksum, lengths of key and value, and then those.
const ENTRY: usize = 256;
const HEADER: usize = 12;

/// Bytes of a bucket, which is what a client reads.
pub(crate) const BUCKET: usize = ENTRIES * ENTRY;
/// Bytes of a key and a value together at most.
pub(crate) const MOST: usize = ENTRY - HEADER;

/// The FNV-1a hash, which is the same on every host.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The bucket that a key is in, if anywhere.
pub(crate) fn bucket(key: &[u8]) -> usize {
    hash(key) as usize % BUCKETS
}

/// What an entry's bytes are.
enum Entry<'a> {
    Free,
    Taken {
        key: &'a [u8],
        value: &'a [u8],
    },
    /// It was changed while it was read.
    Torn,
}

fn parse(entry: &[u8]) -> Entry<'_> {
    let (header, bytes) = entry.split_at(HEADER);
    if header.iter().all(|byte| *byte == 0) {
        return Entry::Free;
    }
    let length = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
    let (key, value) = (length(8), length(10));
    match bytes.get(..key + value) {
        Some(used) if header[..8] == checksum(&header[8..], used) => Entry::Taken {
            key: &used[..key],
            value: &used[key..],
        },
        _ => Entry::Torn,
    }
}

fn checksum(lengths: &[u8], bytes: &[u8]) -> [u8; 8] {
    (hash(lengths) ^ hash(bytes)).to_be_bytes()
}

fn entry(key: &[u8], value: &[u8]) -> Vec<u8> {
    let lengths = [key.len() as u16, value.len() as u16].map(u16::to_be_bytes);
    let bytes = [key, value].concat();
    let sum = checksum(lengths.as_flattened(), &bytes);
    [&sum[..], lengths.as_flattened(), &bytes].concat()
}

/// What a client finds in a bucket.
pub(crate) enum Found {
    Value(Vec<u8>),
    Nothing,
    /// Something was changed meanwhile: look again.
    Torn,
}

/// Looks for a key in a bucket that was read.
pub(crate) fn look(bucket: &[u8], key: &[u8]) -> Found {
    let mut found = Found::Nothing;
    for bytes in bucket.chunks_exact(ENTRY) {
        match parse(bytes) {
            Entry::Taken { key: own, value } if own == key => return Found::Value(value.to_vec()),
            Entry::Torn => found = Found::Torn,
            _ => {}
        }
    }
    found
}

/// The server's table, in memory that clients read.
pub(crate) struct Table {
    memory: Mr<Vec<u8>>,
}

impl Table {
    pub(crate) fn new(pd: &Pd) -> Result<Self> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        Ok(Self {
            memory: pd.register(vec![0; BUCKETS * BUCKET], access)?,
        })
    }

    /// What clients must know to read it.
    pub(crate) fn remote(&self) -> RemoteSlice {
        self.memory.remote()
    }

    /// Puts a value in, or removes the key without one. False if the bucket is full, or has no such key.
    pub(crate) fn set(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<bool> {
        if key.len() + value.map_or(0, <[u8]>::len) > MOST {
            return Ok(false);
        }
        let start = bucket(key) * BUCKET;
        let mut bytes = [0; BUCKET];
        self.memory.read_at(start, &mut bytes)?;
        let (mut own, mut free) = (None, None);
        for (at, bytes) in bytes.chunks_exact(ENTRY).enumerate() {
            match parse(bytes) {
                Entry::Taken { key: other, .. } if other == key => own = Some(at),
                Entry::Free => free = free.or(Some(at)),
                Entry::Taken { .. } | Entry::Torn => {}
            }
        }
        let (place, bytes) = match value {
            Some(value) => (own.or(free), entry(key, value)),
            None => (own, vec![0; ENTRY]),
        };
        let Some(place) = place else {
            return Ok(false);
        };
        self.memory.write_at(start + place * ENTRY, &bytes)?;
        Ok(true)
    }
}
