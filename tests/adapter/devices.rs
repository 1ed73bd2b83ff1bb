//! What rdma-core finds of the adapter.

use libtest_mimic::Trial;
use support::{Hca, Result, run, test_on_adapter};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test_on_adapter(
        "devices::each_function_is_an_mlx5_with_an_active_port",
        active_ports,
    )]
}

/// Catches a function that the kernel's driver or libmlx5 does not take for its own, and a port that is down
/// or of the wrong kind.
fn active_ports(hca: Hca) -> Result {
    for device in hca.devices() {
        let said = run(&format!("ibv_devinfo -d {device}"))?;
        let has = |name: &str, value: &str| {
            let mut lines = said.lines().filter_map(|line| line.split_once(':'));
            match lines.find(|(left, _)| left.trim() == name) {
                Some((_, right)) if right.trim() == value => Ok(()),
                other => Err(format!("{device}: {name} is {other:?}, not {value}")),
            }
        };
        has("vendor_part_id", "4126")?;
        has("state", "PORT_ACTIVE (4)")?;
        has(
            "link_layer",
            if hca.roce { "Ethernet" } else { "InfiniBand" },
        )?;
    }
    Ok(())
}
