//! The bytes of requests as named fields, all of them: what has no meaning has a name too, so that nothing is
//! left out.
//!
//! The fields have the names of the kernel's `include/linux/mlx5/qp.h`.

use support::Result;

use crate::names::Names;

/// A name and what is there, in the order of the bytes.
pub(crate) type Fields = Vec<(String, String)>;

const CHANGE_KEY: u8 = 0x25;
const SEND_INVALIDATE: u8 = 0x01;
const ATOMICS: [u8; 2] = [0x11, 0x12];
const REMOTE: [u8; 5] = [0x08, 0x09, 0x10, 0x11, 0x12];
/// The key behind the last slice of a receive request.
const TERMINATOR: u32 = 0x100;

/// Reads from bytes, and gathers fields.
struct Reader<'a> {
    rest: &'a [u8],
    names: &'a Names,
    fields: Fields,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8], names: &'a Names) -> Self {
        Self {
            rest: bytes,
            names,
            fields: Vec::new(),
        }
    }

    /// The next bytes as a number.
    fn take(&mut self, size: usize) -> Result<u64> {
        let bytes = self.bytes(size)?;
        Ok(bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn bytes(&mut self, size: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self
            .rest
            .split_at_checked(size)
            .ok_or("a request ends too early")?;
        self.rest = rest;
        Ok(bytes)
    }

    fn add(&mut self, name: impl Into<String>, value: String) {
        self.fields.push((name.into(), value));
    }

    /// A field that is compared as a number.
    fn number(&mut self, name: impl Into<String>, size: usize) -> Result<u64> {
        let value = self.take(size)?;
        self.add(name, format!("{value:#x}"));
        Ok(value)
    }

    /// A field of many bytes.
    fn raw(&mut self, name: impl Into<String>, size: usize) -> Result {
        let bytes = self.bytes(size)?;
        self.add(name, hex(bytes));
        Ok(())
    }

    fn key(&mut self, name: impl Into<String>) -> Result<u32> {
        let key = self.take(4)? as u32;
        self.add(name, self.names.key(key));
        Ok(key)
    }

    fn address(&mut self, name: impl Into<String>) -> Result {
        let address = self.take(8)?;
        self.add(name, self.names.address(address));
        Ok(())
    }

    /// The first 8 bytes of a control segment. Gives the opcode.
    fn head(&mut self) -> Result<u8> {
        self.number("ctrl.opmod", 1)?;
        self.number("ctrl.wqe_index", 2)?;
        let opcode = self.number("ctrl.opcode", 1)? as u8;
        let qpn = self.take(3)? as u32;
        self.add("ctrl.qpn", self.names.queue_pair(qpn));
        self.number("ctrl.ds", 1)?;
        Ok(opcode)
    }

    /// A slice of memory. Gives whether it is the one behind the last.
    fn slice(&mut self, name: &str) -> Result<bool> {
        let length = self.number(format!("{name}.byte_count"), 4)?;
        let key = self.key(format!("{name}.lkey"))?;
        self.address(format!("{name}.addr"))?;
        Ok(length == 0 && key == TERMINATOR)
    }

    fn finish(self) -> Fields {
        self.fields
    }
}

/// A request of a send queue.
pub(crate) fn send(bytes: &[u8], datagram: bool, names: &Names) -> Result<Fields> {
    let mut reader = Reader::new(bytes, names);
    let opcode = reader.head()?;
    reader.number("ctrl.signature", 1)?;
    reader.number("ctrl.reserved", 2)?;
    reader.number("ctrl.fm_ce_se", 1)?;
    if opcode == CHANGE_KEY {
        let key = reader.key("ctrl.umr_mkey")?;
        change(&mut reader, key)?;
        return Ok(reader.finish());
    }
    if opcode == SEND_INVALIDATE {
        reader.key("ctrl.imm")?;
    } else {
        reader.number("ctrl.imm", 4)?;
    }
    if datagram {
        vector(&mut reader)?;
    }
    if REMOTE.contains(&opcode) {
        reader.address("raddr.raddr")?;
        reader.key("raddr.rkey")?;
        reader.number("raddr.reserved", 4)?;
    }
    if ATOMICS.contains(&opcode) {
        reader.number("atomic.swap_add", 8)?;
        reader.number("atomic.compare", 8)?;
    }
    let mut index = 0;
    while !reader.rest.is_empty() {
        let inline = reader.rest[0] & 0x80 != 0;
        if inline {
            let length = reader.number("inline.byte_count", 4)? as usize & 0x7fff_ffff;
            reader.raw("inline.data", length)?;
            let padding = (4 + length).next_multiple_of(16) - 4 - length;
            reader.raw("inline.padding", padding)?;
        } else {
            reader.slice(&format!("data[{index}]"))?;
        }
        index += 1;
    }
    Ok(reader.finish())
}

/// Where a datagram goes.
fn vector(reader: &mut Reader<'_>) -> Result {
    reader.number("av.qkey", 4)?;
    reader.number("av.reserved", 4)?;
    let queue_pair = reader.take(4)? as u32;
    let names = *reader.names;
    reader.add("av.dqp", names.queue_pair(queue_pair & 0xff_ffff));
    reader.add("av.ext", format!("{:#x}", queue_pair >> 24));
    reader.number("av.stat_rate_sl", 1)?;
    reader.number("av.fl_mlid", 1)?;
    reader.number("av.rlid", 2)?;
    reader.number("av.reserved0", 4)?;
    reader.raw("av.rmac", 6)?;
    reader.number("av.tclass", 1)?;
    reader.number("av.hop_limit", 1)?;
    reader.number("av.grh_gid_fl", 4)?;
    reader.raw("av.rgid", 16)
}

/// How a memory key is changed.
fn change(reader: &mut Reader<'_>, key: u32) -> Result {
    reader.number("umr.flags", 1)?;
    reader.number("umr.reserved0", 3)?;
    reader.number("umr.klm_octowords", 2)?;
    reader.number("umr.translation_offset", 2)?;
    reader.number("umr.mkey_mask", 8)?;
    reader.raw("umr.reserved1", 32)?;
    reader.number("mkey.free", 1)?;
    reader.number("mkey.reserved1", 1)?;
    reader.number("mkey.access_flags", 1)?;
    reader.number("mkey.sf", 1)?;
    let queue_pair = reader.take(3)? as u32;
    let names = *reader.names;
    reader.add("mkey.qpn", names.queue_pair(queue_pair));
    let tag = reader.take(1)? as u8;
    reader.add("mkey.tag", names.tag(tag, key));
    reader.number("mkey.reserved2", 4)?;
    reader.number("mkey.flags_pd", 4)?;
    reader.address("mkey.start_addr")?;
    reader.number("mkey.len", 8)?;
    reader.number("mkey.bsf_octword_size", 4)?;
    reader.raw("mkey.reserved3", 16)?;
    reader.number("mkey.translations_octword_size", 4)?;
    reader.number("mkey.reserved4", 3)?;
    reader.number("mkey.log_page_size", 1)?;
    reader.number("mkey.reserved5", 4)?;
    let mut index = 0;
    while !reader.rest.is_empty() {
        reader.slice(&format!("klm[{index}]"))?;
        index += 1;
    }
    Ok(())
}

/// A receive request, without what chains it to the next. Behind the last slice lies what was there before.
pub(crate) fn receive(bytes: &[u8], names: &Names) -> Result<Fields> {
    let mut reader = Reader::new(bytes, names);
    let mut name = "data";
    let mut index = 0;
    while !reader.rest.is_empty() {
        if reader.slice(&format!("{name}[{index}]"))? {
            name = "old";
        }
        index += 1;
    }
    Ok(reader.finish())
}

/// What chains a receive request of a shared queue to the next.
pub(crate) fn link(bytes: &[u8], names: &Names) -> Result<Fields> {
    let mut reader = Reader::new(bytes, names);
    if !bytes.is_empty() {
        reader.number("next.reserved0", 2)?;
        reader.number("next.next_wqe_index", 2)?;
        reader.number("next.signature", 1)?;
        reader.raw("next.reserved1", 11)?;
    }
    Ok(reader.finish())
}

/// What is written to a doorbell register.
pub(crate) fn doorbell(bytes: &[u8], names: &Names) -> Result<Fields> {
    let mut reader = Reader::new(bytes, names);
    reader.head()?;
    Ok(reader.finish())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
