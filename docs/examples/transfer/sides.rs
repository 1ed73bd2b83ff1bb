//! Two sides that use an engine: one has a cache full of pages, the other asks for some of them.

use std::time::{Duration, Instant};

use uverbs::Access;

use super::Result;
use super::address::{Address, RemoteRegion};
use super::engine::{Engine, Request};
use super::region::PagedWrite;
use super::worker::Worker;

/// What the one side has: where it is, how many pages, and their bytes.
pub(crate) type Offer = (Address, u32, usize);

/// What the other wants: these pages of the one, to these of its own, with this immediate; none if it has
/// enough.
type Wish = Option<(RemoteRegion, Vec<(u32, u32)>, u32)>;

/// What is in a page of the full cache: other bytes in each, and at each place of it.
fn fill(page: u32, bytes: &mut [u8]) {
    let mut word = u64::from(page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for chunk in bytes.chunks_mut(8) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

/// Prints an offer, and writes pages to whoever asks until one has enough. A worker's thread polls.
pub(crate) fn prefill(pages: u32, bytes: usize, devices: &[String]) -> Result<()> {
    let engine = Engine::open(devices)?;
    let mut memory = vec![0; pages as usize * bytes];
    for (page, bytes) in (0..).zip(memory.chunks_mut(bytes.max(1))) {
        fill(page, bytes);
    }
    // The adapters read it only.
    let cache = engine.register(memory, Access::empty())?;
    let offer: Offer = (engine.address(), pages, bytes);
    println!("{}", serde_json::to_string(&offer)?);
    let worker = Worker::spawn(engine);
    let mut written = 0;
    while let Some((to, pages, imm)) = postcard::from_bytes::<Wish>(&worker.receive()?)? {
        written += pages.len();
        let write = Request::Write(PagedWrite {
            from: cache.clone(),
            to,
            pages,
            bytes,
            imm,
        });
        worker.submit(write).wait(|| Ok(false))?;
    }
    println!("{written} pages written");
    worker.stop()
}

/// Has half of the pages copied, other ones in each round, and looks at every byte. It polls by itself.
pub(crate) fn decode(offer: &Offer, rounds: u32, devices: &[String]) -> Result<()> {
    let (peer, pages, bytes) = (&offer.0, offer.1, offer.2);
    if pages < 2 || bytes == 0 {
        return Err("the other side has less than two pages".into());
    }
    let mut engine = Engine::open(devices)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let memory = engine.register(vec![0; pages as usize * bytes], access)?;
    let remote = memory.remote(engine.address());
    // Which of the offer's pages each page has.
    let mut has = vec![None; pages as usize];
    let mut times = Vec::new();
    for round in 0..rounds {
        let copies: Vec<(u32, u32)> = (0..pages / 2)
            .map(|at| ((3 * at + round) % pages, (2 * at + round) % pages))
            .collect();
        let begun = Instant::now();
        let wish = Some((remote.clone(), copies.clone(), round));
        say(&mut engine, peer, &wish)?;
        // In two parts, of which the second has mostly come before anybody waits for it.
        for count in [1, copies.len() - 1] {
            let arrived = engine.submit(Request::Expect { imm: round, count });
            arrived.wait(|| engine.poll())?;
        }
        times.push(begun.elapsed());
        for (from, to) in copies {
            has[to as usize] = Some(from);
        }
        let (mut found, mut expected) = (vec![0; bytes], vec![0; bytes]);
        for (page, has) in has.iter().enumerate() {
            memory.read_at(page * bytes, &mut found)?;
            expected.fill(0);
            has.iter().for_each(|from| fill(*from, &mut expected));
            if found != expected {
                return Err(format!("page {page} is not page {has:?} of the other side").into());
            }
        }
    }
    say(&mut engine, peer, &None)?;
    // The first round has the handshakes in it.
    let (first, others) = times.split_first().ok_or("no rounds")?;
    let seconds = others.iter().sum::<Duration>().as_secs_f64();
    let (rails, each, moved) = (devices.len(), pages / 2, others.len() as u32 * (pages / 2));
    let rate = f64::from(moved) / seconds;
    let megabytes = rate * bytes as f64 / 1e6;
    println!("{rails} rails: {each} pages of {bytes} bytes, with the handshakes, in {first:.1?}");
    println!("{moved} more in {seconds:.3} s: {rate:.0} pages/s, {megabytes:.1} MB/s");
    Ok(())
}

fn say(engine: &mut Engine, peer: &Address, wish: &Wish) -> Result<()> {
    let sent = engine.submit(Request::Send {
        to: peer.clone(),
        message: postcard::to_allocvec(wish)?,
    });
    sent.wait(|| engine.poll())
}
