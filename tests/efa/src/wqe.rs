//! Requests of send rings and of receive rings, decoded and checked.

use serde_json::{Value, json};
use vfio_model::tap::hex;

use crate::feature::{INLINE, INLINE_WIDE, MAX_SLICES};
use crate::fields::Fields;

/// What a request does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Operation {
    Send = 0,
    Read = 1,
    Write = 2,
}

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Slice {
    pub(crate) length: u32,
    pub(crate) key: u32,
    pub(crate) address: u64,
}

/// Where a request's own data are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Local {
    Inline(Vec<u8>),
    Slices(Vec<Slice>),
}

/// A request of a send ring.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) operation: Operation,
    pub(crate) destination: u16,
    pub(crate) ah: u16,
    pub(crate) qkey: u32,
    /// As it is in the request: the order of its bytes is the application's matter.
    pub(crate) immediate: Option<[u8; 4]>,
    pub(crate) local: Local,
    /// The peer's memory of a READ or WRITE.
    pub(crate) remote: Option<Slice>,
}

/// Bits of the first byte of flags.
const IMMEDIATE: u8 = 4;
const IS_INLINE: u8 = 5;
const IS_REQUEST: u8 = 7;
/// Bits of the second.
const FIRST: u8 = 2;
const LAST: u8 = 3;
const COMPLETES: u8 = 4;

/// The id of a request, which is there even if the rest of it makes no sense.
pub(crate) fn id(bytes: &[u8], wide_ids: bool) -> u64 {
    let mut fields = Fields::new(bytes);
    let low = u64::from(fields.u16(0));
    match wide_ids {
        false => low,
        true => low | u64::from(fields.u16(26)) << 16 | u64::from(fields.u32(28)) << 32,
    }
}

/// Decodes a request of 64 or 128 bytes.
///
/// # Errors
/// Which rule it breaks.
pub(crate) fn decode(bytes: &[u8], phase: u8, wide_ids: bool) -> Result<Request, String> {
    let is_wide = bytes.len() == 128;
    let mut fields = Fields::new(bytes);
    let id = id(bytes, wide_ids);
    fields.u16(0);
    if wide_ids {
        fields.slice(26, 6);
    }
    let operation = match fields.bits8(2, 0xf) {
        0 => Operation::Send,
        1 => Operation::Read,
        2 => Operation::Write,
        other => return Err(format!("there is no operation {other}")),
    };
    let has_immediate = fields.bit(2, IMMEDIATE);
    let is_inline = fields.bit(2, IS_INLINE);
    let flags = [(2, IS_REQUEST), (3, FIRST), (3, LAST), (3, COMPLETES)];
    for (byte, bit) in flags {
        if !fields.bit(byte, bit) {
            return Err(format!("bit {bit} of byte {byte} must be set"));
        }
    }
    if fields.bits8(3, 1) != phase {
        return Err("its phase is wrong".to_owned());
    }
    let (destination, count) = (fields.u16(4), fields.u16(6));
    let immediate = match (has_immediate, operation) {
        (true, Operation::Read) => return Err("a READ has immediate data".to_owned()),
        (true, _) => Some(fields.bytes(8)),
        (false, _) => None,
    };
    let ah = fields.u16(12);
    // Hints, which change nothing.
    fields.bits8(14, 0x3);
    let qkey = fields.u32(16);
    let remote = match operation {
        Operation::Send => None,
        Operation::Read | Operation::Write => Some(Slice {
            length: fields.u32(32),
            key: fields.u32(36),
            address: fields.address(40),
        }),
    };
    let data = if remote.is_some() { 48 } else { 32 };
    let local = if is_inline {
        let most = match (operation, is_wide) {
            (Operation::Read, _) => return Err("a READ has inline data".to_owned()),
            (Operation::Write, false) => {
                return Err("a WRITE of 64 bytes has inline data".to_owned());
            }
            (Operation::Send, false) => INLINE,
            (_, true) => INLINE_WIDE,
        };
        if count > most {
            return Err(format!("{count} bytes are inline, of {most}"));
        }
        Local::Inline(fields.slice(data, count.into()).to_vec())
    } else {
        let most = if remote.is_some() { 1 } else { MAX_SLICES };
        if usize::from(count) > most {
            return Err(format!("it has {count} slices, of {most}"));
        }
        let slice = |index| Slice {
            length: fields.u32(data + 16 * index),
            key: fields.bits32(data + 16 * index + 4, 0x00ff_ffff),
            address: fields.address(data + 16 * index + 8),
        };
        Local::Slices((0..usize::from(count)).map(slice).collect())
    };
    fields.rest_is_zero()?;
    let request = Request {
        id,
        operation,
        destination,
        ah,
        qkey,
        immediate,
        local,
        remote,
    };
    match request.remote {
        Some(remote) if remote.length as usize != request.length() => Err(format!(
            "{} bytes of the peer's memory for {} of its own",
            remote.length,
            request.length()
        )),
        _ => Ok(request),
    }
}

impl Request {
    /// Bytes of its data.
    pub(crate) fn length(&self) -> usize {
        match &self.local {
            Local::Inline(bytes) => bytes.len(),
            Local::Slices(slices) => slices.iter().map(|slice| slice.length as usize).sum(),
        }
    }

    /// As a record of the tap.
    pub(crate) fn record(&self) -> Value {
        let slice = |slice: &Slice| json!({"length": slice.length, "key": slice.key, "address": slice.address});
        json!({
            "id": self.id,
            "operation": format!("{:?}", self.operation),
            "destination": self.destination,
            "ah": self.ah,
            "qkey": self.qkey,
            "immediate": self.immediate.map(|bytes| hex(&bytes)),
            "remote": self.remote.as_ref().map(slice),
            "local": match &self.local {
                Local::Inline(bytes) => json!({"inline": hex(bytes)}),
                Local::Slices(slices) => slices.iter().map(slice).collect(),
            },
        })
    }
}

/// Bytes of a descriptor of a receive ring.
pub(crate) const DESCRIPTOR: usize = 16;

/// A descriptor of a receive ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) id: u16,
    pub(crate) slice: Slice,
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
}

impl Descriptor {
    /// Decodes a descriptor.
    ///
    /// # Errors
    /// Which rule it breaks.
    pub(crate) fn decode(bytes: &[u8; DESCRIPTOR]) -> Result<Self, String> {
        let mut fields = Fields::new(bytes);
        let descriptor = Self {
            id: fields.u16(8),
            slice: Slice {
                length: fields.u16(10).into(),
                key: fields.bits32(12, 0x00ff_ffff),
                address: fields.address(0),
            },
            is_first: fields.bit(15, 6),
            is_last: fields.bit(15, 7),
        };
        fields.rest_is_zero()?;
        Ok(descriptor)
    }
}
