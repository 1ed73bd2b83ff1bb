//! A datagram queue pair is not connected, and a connected one not activated.

use uverbs::{ConnectOptions, Endpoint, Qp, Rc, Result, Ud};

fn connect(datagrams: &mut Qp<Ud>, peer: &Endpoint) -> Result<()> {
    datagrams.connect(peer)
}

fn activate(connected: &mut Qp<Rc>) -> Result<()> {
    connected.activate(0x1111_1111, &ConnectOptions::default())
}

fn main() {}
