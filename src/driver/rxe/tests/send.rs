//! The send queue's work requests, byte for byte, and its doorbell.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use proptest::prelude::*;
use uverbs_uapi::cmd;
use uverbs_uapi::enums::WrOpcode;
use uverbs_uapi::flags::SendFlags;
use uverbs_uapi::handle::QpHandle;
use uverbs_uapi::rxe::{
    DmaInfo, RecvWqe, SEND_PAYLOAD_OFFSET, SEND_WR_OFFSET, SendWqe, SendWr, Sge, WrAtomic, WrRdma,
    WrUd,
};
use uverbs_uapi::types;
use uverbs_uapi::write::{CmdHdr, PostSend};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::memory::*;
use super::ring::raw_producer;
use crate::command::{CommandFd, Doorbell, Route, Unread};
use crate::driver::contract::methods::*;
use crate::driver::contract::sending;
use crate::driver::rxe::RecvQueue;
use crate::driver::rxe::qp::{asked, granted_send};
use crate::driver::rxe::send::{SLOT, SendQueue};
use crate::error::Errno;
use crate::work::{
    DatagramTo, Destination, LocalKey, LocalSlice, Operation, Payload, PdTag, PostError, Remote,
    RemoteKey,
};

/// Slots of 512 bytes: room for 19 slices or 304 inline bytes.
const LOG2: u32 = 9;
const SLOTS: u32 = 4;

/// A file that swallows doorbells.
fn null() -> OwnedFd {
    let file = File::options().write(true).open("/dev/null");
    file.unwrap().into()
}

/// A doorbell whose answers go to memory that nobody reads.
fn doorbell(fd: Arc<CommandFd>) -> Doorbell {
    static ANSWER: Unread = Unread::new(0);
    // SAFETY: what is static stays.
    unsafe { Doorbell::new(fd, QpHandle(0x77), NonNull::from(&ANSWER)) }
}

fn queue_over(memory: &Arc<Memory>, max_sge: u32, max_inline: u32, fd: OwnedFd) -> SendQueue {
    let fd = Arc::new(CommandFd::new(fd, 14, Route::Best));
    let doorbell = doorbell(fd);
    let ring = raw_producer(memory, SLOT).unwrap();
    SendQueue::new(ring, doorbell, max_sge, max_inline, None)
}

fn queue(memory: &Arc<Memory>) -> SendQueue {
    queue_over(memory, 4, 64, null())
}

/// A send queue over memory that nobody reads and that is never freed.
pub(crate) fn sample_send_queue() -> SendQueue {
    let memory = Memory::ring(8, LOG2);
    let queue = queue_over(&memory, 2, 32, null());
    std::mem::forget(memory);
    queue
}

fn slice(address: u64, length: u32, lkey: u32) -> LocalSlice<'static> {
    LocalSlice::new(address, length, LocalKey(lkey), PdTag::new(3, 1))
}

const REMOTE: Remote = Remote {
    address: 0x1122_3344_5566_7788,
    rkey: RemoteKey(0x99aa_bbcc),
};

fn to() -> Destination<'static, u32> {
    Destination::Datagram(DatagramTo {
        ah: &5,
        qpn: 0x0012_3456,
        qkey: 0x1111_1111,
        pd: PdTag::new(3, 1),
    })
}

/// A request's form in the union, in a union of zeros.
fn union(form: impl IntoBytes + Immutable) -> [u64; 15] {
    let mut bytes = [0; 120];
    bytes[..size_of_val(&form)].copy_from_slice(form.as_bytes());
    <[u64; 15]>::read_from_bytes(&bytes).unwrap()
}

fn rdma() -> [u64; 15] {
    union(WrRdma {
        remote_addr: 0x1122_3344_5566_7788,
        rkey: 0x99aa_bbcc,
        reserved: 0,
    })
}

fn atomic(compare_add: u64, swap: u64) -> [u64; 15] {
    union(WrAtomic {
        remote_addr: 0x1122_3344_5566_7788,
        compare_add,
        swap,
        rkey: 0x99aa_bbcc,
        reserved: 0,
    })
}

/// An operation, with what the ring must contain for it: opcode, immediate data, union, and remote address.
fn golden_operations() -> Vec<(Operation, WrOpcode, u32, [u64; 15], u64)> {
    let imm = 0x0102_0304;
    let network = u32::from_ne_bytes([1, 2, 3, 4]);
    let (compare, swap) = (0x1111_2222_3333_4444, 0x5555_6666_7777_8888);
    let at = REMOTE.address;
    let remote = REMOTE;
    vec![
        (Operation::Send, WrOpcode::SEND, 0, [0; 15], 0),
        (
            Operation::SendImm { imm },
            WrOpcode::SEND_WITH_IMM,
            network,
            [0; 15],
            0,
        ),
        (
            Operation::Write { remote },
            WrOpcode::RDMA_WRITE,
            0,
            rdma(),
            at,
        ),
        (
            Operation::WriteImm { remote, imm },
            WrOpcode::RDMA_WRITE_WITH_IMM,
            network,
            rdma(),
            at,
        ),
        (
            Operation::Read { remote },
            WrOpcode::RDMA_READ,
            0,
            rdma(),
            at,
        ),
        (
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            },
            WrOpcode::ATOMIC_CMP_AND_SWP,
            0,
            atomic(compare, swap),
            at,
        ),
        (
            Operation::FetchAdd {
                remote,
                add: compare,
            },
            WrOpcode::ATOMIC_FETCH_AND_ADD,
            0,
            atomic(compare, 0),
            at,
        ),
    ]
}

/// The WQE of a request; the kernel's own fields are 0.
fn golden(
    opcode: WrOpcode,
    ex: u32,
    union: [u64; 15],
    iova: u64,
    flags: SendFlags,
    dma: DmaInfo,
) -> SendWqe {
    SendWqe {
        wr: SendWr {
            wr_id: 0xfeed_0000_0000_0001,
            reserved: 0,
            opcode: opcode.0,
            send_flags: flags.bits(),
            ex,
            wr: union,
        },
        iova,
        dma,
        ..SendWqe::default()
    }
}

fn dma(length: u32, num_sge: u32) -> DmaInfo {
    DmaInfo {
        length,
        resid: length,
        num_sge,
        ..DmaInfo::default()
    }
}

/// Leaves a slot as the kernel may: its own fields and those that it reads have other contents; what neither
/// side ever writes is still 0.
fn dirty(memory: &Memory, slot: u32) {
    const OTHER: u32 = 0xa5a5_a5a5;
    let wqe = SendWqe {
        wr: SendWr {
            wr_id: u64::MAX,
            opcode: OTHER,
            send_flags: OTHER,
            ex: OTHER,
            ..SendWr::default()
        },
        status: OTHER,
        state: OTHER,
        iova: u64::MAX,
        mask: OTHER,
        first_psn: OTHER,
        last_psn: OTHER,
        ack_length: OTHER,
        ssn: OTHER,
        has_rd_atomic: OTHER,
        dma: DmaInfo {
            length: OTHER,
            resid: OTHER,
            cur_sge: OTHER,
            num_sge: OTHER,
            sge_offset: OTHER,
            reserved: OTHER,
        },
    };
    memory.fill(slot, 0xa5);
    memory.write(slot, 0, wqe);
}

/// Posts one signaled request into a dirty slot, and compares the whole slot with what it should be: the WQE,
/// the payload after it, and nothing after that.
#[track_caller]
fn check(
    operation: Operation,
    to: Option<Destination<'_, u32>>,
    payload: Payload<'_>,
    wqe: SendWqe,
    behind: &[u8],
) {
    let memory = Memory::ring(SLOTS, LOG2);
    dirty(&memory, 0);
    let mut queue = queue(&memory);
    let mut batch = sending(&mut queue);
    batch
        .write(
            0xfeed_0000_0000_0001,
            SendFlags::SIGNALED,
            operation,
            to,
            payload,
        )
        .unwrap();
    batch.ring().unwrap();
    assert_eq!(memory.read::<SendWqe>(0, 0), wqe);
    let mut expected = wqe.as_bytes().to_vec();
    expected.extend_from_slice(behind);
    expected.resize(1 << LOG2, 0xa5);
    assert_eq!(memory.bytes(0), expected);
    assert_eq!(memory.get(PRODUCER_INDEX), 1);
}

#[test]
fn the_payload_lies_where_the_kernel_looks_for_it() {
    assert_eq!((SEND_WR_OFFSET, SEND_PAYLOAD_OFFSET), (24, 208));
}

#[test]
fn every_operation_with_a_slice() {
    let sge = Sge {
        addr: 0xdead_0000,
        length: 0x1234,
        lkey: 0x4242,
    };
    for (operation, opcode, ex, union, iova) in golden_operations() {
        let wqe = golden(opcode, ex, union, iova, SendFlags::SIGNALED, dma(0x1234, 1));
        let slices = [slice(0xdead_0000, 0x1234, 0x4242)];
        check(
            operation,
            None,
            Payload::Gather(&slices),
            wqe,
            sge.as_bytes(),
        );
    }
}

#[test]
fn several_slices_and_none() {
    let slices = [slice(1 << 40, 100, 1), slice(8, 0, 2), slice(0, 28, 3)];
    let sges = slices.map(|slice| Sge {
        addr: slice.address,
        length: slice.length,
        lkey: slice.lkey.0,
    });
    for count in 0..=3 {
        let length = sges[..count].iter().map(|sge| sge.length).sum();
        let dma = dma(length, count as u32);
        let wqe = golden(WrOpcode::SEND, 0, [0; 15], 0, SendFlags::SIGNALED, dma);
        let payload = Payload::Gather(&slices[..count]);
        check(
            Operation::Send,
            None,
            payload,
            wqe,
            sges[..count].as_bytes(),
        );
    }
}

#[test]
fn inline_bytes_of_every_length() {
    let bytes: Vec<u8> = (0..64).collect();
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    let remote = REMOTE;
    for length in 0..=64 {
        let dma = dma(length as u32, 0);
        let payload = Payload::Inline(&bytes[..length]);
        let wqe = golden(WrOpcode::SEND, 0, [0; 15], 0, flags, dma);
        check(Operation::Send, None, payload, wqe, &bytes[..length]);
        let wqe = golden(WrOpcode::RDMA_WRITE, 0, rdma(), remote.address, flags, dma);
        let write = Operation::Write { remote };
        check(write, None, payload, wqe, &bytes[..length]);
    }
}

#[test]
fn datagrams() {
    let union = union(WrUd {
        remote_qpn: 0x0012_3456,
        remote_qkey: 0x1111_1111,
        ah_num: 5,
        ..WrUd::default()
    });
    let imm = 7;
    let network = u32::from_ne_bytes([0, 0, 0, 7]);
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    for (operation, opcode, ex) in [
        (Operation::Send, WrOpcode::SEND, 0),
        (Operation::SendImm { imm }, WrOpcode::SEND_WITH_IMM, network),
    ] {
        let wqe = golden(opcode, ex, union, 0, flags, dma(3, 0));
        check(operation, Some(to()), Payload::Inline(b"abc"), wqe, b"abc");
    }
}

#[test]
fn without_more_a_request_has_no_id_and_no_flags_and_flags_add_up() {
    let memory = Memory::ring(SLOTS, LOG2);
    (0..SLOTS).for_each(|slot| dirty(&memory, slot));
    let mut queue = queue(&memory);
    let mut batch = sending(&mut queue);
    let read = |slot| memory.read::<SendWr>(slot, 0);
    batch
        .write(
            0,
            SendFlags::empty(),
            Operation::Send,
            None,
            Payload::Gather(&[]),
        )
        .unwrap();
    assert_eq!((read(0).wr_id, read(0).send_flags), (0, 0));
    batch
        .write(
            0,
            SendFlags::FENCE | SendFlags::SOLICITED,
            Operation::Send,
            None,
            Payload::Inline(&[]),
        )
        .unwrap();
    let flags = SendFlags::INLINE | SendFlags::FENCE | SendFlags::SOLICITED;
    assert_eq!((read(1).wr_id, read(1).send_flags), (0, flags.bits()));
}

#[test]
fn what_does_not_fit_is_refused_and_takes_no_slot() {
    let memory = Memory::ring(SLOTS, LOG2);
    let mut queue = queue(&memory);
    let capacity = queue.capacity();
    let mut batch = sending(&mut queue);
    let slices = [slice(0, 1, 1); 5];
    let refused = batch.write(
        0,
        SendFlags::empty(),
        Operation::Send,
        None,
        Payload::Gather(&slices),
    );
    assert_eq!(
        refused.unwrap_err(),
        PostError::TooManySges { given: 5, max: 4 }
    );
    let refused = batch.write(
        0,
        SendFlags::empty(),
        Operation::Send,
        None,
        Payload::Inline(&[0; 65]),
    );
    assert_eq!(
        refused.unwrap_err(),
        PostError::InlineTooLong { given: 65, max: 64 }
    );
    assert_eq!(batch.pending(), 0);
    for _ in 0..capacity {
        let slices = Payload::Gather(&slices[..4]);
        batch
            .write(0, SendFlags::empty(), Operation::Send, None, slices)
            .unwrap();
    }
    let refused = batch.write(
        0,
        SendFlags::empty(),
        Operation::Send,
        None,
        Payload::Inline(&[]),
    );
    assert_eq!(refused.unwrap_err(), PostError::QueueFull { capacity: 3 });
    assert_eq!(batch.pending(), 3);
}

#[test]
fn what_is_granted_beyond_the_slots_does_not_count() {
    let memory = Memory::ring(SLOTS, LOG2);
    let queue = queue_over(&memory, u32::MAX, u32::MAX, null());
    assert_eq!((queue.max_sge(), queue.max_inline()), (19, 304));
    let bare = Memory::ring(SLOTS, 8);
    let queue = queue_over(&bare, 1, 1, null());
    assert_eq!((queue.max_sge(), queue.max_inline()), (1, 1));
}

#[test]
fn an_abandoned_batch_is_not_seen() {
    let memory = Memory::ring(SLOTS, LOG2);
    let mut queue = queue(&memory);
    let mut batch = sending(&mut queue);
    batch
        .write(
            0,
            SendFlags::empty(),
            Operation::Send,
            None,
            Payload::Inline(b"no"),
        )
        .unwrap();
    assert_eq!(KernelConsumer::new(&memory).head(), None);
    assert_eq!((sending(&mut queue).pending(), queue.in_flight()), (0, 0));
}

#[test]
fn a_doorbell_is_one_write_of_a_post_send_without_requests() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let memory = Memory::ring(SLOTS, LOG2);
    let mut queue = queue_over(&memory, 1, 8, write);
    let mut batch = sending(&mut queue);
    for _ in 0..3 {
        batch
            .write(
                0,
                SendFlags::empty(),
                Operation::Send,
                None,
                Payload::Inline(b"x"),
            )
            .unwrap();
    }
    assert_eq!(batch.ring(), Ok(3));
    let mut doorbell = [0; 100];
    let length = rustix::io::read(&read, &mut doorbell).unwrap();
    assert_eq!(length, size_of::<CmdHdr>() + size_of::<PostSend>());
    let (header, rest) = CmdHdr::read_from_prefix(&doorbell).unwrap();
    let (core, _) = PostSend::read_from_prefix(rest).unwrap();
    let expected = CmdHdr {
        command: cmd::POST_SEND,
        in_words: (length / 4) as u16,
        out_words: 1,
    };
    assert_eq!(header, expected);
    assert_ne!(core.response, 0);
    let expected = PostSend {
        response: core.response,
        qp_handle: 0x77,
        wr_count: 0,
        sge_count: 0,
        wqe_size: size_of::<types::SendWr>() as u32,
    };
    assert_eq!(core, expected);
    assert_eq!(queue.in_flight(), 3);
}

#[test]
fn a_doorbell_that_fails_is_told_and_the_requests_are_in_the_ring() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    drop(read);
    let memory = Memory::ring(SLOTS, LOG2);
    let mut queue = queue_over(&memory, 1, 8, write);
    let mut batch = sending(&mut queue);
    batch
        .write(
            0,
            SendFlags::empty(),
            Operation::Send,
            None,
            Payload::Inline(b"x"),
        )
        .unwrap();
    assert_eq!(batch.ring(), Err(Errno::PIPE));
    assert_eq!(queue.in_flight(), 1);
}

/// Bytes of the union that an operation's form covers.
fn covered(operation: Operation) -> usize {
    match operation {
        Operation::Send | Operation::SendImm { .. } => 0,
        Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => size_of::<WrAtomic>(),
        _ => size_of::<WrRdma>(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Slots are used again after other requests: where the kernel reads, nothing of those may be left.
    #[test]
    fn a_slot_shows_its_last_request_only(
        choices in prop::collection::vec((0..7usize, 0..=64usize, any::<bool>()), 1..30),
    ) {
        let memory = Memory::ring(2, LOG2);
        let mut queue = queue(&memory);
        let mut kernel = KernelConsumer::new(&memory);
        let operations = golden_operations();
        for (which, length, inline) in choices {
            let (operation, opcode, ex, union, iova) = operations[which];
            let bytes = vec![which as u8; length];
            let slices = vec![slice(1 << 33, length as u32, 9); length % 5];
            let payload = match inline {
                true => Payload::Inline(&bytes),
                false => Payload::Gather(&slices),
            };
            let mut batch = sending(&mut queue);
            let id = 0xfeed_0000_0000_0001;
            batch.write(id, SendFlags::empty(), operation, None, payload).unwrap();
            batch.ring().unwrap();
            let (flags, dma) = match inline {
                true => (SendFlags::INLINE, dma(length as u32, 0)),
                false => {
                    let count = slices.len() as u32;
                    (SendFlags::empty(), dma(length as u32 * count, count))
                }
            };
            let at = kernel.head().unwrap();
            let wqe = golden(opcode, ex, union, iova, flags, dma);
            let (found, expected) = (memory.bytes(at), wqe.as_bytes());
            let covered = SEND_WR_OFFSET + covered(operation);
            prop_assert_eq!(&found[..covered], &expected[..covered]);
            let behind = SEND_WR_OFFSET + 120..size_of::<SendWqe>();
            prop_assert_eq!(&found[behind.clone()], &expected[behind]);
            // The kernel works on the slot and leaves its traces.
            memory.write(at, SEND_WR_OFFSET + 120, [0xa5u8; 64]);
            kernel.advance();
        }
    }
}

/// A capacity: an ordinary one, or one at either end of the possible range.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 0..40_u32, 1 => u32::MAX - 3..=u32::MAX, 1 => any::<u32>()]
}

proptest! {
    /// Would catch capacities that a slot has no room for, whatever was asked for and whatever the kernel
    /// says that it grants.
    #[test]
    fn what_is_granted_fits_into_the_slots(
        sge in number(), inline in number(), recv_sge in number(), log2 in 3..14_u32,
    ) {
        let cap = types::QpCap {
            max_send_sge: sge,
            max_recv_sge: recv_sge,
            max_inline_data: inline,
            ..Default::default()
        };
        prop_assert!(asked(&cap).max_send_sge >= sge.max(1));
        let (granted_sge, granted_inline) = granted_send(&cap);
        prop_assert!(granted_inline >= inline);
        let memory = Memory::ring(SLOTS, log2);
        if let Ok(ring) = raw_producer(&memory, size_of::<SendWqe>()) {
            let fd = Arc::new(CommandFd::new(null(), 14, Route::Best));
            let doorbell = doorbell(fd);
            let queue = SendQueue::new(ring, doorbell, granted_sge, granted_inline, None);
            let room = (1_usize << log2) - SEND_PAYLOAD_OFFSET;
            prop_assert!(queue.max_sge() as usize * size_of::<Sge>() <= room);
            prop_assert!(queue.max_inline() as usize <= room);
        } else {
            prop_assert!(1 << log2 < size_of::<SendWqe>());
        }
        if let Ok(ring) = raw_producer(&memory, size_of::<RecvWqe>()) {
            let queue = RecvQueue::new(ring, recv_sge, None);
            let room = (1_usize << log2) - size_of::<RecvWqe>();
            prop_assert!(queue.max_sge() as usize * size_of::<Sge>() <= room);
        }
    }
}
