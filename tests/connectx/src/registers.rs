//! BAR 0 as the driver sees it: the initialization segment, behind it one UAR for each of the driver's
//! pages, in its first 4 KiB, and behind them the memory of the device.
//!
//! Here accesses are told apart; what they set going is an [`Action`] for the device.

use std::collections::BTreeMap;

use crate::command::queue::{LOG_ENTRIES, LOG_STRIDE};
use crate::function::{FIRST_UAR, Function};
use crate::object::{cq, eq, memic};

/// Offsets within the initialization segment (`struct mlx5_init_seg`).
mod segment {
    pub(super) const FW_REV: u64 = 0x0;
    pub(super) const CMDIF_REV_FW_SUB: u64 = 0x4;
    pub(super) const CMDQ_ADDR_H: u64 = 0x10;
    pub(super) const CMDQ_ADDR_L_SZ: u64 = 0x14;
    pub(super) const CMD_DBELL: u64 = 0x18;
    pub(super) const INTERNAL_TIMER_H: u64 = 0x1000;
    pub(super) const INTERNAL_TIMER_L: u64 = 0x1004;
    pub(super) const HEALTH_COUNTER: u64 = 0x1010;
}

/// Offsets within a UAR.
mod uar {
    /// Bytes of it.
    pub(super) const SIZE: u64 = 0x1000;
    pub(super) const CQ_ARM: u64 = 0x20;
    pub(super) const EQ_ARM: u64 = 0x40;
    pub(super) const EQ_CONSUME: u64 = 0x48;
    /// Where the registers for send doorbells begin.
    pub(super) const SEND: u64 = 0x800;
    /// Bytes of each half of such a register.
    pub(super) const HALF: u64 = 256;
}

/// The version of the command interface that the driver knows.
const COMMAND_INTERFACE: u32 = 5;
/// Firmware 20.0.1000, as `minor << 16 | major`.
const FIRMWARE: u32 = 20;
const FIRMWARE_SUB: u32 = 1000;

/// The state of the interface, beside the command queue's address.
const NIC_STATE: u32 = 0x700;
/// The state of a function that has failed.
const NIC_DISABLED: u32 = 0x100;

/// What an access to a register sets going.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Action {
    /// Nothing more.
    None,
    /// The command queue at this address has new entries, one for each bit.
    Commands { queue: u64, entries: u32 },
    /// A send queue has new requests.
    Send(SendDoorbell),
    /// More of a request came behind that doorbell, from so many bytes on.
    BlueFlame {
        doorbell: SendDoorbell,
        at: usize,
        bytes: Vec<u8>,
    },
}

/// A write to a send register: the first 8 bytes of the last request that was posted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SendDoorbell {
    /// The UAR.
    pub(crate) uar: u32,
    /// Where in the UAR.
    pub(crate) within: u64,
    /// What was written.
    pub(crate) bytes: [u8; 8],
}

impl SendDoorbell {
    /// The number of the queue pair or send queue.
    pub(crate) fn qpn(&self) -> u32 {
        let [.., q2, q1, q0, _] = self.bytes;
        u32::from_be_bytes([0, q2, q1, q0])
    }

    /// The request's index.
    pub(crate) fn index(&self) -> u16 {
        let [_, high, low, ..] = self.bytes;
        u16::from_be_bytes([high, low])
    }
}

/// What is remembered of a UAR until it is given up.
#[derive(Debug, Default)]
pub(crate) struct Uar {
    /// The last doorbell of each half of a send register, which more bytes may follow.
    last_send: BTreeMap<u64, SendDoorbell>,
    /// To which half of each send register the last two doorbells went, and whether copies followed them.
    halves: BTreeMap<u64, [(u64, bool); 2]>,
}

/// The state of the registers.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    queue_high: u32,
    queue_low: u32,
    /// The first half of a doorbell that comes in two pieces, and where it came.
    half: Option<((u32, u64), u32)>,
}

impl Registers {
    /// Reads 4 or 8 bytes; what is no register reads as zero.
    pub(crate) fn read(&self, function: &Function, offset: u64, data: &mut [u8]) {
        if offset >= memic::START {
            return memic::read(function, offset, data);
        }
        for (index, word) in data.chunks_mut(4).enumerate() {
            let value = self
                .register(function, offset + 4 * index as u64)
                .to_be_bytes();
            for (to, from) in word.iter_mut().zip(value) {
                *to = from;
            }
        }
    }

    fn register(&self, function: &Function, offset: u64) -> u32 {
        let clock = function.clock();
        match offset {
            segment::FW_REV => FIRMWARE,
            segment::CMDIF_REV_FW_SUB => COMMAND_INTERFACE << 16 | FIRMWARE_SUB,
            segment::CMDQ_ADDR_H => self.queue_high,
            segment::CMDQ_ADDR_L_SZ => {
                let state = if function.faults.internal_error {
                    NIC_DISABLED
                } else {
                    0
                };
                self.queue_low & !0xff | state | LOG_ENTRIES << 4 | LOG_STRIDE
            }
            segment::INTERNAL_TIMER_H => (clock >> 32) as u32,
            segment::INTERNAL_TIMER_L => clock as u32,
            // It must only move on.
            segment::HEALTH_COUNTER => (clock / 10_000_000) as u32,
            _ => 0,
        }
    }

    /// Takes a write of 4 or 8 bytes.
    pub(crate) fn write(&mut self, function: &mut Function, offset: u64, data: &[u8]) -> Action {
        let shift = function.objects.capabilities.log_uar_distance();
        if offset < u64::from(FIRST_UAR) << shift {
            return self.write_segment(function, offset, data);
        }
        if offset >= memic::START {
            memic::write(function, offset, data);
            return Action::None;
        }
        let page = (offset >> shift) as u32;
        if !function.objects.uars.contains(page) {
            let text = format!("write to UAR {page}, which is not allocated");
            function.report.violation(text);
            return Action::None;
        }
        let within = offset & ((1 << shift) - 1);
        if within >= uar::SIZE {
            let text = format!("write to offset {within:#x} of UAR {page}, which it does not have");
            function.report.violation(text);
            return Action::None;
        }
        if within >= uar::SEND && !is_send(within) && !is_send(within - 4) {
            return Self::write_blue_flame(function, page, within, data);
        }
        match *data {
            [a, b, c, d] => {
                self.write_word(function, page, within, u32::from_be_bytes([a, b, c, d]))
            }
            [a, b, c, d, e, f, g, h] => {
                let first = u32::from_be_bytes([a, b, c, d]);
                let second = u32::from_be_bytes([e, f, g, h]);
                match self.write_word(function, page, within, first) {
                    Action::None => self.write_word(function, page, within + 4, second),
                    action => action,
                }
            }
            _ => {
                let text = format!("write of {} bytes to UAR {page}", data.len());
                function.report.violation(text);
                Action::None
            }
        }
    }

    fn write_segment(&mut self, function: &mut Function, offset: u64, data: &[u8]) -> Action {
        let Some(word) = data.first_chunk::<4>() else {
            return Action::None;
        };
        let value = u32::from_be_bytes(*word);
        match offset {
            segment::CMDQ_ADDR_H => self.queue_high = value,
            segment::CMDQ_ADDR_L_SZ => {
                self.queue_low = value;
                // With this the driver brings a function up that has failed, which has forgotten all.
                if function.faults.internal_error && value & NIC_STATE == 0 {
                    function.faults.internal_error = false;
                    function.reset();
                }
            }
            segment::CMD_DBELL => {
                let low = u64::from(self.queue_low & !0xfff);
                return Action::Commands {
                    queue: u64::from(self.queue_high) << 32 | low,
                    entries: value,
                };
            }
            _ => {}
        }
        Action::None
    }

    /// Takes what follows a doorbell in a BlueFlame copy.
    fn write_blue_flame(function: &mut Function, page: u32, within: u64, data: &[u8]) -> Action {
        let register = within & !(uar::HALF - 1);
        let uar = function.objects.uars.get_mut(page).ok();
        let behind = uar.and_then(|uar| Some((*uar.last_send.get(&register)?, uar)));
        let Some((doorbell, uar)) = behind else {
            let text = format!(
                "a BlueFlame copy to offset {within:#x} of UAR {page} does not follow its doorbell"
            );
            function.report.violation(text);
            return Action::None;
        };
        let at = within - register;
        // The first bytes behind a doorbell. A half may still be on its way with those of the copy before.
        if at == size_of_val(&doorbell.bytes) as u64
            && let Some([before, now]) = uar.halves.get_mut(&both_halves(register))
        {
            now.1 = true;
            if before == now {
                let text = format!(
                    "two BlueFlame copies, one behind the other, go to the half at {register:#x} of UAR {page}"
                );
                function.report.violation(text);
            }
        }
        Action::BlueFlame {
            doorbell,
            at: at as usize,
            bytes: data.to_vec(),
        }
    }

    /// Takes one word of a UAR. Doorbells of two words act with their second.
    fn write_word(
        &mut self,
        function: &mut Function,
        page: u32,
        within: u64,
        value: u32,
    ) -> Action {
        match within {
            uar::EQ_ARM => eq::doorbell(function, page, value, true),
            uar::EQ_CONSUME => eq::doorbell(function, page, value, false),
            _ if within == uar::CQ_ARM || is_send(within) => {
                self.half = Some(((page, within), value));
            }
            _ if within == uar::CQ_ARM + 4 => {
                if let Some((at, word)) = self.half.take()
                    && at == (page, within - 4)
                {
                    cq::doorbell(function, page, word, value);
                }
            }
            _ if within >= uar::SEND && is_send(within - 4) => {
                let first = (page, within - 4);
                let Some((_, word)) = self.half.take().filter(|(at, _)| *at == first) else {
                    let text = format!(
                        "the second half of a send doorbell on UAR {page} came without the first"
                    );
                    function.report.violation(text);
                    return Action::None;
                };
                let bytes = (u64::from(word) << 32 | u64::from(value)).to_be_bytes();
                let doorbell = SendDoorbell {
                    uar: page,
                    within: within - 4,
                    bytes,
                };
                if let Ok(uar) = function.objects.uars.get_mut(page) {
                    let halves = uar.halves.entry(both_halves(doorbell.within)).or_default();
                    *halves = [halves[1], (doorbell.within, false)];
                    uar.last_send.insert(doorbell.within, doorbell);
                }
                return Action::Send(doorbell);
            }
            _ => function
                .report
                .violation(format!("write to offset {within:#x} of UAR {page}")),
        }
        Action::None
    }
}

/// Where the send register begins that a half belongs to.
fn both_halves(half: u64) -> u64 {
    half & !(2 * uar::HALF - 1)
}

/// Whether a doorbell begins there: at the start of a half of a send register.
fn is_send(within: u64) -> bool {
    within >= uar::SEND && (within - uar::SEND).is_multiple_of(uar::HALF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability;
    use crate::fixture;
    use crate::layout::{cmd, hca_cap};

    /// Executes SET_HCA_CAP as a driver does whose pages are so many times twice as large as the device's.
    fn choose_pages(function: &mut Function, log: u64) {
        let mut input = vec![0; 0x10 + hca_cap::SIZE];
        cmd::OP_MOD.set(&mut input, 0);
        hca_cap::LOG_UAR_PAGE_SZ.set(&mut input[0x10..], log);
        capability::set(function, &input, &mut []).expect("capabilities");
    }

    #[test]
    fn each_page_of_the_driver_has_one_uar() {
        for log in [0, 2, 4] {
            let mut function = fixture::function();
            choose_pages(&mut function, log);
            let uars = &mut function.objects.uars;
            let (first, second) = (
                uars.insert(Uar::default()).expect("one"),
                uars.insert(Uar::default()).expect("two"),
            );
            let mut registers = Registers::default();
            let at = |uar: u32, within| (u64::from(uar) << (12 + log)) + within;
            for uar in [first, second] {
                let action = registers.write(&mut function, at(uar, uar::SEND), &[7; 8]);
                let Action::Send(doorbell) = action else {
                    panic!("{action:?}");
                };
                assert_eq!((doorbell.uar, doorbell.within), (uar, uar::SEND));
            }
            assert!(function.report.take().is_empty());
            registers.write(&mut function, at(second + 1, uar::SEND), &[7; 8]);
            if log > 0 {
                registers.write(&mut function, at(first, uar::SIZE + uar::SEND), &[7; 8]);
            }
            let complaints = function.report.take();
            assert_eq!(
                complaints.len(),
                if log > 0 { 2 } else { 1 },
                "{complaints:?}"
            );
        }
    }

    /// Writes a doorbell, and with it what follows in a copy.
    fn ring(registers: &mut Registers, function: &mut Function, at: u64, is_copied: bool) {
        registers.write(function, at, &[7; 8]);
        if is_copied {
            registers.write(function, at + 8, &[7; 8]);
            registers.write(function, at + 16, &[7; 8]);
        }
    }

    #[test]
    fn copies_go_to_the_halves_by_turns() {
        let [first, other, another] = [0, uar::HALF, 2 * uar::HALF];
        for (others, complaints) in [
            (vec![(other, true)], 0),
            (vec![(first, true)], 1),
            (vec![(other, true), (first, true)], 0),
            (vec![(other, false), (first, true)], 0),
            // Doorbells alone may go where they like.
            (vec![(first, false), (first, true)], 0),
            (vec![(another, true), (first, true)], 1),
        ] {
            let mut function = fixture::function();
            choose_pages(&mut function, 0);
            let uar = function.objects.uars.insert(Uar::default()).expect("one");
            let mut registers = Registers::default();
            let at = (u64::from(uar) << 12) + uar::SEND;
            ring(&mut registers, &mut function, at, true);
            for (half, is_copied) in &others {
                ring(&mut registers, &mut function, at + half, *is_copied);
            }
            let told = function.report.take().len();
            assert_eq!(told, complaints, "{others:?}");
        }
    }

    /// Would catch a program that is blamed for where the last one that had the UAR had stopped.
    #[test]
    fn a_uar_that_comes_back_has_no_halves_in_use() {
        let mut function = fixture::function();
        choose_pages(&mut function, 0);
        let mut registers = Registers::default();
        for _ in 0..2 {
            let uar = function
                .objects
                .uars
                .insert_lowest(Uar::default())
                .expect("one");
            let at = (u64::from(uar) << 12) + uar::SEND;
            ring(&mut registers, &mut function, at, true);
            function.objects.uars.remove(uar).expect("it is there");
        }
        assert!(function.report.take().is_empty());
    }

    #[test]
    fn no_uar_lies_behind_the_registers() {
        let mut function = fixture::function();
        choose_pages(&mut function, 2);
        let uars = &mut function.objects.uars;
        let last = std::iter::from_fn(|| uars.insert(Uar::default()).ok()).max();
        assert_eq!(last, Some((crate::pci::UARS_SIZE >> 14) as u32 - 1));
    }
}
