//! Answers as the kernel gives them: written to the addresses in the frame or in the buffer.

use std::ptr;

use uverbs_uapi::handle::{CqHandle, PdHandle, QpHandle};
use uverbs_uapi::ioctl::{AttrFlags, IoctlAttr, UHW_OUT};
use uverbs_uapi::rxe::{self, Mminfo};
use uverbs_uapi::types::GidEntry;
use uverbs_uapi::{attr, write as abi};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::command::samples::*;
use crate::command::write::WriteBuffer;
use crate::command::{
    AllocAsyncFd, AllocPd, Command, CreateCompChannel, CreateCqReply, CreateQpReply, GetContext,
    Malformed, QueryGidTable, Request, driver_reply,
};

const MI: Mminfo = Mminfo {
    offset: 0x5000,
    size: 0x2000,
    pad: 0,
};

/// Answers a request like the ioctl: numbers into attributes, structs to their addresses.
struct Answer {
    // Boxed, since its attributes point into it.
    request: Box<Request>,
}

impl Answer {
    fn to(command: &impl Command, spelling: Spelling) -> Self {
        let mut request = Box::new(request(command, spelling).unwrap());
        request.arm(14);
        Self { request }
    }

    fn attribute(&mut self, id: u16) -> &mut IoctlAttr {
        self.request.attribute(id).unwrap()
    }

    /// A new object's handle or file descriptor.
    fn object(mut self, id: u16, value: u64) -> Self {
        self.attribute(id).data = value;
        self
    }

    /// An output.
    fn output(mut self, id: u16, value: impl IntoBytes + Immutable) -> Self {
        let bytes = value.as_bytes();
        let attribute = self.attribute(id);
        assert!(bytes.len() <= usize::from(attribute.len));
        attribute.flags |= AttrFlags::VALID_OUTPUT.bits();
        let to: *mut u8 = ptr::with_exposed_provenance_mut(attribute.data as usize);
        // SAFETY: the attribute points into the request's bytes, with the length next to it.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self
    }

    fn request(self) -> Request {
        *self.request
    }
}

/// Answers a write command through the address in its buffer.
fn write_answer(command: &impl Command, core: &[u8], driver: &[u8]) -> Request {
    let mut request = request(command, Spelling::Write).unwrap();
    let mut write = WriteBuffer::new(&request);
    write.aim();
    let address = u64::read_from_bytes(&write.buffer[8..16]).unwrap();
    let to: *mut u8 = ptr::with_exposed_provenance_mut(address as usize);
    let (room, driver_room) = write.responses();
    assert_eq!((core.len(), driver.len()), (room.len(), driver_room.len()));
    // SAFETY: the address is that of room for both, one after the other.
    unsafe {
        to.copy_from_nonoverlapping(core.as_ptr(), core.len());
        to.add(core.len())
            .copy_from_nonoverlapping(driver.as_ptr(), driver.len());
    }
    let (core, driver) = write.responses();
    request.absorb_response(core, driver);
    request
}

#[test]
fn create_cq_by_both_spellings() {
    let command = create_cq();
    let driver = rxe::CreateCqResp { mi: MI };
    let native = Answer::to(&command, Spelling::Native)
        .object(attr::create_cq::HANDLE, 7)
        .output(attr::create_cq::RESP_CQE, 127u32)
        .output(UHW_OUT, driver)
        .request();
    let core = abi::CreateCqResp {
        cq_handle: 7,
        cqe: 127,
    };
    let write = write_answer(&command, core.as_bytes(), driver.as_bytes());
    for (spelling, answer) in [(Spelling::Native, native), (Spelling::Write, write)] {
        let reply: CreateCqReply = decode(&command, spelling, &answer).unwrap();
        assert_eq!((reply.handle, reply.cqe), (CqHandle(7), 127));
        let found: rxe::CreateCqResp = driver_reply(&reply.driver).unwrap();
        assert_eq!(found, driver);
    }
}

#[test]
fn create_qp_by_both_spellings() {
    let command = create_qp();
    let driver = rxe::CreateQpResp {
        rq_mi: MI,
        sq_mi: Mminfo { offset: 1, ..MI },
    };
    let native = Answer::to(&command, Spelling::Native)
        .object(attr::create_qp::HANDLE, 9)
        .output(attr::create_qp::RESP_CAP, CAP)
        .output(attr::create_qp::RESP_QP_NUM, 17u32)
        .output(UHW_OUT, driver)
        .request();
    let core = abi::CreateQpResp {
        qp_handle: 9,
        qpn: 17,
        max_send_wr: CAP.max_send_wr,
        max_recv_wr: CAP.max_recv_wr,
        max_send_sge: CAP.max_send_sge,
        max_recv_sge: CAP.max_recv_sge,
        max_inline_data: CAP.max_inline_data,
        reserved: 0,
    };
    let write = write_answer(&command, core.as_bytes(), driver.as_bytes());
    for (spelling, answer) in [(Spelling::Native, native), (Spelling::Write, write)] {
        let reply: CreateQpReply = decode(&command, spelling, &answer).unwrap();
        assert_eq!((reply.handle, reply.qpn, reply.cap), (QpHandle(9), 17, CAP));
        let found: rxe::CreateQpResp = driver_reply(&reply.driver).unwrap();
        assert_eq!(found, driver);
    }
}

#[test]
fn alloc_pd_by_both_carriers() {
    let command = AllocPd::default();
    let core = abi::AllocPdResp { pd_handle: 3 };
    let ioctl = Answer::to(&command, Spelling::Write)
        .output(attr::invoke_write::CORE_OUT, core)
        .request();
    let write = write_answer(&command, core.as_bytes(), &[]);
    for answer in [ioctl, write] {
        let (handle, driver) = decode(&command, Spelling::Write, &answer).unwrap();
        assert_eq!((handle, driver.len()), (PdHandle(3), 0));
    }
}

#[test]
fn what_the_kernel_did_not_write_is_missing() {
    let command = create_cq();
    let nothing = Answer::to(&command, Spelling::Native).request();
    let missing = Malformed::Missing(attr::create_cq::HANDLE);
    assert_eq!(decode(&command, Spelling::Native, &nothing), Err(missing));
    let half = Answer::to(&command, Spelling::Native)
        .object(attr::create_cq::HANDLE, 7)
        .request();
    let missing = Malformed::Missing(attr::create_cq::RESP_CQE);
    assert_eq!(decode(&command, Spelling::Native, &half), Err(missing));
    let no_driver = Answer::to(&command, Spelling::Native)
        .object(attr::create_cq::HANDLE, 7)
        .output(attr::create_cq::RESP_CQE, 127u32)
        .request();
    let reply = decode(&command, Spelling::Native, &no_driver).unwrap();
    let short = Malformed::Short(UHW_OUT);
    assert_eq!(driver_reply::<rxe::CreateCqResp>(&reply.driver), Err(short));
    assert!(short.to_string().contains("too short"));
}

#[test]
fn handles_and_descriptors_out_of_range_are_refused() {
    let command = create_cq();
    let id = attr::create_cq::HANDLE;
    for value in [1 << 32, 1 << 63, u64::MAX - 1] {
        let answer = Answer::to(&command, Spelling::Native).object(id, value);
        let refused = decode(&command, Spelling::Native, &answer.request());
        assert_eq!(refused, Err(Malformed::OutOfRange(id, value)));
    }
    let id = attr::async_event_alloc::FD_HANDLE;
    for value in [1 << 31, u64::from(u32::MAX), 1 << 32, -2i64 as u64] {
        let answer = Answer::to(&AllocAsyncFd, Spelling::Native).object(id, value);
        let refused = decode(&AllocAsyncFd, Spelling::Native, &answer.request());
        assert_eq!(refused.unwrap_err(), Malformed::OutOfRange(id, value));
    }
    for fd in [-1i32, i32::MIN] {
        let core = abi::CreateCompChannelResp { fd: fd as u32 };
        let answer = write_answer(&CreateCompChannel, core.as_bytes(), &[]);
        let refused = decode(&CreateCompChannel, Spelling::Write, &answer);
        assert!(matches!(refused, Err(Malformed::OutOfRange(..))), "{fd}");
        let core = abi::GetContextResp {
            async_fd: fd as u32,
            num_comp_vectors: 1,
        };
        let answer = write_answer(&GetContext::default(), core.as_bytes(), &[]);
        let refused = decode(&GetContext::default(), Spelling::Write, &answer);
        assert!(matches!(refused, Err(Malformed::OutOfRange(..))), "{fd}");
    }
}

#[test]
fn a_table_has_the_entries_that_the_kernel_counted() {
    let command = QueryGidTable { room: 4 };
    let answer = |count: u64| {
        Answer::to(&command, Spelling::Native)
            .output(
                attr::query_gid_table::RESP_ENTRIES,
                [GidEntry::default(); 4],
            )
            .output(attr::query_gid_table::RESP_NUM_ENTRIES, count)
            .request()
    };
    for count in 0..=4 {
        let entries = decode(&command, Spelling::Native, &answer(count)).unwrap();
        assert_eq!(entries.len() as u64, count);
    }
    for count in [5, 1 << 32, u64::MAX] {
        let refused = decode(&command, Spelling::Native, &answer(count));
        assert!(matches!(refused, Err(Malformed::Contradicts(_))), "{count}");
    }
}

/// The handle of a created object is found even if the rest of the answer is malformed.
#[test]
fn the_handle_of_what_was_created_is_found() {
    let command = create_cq();
    let nothing = Answer::to(&command, Spelling::Native).request();
    assert_eq!(nothing.created(), None);
    let half = Answer::to(&command, Spelling::Native)
        .object(attr::create_cq::HANDLE, 7)
        .request();
    assert!(decode(&command, Spelling::Native, &half).is_err());
    assert_eq!(half.created(), Some(7));
    let no_handle = Answer::to(&command, Spelling::Native)
        .object(attr::create_cq::HANDLE, 1 << 32)
        .request();
    assert_eq!(no_handle.created(), None);
    let core = abi::AllocPdResp { pd_handle: 3 };
    let answer = write_answer(&AllocPd::default(), core.as_bytes(), &[]);
    assert_eq!(answer.created(), Some(3));
}

/// Would catch an attribute that is taken for another, or not found, since both have the same entry in the
/// table.
#[test]
fn attributes_with_one_place_are_told_apart() {
    let mut request = Request::new();
    request.method(1, 2).new_object(3).output(3 + 32, 4);
    request.attribute(3).unwrap().data = 7;
    request.attribute(3 + 32).unwrap().flags |= AttrFlags::VALID_OUTPUT.bits();
    assert_eq!(request.new_handle(3), Ok(7));
    assert_eq!(request.answer_bytes(3 + 32), Ok(&[0; 4][..]));
    for id in [3 + 64, 4] {
        assert_eq!(request.new_handle(id), Err(Malformed::Missing(id)));
    }
}
