//! What travels with an operation, and comes back with it.

use crate::buf::{Buf, Frozen};
use crate::work::{LocalSlice, PdTag};

/// What a slot keeps while the device may have it.
#[derive(Debug, Default)]
pub(super) enum Cargo {
    /// The request has no memory of its own.
    #[default]
    None,
    /// A buffer.
    Buf(Buf),
    /// Constant bytes.
    Frozen(Frozen),
}

impl Cargo {
    pub(super) fn into_buf(self) -> Buf {
        match self {
            Self::Buf(buf) => buf,
            Self::None | Self::Frozen(_) => Buf::default(),
        }
    }
}

pub(super) mod sealed {
    use super::{Cargo, LocalSlice, PdTag};

    pub trait Travels: Sized {
        #[doc(hidden)]
        fn bytes(&self) -> &[u8];
        #[doc(hidden)]
        fn local(&self, pd: PdTagOf) -> Option<LocalSlice<'static>>;
        #[doc(hidden)]
        fn load(self) -> Load;
        #[doc(hidden)]
        fn unload(load: Load) -> Self;
    }

    /// The PD, for a signature that nobody outside can write.
    pub struct PdTagOf(pub(in crate::aio) PdTag);

    /// The cargo, for the same.
    pub struct Load(pub(in crate::aio) Cargo);
}

use sealed::{Load, PdTagOf, Travels};

/// What can be sent or written: a [`Buf`], or constant bytes ([`Frozen`]), clones of which can be in several
/// operations.
pub trait Payload: Travels + Send + 'static {}

impl Payload for Buf {}
impl Payload for Frozen {}

impl Travels for Buf {
    fn bytes(&self) -> &[u8] {
        self
    }

    #[inline]
    fn local(&self, pd: PdTagOf) -> Option<LocalSlice<'static>> {
        self.slice(pd.0, self.len())
    }

    #[inline]
    fn load(self) -> Load {
        Load(Cargo::Buf(self))
    }

    #[inline]
    fn unload(load: Load) -> Self {
        load.0.into_buf()
    }
}

impl Travels for Frozen {
    fn bytes(&self) -> &[u8] {
        self
    }

    #[inline]
    fn local(&self, pd: PdTagOf) -> Option<LocalSlice<'static>> {
        Frozen::local(self, pd.0)
    }

    #[inline]
    fn load(self) -> Load {
        Load(Cargo::Frozen(self))
    }

    #[inline]
    fn unload(load: Load) -> Self {
        match load.0 {
            Cargo::Frozen(frozen) => frozen,
            Cargo::Buf(buf) => buf.freeze(),
            Cargo::None => Buf::default().freeze(),
        }
    }
}
