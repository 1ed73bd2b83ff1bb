//! What travels with an operation, and comes back with it.

use crate::buf::{Buf, Frozen};
use crate::work::{LocalSlice, PdTag};

pub(super) mod sealed {
    use super::{Buf, LocalSlice, PdTag};

    pub trait Travels: Sized {
        #[doc(hidden)]
        fn is_empty(&self) -> bool;
        #[doc(hidden)]
        fn local(&self, pd: PdTagOf) -> Option<LocalSlice<'static>>;
        #[doc(hidden)]
        fn load(self) -> Load;
        #[doc(hidden)]
        fn unload(load: Load) -> Self;
    }

    /// The PD, for a signature that nobody outside can write.
    pub struct PdTagOf(pub(in crate::aio) PdTag);

    /// What a slot keeps while the device may have it, for the same. Of constant bytes it is told that they
    /// are.
    pub struct Load(pub(in crate::aio) Buf);
}

use sealed::{Load, PdTagOf, Travels};

/// What can be sent or written: a [`Buf`], or constant bytes ([`Frozen`]), clones of which can be in several
/// operations.
pub trait Payload: Travels + Send + 'static {}

impl Payload for Buf {}
impl Payload for Frozen {}

impl Travels for Buf {
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline(always)]
    fn local(&self, pd: PdTagOf) -> Option<LocalSlice<'static>> {
        self.filled(pd.0)
    }

    #[inline(always)]
    fn load(self) -> Load {
        Load(self)
    }

    #[inline(always)]
    fn unload(load: Load) -> Self {
        load.0
    }
}

impl Travels for Frozen {
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline(always)]
    fn local(&self, pd: PdTagOf) -> Option<LocalSlice<'static>> {
        self.filled(pd.0)
    }

    #[inline(always)]
    fn load(self) -> Load {
        Load(self.into_inner())
    }

    #[inline(always)]
    fn unload(load: Load) -> Self {
        Self::from_inner(load.0)
    }
}
