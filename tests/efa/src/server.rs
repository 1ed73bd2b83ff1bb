//! One function as its QEMU sees it.

use std::io;
use std::sync::Arc;

use vfio_model::interrupt::Vectors;
use vfio_model::memory::GuestMemory;
use vfio_model::pci::Identity;
use vfio_model::server;

use crate::fabric::{Fabric, State};
use crate::function::{COMPLETION_QUEUES, Function, QUEUE_PAIRS};
use crate::qp::LLQ_ROOM;
use crate::registers::{self, Registers};
use crate::{cq, engine, qp};

/// The BARs.
const REGISTERS: u32 = 0;
const LLQ: u32 = 2;
/// Also what DEVICE_ATTR names.
pub(crate) const DOORBELLS: u32 = 4;

/// Bytes of a page of doorbells.
pub(crate) const PAGE: u64 = 4096;
/// Doorbells of queue pairs come first, those of completion queues behind them.
pub(crate) const FIRST_OF_CQS: u64 = QUEUE_PAIRS as u64 * PAGE;

/// An EFA of the second generation, as far as the driver looks.
const IDENTITY: Identity = Identity {
    vendor: 0x1d0f,
    device: 0xefa1,
    subsystem: 0xefa1,
    class: 0x0200,
    bars: [
        32 << 10,
        QUEUE_PAIRS as u64 * LLQ_ROOM,
        (QUEUE_PAIRS + COMPLETION_QUEUES) as u64 * PAGE,
    ],
    vectors: 16,
    msix_bar: 0,
    msix_table: 0x4000,
    msix_pending: 0x5000,
};

/// A function and its registers.
pub(crate) struct Backend {
    fabric: Arc<Fabric>,
    index: usize,
    registers: Registers,
}

impl Backend {
    /// The fabric's function of that number, which it has.
    pub(crate) fn new(fabric: &Arc<Fabric>, index: usize) -> Self {
        Self {
            fabric: Arc::clone(fabric),
            index,
            registers: Registers::default(),
        }
    }

    /// Does something with the function.
    fn with<T>(&mut self, work: impl FnOnce(&mut Registers, &mut Function) -> T) -> T {
        let mut state = self.fabric.lock();
        work(&mut self.registers, &mut state.functions[self.index])
    }
}

impl server::Backend for Backend {
    const IDENTITY: Identity = IDENTITY;

    fn read(&mut self, bar: u32, offset: u64, data: &mut [u8]) {
        data.fill(0);
        self.with(|registers, function| match bar {
            REGISTERS => registers.load(function, offset, data),
            _ => function.violation(format_args!("BAR {bar} is read at {offset:#x}")),
        });
    }

    fn write(&mut self, bar: u32, offset: u64, data: &[u8]) {
        let mut state = self.fabric.lock();
        let function = &mut state.functions[self.index];
        match (bar, word(data)) {
            (LLQ, _) => qp::store(function, offset, data),
            (REGISTERS, Some(value)) => {
                registers::store(&mut self.registers, function, offset, value);
            }
            (DOORBELLS, Some(value)) if offset.is_multiple_of(4) => {
                doorbell(&mut state, self.index, offset, value);
            }
            _ => {
                let length = data.len();
                function.violation(format_args!(
                    "{length} bytes are written to BAR {bar} at {offset:#x}"
                ));
            }
        }
    }

    fn given(
        &mut self,
        change: impl FnOnce(&mut GuestMemory, &mut Vectors) -> io::Result<()>,
    ) -> io::Result<()> {
        self.with(|_, function| change(&mut function.memory, &mut function.vectors))
    }

    fn reset(&mut self) {
        self.with(|registers, function| {
            *registers = Registers::default();
            function.reset();
        });
    }

    fn broken(&mut self, reason: &str) {
        self.with(|_, function| {
            let (report, number) = (&function.report, function.number);
            report.trace(|| format!("function {number} is served no more: {reason}"));
        });
    }
}

fn word(data: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(data.try_into().ok()?))
}

/// Takes a doorbell.
pub(crate) fn doorbell(state: &mut State, index: usize, offset: u64, value: u32) {
    let function = &mut state.functions[index];
    let (page, place) = (offset / PAGE, offset % PAGE);
    if let Some(number) = page.checked_sub(QUEUE_PAIRS.into()) {
        match place {
            cq::DOORBELL => cq::doorbell(function, number as u32, value),
            _ => function.violation(format_args!("there is no doorbell at {offset:#x}")),
        }
        return;
    }
    let number = page as u32;
    match place {
        qp::SEND_DOORBELL => {
            if qp::send_doorbell(function, number, value) {
                engine::advance(state, index, number, false);
            }
        }
        qp::RECEIVE_DOORBELL => qp::receive_doorbell(function, number, value),
        _ => function.violation(format_args!("there is no doorbell at {offset:#x}")),
    }
}
