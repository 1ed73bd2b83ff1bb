//! The network device of the GID that connections use: whether it is in this namespace and up, its VLAN, and
//! whether the port's packets fit through it.

use uverbs::gid::GidEntry;
use uverbs::query::PortAttr;

use super::{Check, Finding};
use crate::files::Files;
use crate::gids;

/// The bytes that the kernel subtracts from a network device's MTU for the headers of a packet
/// (`iboe_get_mtu`).
const HEADERS: u64 = 96;

/// Empty on InfiniBand, where GIDs have no network device.
pub(super) fn findings(
    files: &Files,
    subject: &str,
    gid: &GidEntry,
    attr: &PortAttr,
) -> Vec<Finding> {
    let index = gid.netdev_ifindex;
    match (index, gids::netdev_here(index)) {
        (0, _) => Vec::new(),
        (_, None) => vec![elsewhere(subject, index)],
        (_, Some(name)) => here(files, subject, &name, index, attr.active_mtu.bytes()),
    }
}

fn elsewhere(subject: &str, index: u32) -> Finding {
    Check::new("netdev", subject).warning(
        format_args!("the GID's network device, number {index}, is not in this network namespace"),
        "Connections by address find no way from here. Give the container the host's network, or this network \
         namespace a device of its own.",
    )
}

fn here(files: &Files, subject: &str, name: &str, index: u32, active: Option<u32>) -> Vec<Finding> {
    let check = Check::new("netdev", subject);
    let folder = format!("sys/class/net/{name}");
    let number = |file: &str| files.number(format!("{folder}/{file}"));
    // The sysfs mounted at /sys may belong to another network namespace.
    if number("ifindex") != Some(index.into()) {
        return vec![check.good(format_args!(
            "{name}; no more is known, since /sys does not show it"
        ))];
    }
    if !is_up(files, &folder) {
        return vec![check.broken(
            format_args!("{name} is down"),
            format_args!("ip link set {name} up"),
        )];
    }
    let mut findings = match number("carrier") {
        Some(0) => vec![check.broken(
            format_args!("{name} has no carrier"),
            "See the cable, the switch, and the device below it (ip link).",
        )],
        _ => vec![check.good(match vlan(files, name) {
            Some((id, below)) => format!("{name}, VLAN {id} of {below}"),
            None => format!("{name}, without a VLAN"),
        })],
    };
    if let (Some(mtu), Some(active)) = (number("mtu"), active) {
        findings.push(fits(subject, name, mtu, active));
    }
    findings
}

/// `IFF_UP` among the flags, which sysfs shows as `0x1003`.
fn is_up(files: &Files, folder: &str) -> bool {
    let flags = files.text(format!("{folder}/flags")).unwrap_or_default();
    let flags = flags
        .strip_prefix("0x")
        .map(|it| u32::from_str_radix(it, 16));
    !matches!(flags, Some(Ok(flags)) if flags & 1 == 0)
}

/// The number of the VLAN that a network device is, and the device below it: `eth0.7  VID: 7 …`, and in
/// another line `Device: eth0` (the kernel's `vlanproc.c`).
fn vlan(files: &Files, name: &str) -> Option<(String, String)> {
    let text = files.text(format!("proc/net/vlan/{name}")).ok()?;
    let after = |word: &str| {
        let mut words = text.split_whitespace().skip_while(|it| *it != word);
        words.nth(1).map(str::to_owned)
    };
    Some((after("VID:")?, after("Device:")?))
}

fn fits(subject: &str, name: &str, mtu: u64, active: u32) -> Finding {
    let check = Check::new("netdev mtu", subject);
    let needed = u64::from(active) + HEADERS;
    let found = format!("{name} takes {mtu} bytes, and packets have {active} and their headers");
    match mtu < needed {
        false => check.good(found),
        true => check.warning(
            found,
            format_args!(
                "Long messages are lost on the way, and short ones arrive: ip link set {name} mtu {needed}, or \
                 give connections a smaller MTU."
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use crate::files::host;

    /// The text that Linux 6.12 shows for `ip link add link dm7 name dm7.7 type vlan id 7`.
    const VLAN: &str = "dm7.7  VID: 7\t REORDER_HDR: 1  dev->priv_flags: 81021\n         total frames received            0\n\
        Device: dm7\nINGRESS priority mappings: 0:0  1:0\n EGRESS priority mappings: \n";

    fn verdicts(name: &str, flags: &str, carrier: &str, mtu: &str) -> Vec<(Verdict, String)> {
        let file = |file: &str| format!("sys/class/net/dm7.7/{file}");
        let [of_index, of_flags, of_carrier, of_mtu] =
            ["ifindex", "flags", "carrier", "mtu"].map(file);
        let files = host(
            name,
            &[
                (of_index.as_str(), "5\n"),
                (&of_flags, flags),
                (&of_carrier, carrier),
                (&of_mtu, mtu),
                ("proc/net/vlan/dm7.7", VLAN),
            ],
        );
        let findings = here(&files, "rxe0 port 1", "dm7.7", 5, Some(1024));
        let told = findings.into_iter();
        told.map(|it| (it.verdict, format!("{}: {}", it.found, it.remedy)))
            .collect()
    }

    #[track_caller]
    fn is(of: &(Verdict, String), verdict: Verdict, words: &str) {
        assert_eq!(of.0, verdict, "{of:?}");
        assert!(of.1.contains(words), "{of:?}");
    }

    #[test]
    fn the_vlan_is_told_and_a_device_that_is_down() {
        let up = verdicts("vlan", "0x1003\n", "1\n", "1500\n");
        is(&up[0], Verdict::Good, "dm7.7, VLAN 7 of dm7");
        is(&up[1], Verdict::Good, "1500");
        let down = verdicts("vlan-down", "0x1002\n", "", "1500\n");
        is(&down[0], Verdict::Broken, "ip link set dm7.7 up");
        let cut = verdicts("vlan-cut", "0x1003\n", "0\n", "1500\n");
        is(&cut[0], Verdict::Broken, "no carrier");
    }

    /// Catches a limit that is wrong by the headers: with 1120 bytes the kernel accepts packets of 1024.
    #[test]
    fn packets_that_do_not_fit_are_told() {
        let enough = verdicts("mtu-enough", "0x1003\n", "1\n", "1120\n");
        is(&enough[1], Verdict::Good, "1120");
        let few = verdicts("mtu-few", "0x1003\n", "1\n", "1119\n");
        is(&few[1], Verdict::Warning, "ip link set dm7.7 mtu 1120");
    }

    /// Catches a report about a device with the same name in another network namespace.
    #[test]
    fn a_sysfs_of_another_namespace_is_not_believed() {
        let files = host(
            "other-net",
            &[
                ("sys/class/net/eth0/ifindex", "2\n"),
                ("sys/class/net/eth0/flags", "0x1002\n"),
            ],
        );
        let findings = here(&files, "rxe0 port 1", "eth0", 5, Some(1024));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].verdict, Verdict::Good);
    }
}
