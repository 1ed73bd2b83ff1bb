//! A wire of a test's own: two soft-RoCE devices on the two ends of a veth pair, whose packets can be lost and whose
//! ends can be taken down.
//!
//! Both ends are in the initial namespace, since the rxe of earlier kernels sends and receives only there. A queue
//! pair is bound to a network interface, and so is the search for its way: a route over that interface leads to the
//! other end's address, although this host has it itself. Only who is told the own address finds that way
//! ([`Wire::way`]).

use std::net::{Ipv4Addr, SocketAddr};
use std::process;

use support::{LIMIT, Result, run, same};
use uverbs::cm::{self, Failed, Listener, Pending, Resolved};
use uverbs::{Cause, Context, Qp, Rc};

/// The error of a step, without the queue pair: the wire goes only without users.
pub(crate) fn error<B>(failed: Failed<B>) -> uverbs::Error {
    failed.error
}

/// Fails unless a step that failed says of which connection and why, and gave its queue pair back.
pub(crate) fn failed_well(failed: &Failed<Qp<Rc>>, number: u32) -> Result {
    let words = failed.error.to_string();
    same(words.contains("on connection"), true, &words)?;
    let named = matches!(
        failed.error.cause(),
        Cause::TimedOut(_) | Cause::Refused(_) | Cause::Os(_)
    );
    same(named, true, &words)?;
    same(failed.back.qpn(), number, "the queue pair")
}

/// One end.
#[derive(Debug)]
pub(crate) struct End {
    /// The RDMA device's name.
    pub(crate) device: String,
    /// The network interface's name.
    pub(crate) netdev: String,
    address: Ipv4Addr,
    link: String,
}

impl End {
    /// Tells the kernel the way from here to the other end. Taking the interface down takes it away.
    pub(crate) fn knows(&self, other: &Self) -> Result {
        let Self {
            netdev, address, ..
        } = self;
        run(&format!(
            "ip route replace {} dev {netdev} src {address}",
            other.address
        ))?;
        run(&format!(
            "ip neigh replace {} lladdr {} dev {netdev} nud permanent",
            other.address, other.link
        ))?;
        Ok(())
    }

    pub(crate) fn open(&self) -> Result<Context> {
        Ok(uverbs::open(&self.device)?)
    }

    /// The address, with a port that the kernel chooses.
    fn any_port(&self) -> SocketAddr {
        SocketAddr::new(self.address.into(), 0)
    }
}

/// The wire; it goes when it is dropped.
#[derive(Debug)]
pub(crate) struct Wire {
    /// The side that asks for connections.
    pub(crate) here: End,
    /// The side that listens.
    pub(crate) there: End,
}

impl Wire {
    pub(crate) fn new() -> Result<Self> {
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
        here.knows(there)?;
        there.knows(here)?;
        for end in [here, there] {
            support::own_device::await_address(&end.device)?;
        }
        Ok(wire)
    }

    pub(crate) fn listener(&self, backlog: u32) -> Result<Listener<Rc>> {
        let listen = cm::listen::<Rc>(self.there.any_port())?;
        Ok(listen.backlog(backlog).start()?)
    }

    /// The way from here to a listener there, over the wire.
    pub(crate) fn way(&self, to: SocketAddr) -> Result<Resolved<Rc>> {
        Ok(self.resolving(to)?.within(LIMIT)?)
    }

    pub(crate) fn resolving(&self, to: SocketAddr) -> uverbs::Result<cm::Resolving<Rc>> {
        let resolve = cm::resolve::<Rc>(to)?.source(self.here.any_port());
        // What is lost is sent again after 16 ms at least.
        resolve.ack_timeout(12).start()
    }

    /// Loses so many of a hundred packets, in each direction.
    pub(crate) fn lose(&self, percent: u32) -> Result {
        for end in [&self.here, &self.there] {
            let netdev = &end.netdev;
            run(&format!(
                "tc qdisc add dev {netdev} root netem loss {percent}%"
            ))?;
        }
        Ok(())
    }

    /// How many packets were lost so far.
    pub(crate) fn lost(&self) -> Result<u64> {
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
