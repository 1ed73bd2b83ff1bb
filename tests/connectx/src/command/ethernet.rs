//! Commands of an Ethernet port: its context, RoCE addresses, and the objects of the netdev's receiving side.
//!
//! Frames are not sorted on their way to the receive queues ([`crate::object::rq`]). So transport interfaces,
//! indirection and flow tables are numbers.

use super::Status;
use crate::function::{Function, RoceAddress};
use crate::layout::cmd;
use crate::layout::ethernet::{address, vport};

/// Entries of the table of GIDs.
pub(crate) const ADDRESSES: u8 = 32;

/// The netdev's longest frames, with their header, tag and check sum.
const MTU: u64 = 1522;

/// Answers QUERY_NIC_VPORT_CONTEXT.
///
/// # Errors
/// If there is no room for the answer.
pub(super) fn query_vport(
    function: &mut Function,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let port = &function.port;
    let context = output.get_mut(cmd::CONTEXT..).ok_or(Status::BadParameter)?;
    vport::MTU.set(context, MTU);
    vport::SYSTEM_IMAGE_GUID.set(context, port.guid);
    vport::PORT_GUID.set(context, port.guid);
    vport::NODE_GUID.set(context, port.guid);
    vport::PERMANENT_ADDRESS.set(context, port.mac);
    Ok(())
}

/// Executes SET_ROCE_ADDRESS: an entry of the table of GIDs.
///
/// # Errors
/// If the input is too short.
pub(super) fn set_address(
    function: &mut Function,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Status> {
    let index = address::ROCE_ADDRESS_INDEX.get(input) as u8;
    let at = address::SOURCE_L3_ADDRESS;
    let gid = input.get(at..at + 16).ok_or(Status::BadInputLength)?;
    let entry = RoceAddress {
        gid: gid.try_into().map_err(|_| Status::BadInputLength)?,
        version: address::ROCE_VERSION.get(input) as u8,
        bytes: (input.get(at..at + address::SIZE))
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(Status::BadInputLength)?,
    };
    function.objects.addresses.insert(index, entry);
    Ok(())
}

/// Answers QUERY_ROCE_ADDRESS: an entry of the table of GIDs, zeros if it is empty.
///
/// # Errors
/// If the table has no such entry.
pub(super) fn query_address(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let index = address::ROCE_ADDRESS_INDEX.get(input);
    let index = u8::try_from(index).ok().filter(|index| *index < ADDRESSES);
    let index = index.ok_or(Status::BadParameter)?;
    if let Some(entry) = function.objects.addresses.get(&index) {
        let at = address::SOURCE_L3_ADDRESS;
        let room = output.get_mut(at..at + address::SIZE);
        room.ok_or(Status::BadParameter)?
            .copy_from_slice(&entry.bytes);
    }
    Ok(())
}

/// Executes ALLOC_Q_COUNTER.
///
/// # Errors
/// If there are too many.
pub(super) fn alloc_counter(
    function: &mut Function,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let number = function.objects.counters.insert(())?;
    cmd::OBJECT_8.set(output, number.into());
    Ok(())
}

/// Executes DEALLOC_Q_COUNTER.
///
/// # Errors
/// If there is no such counter.
pub(super) fn dealloc_counter(
    function: &mut Function,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Status> {
    function.objects.counters.remove(cmd::OBJECT_8.get32(input))
}

/// Makes an object that is a number.
///
/// # Errors
/// If there are too many.
pub(super) fn alloc(function: &mut Function, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let number = function.objects.receive_side.insert(())?;
    cmd::OBJECT.set(output, number.into());
    Ok(())
}

/// Changes such an object, which changes nothing.
///
/// # Errors
/// If there is none of that number.
pub(super) fn touch(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    function
        .objects
        .receive_side
        .get(cmd::OBJECT.get32(input))
        .copied()
}

/// Destroys such an object.
///
/// # Errors
/// If there is none of that number.
pub(super) fn dealloc(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    function
        .objects
        .receive_side
        .remove(cmd::OBJECT.get32(input))
}

/// Executes DESTROY_FLOW_TABLE.
///
/// # Errors
/// If there is no such table.
pub(super) fn dealloc_table(
    function: &mut Function,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Status> {
    let number = cmd::FLOW_TABLE_ID.get32(input);
    function.objects.receive_side.remove(number)
}

/// Executes DESTROY_FLOW_GROUP.
///
/// # Errors
/// If there is no such group.
pub(super) fn dealloc_group(
    function: &mut Function,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Status> {
    let number = cmd::FLOW_GROUP_ID.get32(input);
    function.objects.receive_side.remove(number)
}
