//! What numbers stand for: two runs have other keys, addresses and queue pairs, and are compared by what
//! these name.

use crate::list::MEMORY;

/// The numbers of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) queue_pairs: [u32; 2],
    /// The address of the registered memory.
    pub(crate) memory: u64,
    /// Its keys for this side and for peers.
    pub(crate) keys: [u32; 2],
    /// The first keys of the windows of type 1 and 2.
    pub(crate) windows: [u32; 2],
    /// The key that is given parts.
    pub(crate) gathered: u32,
}

impl Names {
    /// Which queue pair it is.
    pub(crate) fn queue_pair(&self, number: u32) -> String {
        match self.queue_pairs.iter().position(|qpn| *qpn == number) {
            Some(index) => format!("queue pair {index}"),
            None => format!("{number:#x}"),
        }
    }

    /// Which region or window it is. The low byte of a window's key is the kernel's choice at first, and then
    /// counts up from there (type 1) or is said by the request (type 2).
    pub(crate) fn key(&self, key: u32) -> String {
        let [first, second] = self.windows;
        if self.keys.contains(&key) {
            "the memory's".to_owned()
        } else if key == self.gathered && key != 0 {
            "that of parts".to_owned()
        } else if key == second {
            "window 2's, as allocated".to_owned()
        } else if key >> 8 == second >> 8 {
            format!("window 2's, {:#04x}", key as u8)
        } else if key >> 8 == first >> 8 {
            format!(
                "window 1's, {} later",
                (key as u8).wrapping_sub(first as u8)
            )
        } else {
            format!("{key:#x}")
        }
    }

    /// What a low byte of a key is, in a request about the key `of`.
    pub(crate) fn tag(&self, tag: u8, of: u32) -> String {
        match self.windows[0] {
            first if of >> 8 == first >> 8 => self.key(of & !0xff | u32::from(tag)),
            _ => format!("{tag:#04x}"),
        }
    }

    /// Which byte of the memory it is.
    pub(crate) fn address(&self, address: u64) -> String {
        match address.checked_sub(self.memory) {
            Some(offset) if offset <= MEMORY as u64 => format!("memory + {offset}"),
            _ => format!("{address:#x}"),
        }
    }
}
