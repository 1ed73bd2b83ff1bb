//! Messages that come to a shared receive queue: each receive has a slot of a region by its id.

use support::{Result, Wc, same};
use uverbs::{Mr, Srq};

/// Bytes of a slot, and how many slots there are.
pub(crate) const SLOT: usize = 64;
pub(crate) const SLOTS: usize = 64;

/// Where the slot of an id begins.
fn start(id: u64) -> usize {
    id as usize % SLOTS * SLOT
}

/// Posts a receive for each of these ids, into the slot of that number.
pub(crate) fn stock(srq: &mut Srq, mr: &Mr<Vec<u8>>, ids: std::ops::Range<u64>) -> Result {
    let mut batch = srq.batch();
    for id in ids {
        batch.post(id, mr.slice(start(id)..start(id) + SLOT)?)?;
    }
    batch.ring();
    Ok(())
}

/// The completed receive must have these bytes, in its slot.
#[track_caller]
pub(crate) fn has(wc: Wc, mr: &Mr<Vec<u8>>, bytes: &[u8]) -> Result<Wc> {
    same(wc.byte_len, bytes.len() as u32, "bytes received")?;
    let mut came = vec![0; bytes.len()];
    mr.read_at(start(wc.wr_id), &mut came)?;
    same(came, bytes.to_vec(), "the message")?;
    Ok(wc)
}
