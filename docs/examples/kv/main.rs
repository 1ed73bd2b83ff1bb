//! A key-value server over RDMA: clients read directly from the server's memory, and send messages to write.
//!
//! A GET is one READ, without the server's CPU; a PUT is a message with an answer. Clients and server are
//! tasks of this program; they could as well be on several hosts. The argument is an address of this host on
//! an RDMA device; by default, the first one.

#![forbid(unsafe_code)]

mod client;
mod server;
mod table;

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use client::Client;
use uverbs::cm;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of a request or an answer at most.
const MESSAGE: usize = 256;
const PATIENCE: Duration = Duration::from_secs(60);

const CLIENTS: u64 = 4;
const KEYS: u64 = 50;

fn main() -> Result<()> {
    let address = match std::env::args().nth(1) {
        Some(address) => address.parse()?,
        None => first_address()?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(play(address))
}

/// An IPv4 address of this host that an RDMA device has.
fn first_address() -> Result<IpAddr> {
    for device in uverbs::devices()? {
        let gids = device.gid_table(1)?;
        if let Some(address) = gids.iter().find_map(|entry| entry.gid.as_ipv4()) {
            return Ok(address.into());
        }
    }
    Err("no RDMA device of this host has an IPv4 address: name one".into())
}

async fn play(address: IpAddr) -> Result<()> {
    let listener = cm::listen::<uverbs::Rc>((address, 0))?.start()?;
    let server = listener.local_addr();
    let serving = tokio::spawn(server::run(listener, CLIENTS));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(use_it(server, number)))
        .collect();
    for client in clients {
        let (gets, torn) = client.await??;
        println!("{gets} GETs by READ, {torn} of them once more");
    }
    println!("{} requests served", serving.await??);
    Ok(())
}

/// What a client does: writes keys of its own, and one that all clients write while all read it.
async fn use_it(server: SocketAddr, number: u64) -> Result<(u64, u64)> {
    let mut client = Client::connect(server).await?;
    for key in 0..KEYS {
        let (key, value) = (format!("{number}/{key}"), vec![key as u8; 1 + key as usize]);
        client.put(key.as_bytes(), &value).await?;
        client.put(b"everybody's", &[number as u8; 100]).await?;
        expect(
            client.get(key.as_bytes()).await?.as_deref() == Some(&value[..]),
            "the value",
        )?;
        let shared = client.get(b"everybody's").await?.unwrap_or_default();
        let is_whole = shared.len() == 100 && shared.iter().all(|byte| *byte == shared[0]);
        expect(is_whole, "a value whole")?;
    }
    let key = format!("{number}/0");
    expect(
        client.remove(key.as_bytes()).await?,
        "the key to be removed",
    )?;
    expect(client.get(key.as_bytes()).await?.is_none(), "no value")?;
    client.leave().await
}

fn expect(so: bool, what: &str) -> Result<()> {
    match so {
        true => Ok(()),
        false => Err(format!("expected {what}").into()),
    }
}
