//! The value that goes into an operation and comes back with it.

use crate::buf::{Buf, Frozen};

pub(super) mod sealed {
    use super::Buf;

    /// What methods take that no code outside may call: it cannot make one. Nor can it implement them, for it
    /// cannot name this type. (That a trait is sealed does not hide its methods: they can be called on a type
    /// parameter that it bounds.)
    pub struct Inside(pub(in crate::aio) ());

    pub trait Travels: Sized {
        /// The buffer to keep while the device may use it. It knows whether its bytes are constant
        /// ([`Frozen`](super::Frozen)).
        #[doc(hidden)]
        fn load(self, _: Inside) -> Buf;
        /// Takes a buffer back that was loaded from the same type: another one would let a holder write to
        /// constant bytes.
        #[doc(hidden)]
        fn unload(buf: Buf, _: Inside) -> Self;
    }
}

use sealed::{Inside, Travels};

/// What the methods that need it are called with.
pub(super) const INSIDE: Inside = Inside(());

/// A value that can be sent or written: a [`Buf`], or constant bytes ([`Frozen`]), clones of which can be in
/// several operations.
pub trait Payload: Travels + Send + 'static {}

impl Payload for Buf {}
impl Payload for Frozen {}

impl Travels for Buf {
    #[inline(always)]
    fn load(self, _: Inside) -> Buf {
        self
    }

    #[inline(always)]
    fn unload(buf: Buf, _: Inside) -> Self {
        buf
    }
}

impl Travels for Frozen {
    #[inline(always)]
    fn load(self, _: Inside) -> Buf {
        self.into_inner()
    }

    #[inline(always)]
    fn unload(buf: Buf, _: Inside) -> Self {
        Self::from_inner(buf)
    }
}
