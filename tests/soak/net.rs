//! The two hosts, and the bad wire between them.
//!
//! The runner has laid them out (`cargo vm run --hosts 2`): the devices `rxe1` and `rxe2` on a veth pair,
//! each in a network namespace of its own where the kernel's rxe knows namespaces, else both in the initial
//! one.

use std::fs::File;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd;
use support::run;

use super::Result;

/// What happens to packets, in each direction.
pub(crate) const LOSS: &str = "delay 1ms reorder 1% 25% duplicate 1% loss 1%";

/// The count of packets that were sent over the bad wire.
pub(crate) const PACKETS: &str = "packets on the wire";

/// A host.
#[derive(Debug)]
pub(crate) struct Host {
    /// The RDMA device's name.
    pub(crate) device: &'static str,
    netdev: &'static str,
    address: &'static str,
    /// The namespace, if it has one of its own: its name, and the file that stands for it.
    namespace: Option<(&'static str, File)>,
}

impl Host {
    /// Both hosts, which know each other's link-layer addresses.
    pub(crate) fn both() -> Result<[Self; 2]> {
        let is_here = |netdev| run(&format!("ip link show {netdev}")).is_ok();
        let shared = is_here("veth1") && is_here("veth2");
        let host = |device, netdev, address, name| -> Result<Self> {
            let namespace = match shared {
                true => None,
                false => {
                    let path = format!("/run/netns/{name}");
                    let file = File::open(&path).map_err(|error| {
                        format!("{path}: {error}; run this with two hosts: `cargo vm soak`")
                    })?;
                    Some((name, file))
                }
            };
            Ok(Self {
                device,
                netdev,
                address,
                namespace,
            })
        };
        let hosts = [
            host("rxe1", "veth1", "10.9.0.1", "h1")?,
            host("rxe2", "veth2", "10.9.0.2", "h2")?,
        ];
        hosts[0].knows(&hosts[1])?;
        hosts[1].knows(&hosts[0])?;
        Ok(hosts)
    }

    /// Takes this thread to the host: verbs that look for a route look there.
    pub(crate) fn enter(&self) -> Result {
        if let Some((_, namespace)) = &self.namespace {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        Ok(())
    }

    /// Tells this host the link-layer address of the other one, for good.
    ///
    /// Else the kernel asks for it by ARP when a queue pair is connected, and gives up after a second
    /// (`ETIMEDOUT`), in which it asks once: a bad wire loses one such question or answer in fifty. What is
    /// tested here is what RDMA makes of lost packets; ARP has its own way with them.
    fn knows(&self, other: &Self) -> Result {
        let shown = other.run(&format!("ip link show dev {}", other.netdev))?;
        let link = link_address(&shown).ok_or_else(|| format!("ip said: {shown}"))?;
        self.run(&format!(
            "ip neigh replace {} lladdr {link} dev {} nud permanent",
            other.address, self.netdev
        ))?;
        Ok(())
    }

    /// Runs a program that must succeed there, and gives what it prints.
    fn run(&self, command: &str) -> Result<String> {
        match &self.namespace {
            Some((name, _)) => run(&format!("ip netns exec {name} {command}")),
            None => run(command),
        }
    }
}

/// The wire while it is bad; good again when dropped.
pub(crate) struct BadWire<'a>(&'a [Host; 2]);

impl<'a> BadWire<'a> {
    /// Makes it bad.
    pub(crate) fn new(hosts: &'a [Host; 2]) -> Result<Self> {
        let wire = Self(hosts);
        for host in hosts {
            host.run(&format!(
                "tc qdisc add dev {} root netem limit 10000 {LOSS}",
                host.netdev
            ))?;
        }
        Ok(wire)
    }

    /// Packets that were sent and packets that were dropped so far.
    pub(crate) fn packets(&self) -> Result<(u64, u64)> {
        let mut sum = (0, 0);
        for host in self.0 {
            let text = host.run(&format!("tc -s qdisc show dev {}", host.netdev))?;
            let (sent, dropped) = statistics(&text).ok_or_else(|| format!("tc said: {text}"))?;
            sum = (sum.0 + sent, sum.1 + dropped);
        }
        Ok(sum)
    }
}

impl Drop for BadWire<'_> {
    fn drop(&mut self) {
        for host in self.0 {
            // The guest's end takes it away too.
            let _ = host.run(&format!("tc qdisc del dev {} root", host.netdev));
        }
    }
}

/// Reads `Sent 1 bytes 2 pkt (dropped 3, ...`: 2 and 3.
fn statistics(text: &str) -> Option<(u64, u64)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let before = |word: &str| words.iter().position(|other| *other == word);
    let sent = words.get(before("pkt")?.checked_sub(1)?)?;
    let dropped = words.get(before("(dropped")? + 1)?;
    Some((
        sent.parse().ok()?,
        dropped.trim_end_matches(',').parse().ok()?,
    ))
}

/// Reads `... link/ether 5a:11:12:13:14:15 brd ...`: the address.
fn link_address(text: &str) -> Option<&str> {
    let mut words = text.split_whitespace();
    words.find(|word| *word == "link/ether")?;
    words.next()
}
