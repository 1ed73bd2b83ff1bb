//! The command queue: entries of 64 bytes with mailboxes for what does not fit (`mlx5_cmd_layout`,
//! `mlx5_cmd_prot_block`).
//!
//! This part moves bytes and signatures; what a command means is not its business.

use vfio_model::memory::{GuestMemory, Unmapped};

/// Binary logarithm of the number of entries.
pub(crate) const LOG_ENTRIES: u32 = 5;
/// Binary logarithm of an entry's size.
pub(crate) const LOG_STRIDE: u32 = 6;

const ENTRY: usize = 1 << LOG_STRIDE;
/// Input and output bytes that lie in the entry itself.
const INLINE: usize = 16;
const BLOCK_DATA: usize = 512;
const BLOCK: usize = 576;
/// No command of the driver is longer.
const LONGEST: usize = 1 << 20;

/// Where things lie in an entry.
mod entry {
    pub(super) const TYPE: usize = 0;
    pub(super) const IN_LENGTH: usize = 4;
    pub(super) const IN_MAILBOX: usize = 8;
    pub(super) const INPUT: usize = 16;
    pub(super) const OUTPUT: usize = 32;
    pub(super) const OUT_MAILBOX: usize = 48;
    pub(super) const OUT_LENGTH: usize = 56;
    pub(super) const TOKEN: usize = 60;
    pub(super) const SIGNATURE: usize = 61;
    pub(super) const STATUS_OWNER: usize = 63;
}

/// Where things lie in a mailbox block.
mod block {
    pub(super) const RESERVED: usize = 512;
    pub(super) const NEXT: usize = 560;
    pub(super) const NUMBER: usize = 568;
    pub(super) const TOKEN: usize = 573;
    pub(super) const CONTROL_SIGNATURE: usize = 574;
    pub(super) const SIGNATURE: usize = 575;
}

/// Why an entry could not be delivered (`MLX5_CMD_DELIVERY_STAT_*`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Delivery {
    /// The entry's signature is wrong.
    Signature,
    /// A mailbox block has another token than the entry.
    Token,
    /// A mailbox block has the wrong number.
    BlockNumber,
    /// A mailbox lies where there is no memory.
    OutPointer,
    /// The input is too long, or shorter than its header.
    InputLength,
    /// The output is too long, or shorter than its header.
    OutputLength,
    /// The entry is of no known type.
    CommandType,
}

impl Delivery {
    /// The code in the entry's last byte.
    const fn code(self) -> u8 {
        match self {
            Self::Signature => 0x1,
            Self::Token => 0x2,
            Self::BlockNumber => 0x3,
            Self::OutPointer => 0x4,
            Self::InputLength => 0x6,
            Self::OutputLength => 0x7,
            Self::CommandType => 0x10,
        }
    }
}

/// An entry that was read.
#[derive(Debug)]
pub(crate) struct Entry {
    address: u64,
    bytes: [u8; ENTRY],
}

impl Entry {
    /// Reads an entry that the driver has handed to the device; none if it belongs to the driver.
    ///
    /// # Errors
    /// If the queue is not in memory.
    pub(crate) fn read(
        memory: &GuestMemory,
        queue: u64,
        index: u32,
    ) -> Result<Option<Self>, Unmapped> {
        let address = queue + (u64::from(index) << LOG_STRIDE);
        let mut bytes = [0; ENTRY];
        memory.read(address, &mut bytes)?;
        let ours = bytes[entry::STATUS_OWNER] & 1 != 0;
        Ok(ours.then_some(Self { address, bytes }))
    }

    /// How many bytes of output the driver has room for.
    ///
    /// # Errors
    /// If these are impossibly many or few.
    pub(crate) fn output_length(&self) -> Result<usize, Delivery> {
        plausible(self.word(entry::OUT_LENGTH)).ok_or(Delivery::OutputLength)
    }

    /// Gathers the input.
    ///
    /// # Errors
    /// If the entry or its mailboxes are malformed.
    pub(crate) fn input(&self, memory: &GuestMemory) -> Result<Vec<u8>, Delivery> {
        if xor(&self.bytes) != 0xff {
            return Err(Delivery::Signature);
        }
        if self.bytes[entry::TYPE] != 7 {
            return Err(Delivery::CommandType);
        }
        let length = plausible(self.word(entry::IN_LENGTH)).ok_or(Delivery::InputLength)?;
        let mut input = self.bytes[entry::INPUT..entry::OUTPUT].to_vec();
        self.each_block(memory, entry::IN_MAILBOX, length, |_, bytes, wanted| {
            input.extend_from_slice(&bytes[..wanted]);
        })?;
        Ok(input)
    }

    /// Writes the output and gives the entry back to the driver.
    ///
    /// # Errors
    /// If the entry cannot be written, in which case the driver will wait in vain.
    pub(crate) fn complete(
        mut self,
        memory: &GuestMemory,
        result: Result<&[u8], Delivery>,
    ) -> Result<(), Unmapped> {
        let delivered = result.and_then(|output| {
            let inline = output.len().min(INLINE);
            self.bytes[entry::OUTPUT..][..inline].copy_from_slice(&output[..inline]);
            let mut rest = output.get(INLINE..).unwrap_or_default();
            self.each_block(
                memory,
                entry::OUT_MAILBOX,
                output.len(),
                |address, bytes, wanted| {
                    let (now, later) = rest.split_at(wanted.min(rest.len()));
                    bytes[..now.len()].copy_from_slice(now);
                    rest = later;
                    sign(bytes);
                    // It was read from there a moment ago.
                    let _ = memory.write(address, bytes);
                },
            )
        });
        self.bytes[entry::STATUS_OWNER] = delivered.err().map_or(0, |status| status.code() << 1);
        self.bytes[entry::SIGNATURE] = 0;
        self.bytes[entry::SIGNATURE] = !xor(&self.bytes);
        let (body, last) = self.bytes.split_at(entry::STATUS_OWNER);
        memory.write(self.address, body)?;
        // The owner bit comes last: the driver polls it.
        memory.write(self.address + entry::STATUS_OWNER as u64, last)
    }

    /// Visits the mailbox blocks of an input or output of that many bytes, with the number of bytes that
    /// belong to it.
    fn each_block(
        &self,
        memory: &GuestMemory,
        pointer: usize,
        length: usize,
        mut visit: impl FnMut(u64, &mut [u8; BLOCK], usize),
    ) -> Result<(), Delivery> {
        let mut address = self.long(pointer);
        let mut left = length.saturating_sub(INLINE);
        let mut number = 0;
        while left > 0 {
            let mut bytes = [0; BLOCK];
            memory
                .read(address, &mut bytes)
                .map_err(|_| Delivery::OutPointer)?;
            if bytes[block::TOKEN] != self.bytes[entry::TOKEN] {
                return Err(Delivery::Token);
            }
            if bytes[block::NUMBER..][..4] != u32::to_be_bytes(number) {
                return Err(Delivery::BlockNumber);
            }
            let wanted = left.min(BLOCK_DATA);
            visit(address, &mut bytes, wanted);
            left -= wanted;
            number += 1;
            address = be64(&bytes[block::NEXT..]);
        }
        Ok(())
    }

    fn word(&self, at: usize) -> u32 {
        (be64(&self.bytes[at..]) >> 32) as u32
    }

    fn long(&self, at: usize) -> u64 {
        be64(&self.bytes[at..])
    }
}

fn plausible(length: u32) -> Option<usize> {
    let length = usize::try_from(length).ok()?;
    (8..=LONGEST).contains(&length).then_some(length)
}

/// The first 8 bytes as a big-endian number, missing ones as zero.
fn be64(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    for (to, from) in number.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_be_bytes(number)
}

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

/// Signs a block: first the part that controls the chain, then the whole.
fn sign(bytes: &mut [u8; BLOCK]) {
    bytes[block::CONTROL_SIGNATURE] = !xor(&bytes[block::RESERVED..block::CONTROL_SIGNATURE]);
    bytes[block::SIGNATURE] = !xor(&bytes[..block::SIGNATURE]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAILBOX: u64 = 0x1000;

    fn queue_with(change: impl Fn(&mut [u8; ENTRY])) -> GuestMemory {
        let memory = GuestMemory::anonymous(0, 0x4000);
        let mut bytes = [0; ENTRY];
        bytes[entry::TYPE] = 7;
        bytes[entry::IN_LENGTH + 3] = 20;
        bytes[entry::OUT_LENGTH + 3] = 24;
        bytes[entry::IN_MAILBOX..][..8].copy_from_slice(&MAILBOX.to_be_bytes());
        bytes[entry::OUT_MAILBOX..][..8].copy_from_slice(&MAILBOX.to_be_bytes());
        bytes[entry::TOKEN] = 9;
        bytes[entry::STATUS_OWNER] = 1;
        bytes[entry::SIGNATURE] = !xor(&bytes);
        change(&mut bytes);
        let mut mailbox = [0; BLOCK];
        mailbox[..4].copy_from_slice(b"tail");
        mailbox[block::TOKEN] = 9;
        memory.write(0, &bytes).expect("in range");
        memory.write(MAILBOX, &mailbox).expect("in range");
        memory
    }

    #[test]
    fn input_and_output_go_on_in_mailboxes() {
        let memory = queue_with(|_| {});
        let entry = Entry::read(&memory, 0, 0).expect("in range").expect("ours");
        let input = entry.input(&memory).expect("well formed");
        assert_eq!(input.len(), 20);
        assert_eq!(&input[16..], b"tail");
        let output: Vec<u8> = (0..24).collect();
        entry.complete(&memory, Ok(&output)).expect("in range");
        let mut bytes = [0; ENTRY];
        memory.read(0, &mut bytes).expect("in range");
        assert_eq!(bytes[entry::STATUS_OWNER], 0);
        assert_eq!(xor(&bytes), 0xff);
        assert_eq!(bytes[entry::OUTPUT..][..16], output[..16]);
        let mut mailbox = [0; BLOCK];
        memory.read(MAILBOX, &mut mailbox).expect("in range");
        assert_eq!(mailbox[..8], output[16..]);
        assert_eq!(xor(&mailbox), 0xff);
        assert_eq!(xor(&mailbox[block::RESERVED..block::SIGNATURE]), 0xff);
    }

    #[test]
    fn malformed_entries_are_told_apart() {
        let wrong_signature = queue_with(|bytes| bytes[entry::SIGNATURE] ^= 1);
        let wrong_token = queue_with(|bytes| {
            bytes[entry::TOKEN] ^= 1;
            bytes[entry::SIGNATURE] ^= 1;
        });
        for (memory, error) in [
            (wrong_signature, Delivery::Signature),
            (wrong_token, Delivery::Token),
        ] {
            let entry = Entry::read(&memory, 0, 0).expect("in range").expect("ours");
            assert_eq!(entry.input(&memory), Err(error));
        }
    }

    #[test]
    fn an_entry_of_the_driver_is_left_alone() {
        let memory = queue_with(|bytes| bytes[entry::STATUS_OWNER] = 0);
        assert!(Entry::read(&memory, 0, 0).expect("in range").is_none());
    }
}
