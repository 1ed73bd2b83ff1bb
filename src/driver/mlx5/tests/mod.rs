//! The rings of mlx5 over plain memory, with a test in the device's place: it reads requests where they were
//! written and writes completions. The registers are a page of memory too.

mod again;
mod completions;
mod device;
mod inline;
mod lives;
mod requests;
mod threads;

use super::Device;
use super::send::SendQueue;
use uverbs_uapi::enums::QpType;
use uverbs_uapi::mlx5::AllocUcontextResp;

use crate::device::DriverClue;
use crate::driver::contract::methods::*;
use crate::error::Verb;

/// A queue over memory that nobody reads.
pub(crate) fn sample_send_queue() -> SendQueue {
    let (cq, _) = device::cq(15, 64);
    device::Pair::new(QpType::RC, device::cap(7, 2, 32), &cq, &cq).send
}

#[test]
fn a_scalable_function_belongs_to_this_driver_as_well() {
    let is_behind = |name: &str| Device::is_behind(&DriverClue::Bus(name.into()));
    assert!(is_behind("mlx5_core") && is_behind("mlx5_core.sf"));
    assert!(!is_behind("mlx5_corex") && !is_behind("mlx4_core"));
    assert!(!Device::is_behind(&DriverClue::Parent));
}

/// Catches a completion that shares its line with the next, on CPUs whose lines have 128 bytes: no guest has
/// such a CPU.
#[test]
fn a_completion_is_as_long_as_a_cache_line_if_the_device_has_that() {
    for (line, expected) in [(64, 64), (128, 128), (256, 64)] {
        let answer = AllocUcontextResp {
            cqe_version: 1,
            cache_line_size: line,
            ..Default::default()
        };
        let device = Device::new(Verb::GetContext, &answer, false).unwrap();
        assert_eq!(device.cqe_size, expected, "lines of {line} bytes");
    }
}
