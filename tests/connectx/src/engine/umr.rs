//! Changes to memory keys by work requests: windows, local invalidation, other rights or domains, lists of
//! pages.

use crate::engine::syndrome::Syndrome;
use crate::engine::wqe::{KeyChange, PageList, Segment, UNIT};
use crate::function::Function;
use crate::layout::{Field, mkc};
use crate::object::mkey::{Access, MemoryKey};
use crate::object::qp::Transport;
use crate::translate::{self, Place, User};

/// Flags of the request (`MLX5_UMR_*` in the driver, `MLX5_WQE_UMR_CTRL_FLAG_*` in the provider).
mod flag {
    /// The key must belong to the queue pair.
    pub(super) const CHECK_QPN: u8 = 1 << 3;
    /// Fails if the key stands for memory.
    pub(super) const MUST_BE_FREE: u8 = 1 << 5;
    /// Fails if the key stands for no memory.
    pub(super) const MUST_NOT_BE_FREE: u8 = 1 << 6;
}

/// Fields of the context by their bits in the mask (`MLX5_MKEY_MASK_*`).
const MASKED: [(u32, Field); 13] = [
    (0, mkc::LEN),
    (1, mkc::LOG_PAGE_SIZE),
    (6, mkc::START_ADDR),
    (7, mkc::PD),
    (8, mkc::EN_RINVAL),
    (13, mkc::MKEY_7_0),
    (14, mkc::QPN),
    (17, mkc::LR),
    (18, mkc::LW),
    (19, mkc::RR),
    (20, mkc::RW),
    (21, mkc::A),
    (29, mkc::FREE),
];

/// The bit of a key's low byte.
const RENAMES: u64 = 1 << 13;

/// Bits that say something about access which the model has no use for: fences and relaxed ordering.
const WITHOUT_EFFECT: u64 = 1 << 23 | 1 << 25 | 1 << 47;

/// Changes a key.
///
/// # Errors
/// If the queue pair may not change it, or not like that.
pub(super) fn apply(
    functions: &mut [Function],
    index: usize,
    qpn: u32,
    key: u32,
    change: &KeyChange,
) -> Result<(), Syndrome> {
    let function = functions.get_mut(index).ok_or(Syndrome::LocalQpOperation)?;
    let queue_pair = function
        .objects
        .qps
        .get(qpn)
        .map_err(|_| Syndrome::LocalQpOperation)?;
    let is_driver = queue_pair.transport() == Transport::RegUmr;
    let pd = queue_pair.pd();
    let known = MASKED
        .iter()
        .fold(WITHOUT_EFFECT, |mask, (bit, _)| mask | 1 << bit);
    if change.mask & !known != 0 {
        let unknown = change.mask & !known;
        let text = format!(
            "queue pair {qpn:#x}: fields {unknown:#x} of a memory key are changed, which is not modelled"
        );
        function.report.violation(text);
        return Err(Syndrome::MwBind);
    }
    let found = function.objects.mkeys.get(key >> 8);
    let found = found.map_err(|_| Syndrome::MwBind)?;
    if !may_change(found, key, change, qpn) || (!is_driver && found.pd() != pd) {
        return Err(Syndrome::MwBind);
    }
    if let Some((below, address)) = change.window {
        check_window(function, User { qpn, pd }, change, below, address)?;
    }
    let list = match &change.list {
        Some(list) => {
            let domain = (!is_driver).then_some(pd);
            Some(entries(function, (qpn, domain), key, list)?)
        }
        None => None,
    };
    let found = function.objects.mkeys.get_mut(key >> 8);
    let found = found.map_err(|_| Syndrome::MwBind)?;
    if let Some((units, layout)) = &change.layout
        && !found.gather(*units, layout.clone())
    {
        return Err(Syndrome::MwBind);
    }
    let fields = MASKED
        .iter()
        .filter(|(bit, _)| change.mask & (1 << bit) != 0);
    found.take(&change.context, fields.map(|(_, field)| *field));
    if let Some((below, address)) = change.window {
        found.bind(below, address);
    }
    if let Some((first, entries)) = list {
        found.load(first, &entries);
    }
    Ok(())
}

/// Gets entries of pages, and says which one of the key's is the first. The driver's own queue pair is in no
/// protection domain.
fn entries(
    function: &Function,
    by: (u32, Option<u32>),
    key: u32,
    list: &PageList,
) -> Result<(u64, Vec<u64>), Syndrome> {
    const SIZE: usize = size_of::<u64>();
    let bytes = match &list.entries {
        Segment::Inline(bytes) => bytes.clone(),
        Segment::Memory {
            length,
            key: from,
            address,
        } => {
            let place = Place {
                key: *from,
                address: *address,
                length: (*length).into(),
            };
            read_entries(function, by, place)?
        }
    };
    let (words, _) = bytes.as_chunks::<SIZE>();
    let entries: Vec<u64> = words.iter().map(|word| u64::from_be_bytes(*word)).collect();
    let first = list.offset * (UNIT / SIZE) as u64;
    let found = function.objects.mkeys.get(key >> 8);
    match found.is_ok_and(|found| found.has_room(first, entries.len())) {
        true => Ok((first, entries)),
        false => Err(Syndrome::MwBind),
    }
}

fn read_entries(
    function: &Function,
    (qpn, domain): (u32, Option<u32>),
    place: Place,
) -> Result<Vec<u8>, Syndrome> {
    let pd = match domain {
        Some(pd) => pd,
        None => {
            let from = function.objects.mkeys.get(place.key >> 8);
            from.map_err(|_| Syndrome::LocalProtection)?.pd()
        }
    };
    let mut bytes = Vec::new();
    translate::read(
        function,
        User { qpn, pd },
        place,
        Access::LocalRead,
        &mut bytes,
    )
    .map_err(|_| Syndrome::LocalProtection)?;
    Ok(bytes)
}

/// Whether the request may change the key. It names a window as it is until then, and a region that it gives
/// pages as it is from then on (`reg_wr(wr)->key` in the driver's `wr.c`).
fn may_change(found: &MemoryKey, key: u32, change: &KeyChange, qpn: u32) -> bool {
    let flags = change.flags;
    let is_renamed = change.list.is_some() && change.mask & RENAMES != 0;
    let variant = match is_renamed {
        true => mkc::MKEY_7_0.get32(&change.context),
        false => found.variant().into(),
    };
    found.is_changeable()
        && variant == key & 0xff
        && (flags & flag::MUST_BE_FREE == 0 || found.is_free())
        && (flags & flag::MUST_NOT_BE_FREE == 0 || !found.is_free())
        && (flags & flag::CHECK_QPN == 0 || found.is_for(qpn))
}

/// A window must lie in its region, and gives no right to write that the region does not have.
fn check_window(
    function: &Function,
    by: User,
    change: &KeyChange,
    below: u32,
    address: u64,
) -> Result<(), Syndrome> {
    let place = Place {
        key: below,
        address,
        length: mkc::LEN.get(&change.context),
    };
    let writes = mkc::RW.is_set(&change.context) || mkc::A.is_set(&change.context);
    let needed = if writes {
        Access::LocalWrite
    } else {
        Access::LocalRead
    };
    translate::check(function, by, place, needed)
        .map(drop)
        .map_err(|_| Syndrome::MwBind)
}

#[cfg(test)]
mod tests;
