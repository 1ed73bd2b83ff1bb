//! The registers in BAR 0. The driver reads none by a load: it asks for the value in its memory.

use crate::admin;
use crate::event;
use crate::function::Function;

/// The version of the interface: with checksums, and with commands of 128 bytes for drivers that have them.
const VERSION: u32 = 0x0003;
const CONTROLLER_VERSION: u32 = 0x0001;
/// A reset takes up to 1 s, addresses have 48 bits, and commands may take as long as the driver likes.
const CAPS: u32 = 10 << 1 | 48 << 8;

mod at {
    pub(super) const VERSION: u64 = 0x00;
    pub(super) const CONTROLLER_VERSION: u64 = 0x04;
    pub(super) const CAPS: u64 = 0x08;
    pub(super) const AQ_BASE_LOW: u64 = 0x10;
    pub(super) const AQ_BASE_HIGH: u64 = 0x14;
    pub(super) const AQ_CAPS: u64 = 0x18;
    pub(super) const ACQ_BASE_LOW: u64 = 0x20;
    pub(super) const ACQ_BASE_HIGH: u64 = 0x24;
    pub(super) const ACQ_CAPS: u64 = 0x28;
    pub(super) const AQ_DOORBELL: u64 = 0x2c;
    pub(super) const AENQ_CAPS: u64 = 0x34;
    pub(super) const AENQ_BASE_LOW: u64 = 0x38;
    pub(super) const AENQ_BASE_HIGH: u64 = 0x3c;
    pub(super) const AENQ_DOORBELL: u64 = 0x40;
    pub(super) const INTERRUPT_MASK: u64 = 0x4c;
    pub(super) const CONTROL: u64 = 0x54;
    pub(super) const STATUS: u64 = 0x58;
    pub(super) const READ: u64 = 0x5c;
    pub(super) const READ_ANSWER_LOW: u64 = 0x60;
    pub(super) const READ_ANSWER_HIGH: u64 = 0x64;
    pub(super) const EQ_DOORBELL: u64 = 0x68;
}

/// In the status: the device is ready; a reset has begun and not ended; it has failed.
const READY: u32 = 1;
const IN_RESET: u32 = 1 << 3;
const FATAL_ERROR: u32 = 1 << 5;

/// What only registers remember. What queues are at, the queues have.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    in_reset: bool,
    /// Where values of registers are written.
    answer: u64,
}

impl Registers {
    /// Gives the bytes of a register to a load.
    pub(crate) fn load(&self, function: &Function, offset: u64, data: &mut [u8]) {
        let value = self.value(function, offset & !3).unwrap_or(u32::MAX);
        let bytes = value.to_le_bytes();
        for (place, byte) in data.iter_mut().zip(&bytes[(offset & 3) as usize..]) {
            *place = *byte;
        }
    }

    fn value(&self, function: &Function, offset: u64) -> Option<u32> {
        let status = || {
            let in_reset = if self.in_reset { IN_RESET } else { 0 };
            let failed = if function.faults.failed {
                FATAL_ERROR
            } else {
                0
            };
            READY | in_reset | failed
        };
        match offset {
            at::VERSION => Some(VERSION),
            at::CONTROLLER_VERSION => Some(CONTROLLER_VERSION),
            at::CAPS => Some(CAPS),
            at::STATUS => Some(status()),
            _ => None,
        }
    }

    /// Writes the value of a register to where the driver wants it, the number of the question last.
    fn answer(&self, function: &Function, question: u32) {
        let (id, offset) = (question as u16, (question >> 16) as u16);
        let Some(value) = self.value(function, offset.into()) else {
            function.violation(format_args!(
                "register {offset:#x} is asked for, which is none"
            ));
            return;
        };
        let memory = &function.memory;
        let written = memory
            .write(self.answer + 2, &offset.to_le_bytes())
            .and_then(|()| memory.write(self.answer + 4, &value.to_le_bytes()))
            .and_then(|()| memory.write(self.answer, &id.to_le_bytes()));
        if let Err(unmapped) = written {
            function.violation(format_args!(
                "no memory for a register's value: {unmapped:x?}"
            ));
        }
    }

    fn control(&mut self, function: &mut Function, value: u32) {
        /// Begin a reset.
        const RESET: u32 = 1;
        /// Why.
        const REASON: u32 = 0xf000_0000;
        if value & !(RESET | REASON) != 0 {
            function.violation(format_args!("device control has {value:#x}"));
        }
        self.in_reset = value & RESET != 0;
        if self.in_reset {
            function.reset();
            self.answer = 0;
        }
    }
}

/// Takes a store to a register.
pub(crate) fn store(registers: &mut Registers, function: &mut Function, offset: u64, value: u32) {
    let half = |address: &mut u64, shift: u32| {
        *address = (*address & !(0xffff_ffff << shift)) | u64::from(value) << shift;
    };
    if registers.in_reset
        && ![
            at::CONTROL,
            at::READ,
            at::READ_ANSWER_LOW,
            at::READ_ANSWER_HIGH,
        ]
        .contains(&offset)
    {
        function.violation(format_args!(
            "register {offset:#x} is written during a reset"
        ));
        return;
    }
    let (admin, events) = (&mut function.objects.admin, &mut function.objects.events);
    match offset {
        at::AQ_BASE_LOW => half(&mut admin.commands, 0),
        at::AQ_BASE_HIGH => half(&mut admin.commands, 32),
        at::ACQ_BASE_LOW => half(&mut admin.answers, 0),
        at::ACQ_BASE_HIGH => half(&mut admin.answers, 32),
        at::AENQ_BASE_LOW => half(&mut events.base, 0),
        at::AENQ_BASE_HIGH => half(&mut events.base, 32),
        at::AQ_CAPS => {
            let said = admin.set_commands(value);
            said.unwrap_or_else(|wrong| function.violation(wrong));
        }
        at::ACQ_CAPS => {
            let said = admin.set_answers(value);
            said.unwrap_or_else(|wrong| function.violation(wrong));
        }
        at::AENQ_CAPS => {
            let said = events.set(value);
            said.unwrap_or_else(|wrong| function.violation(wrong));
        }
        at::AENQ_DOORBELL => {
            let said = events.consumed(value);
            said.unwrap_or_else(|wrong| function.violation(wrong));
        }
        at::INTERRUPT_MASK if value <= 1 => admin.is_masked = value == 1,
        at::AQ_DOORBELL => admin::run(function, value),
        at::CONTROL => registers.control(function, value),
        at::READ => registers.answer(function, value),
        at::READ_ANSWER_LOW => half(&mut registers.answer, 0),
        at::READ_ANSWER_HIGH => half(&mut registers.answer, 32),
        at::EQ_DOORBELL => event::arm(function, value),
        _ => function.violation(format_args!("register {offset:#x} gets {value:#x}")),
    }
}
