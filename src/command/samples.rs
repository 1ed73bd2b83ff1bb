//! Commands whose arguments differ, so that their encodings show which is which.

use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::QpCreateFlags;
use uverbs_uapi::handle::{CqHandle, PdHandle, QpHandle, SrqHandle, XrcdHandle};
use uverbs_uapi::rxe;
use uverbs_uapi::types::QpCap;
use uverbs_uapi::write as abi;

use crate::command::{
    Command, CreateCq, CreateQp, CreateSrq, CreateXrcTarget, Decode, DriverData, ModifyQp, QpSpec,
    RegMr, Request, SrqKind,
};

pub(in crate::command) fn create_cq() -> CreateCq {
    CreateCq {
        cqe: 0x40,
        user_handle: 0x1_0000_0005,
        channel: Some(9),
        comp_vector: 1,
        flags: 0,
        event_fd: Some(8),
        driver: DriverData::output::<rxe::CreateCqResp>(),
    }
}

pub(in crate::command) const CAP: QpCap = QpCap {
    max_send_wr: 0x11,
    max_recv_wr: 0x22,
    max_send_sge: 0x33,
    max_recv_sge: 0x44,
    max_inline_data: 0x55,
};

pub(in crate::command) fn create_qp() -> CreateQp {
    let spec = QpSpec {
        pd: PdHandle(0xd0),
        send_cq: CqHandle(0xc1),
        recv_cq: CqHandle(0xc2),
        srq: Some(SrqHandle(0x5a)),
        qp_type: QpType::RC,
        cap: CAP,
        sq_sig_all: true,
        flags: QpCreateFlags::empty(),
        user_handle: 0x2_0000_0006,
        event_fd: Some(8),
    };
    CreateQp {
        spec,
        driver: DriverData::output::<rxe::CreateQpResp>(),
    }
}

pub(in crate::command) fn modify_qp() -> ModifyQp {
    let mut base = abi::ModifyQp {
        qp_handle: 0x77,
        attr_mask: 0x1_0001,
        qp_state: 1,
        ..Default::default()
    };
    base.dest.dgid = [0xee; 16];
    ModifyQp {
        base,
        driver: DriverData::default(),
    }
}

pub(in crate::command) fn reg_mr() -> RegMr {
    RegMr {
        pd: PdHandle(0xd0),
        address: 0x7f00_0000_1000,
        length: 0x3000,
        iova: 0x1000,
        access: 7,
        driver: DriverData::default(),
    }
}

pub(in crate::command) fn create_srq(kind: SrqKind) -> CreateSrq {
    CreateSrq {
        kind,
        pd: PdHandle(0xd0),
        max_wr: 0x11,
        max_sge: 0x22,
        limit: 0x33,
        user_handle: 0x3_0000_0007,
        event_fd: Some(8),
        driver: DriverData::default(),
    }
}

pub(in crate::command) const XRC: SrqKind = SrqKind::Xrc {
    xrcd: XrcdHandle(0xdd),
    cq: CqHandle(0xc1),
};

pub(in crate::command) fn create_xrc_target() -> CreateXrcTarget {
    CreateXrcTarget {
        xrcd: XrcdHandle(0xdd),
        user_handle: 0x3_0000_0008,
        event_fd: Some(8),
        driver: DriverData::default(),
    }
}

/// The handle of a QP, for commands that need nothing more.
pub(in crate::command) const QP: QpHandle = QpHandle(0x77);

/// The two encodings of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::command) enum Spelling {
    /// The verb's own ioctl method.
    Native,
    /// The verb's write command.
    Write,
}

/// The command in one encoding, with how its answer is read, if it has that encoding.
pub(in crate::command) fn spell<C: Command>(
    command: &C,
    spelling: Spelling,
) -> Option<(Request, Decode<C>)> {
    let mut request = Request::new();
    let decode = match spelling {
        Spelling::Native => command.native(&mut request),
        Spelling::Write => command.write(&mut request),
    };
    // Without this encoding, the request stays empty and cannot be sent.
    assert_eq!(decode.is_none(), request.is_empty());
    Some((request, decode?))
}

/// The command in one encoding, if it has that.
#[cfg(test)]
pub(in crate::command) fn request<C: Command>(command: &C, spelling: Spelling) -> Option<Request> {
    spell(command, spelling).map(|(request, _)| request)
}

/// Reads an answer to a command as `CommandFd::execute` does.
#[cfg(test)]
pub(in crate::command) fn decode<C: Command>(
    command: &C,
    spelling: Spelling,
    answer: &Request,
) -> Result<C::Reply, crate::command::Malformed> {
    let (_, decode) = spell(command, spelling).expect("it was answered");
    decode(command, answer)
}
