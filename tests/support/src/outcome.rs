//! How a test ends.

use std::error::Error;
use std::fmt;

use crate::{Device, device};

/// The result of anything here. Whatever went wrong, the test failed; except for [`Skip`].
pub type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Why a test cannot run on this kernel or device.
#[derive(Debug)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Skip {}

/// Ends a test that fails.
///
/// # Errors
/// Always: that is how it ends.
pub fn fail<T>(why: impl Into<String>) -> Result<T> {
    Err(why.into().into())
}

/// Ends a test that this kernel or device cannot run.
///
/// # Errors
/// Always: that is how it ends.
pub fn skip<T>(why: impl Into<String>) -> Result<T> {
    Err(Skip(why.into()).into())
}

/// Ends a test of what soft-RoCE alone has or does, with the reason, if the device is another.
///
/// # Errors
/// [`Skip`] on an adapter.
pub fn only_on_rxe(why: &str) -> Result {
    match device() {
        Device::Rxe => Ok(()),
        Device::Mlx5 { .. } | Device::Efa => skip(why),
    }
}
