//! Multicast groups: which queue pairs get datagrams sent to which GID.

use crate::command::Status;
use crate::function::Function;
use crate::layout::cmd;

fn group(input: &[u8]) -> Result<[u8; 16], Status> {
    let bytes = input.get(0x10..0x20).ok_or(Status::BadInputLength)?;
    bytes.try_into().map_err(|_| Status::BadInputLength)
}

/// Executes ATTACH_TO_MCG.
///
/// # Errors
/// If there is no such queue pair.
pub(crate) fn attach(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let qpn = cmd::OBJECT.get32(input);
    function.objects.qps.get(qpn)?;
    let member = (group(input)?, qpn);
    if !function.objects.multicast.contains(&member) {
        function.objects.multicast.push(member);
    }
    Ok(())
}

/// Executes DETACH_FROM_MCG.
///
/// # Errors
/// If the queue pair is not attached.
pub(crate) fn detach(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let member = (group(input)?, cmd::OBJECT.get32(input));
    let members = &mut function.objects.multicast;
    let place = members.iter().position(|other| *other == member);
    members.swap_remove(place.ok_or(Status::BadResource)?);
    Ok(())
}
