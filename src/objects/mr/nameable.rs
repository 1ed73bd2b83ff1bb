//! Regions that the requests of an agent may name.

use uverbs_queue::handover;

use super::{DmMr, DmabufMr, Mr};
use crate::memory::Memory;

mod sealed {
    use uverbs_queue::handover;

    use crate::work::PdTag;

    /// A protection domain.
    #[derive(Debug)]
    pub struct Of(pub(crate) PdTag);

    pub trait Named {
        /// Which protection domain it belongs to.
        fn pd(&self) -> Of;

        /// What the agent is told of it. Its requests may name it from then on.
        fn named(&self) -> handover::Region;
    }
}

use self::sealed::{Named, Of};

/// A region that an agent may name in its requests: see [`Qp::into_device`](crate::Qp::into_device).
pub trait Nameable: Named {}

macro_rules! nameable {
    ($(($($generics:tt)*) $Region:ty;)*) => {
        $(
            impl<$($generics)*> Named for $Region {
                fn pd(&self) -> Of {
                    Of(self.held.region.pd.tag())
                }

                fn named(&self) -> handover::Region {
                    self.held.region.named()
                }
            }

            impl<$($generics)*> Nameable for $Region {}
        )*
    };
}

nameable! {
    (M: Memory) Mr<M>;
    () DmabufMr;
    () DmMr;
}
