//! What travels with an operation, and comes back with it.

use crate::buf::{Buf, Frozen};

pub(super) mod sealed {
    use super::Buf;

    pub trait Travels: Sized {
        #[doc(hidden)]
        fn load(self) -> Load;
        #[doc(hidden)]
        fn unload(load: Load) -> Self;
    }

    /// The buffer that a slot keeps while the device may use it. Public, but opaque, since it is part of a
    /// public signature. It knows whether its bytes are constant ([`Frozen`]).
    pub struct Load(pub(in crate::aio) Buf);
}

use sealed::{Load, Travels};

/// What can be sent or written: a [`Buf`], or constant bytes ([`Frozen`]), clones of which can be in several
/// operations.
pub trait Payload: Travels + Send + 'static {}

impl Payload for Buf {}
impl Payload for Frozen {}

impl Travels for Buf {
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
    fn load(self) -> Load {
        Load(self.into_inner())
    }

    #[inline(always)]
    fn unload(load: Load) -> Self {
        Self::from_inner(load.0)
    }
}
