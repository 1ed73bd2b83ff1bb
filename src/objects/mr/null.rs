//! The region that stands for no memory.

use crate::error::Result;
use crate::pd::{Pd, PdUse, User};
use crate::work::{LocalKey, LocalSlice, OutOfBounds, PdTag};

impl Pd {
    /// The memory region that discards what is written to it and reads as zeros: for the parts of a message
    /// that nobody needs.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device has none, like rxe. mlx5 has one if
    /// its firmware has. Manual page: `ibv_alloc_null_mr(3)`.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn null_mr(&self) -> Result<NullMr> {
        let lkey = LocalKey(self.context().driver().null_lkey()?);
        Ok(NullMr {
            lkey,
            pd: self.user(User::Mr),
        })
    }
}

/// The memory region that stands for no memory. The kernel knows nothing of it.
#[derive(Debug)]
pub struct NullMr {
    lkey: LocalKey,
    pd: PdUse,
}

impl NullMr {
    /// The key for work requests of this side.
    pub fn lkey(&self) -> LocalKey {
        self.lkey
    }

    /// `length` bytes: what is written to them is discarded, and they read as zeros.
    ///
    /// # Errors
    ///
    /// There are more than 2 GiB.
    pub fn slice(&self, length: u32) -> Result<LocalSlice<'_>, OutOfBounds> {
        LocalSlice::within(.., 0, length.into(), self.lkey, self.tag())
    }

    fn tag(&self) -> PdTag {
        self.pd.tag()
    }
}
