//! A wire of a test's own: two soft-RoCE devices on the two ends of a veth pair, whose packets can be lost
//! and whose ends can be taken down.
//!
//! Both ends are in the initial namespace, since the rxe of earlier kernels sends and receives only there. A
//! queue pair is bound to a network interface, and so is the search for its way: a route over that interface
//! leads to the other end's address, although this host has it itself. Only who is told the own address finds
//! that way ([`Wire::way`]).

use std::net::{Ipv4Addr, SocketAddr};
use std::process;

use uverbs::cm::{self, Listener, Pending, Resolved};
use uverbs::{Context, Rc};

use crate::own_device::await_address;
use crate::{LIMIT, Result, run, until};

/// One end.
#[derive(Debug)]
pub struct End {
    /// The RDMA device's name.
    pub device: String,
    /// The network interface's name.
    pub netdev: String,
    address: Ipv4Addr,
    link: String,
}

impl End {
    /// Tells the kernel the way from here to the other end. Taking the interface down takes it away.
    ///
    /// # Errors
    /// If a program fails.
    pub fn knows(&self, other: &Self) -> Result {
        let Self {
            netdev, address, ..
        } = self;
        run(&format!(
            "ip route replace {} dev {netdev} src {address}",
            other.address
        ))?;
        self.has_for_neighbour(other, &other.link)
    }

    /// Tells the kernel that the other end has this address on the link.
    ///
    /// # Errors
    /// If a program fails.
    pub fn has_for_neighbour(&self, other: &Self, link: &str) -> Result {
        let netdev = &self.netdev;
        run(&format!(
            "ip neigh replace {} lladdr {link} dev {netdev} nud permanent",
            other.address
        ))?;
        Ok(())
    }

    /// Opens its device.
    ///
    /// # Errors
    /// If it has gone.
    pub fn open(&self) -> Result<Context> {
        Ok(uverbs::open(&self.device)?)
    }

    /// The address, with a port that the kernel chooses.
    fn any_port(&self) -> SocketAddr {
        SocketAddr::new(self.address.into(), 0)
    }
}

/// The wire; it goes when it is dropped.
#[derive(Debug)]
pub struct Wire {
    /// The side that asks for connections.
    pub here: End,
    /// The side that listens.
    pub there: End,
}

impl Wire {
    /// Makes it, and waits for the addresses to appear.
    ///
    /// # Errors
    /// If one of its parts cannot be made.
    pub fn new() -> Result<Self> {
        let id = process::id() % 0x1_0000;
        let [high, low] = (id as u16).to_be_bytes();
        let end = |number: u8| End {
            device: format!("rx{id}_w{number}"),
            netdev: format!("ve{id}_{number}"),
            address: Ipv4Addr::new(10, 192 + high % 32, low, number),
            link: format!("02:00:00:{high:02x}:{low:02x}:{number:02x}"),
        };
        let wire = Self {
            here: end(1),
            there: end(2),
        };
        let Self { here, there } = &wire;
        run(&format!(
            "ip link add {} address {} type veth peer name {} address {}",
            here.netdev, here.link, there.netdev, there.link
        ))?;
        for end in [here, there] {
            let End {
                device,
                netdev,
                address,
                ..
            } = end;
            // Packets come from an address of this host.
            for option in ["accept_local=1", "rp_filter=0"] {
                let (name, value) = option.split_once('=').ok_or("an option")?;
                std::fs::write(format!("/proc/sys/net/ipv4/conf/{netdev}/{name}"), value)?;
            }
            run(&format!("ip addr add {address}/32 dev {netdev}"))?;
            run(&format!("ip link set {netdev} up"))?;
            run(&format!("rdma link add {device} type rxe netdev {netdev}"))?;
        }
        // The end that was up first sends nothing until the kernel, by a thread of its own, has noticed that
        // the other is up too. The commands that follow wait until it is through with that.
        for end in [here, there] {
            let path = format!("/sys/class/net/{}/operstate", end.netdev);
            until(&format!("{path} to be up"), || {
                let state = std::fs::read_to_string(&path)?;
                Ok((state.trim() == "up").then_some(()))
            })?;
        }
        here.knows(there)?;
        there.knows(here)?;
        for end in [here, there] {
            await_address(&end.device)?;
        }
        Ok(wire)
    }

    /// A listener there.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn listener(&self, backlog: u32) -> Result<Listener<Rc>> {
        let listen = cm::listen::<Rc>(self.there.any_port())?;
        Ok(listen.backlog(backlog).start()?)
    }

    /// The way from here to a listener there, over the wire.
    ///
    /// # Errors
    /// If it is not found.
    pub fn way(&self, to: SocketAddr) -> Result<Resolved<Rc>> {
        Ok(self.resolving(to)?.within(LIMIT)?)
    }

    /// The same, to be waited for.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn resolving(&self, to: SocketAddr) -> uverbs::Result<cm::Resolving<Rc>> {
        let resolve = cm::resolve::<Rc>(to)?.source(self.here.any_port());
        // What is lost is sent again after 16 ms at least.
        resolve.ack_timeout(12).start()
    }

    /// Loses so many of a hundred packets, in each direction.
    ///
    /// # Errors
    /// If a program fails.
    pub fn lose(&self, percent: u32) -> Result {
        for end in [&self.here, &self.there] {
            let netdev = &end.netdev;
            run(&format!(
                "tc qdisc replace dev {netdev} root netem loss {percent}%"
            ))?;
        }
        Ok(())
    }

    /// How many packets were lost so far.
    ///
    /// # Errors
    /// If a program fails.
    pub fn lost(&self) -> Result<u64> {
        let mut sum = 0;
        for end in [&self.here, &self.there] {
            let said = run(&format!("tc -s qdisc show dev {}", end.netdev))?;
            let (_, after) = said.split_once("(dropped ").ok_or("no count of packets")?;
            let number = after.split(',').next().unwrap_or_default();
            sum += number.parse::<u64>()?;
        }
        Ok(sum)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for end in [&self.here, &self.there] {
            // Not made, if making it failed.
            let _ = run(&format!("rdma link del {}", end.device));
        }
        let _ = run(&format!("ip link del {}", self.here.netdev));
    }
}
