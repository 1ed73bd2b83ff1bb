//! Open devices.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::without_provenance_mut;
use std::sync::Arc;

use super::abi::context::{ibv_context, ibv_context_ops, verbs_context};
use super::abi::device::ibv_device;
use super::device::DeviceObject;
use super::direct::Kept;
use super::failure::{Failure, Result, pointer};
use super::object::{CStruct, Object, destroy, object};
use super::{cq, dm, domain, mr, mw, poll, poll_ex, qp_ex, query, recv, send, srq, xrcd};
use crate::context::{Context, OpenOptions};
use crate::driver::Listed;
use crate::driver::typed::ForDriver;

/// An open device of a C program: the program's struct is the end of a larger one, which the header's inline
/// functions read.
#[repr(C)]
pub(super) struct ContextObject {
    c: CStruct<verbs_context>,
    context: Context,
    device: Arc<DeviceObject>,
    kept: Kept,
}

// SAFETY: the offset of a field of a field.
unsafe impl Object for ContextObject {
    type C = ibv_context;
    const AT: usize = offset_of!(Self, c) + offset_of!(verbs_context, context);
}

impl ContextObject {
    pub(super) fn new(device: Arc<DeviceObject>, context: Context) -> Result<Box<Self>> {
        let async_fd = context.async_fd()?.as_raw_fd();
        let c = ibv_context {
            device: device.c(),
            ops: context.driver().with(Table),
            cmd_fd: context.as_fd().as_raw_fd(),
            async_fd,
            num_comp_vectors: context.num_comp_vectors() as c_int,
            mutex: Default::default(),
            abi_compat: without_provenance_mut::<c_void>(usize::MAX),
        };
        Ok(Box::new(Self {
            c: CStruct::new(extended(c)),
            context,
            device,
            kept: Kept::default(),
        }))
    }

    /// The crate's context.
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// The objects that direct verbs keep with it.
    #[allow(dead_code, reason = "direct verbs may not be built in")]
    pub(super) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Its device.
    pub(super) fn device(&self) -> &DeviceObject {
        &self.device
    }
}

/// The object of a C program's context.
///
/// # Safety
///
/// The contract of [`object`].
pub(super) unsafe fn context<'a>(c: *mut ibv_context) -> Result<&'a ContextObject> {
    // SAFETY: the caller vouches for it.
    let context = unsafe { object::<ContextObject>(c) };
    context.ok_or(Failure::INVALID)
}

/// The functions of a context that are called through this table.
struct Table;

impl ForDriver for Table {
    type Output = ibv_context_ops;

    fn run<D: Listed>(self) -> ibv_context_ops {
        ibv_context_ops {
            _compat_query_device: Some(query::ibv_query_device),
            _compat_query_port: Some(query::ibv_query_port),
            _compat_of_objects: [None; 5],
            alloc_mw: Some(mw::alloc_mw),
            bind_mw: Some(mw::bind_mw),
            dealloc_mw: Some(mw::dealloc_mw),
            _compat_create_cq: None,
            poll_cq: Some(poll::poll_cq::<D>),
            req_notify_cq: Some(cq::req_notify_cq),
            _compat_of_cqs_and_srqs: [None; 7],
            post_srq_recv: Some(recv::post_srq_recv::<D>),
            _compat_of_qps: [None; 4],
            post_send: Some(send::post_send::<D>),
            post_recv: Some(recv::post_recv::<D>),
            _compat_of_the_rest: [None; 5],
        }
    }
}

/// The larger struct around a context.
fn extended(context: ibv_context) -> verbs_context {
    verbs_context {
        free_buf: None,
        alloc_buf: None,
        dm_export_dmabuf_fd: Some(dm::ibv_dm_export_dmabuf_fd),
        reg_mr_ex: None,
        dealloc_dmah: None,
        alloc_dmah: None,
        query_port: Some(query::query_port),
        advise_mr: Some(mr::advise_mr),
        alloc_null_mr: Some(mr::alloc_null_mr),
        read_counters: None,
        attach_counters_point_flow: None,
        create_counters: None,
        destroy_counters: None,
        reg_dm_mr: Some(dm::reg_dm_mr),
        alloc_dm: Some(dm::alloc_dm),
        free_dm: Some(dm::free_dm),
        modify_flow_action_esp: None,
        destroy_flow_action: None,
        create_flow_action_esp: None,
        modify_qp_rate_limit: None,
        alloc_parent_domain: Some(domain::alloc_parent_domain),
        dealloc_td: Some(domain::dealloc_td),
        alloc_td: Some(domain::alloc_td),
        modify_cq: Some(cq::modify_cq),
        post_srq_ops: None,
        destroy_rwq_ind_table: None,
        create_rwq_ind_table: None,
        destroy_wq: None,
        modify_wq: None,
        create_wq: None,
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: Some(poll_ex::create_cq_ex),
        private: std::ptr::null_mut(),
        query_device_ex: Some(query::query_device_ex),
        destroy_flow: None,
        abi_placeholder_2: None,
        create_flow: None,
        abi_placeholder_1: None,
        open_qp: Some(xrcd::open_qp),
        create_qp_ex: Some(qp_ex::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrcd::open_xrcd),
        close_xrcd: Some(xrcd::close_xrcd),
        abi_placeholder_3: 0,
        sz: size_of::<verbs_context>(),
        context,
    }
}

/// `ibv_open_device(3)`.
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    if device.is_null() {
        return pointer(Err(Failure::INVALID));
    }
    // SAFETY: the caller passes a device of a list that it has not freed.
    let device = unsafe { DeviceObject::shared(device) };
    let opened = OpenOptions::new()
        .open(device.device())
        .map_err(Into::into)
        .and_then(|context| ContextObject::new(device, context));
    pointer(opened.map(Object::give))
}

/// `ibv_close_device(3)`. The kernel destroys the objects that the program has left, unless another process
/// has the file too.
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller passes an open context, for the last time.
    unsafe {
        destroy(context, |object: &mut ContextObject| {
            if object.context.is_shared() {
                // The program does not use the objects that it has left, now or later.
                object.context.close();
            }
            Ok(())
        })
    }
}
