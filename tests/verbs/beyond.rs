//! What neither device under test has: refused by name, and by the kernel where it is asked directly.

use libtest_mimic::Trial;
use support::{Device, Result, device, fail, open, same, test};
use uverbs::uapi::types::QpCap;
use uverbs::uapi::{attr, method, object};
use uverbs::{
    Access, Cause,
    dmah::{DmaHints, HintedMemory},
    error::Errno,
    qp::QpType,
};

use crate::native_mr::{number, output, send};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("beyond::dma_handles", dma_handles),
        test("beyond::queue_pairs_over_tables", queue_pairs_over_tables),
    ]
}

/// Catches hints that are promised and not given, and a refusal that looks like a wrong argument. Where a
/// device has learnt them, this is to be made a real test.
fn dma_handles() -> Result {
    let context = open()?;
    let all = DmaHints {
        cpu: Some(0),
        memory: Some(HintedMemory::Persistent),
        processing: Some(3),
    };
    for hints in [DmaHints::default(), all] {
        let Err(error) = context.alloc_dmah(hints) else {
            return fail("a device with DMA handles");
        };
        println!("{error}");
        same(error.is_unsupported(), true, &error.to_string())?;
        // Kernels before 6.17 do not know the object, and later ones drop it for a driver without it.
        same(error.errno(), Some(Errno::PROTONOSUPPORT), "the errno")?;
    }
    let wrong = DmaHints {
        processing: Some(4),
        ..all
    };
    let error = context.alloc_dmah(wrong).map(drop).err();
    let refused = error.is_some_and(|error| matches!(error.cause(), Cause::Invalid(_)));
    same(refused, true, "a processing hint that there is not")?;

    // A region cannot name one either: the kernel has no such kind of object for the driver, or no such
    // method yet.
    let pd = context.alloc_pd()?;
    let memory = [0u8; 64];
    let (mut lkey, mut rkey) = (0u32, 0u32);
    use attr::reg_mr as id;
    let attributes = [
        number(id::HANDLE, 0, u64::MAX),
        number(id::PD_HANDLE, 0, pd.handle().0.into()),
        number(id::DMA_HANDLE, 0, 1),
        number(id::IOVA, 8, memory.as_ptr() as u64),
        number(id::ADDR, 8, memory.as_ptr() as u64),
        number(id::LENGTH, 8, 64),
        number(id::ACCESS_FLAGS, 4, Access::LOCAL_WRITE.bits().into()),
        output(id::RESP_LKEY, &mut lkey),
        output(id::RESP_RKEY, &mut rkey),
    ];
    // SAFETY: the outputs are as long as told.
    let refused = unsafe { send(&context, (object::MR, method::mr::REG), &attributes) };
    let errno = refused.err().and_then(|error| error.raw_os_error());
    let known = [Some(libc::EINVAL), Some(libc::EPROTONOSUPPORT)];
    same(
        known.contains(&errno),
        true,
        &format!("a region with hints: {errno:?}"),
    )?;
    Ok(pd.dealloc()?)
}

/// Catches a kernel that lets a queue pair stand on a table that there is not. Without work queues there are
/// no tables, and so the library never asks for such a queue pair; what it would send is held against
/// frames made by hand elsewhere.
fn queue_pairs_over_tables() -> Result {
    let context = open()?;
    let Err(error) = context.create_indirection_table([]) else {
        return fail("a table of no queues");
    };
    same(error.to_string().contains("power of two"), true, "the text")?;
    let pd = context.alloc_pd()?;
    let (mut cap, mut granted, mut qpn) = (QpCap::default(), QpCap::default(), 0u32);
    use attr::create_qp as id;
    let attributes = [
        number(id::HANDLE, 0, u64::MAX),
        number(id::PD_HANDLE, 0, pd.handle().0.into()),
        number(id::IND_TABLE_HANDLE, 0, 0xffff),
        number(id::USER_HANDLE, 8, 1),
        output(id::CAP, &mut cap),
        number(id::TYPE, 8, QpType::RAW_PACKET.0.into()),
        output(id::RESP_CAP, &mut granted),
        output(id::RESP_QP_NUM, &mut qpn),
    ];
    // SAFETY: what goes in and what comes out is as long as told.
    let refused = unsafe { send(&context, (object::QP, method::qp::CREATE), &attributes) };
    let errno = refused.err().and_then(|error| error.raw_os_error());
    // The kernel's driver has tables for Ethernet ports, and so the kernel looks for this one. Else it does
    // not know the kind.
    let expected = match device() {
        Device::Mlx5 { roce: true } => libc::ENOENT,
        Device::Mlx5 { roce: false } | Device::Rxe => libc::EINVAL,
    };
    same(errno, Some(expected), "the kernel's refusal")?;
    Ok(pd.dealloc()?)
}
