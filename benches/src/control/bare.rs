//! The system calls that the library makes for an object, with the same attributes, and nothing around them.

use std::io;
use std::ptr::{self, NonNull};

use anyhow::Result;
use uverbs::{Access, Caps, ConnectOptions, Cq, Endpoint, Pd, qp::QpAttrMask};
use uverbs_uapi::enums::{Mtu, QpState, QpType};
use uverbs_uapi::ioctl::UHW_OUT;
use uverbs_uapi::rxe::{CreateCqResp, CreateQpResp, Mminfo};
use uverbs_uapi::types::{QpCap, QpDest};
use uverbs_uapi::write::{
    AllocPd, AllocPdResp, CmdHdr, DestroyCqResp, DestroyQpResp, ModifyQp, RegMr, RegMrResp,
};
use uverbs_uapi::{attr, cmd, method, object};

use super::frame::Frame;

/// The numbers that the calls need.
pub(super) struct Bare {
    fd: i32,
    driver_id: u32,
    event_fd: u32,
    pd: u32,
    cq: u32,
    cap: QpCap,
    modifications: [Modification; 3],
}

/// A command as write(2) takes it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Modification {
    header: CmdHdr,
    core: ModifyQp,
}

impl Bare {
    pub(super) fn new(
        fd: i32,
        driver_id: u32,
        pd: &Pd,
        cq: &Cq,
        peer: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<Self> {
        let mut events = Frame::new(driver_id, object::ASYNC_EVENT, method::async_event::ALLOC)
            .with(attr::async_event_alloc::FD_HANDLE, 0, 0);
        // SAFETY: the frame has no addresses.
        unsafe { events.call(fd)? };
        let caps = Caps::default();
        Ok(Self {
            fd,
            driver_id,
            event_fd: events.data(0),
            pd: pd.handle().0,
            cq: cq.handle().0,
            cap: QpCap {
                max_send_wr: caps.max_send_wr,
                max_recv_wr: caps.max_recv_wr,
                max_send_sge: caps.max_send_sge,
                max_recv_sge: caps.max_recv_sge,
                max_inline_data: caps.max_inline_data,
            },
            modifications: modifications(peer, options),
        })
    }

    /// Allocates and frees a protection domain.
    pub(super) fn pd(&self) -> io::Result<()> {
        let input = AllocPd::default();
        let mut reply = AllocPdResp::default();
        let mut frame = Frame::write(self.driver_id, cmd::ALLOC_PD, &input)
            .output(attr::invoke_write::CORE_OUT, &mut reply);
        // SAFETY: input and answer live here.
        unsafe { frame.call(self.fd)? };
        let mut frame = Frame::new(self.driver_id, object::PD, method::pd::DESTROY).with(
            attr::destroy_pd::HANDLE,
            0,
            reply.pd_handle.into(),
        );
        // SAFETY: the frame has no addresses.
        unsafe { frame.call(self.fd) }
    }

    /// Registers and deregisters memory.
    pub(super) fn mr(&self, address: NonNull<u8>, length: usize) -> io::Result<()> {
        let start = address.as_ptr().expose_provenance() as u64;
        let input = RegMr {
            start,
            length: length as u64,
            hca_va: start,
            pd_handle: self.pd,
            access_flags: (Access::LOCAL_WRITE | Access::REMOTE_WRITE).bits(),
            ..RegMr::default()
        };
        let mut reply = RegMrResp::default();
        let mut frame = Frame::write(self.driver_id, cmd::REG_MR, &input)
            .output(attr::invoke_write::CORE_OUT, &mut reply);
        // SAFETY: input and answer live here.
        unsafe { frame.call(self.fd)? };
        let mut frame = Frame::new(self.driver_id, object::MR, method::mr::DESTROY).with(
            attr::destroy_mr::HANDLE,
            0,
            reply.mr_handle.into(),
        );
        // SAFETY: the frame has no addresses.
        unsafe { frame.call(self.fd) }
    }

    /// Creates a completion queue, maps its ring, and destroys it.
    pub(super) fn cq(&self, entries: u32) -> io::Result<()> {
        let mut granted = 0u32;
        let mut driver = CreateCqResp::default();
        let mut frame = Frame::new(self.driver_id, object::CQ, method::cq::CREATE)
            .with(attr::create_cq::HANDLE, 0, 0)
            .with(attr::create_cq::CQE, 4, entries.into())
            .with(attr::create_cq::USER_HANDLE, 8, 1)
            .with(attr::create_cq::COMP_VECTOR, 4, 0)
            .output(attr::create_cq::RESP_CQE, &mut granted)
            .with(attr::create_cq::EVENT_FD, 0, self.event_fd.into())
            .output(UHW_OUT, &mut driver);
        // SAFETY: the answers live here.
        unsafe { frame.call(self.fd)? };
        let ring = Ring::map(self.fd, driver.mi)?;
        let handle = frame.data(0);
        let mut reply = DestroyCqResp::default();
        let mut frame = Frame::new(self.driver_id, object::CQ, method::cq::DESTROY)
            .with(attr::destroy_cq::HANDLE, 0, handle.into())
            .output(attr::destroy_cq::RESP, &mut reply);
        // SAFETY: the answer lives here.
        unsafe { frame.call(self.fd)? };
        ring.unmap();
        Ok(())
    }

    /// Creates a queue pair, maps its rings, takes it to the state RTS, and destroys it.
    pub(super) fn qp(&self) -> io::Result<()> {
        let mut cap = QpCap::default();
        let mut qpn = 0u32;
        let mut driver = CreateQpResp::default();
        let mut frame = Frame::new(self.driver_id, object::QP, method::qp::CREATE)
            .with(attr::create_qp::HANDLE, 0, 0)
            .with(attr::create_qp::PD_HANDLE, 0, self.pd.into())
            .with(attr::create_qp::SEND_CQ_HANDLE, 0, self.cq.into())
            .with(attr::create_qp::RECV_CQ_HANDLE, 0, self.cq.into())
            .with(attr::create_qp::USER_HANDLE, 8, 1)
            .input(attr::create_qp::CAP, &self.cap)
            .with(attr::create_qp::TYPE, 8, QpType::RC.0.into())
            .output(attr::create_qp::RESP_CAP, &mut cap)
            .output(attr::create_qp::RESP_QP_NUM, &mut qpn)
            .with(attr::create_qp::EVENT_FD, 0, self.event_fd.into())
            .output(UHW_OUT, &mut driver);
        // SAFETY: inputs and answers live here.
        unsafe { frame.call(self.fd)? };
        let handle = frame.data(0);
        let rings = [
            Ring::map(self.fd, driver.sq_mi)?,
            Ring::map(self.fd, driver.rq_mi)?,
        ];
        for modification in &self.modifications {
            let mut input = *modification;
            input.core.qp_handle = handle;
            let address = (&raw const input).cast();
            // SAFETY: the input lives here and has no addresses.
            if unsafe { libc::write(self.fd, address, size_of::<Modification>()) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let mut reply = DestroyQpResp::default();
        let mut frame = Frame::new(self.driver_id, object::QP, method::qp::DESTROY)
            .with(attr::destroy_qp::HANDLE, 0, handle.into())
            .output(attr::destroy_qp::RESP, &mut reply);
        // SAFETY: the answer lives here.
        unsafe { frame.call(self.fd)? };
        rings.into_iter().for_each(Ring::unmap);
        Ok(())
    }
}

/// A mapped ring.
struct Ring(*mut libc::c_void, usize);

impl Ring {
    /// Maps a ring and reads its first word, as whoever uses it has to.
    fn map(fd: i32, info: Mminfo) -> io::Result<Self> {
        let length = info.size as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let offset = info.offset as libc::off_t;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let ring = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                fd,
                offset,
            )
        };
        if ring == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the ring starts with a word that the kernel wrote before.
        std::hint::black_box(unsafe { ring.cast::<u32>().read_volatile() });
        Ok(Self(ring, length))
    }

    fn unmap(self) {
        // SAFETY: the mapping is ours, and nobody uses it any more.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

/// The three commands that take a queue pair from RESET to RTS, but for its handle.
fn modifications(peer: &Endpoint, options: &ConnectOptions) -> [Modification; 3] {
    let mask = |mask: QpAttrMask| (QpAttrMask::STATE | mask).bits();
    let init = ModifyQp {
        qp_state: QpState::INIT.0 as u8,
        port_num: options.port,
        qp_access_flags: options.access.bits(),
        attr_mask: mask(QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS),
        ..ModifyQp::default()
    };
    let dest = QpDest {
        dgid: peer.gid.map_or([0; 16], |gid| gid.raw()),
        sgid_index: options.gid_index.unwrap_or(0),
        hop_limit: options.hop_limit,
        is_global: 1,
        port_num: options.port,
        ..QpDest::default()
    };
    let rtr = ModifyQp {
        qp_state: QpState::RTR.0 as u8,
        dest,
        path_mtu: options.path_mtu.unwrap_or(Mtu::MTU_1024).0 as u8,
        dest_qp_num: peer.qpn,
        rq_psn: peer.psn,
        max_dest_rd_atomic: options.max_dest_rd_atomic,
        min_rnr_timer: options.min_rnr_timer,
        attr_mask: mask(
            QpAttrMask::AV
                | QpAttrMask::PATH_MTU
                | QpAttrMask::DEST_QPN
                | QpAttrMask::RQ_PSN
                | QpAttrMask::MAX_DEST_RD_ATOMIC
                | QpAttrMask::MIN_RNR_TIMER,
        ),
        ..ModifyQp::default()
    };
    let rts = ModifyQp {
        qp_state: QpState::RTS.0 as u8,
        sq_psn: peer.psn,
        timeout: options.timeout,
        retry_cnt: options.retry_cnt,
        rnr_retry: options.rnr_retry,
        max_rd_atomic: options.max_rd_atomic,
        attr_mask: mask(
            QpAttrMask::SQ_PSN
                | QpAttrMask::TIMEOUT
                | QpAttrMask::RETRY_CNT
                | QpAttrMask::RNR_RETRY
                | QpAttrMask::MAX_QP_RD_ATOMIC,
        ),
        ..ModifyQp::default()
    };
    [init, rtr, rts].map(|core| Modification {
        header: CmdHdr {
            command: cmd::MODIFY_QP,
            in_words: (size_of::<Modification>() / 4) as u16,
            out_words: 0,
        },
        core,
    })
}
