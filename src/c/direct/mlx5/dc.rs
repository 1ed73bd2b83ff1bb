//! Dynamic connections of C programs: `mlx5dv_create_qp(3)` for initiators and targets, and the addresses of
//! an initiator's requests.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU32;

use super::keys::{self, mlx5dv_mkey, mlx5dv_mkey_conf_attr, mlx5dv_mr_interleaved};
use super::{must_send, name};
use uverbs_uapi::enums::{QpState, QpType};
use uverbs_uapi::flags::QpCreateFlags;
use uverbs_uapi::types::QpCap;

use crate::c::abi::attr::{ibv_qp_cap, ibv_qp_init_attr_ex};
use crate::c::abi::context::ibv_context;
use crate::c::abi::queue::{ibv_ah, ibv_qp, ibv_qp_ex};
use crate::c::abi::work::ibv_sge;
use crate::c::context::context;
use crate::c::cq::cq;
use crate::c::failure::{Failure, Result, pointer, status};
use crate::c::pd::pd;
use crate::c::qp::{Own, OwnFunctions, QpObject, TargetPlace, dc_target, qp};
use crate::c::qp_ex;
use crate::c::srq::srq;
use crate::c::wr::{refuse, set_target};
use crate::command::QpSpec;
use crate::context::Context;
use crate::driver::mlx5::Device;
use crate::driver::{DcStreams, Listed as _, OneOf};
use crate::pd::User;

/// `struct mlx5dv_qp_init_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlx5dv_qp_init_attr {
    comp_mask: u64,
    create_flags: u32,
    _reserved: u32,
    dc_type: u32,
    _reserved_2: u32,
    /// The access key of a target, or the streams of an initiator.
    dc: u64,
    send_ops_flags: u64,
}

const _: () = assert!(size_of::<mlx5dv_qp_init_attr>() == 40);

/// `enum mlx5dv_qp_init_attr_mask`.
mod mask {
    pub(super) const CREATE_FLAGS: u64 = 1 << 0;
    pub(super) const DC: u64 = 1 << 1;
    pub(super) const SEND_OPS_FLAGS: u64 = 1 << 2;
    pub(super) const DCI_STREAMS: u64 = 1 << 3;
    pub(super) const KNOWN: u64 = CREATE_FLAGS | DC | SEND_OPS_FLAGS | DCI_STREAMS;
}

/// `enum mlx5dv_qp_create_flags`, as far as this library knows their meaning.
mod flag {
    /// Payloads must not be put into completions. Here they never are.
    pub(super) const DISABLE_SCATTER_TO_CQE: u32 = 1 << 3;
    /// Payloads may be put into completions.
    pub(super) const ALLOW_SCATTER_TO_CQE: u32 = 1 << 4;
    pub(super) const SCATTER: u32 = DISABLE_SCATTER_TO_CQE | ALLOW_SCATTER_TO_CQE;
    /// All flags of libmlx5.
    pub(super) const KNOWN: u32 = 0xff;
}

/// `enum mlx5dv_qp_create_send_ops_flags`.
mod operation {
    const MR_INTERLEAVED: u64 = 1 << 0;
    const MR_LIST: u64 = 1 << 1;
    const MKEY_CONFIGURE: u64 = 1 << 2;
    const RAW_WQE: u64 = 1 << 3;
    pub(super) const OF_KEYS: u64 = MR_INTERLEAVED | MR_LIST | MKEY_CONFIGURE;
    pub(super) const KNOWN: u64 = OF_KEYS | RAW_WQE;
}

/// Makes room for a request that gives a key parts of others: after the largest request without parts,
/// libmlx5 has as much room as the program requests for slices and inline data.
fn room_for_keys(cap: &mut ibv_qp_cap) {
    /// The bytes before the parts, with the first block of them, and the bytes before inline data.
    const BEFORE: u32 = 192 - 32;
    const HEAD: u32 = 4;
    let inline = match cap.max_inline_data {
        0 => 0,
        // What does not fit is refused, as too long.
        bytes => bytes
            .checked_add(HEAD)
            .and_then(|sum| sum.checked_next_multiple_of(16))
            .unwrap_or(u32::MAX),
    };
    let behind = inline.max(cap.max_send_sge.saturating_mul(16));
    cap.max_inline_data = behind.saturating_add(BEFORE - HEAD);
}

/// `enum mlx5dv_dc_type`.
mod dc_type {
    pub(super) const DCT: u32 = 1;
    pub(super) const DCI: u32 = 2;
}

/// The bits of `enum ibv_qp_init_attr_mask` that a target may have.
const PD: u32 = 1 << 0;

/// `struct mlx5dv_qp_ex`: the functions that programs call to post, through a pointer to it.
#[derive(Debug)]
#[repr(C)]
pub struct mlx5dv_qp_ex {
    comp_mask: u64,
    wr_set_dc_addr: unsafe extern "C" fn(*mut Self, *mut ibv_ah, u32, u64),
    wr_mr_interleaved: unsafe extern "C" fn(
        *mut Self,
        *mut mlx5dv_mkey,
        u32,
        u32,
        u16,
        *mut mlx5dv_mr_interleaved,
    ),
    wr_mr_list: unsafe extern "C" fn(*mut Self, *mut mlx5dv_mkey, u32, u16, *mut ibv_sge),
    wr_mkey_configure:
        unsafe extern "C" fn(*mut Self, *mut mlx5dv_mkey, u8, *mut mlx5dv_mkey_conf_attr),
    wr_set_mkey_access_flags: unsafe extern "C" fn(*mut Self, u32),
    wr_set_mkey_layout_list: unsafe extern "C" fn(*mut Self, u16, *const ibv_sge),
    wr_set_mkey_layout_interleaved:
        unsafe extern "C" fn(*mut Self, u32, u16, *const mlx5dv_mr_interleaved),
    wr_set_mkey_sig_block: unsafe extern "C" fn(*mut Self),
    wr_raw_wqe: unsafe extern "C" fn(*mut Self, *const c_void),
    wr_set_dc_addr_stream: unsafe extern "C" fn(*mut Self, *mut ibv_ah, u32, u64, u16),
    wr_memcpy: unsafe extern "C" fn(*mut Self),
    wr_set_mkey_crypto: unsafe extern "C" fn(*mut Self),
}

const _: () = assert!(size_of::<mlx5dv_qp_ex>() == size_of::<OwnFunctions>());

/// The device, if it is a ConnectX.
pub(super) fn device(context: &Context) -> Result<&Device> {
    match context.driver() {
        OneOf::Mlx5(device) => Ok(device),
        #[allow(unreachable_patterns, reason = "there may be no other driver")]
        _ => Err(Failure::UNSUPPORTED),
    }
}

/// What a program requests beyond the verbs of all devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// Nothing.
    Plain,
    /// Requests that give keys parts of others.
    OfKeys,
    Initiator(Option<DcStreams>),
    /// A target with this access key.
    Target(u64),
}

/// What is requested, or the error with which libmlx5 refuses it.
fn asked(qp_type: u32, attr: Option<&mlx5dv_qp_init_attr>) -> Result<Asked> {
    let is_own = qp_type == QpType::DRIVER.0;
    let Some(attr) = attr else {
        return match is_own {
            true => Err(Failure::INVALID),
            false => Ok(Asked::Plain),
        };
    };
    let has = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask & !mask::KNOWN != 0 || has(mask::DC) != is_own {
        return Err(Failure::INVALID);
    }
    let flags = match has(mask::CREATE_FLAGS) {
        true => attr.create_flags,
        false => 0,
    };
    if flags & !flag::KNOWN != 0 || flags & flag::SCATTER == flag::SCATTER {
        return Err(Failure::INVALID);
    }
    let is_target = has(mask::DC) && attr.dc_type == dc_type::DCT;
    if is_target && (has(mask::SEND_OPS_FLAGS) || has(mask::DCI_STREAMS)) {
        return Err(Failure::INVALID);
    }
    let operations = match has(mask::SEND_OPS_FLAGS) {
        true => attr.send_ops_flags,
        false => 0,
    };
    if flags & !flag::SCATTER != 0 || operations & !operation::KNOWN != 0 {
        return Err(Failure::UNSUPPORTED);
    }
    match (has(mask::DC), attr.dc_type) {
        (false, _) if operations & operation::OF_KEYS != 0 && qp_type != QpType::RC.0 => {
            Err(Failure::UNSUPPORTED)
        }
        (false, _) if operations & operation::OF_KEYS != 0 => Ok(Asked::OfKeys),
        (false, _) => Ok(Asked::Plain),
        (true, dc_type::DCI) if operations & operation::OF_KEYS != 0 => Err(Failure::UNSUPPORTED),
        (true, dc_type::DCT) => Ok(Asked::Target(attr.dc)),
        (true, dc_type::DCI) if has(mask::DCI_STREAMS) => Ok(Asked::Initiator(streams(attr.dc))),
        (true, dc_type::DCI) => Ok(Asked::Initiator(None)),
        (true, _) => Err(Failure::INVALID),
    }
}

/// The requested streams of an initiator: `struct mlx5dv_dci_streams`, whose fields are the first two bytes.
/// `None` if there is only one stream, with whose failure the initiator fails.
fn streams(dc: u64) -> Option<DcStreams> {
    match dc.to_ne_bytes() {
        [0, 0, ..] => None,
        [log_count, log_failures, ..] => Some(DcStreams {
            log_count,
            log_failures,
        }),
    }
}

/// `mlx5dv_create_qp(3)`: initiators and targets of dynamic connections, and queue pairs that all devices
/// have.
pub unsafe extern "C" fn mlx5dv_create_qp(
    c: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
    attr: *const mlx5dv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller passes an open context, attributes with objects of it, and may pass more of them.
    pointer(unsafe {
        context(c).and_then(|context| {
            device(context.context())?;
            let refusals = context.context().driver().refusals();
            let plain = init.as_mut().ok_or(Failure::INVALID)?;
            match asked(plain.qp_type, attr.as_ref())? {
                Asked::Plain => qp_ex::create(init, &refusals, Own::default()),
                Asked::OfKeys => {
                    room_for_keys(&mut plain.cap);
                    qp_ex::create(init, &refusals, Own::default())
                }
                Asked::Initiator(streams) => {
                    let cap = plain.cap;
                    if cap.max_recv_wr != 0 || cap.max_recv_sge != 0 {
                        return Err(Failure::INVALID);
                    }
                    let own = Own {
                        initiator: true,
                        streams,
                        ..Own::default()
                    };
                    qp_ex::create(init, &refusals, own)
                }
                Asked::Target(key) => target(c, plain, key),
            }
        })
    })
}

/// Creates a target. It gets its number with the last change of its state.
///
/// # Safety
///
/// The attributes have objects of this context.
unsafe fn target(
    c: *mut ibv_context,
    init: &ibv_qp_init_attr_ex,
    access_key: u64,
) -> Result<*mut ibv_qp> {
    if init.comp_mask != PD || init.srq.is_null() || init.recv_cq.is_null() {
        return Err(Failure::INVALID);
    }
    // SAFETY: by this function's contract.
    let (domain, cq, srq) = unsafe { (pd(init.pd)?, cq(init.recv_cq)?, srq(init.srq)?) };
    let context = domain.pd().context();
    let device = device(context)?;
    let place: TargetPlace = Box::new_uninit();
    let spec = QpSpec {
        pd: domain.pd().handle(),
        send_cq: cq.handle(),
        recv_cq: cq.handle(),
        srq: Some(srq.handle()),
        qp_type: QpType::DRIVER,
        cap: QpCap::default(),
        sq_sig_all: false,
        flags: QpCreateFlags::empty(),
        user_handle: place.as_ptr().expose_provenance() as u64,
        event_fd: context.event_fd()?,
    };
    let parts = Device::get(cq.backing()).zip(Device::get(srq.backing()));
    let parts = parts.ok_or(Failure::INVALID)?;
    let (handle, core) = device.new_dc_target(context.fd(), &spec, parts, access_key)?;
    let plain = ibv_qp {
        context: c,
        qp_context: init.qp_context,
        pd: init.pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: handle.0,
        qp_num: 0,
        state: QpState::RESET.0,
        qp_type: init.qp_type,
        mutex: Default::default(),
        cond: Default::default(),
        events_completed: AtomicU32::new(0),
    };
    let parts = (Device::wrap(core), domain.pd().user(User::Qp));
    Ok(dc_target(place, context, plain, handle, parts))
}

/// `mlx5dv_qp_ex_from_ibv_qp_ex(3)`.
pub unsafe extern "C" fn mlx5dv_qp_ex_from_ibv_qp_ex(c: *mut ibv_qp_ex) -> *mut mlx5dv_qp_ex {
    // SAFETY: the caller passes a queue pair; nothing posts to it meanwhile. The room is as large as the
    // struct.
    pointer(unsafe {
        qp(c.cast()).and_then(|qp| {
            device(&qp.context)?;
            let room = qp.own_functions().cast::<mlx5dv_qp_ex>();
            room.write(FUNCTIONS);
            Ok(room)
        })
    })
}

/// The functions. Those that this library does not have make all that was started fail.
const FUNCTIONS: mlx5dv_qp_ex = mlx5dv_qp_ex {
    comp_mask: 0,
    wr_set_dc_addr,
    wr_mr_interleaved: keys::wr_mr_interleaved,
    wr_mr_list: keys::wr_mr_list,
    wr_mkey_configure: keys::wr_mkey_configure,
    wr_set_mkey_access_flags: keys::wr_set_mkey_access_flags,
    wr_set_mkey_layout_list: keys::wr_set_mkey_layout_list,
    wr_set_mkey_layout_interleaved: keys::wr_set_mkey_layout_interleaved,
    wr_set_mkey_sig_block: missing,
    wr_raw_wqe: keys::wr_raw_wqe,
    wr_set_dc_addr_stream,
    wr_memcpy: missing,
    wr_set_mkey_crypto: missing,
};

/// The queue pair whose functions these are.
pub(super) fn of(c: *mut mlx5dv_qp_ex) -> *mut ibv_qp_ex {
    QpObject::of_own_functions(c.cast())
}

/// `mlx5dv_wr_set_dc_addr(3)`.
unsafe extern "C" fn wr_set_dc_addr(
    c: *mut mlx5dv_qp_ex,
    ah: *mut ibv_ah,
    remote_dctn: u32,
    remote_dc_key: u64,
) {
    // SAFETY: the caller has started.
    unsafe { wr_set_dc_addr_stream(c, ah, remote_dctn, remote_dc_key, 0) }
}

/// `mlx5dv_wr_set_dc_addr_stream(3)`. On an initiator without streams the number is ignored: perftest counts
/// it up even there.
unsafe extern "C" fn wr_set_dc_addr_stream(
    c: *mut mlx5dv_qp_ex,
    ah: *mut ibv_ah,
    remote_dctn: u32,
    remote_dc_key: u64,
    stream: u16,
) {
    // SAFETY: the caller has started.
    unsafe { set_target::<Device>(of(c), ah, (remote_dctn, remote_dc_key, stream)) }
}

/// `mlx5dv_dci_stream_id_reset(3)`.
pub unsafe extern "C" fn mlx5dv_dci_stream_id_reset(c: *mut ibv_qp, stream: u16) -> c_int {
    // SAFETY: the caller passes a queue pair.
    status(unsafe { qp(c) }.and_then(|qp| {
        let device = device(&qp.context)?;
        let fd = qp.context.fd();
        let limits = device.stream_limits(fd)?;
        // In the order in which libmlx5 refuses.
        if limits.max_log_num_concurent == 0 || limits.max_log_num_errored == 0 {
            return Err(Failure::UNSUPPORTED);
        }
        must_send(qp)?;
        if qp.transport != QpType::DCI {
            return Err(Failure::INVALID);
        }
        Ok(device.change_stream(fd, name(qp), stream)?)
    }))
}

/// Takes the place of functions that this library does not have, whatever their arguments.
unsafe extern "C" fn missing(c: *mut mlx5dv_qp_ex) {
    // SAFETY: the caller has started.
    unsafe { refuse::<Device>(of(c), Failure::UNSUPPORTED) }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_lie_where_the_header_has_them() {
        assert_eq!(offset_of!(mlx5dv_qp_init_attr, create_flags), 8);
        assert_eq!(offset_of!(mlx5dv_qp_init_attr, dc_type), 16);
        assert_eq!(offset_of!(mlx5dv_qp_init_attr, dc), 24);
        assert_eq!(offset_of!(mlx5dv_qp_init_attr, send_ops_flags), 32);
        assert_eq!(offset_of!(mlx5dv_qp_ex, wr_set_dc_addr), 8);
        assert_eq!(offset_of!(mlx5dv_qp_ex, wr_raw_wqe), 72);
        assert_eq!(offset_of!(mlx5dv_qp_ex, wr_set_dc_addr_stream), 80);
        assert_eq!(offset_of!(mlx5dv_qp_ex, wr_set_mkey_crypto), 96);
    }

    /// Would catch a length that wraps, and a queue pair with less inline data than was asked for.
    #[test]
    fn more_inline_data_than_there_can_be_stays_more() {
        for bytes in [u32::MAX, 0xffff_ffec, 0xffff_fff0] {
            let mut cap = ibv_qp_cap {
                max_inline_data: bytes,
                ..Default::default()
            };
            room_for_keys(&mut cap);
            assert!(cap.max_inline_data >= bytes, "{bytes:#x}");
        }
    }

    #[test]
    fn what_libmlx5_refuses_is_refused() {
        let driver = QpType::DRIVER.0;
        let attr = mlx5dv_qp_init_attr {
            comp_mask: mask::DC,
            create_flags: 0,
            dc_type: dc_type::DCI,
            dc: 0,
            send_ops_flags: 0,
            ..EMPTY
        };
        assert_eq!(asked(driver, Some(&attr)), Ok(Asked::Initiator(None)));
        let target = mlx5dv_qp_init_attr {
            dc_type: dc_type::DCT,
            dc: 7,
            ..attr
        };
        assert_eq!(asked(driver, Some(&target)), Ok(Asked::Target(7)));
        assert_eq!(asked(QpType::RC.0, None), Ok(Asked::Plain));
        assert_eq!(asked(driver, None), Err(Failure::INVALID));
        assert_eq!(asked(QpType::RC.0, Some(&attr)), Err(Failure::INVALID));
        let with = |comp_mask, change: fn(&mut mlx5dv_qp_init_attr)| {
            let mut changed = mlx5dv_qp_init_attr {
                comp_mask: mask::DC | comp_mask,
                ..attr
            };
            change(&mut changed);
            asked(driver, Some(&changed))
        };
        assert_eq!(with(1 << 4, |_| ()), Err(Failure::INVALID));
        assert_eq!(with(0, |attr| attr.dc_type = 3), Err(Failure::INVALID));
        let flags = mask::CREATE_FLAGS;
        assert_eq!(
            with(flags, |attr| attr.create_flags = 1 << 8),
            Err(Failure::INVALID)
        );
        assert_eq!(
            with(flags, |attr| attr.create_flags = 0x18),
            Err(Failure::INVALID)
        );
        assert_eq!(
            with(flags, |attr| attr.create_flags = 0x8),
            Ok(Asked::Initiator(None))
        );
        assert_eq!(
            with(flags, |attr| attr.create_flags = 0x80),
            Err(Failure::UNSUPPORTED)
        );
        let ops = mask::SEND_OPS_FLAGS;
        assert_eq!(
            with(ops, |attr| attr.send_ops_flags = 1),
            Err(Failure::UNSUPPORTED)
        );
        assert_eq!(
            with(ops, |attr| attr.send_ops_flags = 1 << 3),
            Ok(Asked::Initiator(None))
        );
        let of_keys = |qp_type: QpType, send_ops_flags| {
            let comp_mask = mask::SEND_OPS_FLAGS;
            let attr = mlx5dv_qp_init_attr {
                comp_mask,
                send_ops_flags,
                ..EMPTY
            };
            asked(qp_type.0, Some(&attr))
        };
        assert_eq!(of_keys(QpType::RC, 2), Ok(Asked::OfKeys));
        assert_eq!(of_keys(QpType::RC, 8), Ok(Asked::Plain));
        assert_eq!(of_keys(QpType::UC, 2), Err(Failure::UNSUPPORTED));
        assert_eq!(of_keys(QpType::RC, 16), Err(Failure::UNSUPPORTED));
        assert_eq!(
            with(ops, |attr| attr.dc_type = dc_type::DCT),
            Err(Failure::INVALID)
        );
        let streams = mask::DCI_STREAMS;
        let told = DcStreams {
            log_count: 3,
            log_failures: 2,
        };
        assert_eq!(
            with(streams, |attr| attr.dc =
                u64::from_ne_bytes([3, 2, 0, 0, 0, 0, 0, 0])),
            Ok(Asked::Initiator(Some(told)))
        );
        assert_eq!(
            with(streams, |attr| attr.dc = 0),
            Ok(Asked::Initiator(None))
        );
    }

    const EMPTY: mlx5dv_qp_init_attr = mlx5dv_qp_init_attr {
        comp_mask: 0,
        create_flags: 0,
        _reserved: 0,
        dc_type: 0,
        _reserved_2: 0,
        dc: 0,
        send_ops_flags: 0,
    };
}
