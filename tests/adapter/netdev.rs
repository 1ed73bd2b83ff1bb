//! The netdevs of the ports: packets go from one to the other. On InfiniBand they are datagrams of ib_ipoib,
//! to groups of the subnet and to peers that its administrator knows the way to; of an Ethernet port they are
//! frames, with the check sums that the driver leaves to the device.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use libtest_mimic::Trial;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use support::wait::until_so;
use support::{Hca, LIMIT, Result, run, skip, test_on_adapter};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_on_adapter("netdev::short_and_long_packets_are_answered", ping),
        test_on_adapter("netdev::a_long_stream_arrives_whole", stream),
    ]
}

/// Catches packets that are lost, cut or sent to the wrong port: over IPv4, for which ARP must work first,
/// and over IPv6, whose neighbours are looked for in groups that the ports have made themselves.
fn ping(hca: Hca) -> Result {
    hca.needs_two()?;
    run("ping -c 2 -i 0.2 -W 20 10.9.0.2")?;
    run("ping -c 1 -W 20 -s 1472 10.9.0.2")?;
    let neighbour = if hca.roce {
        "fe80::ff:fe00:2%eth0"
    } else {
        "fe80::200:ff:fe00:2%ib0"
    };
    // Until the kernel knows that nobody else has such an address, a second behind the link or more, it sends
    // nothing from it and does not answer for it.
    for namespace in ["", "-n h2"] {
        let shown = format!("ip {namespace} -6 address show scope link -tentative");
        until_so(LIMIT, "an IPv6 address that can be used", || {
            Ok(run(&shown)?.contains("inet6 fe80:"))
        })?;
    }
    run(&format!("ping -6 -c 1 -W 20 {neighbour}")).map(drop)
}

/// Catches check sums that are wrong, and long segments that are cut wrongly: a stream of so many bytes is
/// sent in such.
fn stream(hca: Hca) -> Result {
    hca.needs_two()?;
    if !hca.roce {
        return skip("ib_ipoib leaves neither check sums nor long segments to the device");
    }
    let bytes: Vec<u8> = (0..1_000_000_u32)
        .map(|n| (n * 7 + n / 251) as u8)
        .collect();
    let (sender, listening) = std::sync::mpsc::channel();
    let receiver = std::thread::spawn(move || -> Result<Vec<u8>> {
        let namespace = std::fs::File::open("/run/netns/h2")?;
        // This thread alone moves, and it ends here.
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        let listener = TcpListener::bind("10.9.0.2:0")?;
        sender.send(listener.local_addr()?)?;
        let mut received = Vec::new();
        listener.accept()?.0.read_to_end(&mut received)?;
        Ok(received)
    });
    let Ok(address) = listening.recv() else {
        let failed = receiver.join().map_err(|_| "the receiver panicked")?;
        return Err(format!("nobody listens: {failed:?}").into());
    };
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.write_all(&bytes)?;
    drop(stream);
    let received = receiver.join().map_err(|_| "the receiver panicked")??;
    if received != bytes {
        return Err(format!(
            "of {} bytes {} came, not the same",
            bytes.len(),
            received.len()
        )
        .into());
    }
    Ok(())
}
