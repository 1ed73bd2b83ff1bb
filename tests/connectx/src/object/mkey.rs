//! Memory keys: who may do what with which memory, and where that lies.

use crate::command::Status;
use crate::function::Function;
use crate::layout::{Field, cmd, mkc};
use crate::pages::addresses;

const CONTEXT_SIZE: usize = 0x40;
/// Pages are powers of two of 4 KiB in keys as well, but given as such.
const SMALLEST_PAGE_SHIFT: u32 = 12;
/// The key that stands for the end of a list of receive buffers.
pub(crate) const TERMINATOR: u32 = 0x100;
/// The key that stands for no memory: what is written there is discarded, and zeros are read. No table of keys
/// is so long that it has another.
pub(crate) const NOTHING: u32 = 0xffff_ff00;
/// The key that a queue pair with `rlky` may use for all memory; none is given out.
const RESERVED_LKEY: u64 = 0;

/// How a key finds memory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Translation {
    /// Addresses are bus addresses.
    Physical,
    /// Pages of equal size.
    Pages {
        /// Binary logarithm of their size.
        shift: u32,
        /// Where they lie.
        pages: Vec<u64>,
    },
    /// A part of what another key covers: a memory window.
    Window {
        /// The other key.
        key: u32,
        /// Where in it the window begins.
        address: u64,
    },
    /// What is written is discarded, and zeros are read.
    Nothing,
    /// Nothing yet: a memory window that is not bound, or a key whose content work requests write.
    Unbound,
}

/// What an access wants to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Access {
    /// Read by the function's own queue pair.
    LocalRead,
    /// Written by the function's own queue pair.
    LocalWrite,
    /// Read by a peer.
    RemoteRead,
    /// Written by a peer.
    RemoteWrite,
    /// Changed by a peer's atomic operation.
    Atomic,
}

/// A key.
#[derive(Debug)]
pub(crate) struct MemoryKey {
    context: Vec<u8>,
    translation: Translation,
}

impl MemoryKey {
    /// The key [`NOTHING`], which covers all addresses and gives no rights to peers.
    pub(crate) fn nothing() -> Self {
        let mut context = vec![0; CONTEXT_SIZE];
        for right in [mkc::LENGTH64, mkc::LR, mkc::LW] {
            right.set(&mut context, 1);
        }
        Self {
            context,
            translation: Translation::Nothing,
        }
    }

    fn new(context: &[u8], list: &[u8]) -> Result<Self, Status> {
        let mode = mkc::ACCESS_MODE_4_2.get(context) << 2 | mkc::ACCESS_MODE_1_0.get(context);
        let free = mkc::FREE.is_set(context);
        let translation = match mode {
            0 => Translation::Physical,
            1 if !free => {
                let shift = mkc::LOG_PAGE_SIZE.get32(context);
                if shift < SMALLEST_PAGE_SHIFT {
                    return Err(Status::BadParameter);
                }
                let pages = addresses(list);
                Translation::Pages { shift, pages }
            }
            1..=3 => Translation::Unbound,
            _ => return Err(Status::BadParameter),
        };
        Ok(Self {
            context: context.to_vec(),
            translation,
        })
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> u32 {
        mkc::PD.get32(&self.context)
    }

    /// The low byte of the key as the driver knows it.
    pub(crate) fn variant(&self) -> u8 {
        mkc::MKEY_7_0.get32(&self.context) as u8
    }

    /// Whether it stands for no memory now.
    pub(crate) fn is_free(&self) -> bool {
        mkc::FREE.is_set(&self.context)
    }

    /// How it finds memory.
    pub(crate) fn translation(&self) -> &Translation {
        &self.translation
    }

    /// The first address that it covers.
    pub(crate) fn start(&self) -> u64 {
        mkc::START_ADDR.get(&self.context)
    }

    /// Whether the addresses lie in its range.
    pub(crate) fn covers(&self, address: u64, length: u64) -> bool {
        if mkc::LENGTH64.is_set(&self.context) {
            return true;
        }
        let size = u128::from(mkc::LEN.get(&self.context));
        let start = u128::from(self.start());
        let address = u128::from(address);
        address >= start && address + u128::from(length) <= start + size
    }

    /// Whether it gives the right.
    pub(crate) fn allows(&self, access: Access) -> bool {
        let field = match access {
            Access::LocalRead => mkc::LR,
            Access::LocalWrite => mkc::LW,
            Access::RemoteRead => mkc::RR,
            Access::RemoteWrite => mkc::RW,
            Access::Atomic => mkc::A,
        };
        field.is_set(&self.context)
    }

    /// Whether a queue pair may use it: windows of type 2 belong to one.
    pub(crate) fn is_for(&self, qpn: u32) -> bool {
        const ALL: u32 = 0xff_ffff;
        let bound = mkc::QPN.get32(&self.context);
        bound == ALL || bound == qpn
    }

    /// Whether work requests may change it.
    pub(crate) fn is_changeable(&self) -> bool {
        mkc::UMR_EN.is_set(&self.context)
    }

    /// Takes fields over from another context.
    pub(crate) fn take(&mut self, from: &[u8], fields: impl Iterator<Item = Field>) {
        for field in fields {
            field.set(&mut self.context, field.get(from));
        }
    }

    /// Makes it a window.
    pub(crate) fn bind(&mut self, key: u32, address: u64) {
        self.translation = Translation::Window { key, address };
    }

    /// Takes its memory away for a peer, if peers may do that.
    pub(crate) fn invalidate(&mut self) -> bool {
        let allowed = mkc::EN_RINVAL.is_set(&self.context) && !self.is_free();
        if allowed {
            mkc::FREE.set(&mut self.context, 1);
        }
        allowed
    }
}

/// Executes CREATE_MKEY.
///
/// # Errors
/// If the context is one that the model cannot serve, the domain is not there, or the list is short.
pub(crate) fn create(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let context = input
        .get(cmd::CONTEXT..cmd::CONTEXT + CONTEXT_SIZE)
        .ok_or(Status::BadInputLength)?;
    let key = MemoryKey::new(context, input.get(cmd::PAS..).unwrap_or_default())?;
    function.check_pd(key.pd())?;
    if let Translation::Pages { shift, pages } = &key.translation {
        let start = mkc::START_ADDR.get(context);
        let within = start & ((1 << shift) - 1);
        let needed = (within + mkc::LEN.get(context)).div_ceil(1 << shift);
        if (pages.len() as u64) < needed {
            return Err(Status::BadInputLength);
        }
    }
    cmd::OBJECT.set(output, function.objects.mkeys.insert(key)?.into());
    Ok(())
}

/// Executes DESTROY_MKEY.
///
/// # Errors
/// If there is no such key.
pub(crate) fn destroy(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let index = cmd::OBJECT.get32(input);
    function.objects.mkeys.remove(index).map(drop)
}

/// Answers QUERY_MKEY.
///
/// # Errors
/// If there is no such key.
pub(crate) fn query(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let key = function.objects.mkeys.get(cmd::OBJECT.get32(input))?;
    for (to, from) in output.iter_mut().skip(cmd::CONTEXT).zip(&key.context) {
        *to = *from;
    }
    Ok(())
}

/// Answers QUERY_SPECIAL_CONTEXTS.
///
/// # Errors
/// None.
pub(crate) fn query_special(_: &mut Function, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    cmd::RESD_LKEY.set(output, RESERVED_LKEY);
    cmd::DUMP_FILL_MKEY.set(output, NOTHING.into());
    Ok(())
}
