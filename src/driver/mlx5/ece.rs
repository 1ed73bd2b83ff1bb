//! Enhanced connection establishment: options that both devices of a connection must use.
//!
//! The device reports its options when a queue pair is created. The options to use are part of the next
//! change of the queue pair's state, and its answer says which of them are used (`mlx5_ib_modify_qp` in
//! `drivers/infiniband/hw/mlx5/qp.c`).

use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::mlx5::{ModifyQp, ModifyQpMask, ModifyQpResp};

use crate::command::{DriverData, DriverReply, driver_reply};

/// The vendor of the devices that understand the options: NVIDIA, as on the PCI bus.
pub(crate) const VENDOR: u32 = 0x15b3;
/// What creation asks for to get the options: version 1 of them.
pub(super) const VERSION: u32 = 0x1000_0000;

/// A queue pair's options.
///
/// Relaxed throughout: changes of the queue pair are exclusive, and only the numbers matter.
#[derive(Debug)]
pub(super) struct Ece {
    /// The options that the device supports.
    offered: u32,
    /// Options to send to the device; 0 for none.
    asked: AtomicU32,
    /// The device's last answer.
    granted: AtomicU32,
}

impl Ece {
    pub(super) fn new(offered: u32) -> Self {
        Self {
            offered,
            asked: AtomicU32::new(0),
            granted: AtomicU32::new(offered),
        }
    }

    /// The options that the device offers, or has granted.
    pub(super) fn query(&self) -> u32 {
        self.granted.load(Ordering::Relaxed)
    }

    /// Notes options to send to the device.
    pub(super) fn set(&self, options: u32) {
        self.asked.store(options, Ordering::Relaxed);
        self.granted.store(0, Ordering::Relaxed);
    }

    /// Starts again.
    pub(super) fn reset(&self) {
        self.asked.store(0, Ordering::Relaxed);
        self.granted.store(self.offered, Ordering::Relaxed);
    }

    /// The options to send with the next change of the state; 0 for none.
    pub(super) fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Takes the answer to [`request`].
    pub(super) fn answered(&self, reply: &DriverReply) {
        if self.asked.swap(0, Ordering::Relaxed) != 0 {
            // The state has changed, whatever the kernel answers about the options. An answer without options
            // means none.
            let answer = driver_reply::<ModifyQpResp>(reply);
            let granted = answer.map_or(0, |answer| answer.ece_options);
            self.granted.store(granted, Ordering::Relaxed);
        }
    }
}

/// The data for a change of a queue pair's state that asks for options, and for what the bits say.
pub(super) fn request(ece_options: u32, asks: ModifyQpMask) -> DriverData {
    if ece_options == 0 && asks.is_empty() {
        return DriverData::default();
    }
    DriverData::exchange::<_, ModifyQpResp>(&ModifyQp {
        comp_mask: asks.bits(),
        ece_options,
        ..ModifyQp::default()
    })
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn options_are_offered_asked_for_and_granted() {
        let ece = Ece::new(0x1000_0003);
        assert_eq!(ece.query(), 0x1000_0003);
        assert_eq!(ece.asked(), 0, "nothing was asked");
        ece.answered(&DriverReply::new());
        assert_eq!(ece.query(), 0x1000_0003);

        ece.set(0x1000_0002);
        assert_eq!(ece.query(), 0, "not agreed on yet");
        assert_eq!(ece.asked(), 0x1000_0002);
        let answer = ModifyQpResp {
            response_length: 16,
            ece_options: 0x1000_0002,
            ..ModifyQpResp::default()
        };
        ece.answered(&DriverReply::from_slice(answer.as_bytes()));
        assert_eq!(ece.query(), 0x1000_0002);
        assert_eq!(ece.asked(), 0, "told once");

        ece.reset();
        assert_eq!(ece.query(), 0x1000_0003);

        let none = ModifyQpMask::empty();
        assert_eq!(request(0, none), DriverData::default());
        assert_ne!(request(1, none), DriverData::default());
        assert_ne!(request(0, ModifyQpMask::OOO_DP), DriverData::default());
    }
}
