//! Regions that the requests of an agent may name, and other keys.

use std::ops::Range;

use uverbs_queue::handover;
use uverbs_uapi::flags::Access;

use super::{DmMr, DmabufMr, Mr};
use crate::memory::Memory;
use crate::work::{LocalSlice, OutOfBounds};

mod sealed {
    use std::ops::Range;

    use uverbs_queue::handover;
    use uverbs_uapi::flags::Access;

    use crate::work::{LocalSlice, OutOfBounds, PdTag};

    /// The protection domain of a region.
    #[derive(Debug)]
    pub struct Of(pub(crate) PdTag);

    pub trait Named {
        /// Which protection domain it belongs to.
        fn pd(&self) -> Of;

        /// The description for the agent. From then on the agent's requests may name the region.
        fn named(&self) -> handover::Region;

        /// A part of it, the number of its bytes, and its access.
        fn part(&self, range: Range<usize>)
        -> Result<(LocalSlice<'_>, usize, Access), OutOfBounds>;
    }
}

use self::sealed::{Named, Of};

/// A region that an agent may name in its requests: see [`Qp::into_device`](crate::Qp::into_device). Keys of
/// direct verbs may name it too.
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

                fn part(
                    &self,
                    range: Range<usize>,
                ) -> Result<(LocalSlice<'_>, usize, Access), OutOfBounds> {
                    let region = &self.held.region;
                    Ok((region.slice(range)?, region.length, region.access))
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
