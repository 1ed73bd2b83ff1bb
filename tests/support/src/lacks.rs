//! What the device under test lacks, by the words in which its refusals say so.
//!
//! A test that meets such a refusal cannot run there. It is skipped, with the refusal as the reason, so no
//! test needs to say what it needs. A refusal in other words, or of anything that is not listed here, fails.

use crate::{Device, device, kernel};

/// What an EFA lacks, and its driver here: each by the words that are all in the refusal. What the kernel's
/// driver refuses has no name, so the verb tells what it is, and what was asked for.
const EFA: &[&[&str]] = &[
    &["driver for efa does not have queue pairs of type IBV_QPT_RC"],
    &["driver for efa does not have queue pairs of type IBV_QPT_UC"],
    &["driver for efa does not have queue pairs of type IBV_QPT_XRC_SEND"],
    &["driver for efa does not have queue pairs of type IBV_QPT_RAW_PACKET"],
    &["driver for efa does not have shared receive queues"],
    &["driver for efa does not have XRC"],
    &["driver for efa does not have rings in memory that a program has allocated"],
    &["completion rings in given memory, which Linux 6.17 and newer devices brought"],
    &["an EFA takes memory whose pages lie one behind the other"],
    &["a doorbell for a completion queue in given memory"],
    &["driver for efa does not have contexts of others"],
    &["driver for efa does not have device memory"],
    &["driver for efa does not have a null MR"],
    &["driver for efa does not have a clock"],
    &["driver for efa does not have flags of completion queues"],
    &["driver for efa does not have completion queues with entries of a chosen size"],
    &["driver for efa does not have completion queues that change their size"],
    &["driver for efa does not have events for solicited messages alone"],
    &["driver for efa does not have inline scatter"],
    &["driver for efa does not have receiving out of order"],
    &["driver for efa does not have memory regions that change"],
    // Tests of allocators ask the device for the kinds of its buffers.
    &["the rings of an EFA are the kernel's and the device's"],
    &[
        "reg_mr",
        "the driver does not have this verb",
        "REMOTE_ATOMIC",
    ],
    &["reg_mr", "the driver does not have this verb", "MW_BIND"],
    &["alloc_mw", "the driver does not have this verb"],
    &["attach_mcast", "the driver does not have this verb"],
    &["attach_mcast", "the port has no network device"],
    // The address of the tests is a network device's, and an EFA has none.
    &["bind_addr", "10.9.0.1"],
];

/// What an EFA lacks besides on kernels before 6.12, whose driver does not have WRITE.
const EFA_BEFORE_6_12: &[&[&str]] = &[&[
    "reg_mr",
    "the driver does not have this verb",
    "REMOTE_WRITE",
]];

/// The line of an error that says that the device lacks something which it may lack.
pub fn lack(error: &str) -> Option<&str> {
    lack_of(device(), error)
}

fn lack_of(device: Device, error: &str) -> Option<&str> {
    let lacks: &[&[&[&str]]] = match device {
        Device::Rxe | Device::Mlx5 { .. } => &[],
        Device::Efa if kernel() < (6, 12) => &[EFA, EFA_BEFORE_6_12],
        Device::Efa => &[EFA],
    };
    let is_of = |line: &&str| {
        let has = |words: &&[&str]| words.iter().all(|word| line.contains(word));
        lacks.iter().copied().flatten().any(has)
    };
    error.lines().find(is_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_RC: &str =
        "create_qp: the driver for efa does not have queue pairs of type IBV_QPT_RC";

    /// Would catch a test that is skipped although it failed: what the device has was refused, or something
    /// that nobody has named.
    #[test]
    fn only_what_is_listed_is_lacking() {
        assert_eq!(lack_of(Device::Efa, NO_RC), Some(NO_RC));
        let among_others = format!("it failed\n{NO_RC}\nand so on");
        assert_eq!(lack_of(Device::Efa, &among_others), Some(NO_RC));
        for failure in [
            "create_qp: the driver for efa does not have queue pairs of type IBV_QPT_UD",
            "create_qp: the driver for efa does not have queue pairs of type IBV_QPT_DRIVER",
            "create_qp: EOPNOTSUPP",
            "create_qp: EINVAL",
            "the driver for efa does not have something else",
            "reg_mr: the driver does not have this verb: LOCAL_WRITE",
            "modify_qp: the driver does not have this verb",
            "",
        ] {
            assert_eq!(lack_of(Device::Efa, failure), None, "{failure}");
        }
        // The words of a refusal are those of one line.
        assert_eq!(
            lack_of(Device::Efa, "alloc_mw\nthe driver does not have this verb"),
            None
        );
    }

    /// Would catch a device that is let off for what another one lacks.
    #[test]
    fn others_lack_nothing() {
        for device in [
            Device::Rxe,
            Device::Mlx5 { roce: true },
            Device::Mlx5 { roce: false },
        ] {
            for words in EFA {
                assert_eq!(lack_of(device, &words.join(" ")), None);
                assert!(lack_of(Device::Efa, &words.join(" ")).is_some());
            }
        }
    }
}
