//! Commands of bringing the function up and down.

use super::Status;
use crate::function::Function;
use crate::layout::cmd;

/// Mellanox' number at the IEEE.
const IEEE_VENDOR: u64 = 0x2c9;
/// The board's name, in the last bytes of the adapter's description.
const BOARD: (usize, &[u8]) = (0x100, b"UVERBS_CONNECTX");

/// Interface versions 0 and 1.
const ISSI_0_AND_1: u64 = 0b11;

/// Executes a command that changes nothing that the model has.
///
/// # Errors
/// None.
pub(super) fn succeed(_: &mut Function, _: &[u8], _: &mut [u8]) -> Result<(), Status> {
    Ok(())
}

/// Answers QUERY_ADAPTER.
///
/// # Errors
/// None.
pub(super) fn query_adapter(_: &mut Function, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    cmd::IEEE_VENDOR_ID.set(output, IEEE_VENDOR);
    let (at, name) = BOARD;
    for (to, from) in output.iter_mut().skip(at).zip(name) {
        *to = *from;
    }
    Ok(())
}

/// Answers QUERY_ISSI: which versions of the interface there are.
///
/// # Errors
/// None.
pub(super) fn query_issi(
    function: &mut Function,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    cmd::CURRENT_ISSI.set(output, function.objects.issi.into());
    cmd::SUPPORTED_ISSI_DW0.set(output, ISSI_0_AND_1);
    Ok(())
}

/// Executes SET_ISSI.
///
/// # Errors
/// If there is no such version.
pub(super) fn set_issi(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let issi = cmd::CURRENT_ISSI.get(input) as u16;
    if issi > 1 {
        return Err(Status::BadParameter);
    }
    function.objects.issi = issi;
    Ok(())
}
