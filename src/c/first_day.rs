//! C programs on a device whose driver is new: the sample driver implements nothing for them beyond the
//! contract.

use std::mem::{MaybeUninit, offset_of, size_of_val};
use std::ptr::{NonNull, null_mut};

use uverbs_uapi::enums::{QpState, QpType, WcOpcode, WcStatus};
use uverbs_uapi::flags::{Access, QpAttrMask, SendFlags, WcFlags};

use super::abi::attr::{
    ibv_ah_attr, ibv_cq_init_attr_ex, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr_ex,
};
use super::abi::context::{ibv_context, verbs_context};
use super::abi::ibv_pd;
use super::abi::queue::ibv_qp_ex;
use super::abi::queue::{ibv_ah, ibv_cq, ibv_cq_ex, ibv_mr, ibv_poll_cq_attr, ibv_qp};
use super::abi::work::{ibv_recv_wr, ibv_sge, ibv_wc};
use super::context::ContextObject;
use super::device::DeviceObject;
use super::object::Object;
use super::{
    ibv_alloc_pd, ibv_close_device, ibv_create_ah, ibv_create_cq, ibv_dealloc_pd, ibv_dereg_mr,
    ibv_destroy_ah, ibv_destroy_cq, ibv_destroy_qp, ibv_modify_qp, ibv_reg_mr,
};
use crate::error::Errno;
use crate::first_day::{self, BYTES, DEPTH, Done, QKEY, Work, World, each_completes_once};

/// A program's objects. Sends complete on a plain completion queue, and receives on an extended one.
struct Program {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    sent: *mut ibv_cq,
    received: *mut ibv_cq_ex,
    sender: *mut ibv_qp,
    receiver: *mut ibv_qp,
    peer: *mut ibv_ah,
    mr: *mut ibv_mr,
    buffers: Vec<[u8; BYTES]>,
}

/// Attributes that are all zero.
fn zeroed<T>() -> T {
    // SAFETY: the structs of the C ABI here have integers, pointers and options of functions.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn there<T>(pointer: *mut T) -> *mut T {
    NonNull::new(pointer).unwrap().as_ptr()
}

impl Program {
    fn new(seed: u64) -> Self {
        let context = first_day::context(seed);
        let device = DeviceObject::new(context.device().clone());
        let context = ContextObject::new(device, context).unwrap().give();
        // SAFETY: all objects belong to this context, and the attributes are as the manual pages require.
        unsafe {
            let pd = there(ibv_alloc_pd(context));
            let sent = there(ibv_create_cq(
                context,
                2 * DEPTH as i32,
                null_mut(),
                null_mut(),
                0,
            ));
            let whole = context.byte_sub(offset_of!(verbs_context, context));
            let functions = &*whole.cast::<verbs_context>();
            let mut attr: ibv_cq_init_attr_ex = zeroed();
            attr.cqe = 2 * DEPTH as u32;
            // Length, immediate data, number and source of each completion.
            attr.wc_flags = 0b1111;
            let received = there(functions.create_cq_ex.unwrap()(context, &mut attr));
            let qp = |send_cq, recv_cq| {
                let mut attr: ibv_qp_init_attr_ex = zeroed();
                attr.send_cq = send_cq;
                attr.recv_cq = recv_cq;
                attr.qp_type = QpType::DRIVER.0;
                attr.cap = ibv_qp_cap {
                    max_send_wr: DEPTH as u32,
                    max_recv_wr: DEPTH as u32,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: 0,
                };
                attr.pd = pd;
                // The PD and the operations: WRITE, SEND, SEND with immediate data, READ.
                attr.comp_mask = 1 | 1 << 6;
                attr.send_ops_flags = 0b11101;
                let qp = there(functions.create_qp_ex.unwrap()(context, &mut attr));
                activate(qp);
                qp
            };
            let sender = qp(sent, sent);
            let receiver = qp(received.cast(), received.cast());
            let mut path: ibv_ah_attr = zeroed();
            path.port_num = 1;
            let peer = there(ibv_create_ah(pd, &mut path));
            let mut buffers = vec![[0; BYTES]; 2 * DEPTH];
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
            let (at, length) = (buffers.as_mut_ptr(), size_of_val(&buffers[..]));
            let mr = there(ibv_reg_mr(pd, at.cast(), length, access.bits() as i32));
            Self {
                context,
                pd,
                sent,
                received,
                sender,
                receiver,
                peer,
                mr,
                buffers,
            }
        }
    }

    fn sge(&mut self, buffer: usize) -> ibv_sge {
        // SAFETY: the region exists.
        let lkey = unsafe { (*self.mr).lkey };
        ibv_sge {
            addr: self.address(buffer),
            length: BYTES as u32,
            lkey,
        }
    }

    fn address(&mut self, buffer: usize) -> u64 {
        self.buffers[buffer].as_mut_ptr().expose_provenance() as u64
    }
}

/// Takes a queue pair to the state RTS.
///
/// # Safety
///
/// The queue pair belongs to this context.
unsafe fn activate(qp: *mut ibv_qp) {
    let mut attr: ibv_qp_attr = zeroed();
    attr.port_num = 1;
    attr.qkey = QKEY;
    let named = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
    let steps = [
        (QpState::INIT, named),
        (QpState::RTR, QpAttrMask::empty()),
        (QpState::RTS, QpAttrMask::SQ_PSN),
    ];
    for (state, mask) in steps {
        attr.qp_state = state.0;
        let mask = (mask | QpAttrMask::STATE).bits() as i32;
        // SAFETY: by this function's contract.
        assert_eq!(unsafe { ibv_modify_qp(qp, &mut attr, mask) }, 0);
    }
}

impl World for Program {
    fn set(&mut self, buffer: usize, bytes: [u8; BYTES]) {
        self.buffers[buffer] = bytes;
    }

    fn get(&self, buffer: usize) -> [u8; BYTES] {
        self.buffers[buffer]
    }

    fn receive(&mut self, wr_id: u64, into: usize) {
        let mut sge = self.sge(into);
        let mut request = ibv_recv_wr {
            wr_id,
            next: null_mut(),
            sg_list: &mut sge,
            num_sge: 1,
        };
        let mut bad = null_mut();
        // SAFETY: the queue pair and the request exist, and the buffer stays.
        let posted = unsafe {
            let post = (*(*self.receiver).context).ops.post_recv.unwrap();
            post(self.receiver, &mut request, &mut bad)
        };
        assert_eq!((posted, bad.is_null()), (0, true));
    }

    fn post(&mut self, wr_id: u64, work: Work, own: usize, there: usize) {
        let (sge, remote) = (self.sge(own), self.address(there));
        // SAFETY: the queue pair has these functions, and the buffers stay.
        unsafe {
            let rkey = (*self.mr).rkey;
            let qp = self.sender.cast::<ibv_qp_ex>();
            (*qp).wr_start.unwrap()(qp);
            (*qp).wr_id = wr_id;
            (*qp).wr_flags = SendFlags::SIGNALED.bits();
            match work {
                Work::Send => (*qp).wr_send.unwrap()(qp),
                Work::Write => (*qp).wr_rdma_write.unwrap()(qp, rkey, remote),
                Work::Read => (*qp).wr_rdma_read.unwrap()(qp, rkey, remote),
                Work::SendImm => (*qp).wr_send_imm.unwrap()(qp, (wr_id as u32).to_be()),
            }
            (*qp).wr_set_ud_addr.unwrap()(qp, self.peer, (*self.receiver).qp_num, QKEY);
            (*qp).wr_set_sge.unwrap()(qp, sge.lkey, sge.addr, sge.length);
            assert_eq!((*qp).wr_complete.unwrap()(qp), 0);
        }
    }

    fn sent(&mut self) -> Option<Done> {
        let mut entry = MaybeUninit::<ibv_wc>::uninit();
        // SAFETY: the queue exists, and there is room for one completion; it is written if there is one.
        let done = unsafe {
            let poll = (*self.context).ops.poll_cq.unwrap();
            match poll(self.sent, 1, entry.as_mut_ptr()) {
                0 => return None,
                count => assert_eq!(count, 1),
            }
            entry.assume_init()
        };
        Some(Done {
            wr_id: done.wr_id,
            status: WcStatus(done.status),
            opcode: WcOpcode(done.opcode),
            received: None,
        })
    }

    fn received(&mut self) -> Option<Done> {
        let cq = self.received;
        // SAFETY: the queue has these functions, and it is read while a completion is shown.
        unsafe {
            let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
            match (*cq).start_poll.unwrap()(cq, &mut attr) {
                0 => {}
                none => {
                    assert_eq!(none, Errno::NOENT.raw_os_error());
                    return None;
                }
            }
            let flags = WcFlags::from_bits_retain((*cq).read_wc_flags.unwrap()(cq));
            let imm = (*cq).read_imm_data.unwrap()(cq);
            let imm = flags.contains(WcFlags::WITH_IMM).then(|| u32::from_be(imm));
            let received = (
                (*cq).read_qp_num.unwrap()(cq),
                (*cq).read_byte_len.unwrap()(cq),
                (*cq).read_src_qp.unwrap()(cq),
                imm,
            );
            let done = Done {
                wr_id: (*cq).wr_id,
                status: WcStatus((*cq).status),
                opcode: WcOpcode((*cq).read_opcode.unwrap()(cq)),
                received: Some(received),
            };
            (*cq).end_poll.unwrap()(cq);
            Some(done)
        }
    }

    fn numbers(&self) -> [u32; 2] {
        // SAFETY: both exist.
        unsafe { [(*self.sender).qp_num, (*self.receiver).qp_num] }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: each is destroyed once, after the objects that use it.
        let results = unsafe {
            [
                ibv_destroy_qp(self.sender),
                ibv_destroy_qp(self.receiver),
                ibv_destroy_ah(self.peer),
                ibv_dereg_mr(self.mr),
                ibv_destroy_cq(self.sent),
                ibv_destroy_cq(self.received.cast()),
                ibv_dealloc_pd(self.pd),
                ibv_close_device(self.context),
            ]
        };
        assert_eq!(results, [0; 8]);
    }
}

/// Would catch requirements on a new driver, for C programs, that are not in the contract.
#[test]
fn a_driver_that_does_nothing_for_c_posts_and_polls() {
    each_completes_once(Program::new);
}
