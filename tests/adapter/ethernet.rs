//! The netdevs of RoCE ports: frames go from one to the other, with the check sums that the driver leaves to the device.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::hca::Hca;
use crate::support::{Result, Skip, run, test};

/// How long a connection may take.
const LIMIT: Duration = Duration::from_secs(20);

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("ethernet::short_and_long_packets_are_answered", ping),
        test("ethernet::a_long_stream_arrives_whole", stream),
    ]
}

fn needs_two(hca: Hca) -> Result {
    if !hca.roce {
        return Err(Skip("the ports are not Ethernet ones").into());
    }
    if hca.functions < 2 {
        return Err(Skip("needs two functions").into());
    }
    Ok(())
}

/// Catches frames that are lost, cut or sent to the wrong port: over IPv4, for which ARP must work first, and over IPv6.
fn ping(hca: Hca) -> Result {
    needs_two(hca)?;
    run("ping -c 2 -i 0.2 -W 5 10.9.0.2")?;
    run("ping -c 1 -W 5 -s 1472 10.9.0.2")?;
    run("ping -6 -c 1 -W 5 fe80::ff:fe00:2%eth0").map(drop)
}

/// Catches check sums that are wrong, and long segments that are cut wrongly: a stream of so many bytes is sent in such.
fn stream(hca: Hca) -> Result {
    needs_two(hca)?;
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
