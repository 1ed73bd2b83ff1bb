//! What a request carries.

use self::sealed::Carried;
use crate::work::{LocalSlice, Payload};

pub(super) mod sealed {
    use crate::work::Payload;

    /// The form that drivers take.
    #[derive(Debug)]
    pub struct Carried<'a>(pub(crate) Payload<'a>);

    pub trait AsPayload<'q> {
        fn as_payload<'a>(&'a self) -> Carried<'a>
        where
            'q: 'a;
    }
}

/// What a SEND or WRITE carries: slices of registered memory (one, or an array or slice of them), or bytes
/// that are copied into the request ([`Inline`]).
///
/// Slices borrow their regions for `'q`, the life of the batch.
#[diagnostic::on_unimplemented(
    message = "a request cannot carry `{Self}`",
    label = "this needs slices of registered memory, or `Inline(bytes)`",
    note = "`Mr::slice` gives a slice of registered memory"
)]
pub trait IntoPayload<'q>: sealed::AsPayload<'q> {}

impl<'q, S: AsRef<[LocalSlice<'q>]>> IntoPayload<'q> for S {}

impl<'q, S: AsRef<[LocalSlice<'q>]>> sealed::AsPayload<'q> for S {
    #[inline(always)]
    fn as_payload<'a>(&'a self) -> Carried<'a>
    where
        'q: 'a,
    {
        Carried(Payload::Gather(self.as_ref()))
    }
}

/// Bytes that are copied into the request: they may change as soon as it is written. A queue pair takes as
/// many as its [`Caps::max_inline_data`](super::Caps::max_inline_data).
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a>(pub &'a [u8]);

impl IntoPayload<'_> for Inline<'_> {}

impl<'q> sealed::AsPayload<'q> for Inline<'_> {
    #[inline(always)]
    fn as_payload<'a>(&'a self) -> Carried<'a>
    where
        'q: 'a,
    {
        Carried(Payload::Inline(self.0))
    }
}
