//! Memory that the driver lends the device's firmware. The model has no use for it, but must ask for some,
//! and give back just what it got.

use crate::command::Status;
use crate::function::Function;
use crate::layout::cmd;
use crate::pages::addresses;

/// How many pages are asked for at boot and at initialization.
const AT_BOOT: u64 = 4;
const AT_INITIALIZATION: u64 = 16;

/// Where the list of pages begins in a command.
const LIST: usize = 0x10;

/// Pages lent to the device.
#[derive(Debug, Default)]
pub(crate) struct FirmwarePages {
    given: Vec<u64>,
}

/// Answers QUERY_PAGES: how many pages the device wants now.
///
/// # Errors
/// If it is asked for another reason than boot, initialization or running.
pub(crate) fn query(_: &mut Function, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let wanted = match cmd::OP_MOD.get(input) {
        1 => AT_BOOT,
        2 => AT_INITIALIZATION,
        3 => 0,
        _ => return Err(Status::BadParameter),
    };
    cmd::NUM_PAGES.set(output, wanted);
    Ok(())
}

/// Executes MANAGE_PAGES: the driver gives pages, takes them back, or says that it has none.
///
/// # Errors
/// If fewer pages come than announced.
pub(crate) fn manage(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let given = &mut function.objects.pages.given;
    let count = cmd::INPUT_NUM_ENTRIES.get(input) as usize;
    match cmd::OP_MOD.get(input) {
        0 => Ok(()),
        1 => {
            let pages = addresses(input.get(LIST..).unwrap_or_default());
            given.extend(pages.get(..count).ok_or(Status::BadInputLength)?);
            Ok(())
        }
        2 => {
            let (entries, _) = output
                .get_mut(LIST..)
                .unwrap_or_default()
                .as_chunks_mut::<8>();
            let keep = given.len() - count.min(given.len()).min(entries.len());
            let returned = given.split_off(keep);
            for (entry, page) in entries.iter_mut().zip(&returned) {
                *entry = page.to_be_bytes();
            }
            cmd::OUTPUT_NUM_ENTRIES.set(output, returned.len() as u64);
            Ok(())
        }
        _ => Err(Status::BadParameter),
    }
}
