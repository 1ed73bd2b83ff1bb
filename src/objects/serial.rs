//! Serialisation of endpoints, remote slices and keys by serde (feature `serde`).
//!
//! In formats for people (JSON) they are text, and a key is a number. In all others they are the bytes of
//! `to_bytes`, as an array of fixed length. Both forms are stable.

use std::fmt::Display;
use std::str::FromStr;

use serde_core::de::{Deserialize, Deserializer, Error};
use serde_core::ser::{Serialize, Serializer};

use crate::gid::Gid;
use crate::qp::Endpoint;
use crate::work::{RemoteKey, RemoteSlice};

fn write<S: Serializer, const N: usize>(
    value: &impl Display,
    bytes: [u8; N],
    serializer: S,
) -> Result<S::Ok, S::Error>
where
    [u8; N]: Serialize,
{
    match serializer.is_human_readable() {
        true => serializer.collect_str(value),
        false => bytes.serialize(serializer),
    }
}

fn read<'de, T, D, const N: usize>(
    deserializer: D,
    of_bytes: impl FnOnce([u8; N]) -> Option<T>,
) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
    [u8; N]: Deserialize<'de>,
{
    match deserializer.is_human_readable() {
        true => String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom),
        false => {
            let bytes = <[u8; N]>::deserialize(deserializer)?;
            of_bytes(bytes).ok_or_else(|| D::Error::custom("numbers of more than 24 bits"))
        }
    }
}

impl Serialize for RemoteSlice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write(self, self.to_bytes(), serializer)
    }
}

impl<'de> Deserialize<'de> for RemoteSlice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer, |bytes| Some(Self::from_bytes(bytes)))
    }
}

impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write(self, self.to_bytes(), serializer)
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer, Self::from_bytes)
    }
}

impl Serialize for Gid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write(self, self.raw(), serializer)
    }
}

impl<'de> Deserialize<'de> for Gid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer, |bytes| Some(Self::new(bytes)))
    }
}

impl Serialize for RemoteKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => self.0.serialize(serializer),
            false => self.0.to_be_bytes().serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for RemoteKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let key = match deserializer.is_human_readable() {
            true => u32::deserialize(deserializer)?,
            false => u32::from_be_bytes(<[u8; 4]>::deserialize(deserializer)?),
        };
        Ok(Self(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: RemoteSlice = RemoteSlice {
        address: 0x0102_0304_0506_0708,
        length: 0x1112,
        rkey: RemoteKey(0x2122_2324),
    };

    fn endpoint() -> Endpoint {
        "0003:000011:a3f2c1:00000000000000000000ffff0a090001"
            .parse()
            .unwrap()
    }

    #[test]
    fn text_is_for_people() {
        let text = serde_json::to_string(&(SLICE, endpoint(), endpoint().gid, SLICE.rkey)).unwrap();
        assert_eq!(
            text,
            r#"["102030405060708:1112:21222324","0003:000011:a3f2c1:00000000000000000000ffff0a090001","::ffff:10.9.0.1",555885348]"#
        );
        let read: (RemoteSlice, Endpoint, Option<Gid>, RemoteKey) =
            serde_json::from_str(&text).unwrap();
        assert_eq!(read, (SLICE, endpoint(), endpoint().gid, SLICE.rkey));
        assert!(serde_json::from_str::<RemoteSlice>("\"1:2\"").is_err());
        assert!(serde_json::from_str::<Endpoint>("7").is_err());
    }

    #[test]
    fn bytes_are_for_programs() {
        let bytes = postcard::to_allocvec(&(SLICE, endpoint(), SLICE.rkey)).unwrap();
        let should_be = [
            1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x11, 0x12, 0x21, 0x22, 0x23,
            0x24, // slice
            0, 3, 0, 0, 0, 0x11, 0, 0xa3, 0xf2, 0xc1, // LID, number, PSN
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1, // GID
            0x21, 0x22, 0x23, 0x24,
        ];
        assert_eq!(bytes, should_be);
        let read: (RemoteSlice, Endpoint, RemoteKey) = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(read, (SLICE, endpoint(), SLICE.rkey));
        let gid = endpoint().gid.unwrap();
        assert_eq!(postcard::to_allocvec(&gid).unwrap(), gid.raw());
        let mut wide = endpoint().to_bytes();
        wide[2] = 1;
        assert!(postcard::from_bytes::<Endpoint>(&wide).is_err());
    }
}
