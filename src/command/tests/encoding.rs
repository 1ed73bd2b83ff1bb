//! Frames and buffers, compared with ones made by hand from the kernel's documentation: the numbers here are
//! literal on purpose.

use uverbs_uapi::attr::invoke_write::CORE_OUT;
use uverbs_uapi::handle::{CqHandle, PdHandle};
use uverbs_uapi::ioctl::{IoctlAttr, IoctlHdr};
use zerocopy::{FromBytes, IntoBytes};

use crate::command::samples::*;
use crate::command::write::WriteBuffer;
use crate::command::{
    AllocPd, Command, Destroy, DriverData, QueryDevice, QueryGidTable, QueryPort, ReqNotifyCq,
    Request,
};

pub(super) const MANDATORY: u16 = 1;
/// Stands for an address within the request's own bytes.
pub(super) const POINTER: u64 = 0x706f_696e_7465_7221;
/// The value in the room for a new object before the kernel fills it.
pub(super) const NEW: u64 = u64::MAX;

/// An ioctl frame as a header and attributes. Checks that addresses look like addresses, and replaces them.
pub(super) fn frame(
    command: &impl Command,
    spelling: Spelling,
) -> (IoctlHdr, Vec<(u16, u16, u16, u64)>) {
    let mut request = request(command, spelling).unwrap();
    request.arm(14);
    let start = request.frame().cast_const();
    let frame = request.frame_bytes();
    assert_eq!(start, frame.as_ptr());
    let (header, rest) = IoctlHdr::read_from_prefix(frame).unwrap();
    assert_eq!(usize::from(header.length), frame.len());
    let attributes = <[IoctlAttr]>::ref_from_bytes(rest).unwrap();
    let attributes = attributes.iter().map(|attribute| {
        let IoctlAttr {
            attr_id,
            len,
            flags,
            attr_data,
            data,
        } = *attribute;
        assert_eq!(attr_data, 0);
        // In a 64-bit process, heap and stack are far above every other value in a frame.
        let address = len > 0 && (0x1_0000_0000_0000 > data && data > 0x10_0000_0000);
        (attr_id, len, flags, if address { POINTER } else { data })
    });
    (header, attributes.collect())
}

/// Would catch addresses that point to where a request was made.
#[test]
fn a_request_that_has_been_moved_is_aimed_anew() {
    let mut request = request(&QueryPort { port: 1 }, Spelling::Write).unwrap();
    request.arm(14);
    let address = |request: &mut Request| request.attribute(CORE_OUT).unwrap().data;
    let (before, from) = (address(&mut request), (&raw const request).addr());
    let mut moved = Box::new(request);
    moved.arm(14);
    let (after, to) = (address(&mut moved), (&raw const *moved).addr());
    assert_ne!(from, to);
    assert_eq!(
        before.wrapping_sub(from as u64),
        after.wrapping_sub(to as u64)
    );
    assert!((to as u64..to as u64 + size_of::<Request>() as u64).contains(&after));
}

/// The header of a frame with `num_attrs` attributes.
pub(super) fn header(object_id: u16, method_id: u16, num_attrs: u16) -> IoctlHdr {
    IoctlHdr {
        length: 24 + 16 * num_attrs,
        object_id,
        method_id,
        num_attrs,
        reserved1: 0,
        driver_id: 14,
        reserved2: 0,
    }
}

/// A buffer for write(2), with the response's address separate and replaced by zeros.
pub(super) fn buffer(command: &impl Command) -> (Vec<u8>, u64) {
    let request = request(command, Spelling::Write).unwrap();
    let mut write = WriteBuffer::new(&request);
    write.aim();
    let mut bytes = write.buffer.to_vec();
    let (core, driver) = write.responses();
    if core.is_empty() && driver.is_empty() {
        return (bytes, 0);
    }
    let address = u64::read_from_bytes(&bytes[8..16]).unwrap();
    bytes[8..16].fill(0);
    (bytes, address)
}

/// The bytes of 32-bit words.
pub(super) fn words(words: &[u32]) -> Vec<u8> {
    words.as_bytes().to_vec()
}

/// A number of 64 bits as two words in memory order.
pub(super) fn wide(value: u64) -> [u32; 2] {
    zerocopy::transmute!(value)
}

#[test]
fn alloc_pd_by_invoke_write() {
    let (found, attributes) = frame(&AllocPd::default(), Spelling::Write);
    assert_eq!(found, header(0, 0, 3));
    let expected = [
        // The number of the command, a constant of exactly 8 bytes.
        (2, 8, MANDATORY, 3),
        // The core struct has at most 8 bytes and so is in the attribute itself.
        (0, 8, MANDATORY, 0),
        (1, 4, MANDATORY, POINTER),
    ];
    assert_eq!(attributes, expected);
}

#[test]
fn alloc_pd_by_write() {
    let (bytes, address) = buffer(&AllocPd::default());
    // Command; words in and out as two numbers of 16 bits; the address of the response.
    let mut expected = words(&[3]);
    expected.extend_from_slice([4u16, 1].as_bytes());
    expected.extend_from_slice(&[0; 8]);
    assert_eq!(bytes, expected);
    assert_ne!(address, 0);
}

#[test]
fn create_cq_by_its_method() {
    let (found, attributes) = frame(&create_cq(), Spelling::Native);
    assert_eq!(found, header(3, 0, 8));
    let expected = [
        (0, 0, MANDATORY, NEW),
        (1, 4, MANDATORY, 0x40),
        (2, 8, MANDATORY, 0x1_0000_0005),
        (4, 4, MANDATORY, 1),
        // An output is passed by address, however short it is.
        (6, 4, MANDATORY, POINTER),
        (3, 0, MANDATORY, 9),
        (7, 0, MANDATORY, 8),
        // The driver's private part is optional.
        (0x1001, 16, 0, POINTER),
    ];
    assert_eq!(attributes, expected);
}

#[test]
fn create_cq_without_options_has_no_attributes_for_them() {
    let mut command = create_cq();
    (command.channel, command.event_fd) = (None, None);
    command.driver = DriverData::default();
    let (_, attributes) = frame(&command, Spelling::Native);
    let ids: Vec<u16> = attributes.iter().map(|attribute| attribute.0).collect();
    assert_eq!(ids, [0, 1, 2, 4, 6]);
    command.flags = 2;
    let (_, attributes) = frame(&command, Spelling::Native);
    assert_eq!(attributes[5], (5, 4, MANDATORY, 2));
}

#[test]
fn create_cq_by_write() {
    let (bytes, address) = buffer(&create_cq());
    // Header 8, core 32, no driver input; response 8 and 16 for the driver.
    let mut expected = words(&[18]);
    expected.extend_from_slice([10u16, 6].as_bytes());
    expected.extend(words(&[0, 0]));
    expected.extend(words(&wide(0x1_0000_0005)));
    expected.extend(words(&[0x40, 1, 9, 0]));
    assert_eq!(bytes, expected);
    assert_ne!(address, 0);
    let mut command = create_cq();
    command.channel = None;
    let (bytes, _) = buffer(&command);
    assert_eq!(bytes[32..36], [0xff; 4], "no channel is -1");
}

#[test]
fn create_cq_with_flags_by_the_extended_command() {
    let mut command = create_cq();
    command.flags = 2;
    let (bytes, address) = buffer(&command);
    // Units of 8: core 32 in, 16 out; then the response's address, and 0 in and 16 out for the driver.
    let mut expected = words(&[0x8000_0012]);
    expected.extend_from_slice([4u16, 2].as_bytes());
    expected.extend(words(&[0, 0]));
    expected.extend_from_slice([0u16, 2, 0, 0].as_bytes());
    expected.extend(words(&wide(0x1_0000_0005)));
    expected.extend(words(&[0x40, 1, 9, 0, 2, 0]));
    assert_eq!(bytes, expected);
    assert_ne!(address, 0);
}

#[test]
fn create_qp_by_its_method() {
    let (found, attributes) = frame(&create_qp(), Spelling::Native);
    assert_eq!(found, header(4, 0, 13));
    let expected = [
        (0, 0, MANDATORY, NEW),
        (2, 0, MANDATORY, 0xd0),
        (4, 0, MANDATORY, 0xc1),
        (5, 0, MANDATORY, 0xc2),
        (7, 8, MANDATORY, 0x2_0000_0006),
        // Longer than 8 bytes: by address.
        (8, 20, MANDATORY, POINTER),
        // RC; a constant of exactly 8 bytes.
        (9, 8, MANDATORY, 2),
        (13, 20, MANDATORY, POINTER),
        (14, 4, MANDATORY, POINTER),
        (3, 0, MANDATORY, 0x5a),
        // SQ_SIG_ALL.
        (10, 4, MANDATORY, 1 << 12),
        (12, 0, MANDATORY, 8),
        (0x1001, 32, 0, POINTER),
    ];
    assert_eq!(attributes, expected);
}

#[test]
fn create_qp_by_write() {
    let (bytes, address) = buffer(&create_qp());
    let mut expected = words(&[24]);
    expected.extend_from_slice([16u16, 16].as_bytes());
    expected.extend(words(&[0, 0]));
    expected.extend(words(&wide(0x2_0000_0006)));
    expected.extend(words(&[0xd0, 0xc1, 0xc2, 0x5a]));
    expected.extend(words(&[0x11, 0x22, 0x33, 0x44, 0x55]));
    expected.extend_from_slice(&[1, 2, 1, 0]);
    assert_eq!(bytes, expected);
    assert_ne!(address, 0);
}

#[test]
fn modify_qp_has_no_response_and_so_no_address() {
    let (bytes, address) = buffer(&modify_qp());
    assert_eq!(address, 0);
    let mut expected = words(&[26]);
    expected.extend_from_slice([30u16, 0].as_bytes());
    expected.extend_from_slice(modify_qp().base.as_bytes());
    assert_eq!(bytes, expected);
    assert_eq!(bytes[8..24], [0xee; 16], "the core struct starts at once");
    let (found, attributes) = frame(&modify_qp(), Spelling::Write);
    assert_eq!(found, header(0, 0, 2));
    let expected = [(2, 8, MANDATORY, 26), (0, 112, MANDATORY, POINTER)];
    assert_eq!(attributes, expected);
}

/// Only the extended command has room for the driver's answer.
#[test]
fn modify_qp_with_a_drivers_data_is_extended() {
    let mut command = modify_qp();
    command.driver = DriverData::output::<u64>();
    let (bytes, address) = buffer(&command);
    let mut expected = words(&[0x8000_001a]);
    expected.extend_from_slice([15u16, 1].as_bytes());
    expected.extend(words(&[0, 0]));
    expected.extend_from_slice([0u16, 1, 0, 0].as_bytes());
    expected.extend_from_slice(command.base.as_bytes());
    expected.extend(words(&[0, 0]));
    assert_eq!(bytes, expected);
    assert_ne!(address, 0);
    command.driver = DriverData::exchange::<_, u64>(&0x1122_3344_u32);
    let (_, attributes) = frame(&command, Spelling::Write);
    assert_eq!(attributes[0], (2, 8, MANDATORY, 0x8000_001a));
    let drivers: Vec<_> = attributes
        .iter()
        .map(|(id, length, ..)| (*id, *length))
        .filter(|(id, _)| *id >= 0x1000)
        .collect();
    assert_eq!(drivers, [(0x1000, 4), (0x1001, 8)]);
}

#[test]
fn reg_mr_by_both_carriers() {
    let (found, attributes) = frame(&reg_mr(), Spelling::Write);
    assert_eq!(found, header(0, 0, 3));
    let expected = [
        (2, 8, MANDATORY, 9),
        (0, 40, MANDATORY, POINTER),
        (1, 12, MANDATORY, POINTER),
    ];
    assert_eq!(attributes, expected);
    let (bytes, _) = buffer(&reg_mr());
    let mut expected = words(&[9]);
    expected.extend_from_slice([12u16, 3].as_bytes());
    expected.extend(words(&[0, 0]));
    for value in [0x7f00_0000_1000, 0x3000, 0x1000] {
        expected.extend(words(&wide(value)));
    }
    expected.extend(words(&[0xd0, 7]));
    assert_eq!(bytes, expected);
}

#[test]
fn query_device_is_extended() {
    let (bytes, _) = buffer(&QueryDevice);
    let response = size_of::<uverbs_uapi::types::ExQueryDeviceResp>() / 8;
    let mut expected = words(&[0x8000_0001]);
    expected.extend_from_slice([1u16, response as u16].as_bytes());
    expected.extend_from_slice(&[0; 8 + 8 + 8]);
    assert_eq!(bytes, expected);
}

#[test]
fn destroying_names_the_handle() {
    let (found, attributes) = frame(&Destroy(PdHandle(0xd0)), Spelling::Native);
    assert_eq!(found, header(1, 0, 1));
    assert_eq!(attributes, [(0, 0, MANDATORY, 0xd0)]);
    let (found, attributes) = frame(&Destroy(CqHandle(0xc1)), Spelling::Native);
    assert_eq!(found, header(3, 1, 2));
    let expected = [(0, 0, MANDATORY, 0xc1), (1, 8, MANDATORY, POINTER)];
    assert_eq!(attributes, expected);
    // A core struct of 4 bytes is in its attribute.
    let (_, attributes) = frame(&Destroy(PdHandle(0xd0)), Spelling::Write);
    assert_eq!(attributes[1], (0, 4, MANDATORY, 0xd0));
}

#[test]
fn commands_without_an_answer_make_no_room_for_one() {
    let notify = ReqNotifyCq {
        cq: CqHandle(0xc1),
        solicited_only: true,
    };
    let (bytes, _) = buffer(&notify);
    let mut expected = words(&[23]);
    expected.extend_from_slice([4u16, 0].as_bytes());
    expected.extend(words(&[0xc1, 1]));
    assert_eq!(bytes, expected);
}

#[test]
fn enumerations_go_as_64_bits() {
    let (found, attributes) = frame(&QueryPort { port: 2 }, Spelling::Native);
    assert_eq!((found.object_id, found.num_attrs), (0, 2));
    assert_eq!(attributes[0], (0, 8, MANDATORY, 2));
}

#[test]
fn a_table_has_no_more_room_than_an_attribute_can_say() {
    let command = QueryGidTable { room: usize::MAX };
    let (_, attributes) = frame(&command, Spelling::Native);
    let room = attributes[1].1;
    assert_eq!(usize::from(room), QueryGidTable::MAX * 32);
}

/// The kernel reads an input from an attribute from its first byte on, in memory order.
#[test]
fn short_inputs_lie_at_the_start_of_their_attributes() {
    let mut request = Request::new();
    request
        .method(1, 2)
        .u32(3, 0x0102_0304)
        .input(4, &[5u8, 6, 7])
        .u64(5, 0x0102_0304_0506_0708);
    let data = |request: &mut Request, id| request.attribute(id).unwrap().data.to_ne_bytes();
    let word = 0x0102_0304_u32.to_ne_bytes();
    assert_eq!(data(&mut request, 3)[..4], word);
    assert_eq!(data(&mut request, 3)[4..], [0; 4]);
    assert_eq!(data(&mut request, 4), [5, 6, 7, 0, 0, 0, 0, 0]);
    let number = 0x0102_0304_0506_0708_u64;
    assert_eq!(data(&mut request, 5), number.to_ne_bytes());
    assert!(request.to_string().contains("=0x1020304 "), "{request}");
}
