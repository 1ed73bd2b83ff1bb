//! Objects that are a number and nothing else: protection domains, UARs, XRC domains, transport domains.

use super::Status;
use crate::function::Function;
use crate::function::Table;
use crate::layout::cmd;
use crate::object::qp::QueuePair;
use crate::object::srq::SharedReceiveQueue;

fn alloc<T: Default>(table: &mut Table<T>, output: &mut [u8]) -> Result<(), Status> {
    cmd::OBJECT.set(output, table.insert(T::default())?.into());
    Ok(())
}

fn dealloc<T>(table: &mut Table<T>, input: &[u8]) -> Result<(), Status> {
    table.remove(cmd::OBJECT.get32(input)).map(drop)
}

/// Executes ALLOC_PD.
///
/// # Errors
/// If there are too many.
pub(super) fn alloc_pd(function: &mut Function, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    alloc(&mut function.objects.pds, output)
}

/// Executes DEALLOC_PD.
///
/// # Errors
/// If there is no such domain, or something stands on it.
pub(super) fn dealloc_pd(
    function: &mut Function,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Status> {
    let pd = cmd::OBJECT.get32(input);
    let objects = &mut function.objects;
    let used = objects.mkeys.values().any(|key| key.pd() == pd)
        || objects.qps.values().any(|qp| qp.pd() == pd)
        || objects.srqs.values().any(|srq| srq.pd() == pd)
        || objects.dcts.values().any(|target| target.pd() == pd);
    if used {
        return Err(Status::ResourceBusy);
    }
    dealloc(&mut objects.pds, input)
}

/// Executes ALLOC_UAR.
///
/// # Errors
/// If there are too many.
pub(super) fn alloc_uar(
    function: &mut Function,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    alloc(&mut function.objects.uars, output)
}

/// Executes DEALLOC_UAR.
///
/// # Errors
/// If there is no such UAR.
pub(super) fn dealloc_uar(
    function: &mut Function,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Status> {
    dealloc(&mut function.objects.uars, input)
}

/// Executes ALLOC_XRCD.
///
/// # Errors
/// If there are too many.
pub(super) fn alloc_xrcd(
    function: &mut Function,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    alloc(&mut function.objects.xrcds, output)
}

/// Executes DEALLOC_XRCD.
///
/// # Errors
/// If there is no such domain, or queues are in it.
pub(super) fn dealloc_xrcd(
    function: &mut Function,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Status> {
    let (domain, objects) = (cmd::OBJECT.get32(input), &mut function.objects);
    let mut of_srqs = objects.srqs.values().filter_map(SharedReceiveQueue::xrc);
    let mut of_qps = objects.qps.values().filter_map(QueuePair::domain);
    if of_srqs.any(|srq| srq.domain == domain) || of_qps.any(|of| of == domain) {
        return Err(Status::ResourceBusy);
    }
    dealloc(&mut objects.xrcds, input)
}

/// Executes ALLOC_TRANSPORT_DOMAIN.
///
/// # Errors
/// If there are too many.
pub(super) fn alloc_transport_domain(
    function: &mut Function,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    alloc(&mut function.objects.transport_domains, output)
}

/// Executes DEALLOC_TRANSPORT_DOMAIN.
///
/// # Errors
/// If there is no such domain.
pub(super) fn dealloc_transport_domain(
    function: &mut Function,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Status> {
    dealloc(&mut function.objects.transport_domains, input)
}

/// Executes CREATE_UCTX.
///
/// # Errors
/// If there are too many.
pub(super) fn create_context(
    function: &mut Function,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let number = function.objects.contexts.insert(())?;
    cmd::UCTX_UID.set(output, number.into());
    Ok(())
}

/// Executes DESTROY_UCTX.
///
/// # Errors
/// If there is no such context, or it has memory or numbers.
pub(super) fn destroy_context(
    function: &mut Function,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Status> {
    let number = cmd::UCTX_UID.get32(input);
    let mut memory = function.objects.umems.values();
    let mut reserved = function.objects.reserved.values();
    if memory.any(|memory| u32::from(memory.uid()) == number)
        || reserved.any(|owner| *owner == number)
    {
        return Err(Status::ResourceBusy);
    }
    function.objects.contexts.remove(number)
}
