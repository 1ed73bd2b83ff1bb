//! Malformed answers to every command in both encodings: the result must be a value or an error, never a
//! panic.

use std::fmt::Debug;
use std::hint::black_box;
use std::mem;

use uverbs_uapi::enums::MwType;
use uverbs_uapi::flags::QpCreateFlags;
use uverbs_uapi::handle::{
    AhHandle, CqHandle, DmHandle, MrHandle, MwHandle, PdHandle, SrqHandle, XrcdHandle,
};
use uverbs_uapi::types::AhAttr;

use super::samples::*;
use super::*;

/// Answers a command with nonsense in each of its encodings, reads the answers, and prints them.
///
/// `keep` takes the reply: its descriptors belong to other code or do not exist, and must not be closed.
fn abuse<C: Command>(command: &C, source: &mut dyn FnMut() -> u64, keep: impl Fn(C::Reply))
where
    C::Reply: Debug,
{
    let spellings = [Spelling::Native, Spelling::Write].map(|spelling| spell(command, spelling));
    assert!(
        spellings.iter().any(Option::is_some),
        "{command:?} has no spelling"
    );
    for (mut answer, decode) in spellings.into_iter().flatten() {
        answer.scramble(&mut *source);
        black_box(answer.to_string());
        black_box(answer.created());
        match decode(command, &answer) {
            Ok(reply) => {
                black_box(format!("{reply:?}"));
                keep(reply);
            }
            Err(malformed) => drop(black_box(malformed.to_string())),
        }
    }
}

/// Answers every command with numbers from the source.
pub(crate) fn answer_all(source: &mut dyn FnMut() -> u64) {
    abuse(&GetContext::default(), source, mem::forget);
    abuse(&AllocAsyncFd, source, mem::forget);
    abuse(&CreateCompChannel, source, mem::forget);
    abuse(&QueryDevice, source, drop);
    abuse(&QueryPort { port: 1 }, source, drop);
    abuse(&QueryGidTable { room: 3 }, source, drop);
    abuse(&QueryGid { port: 1, index: 0 }, source, drop);
    abuse(&AllocPd::default(), source, drop);
    abuse(&Destroy(PdHandle(1)), source, drop);
    abuse(&reg_mr(), source, drop);
    abuse(&Destroy(MrHandle(1)), source, drop);
    let mut cq = create_cq();
    abuse(&cq, source, drop);
    cq.flags = 1;
    abuse(&cq, source, drop);
    let cq = CqHandle(1);
    let solicited_only = false;
    abuse(&ReqNotifyCq { cq, solicited_only }, source, drop);
    abuse(&Destroy(cq), source, drop);
    let mut create = create_qp();
    abuse(&create, source, drop);
    create.spec.flags = QpCreateFlags::SCATTER_FCS;
    abuse(&create, source, drop);
    let mut modify = modify_qp();
    abuse(&modify, source, drop);
    modify.driver = DriverData::exchange::<_, u64>(&1_u32);
    abuse(&modify, source, drop);
    let (qp, attr_mask) = (QP, u32::MAX);
    abuse(&QueryQp { qp, attr_mask }, source, drop);
    abuse(&Destroy(qp), source, drop);
    let (pd, attributes) = (PdHandle(1), AhAttr::default());
    let driver = DriverData::output::<u64>();
    let ah = CreateAh {
        pd,
        attributes,
        driver,
    };
    abuse(&ah, source, drop);
    abuse(&Destroy(AhHandle(1)), source, drop);
    abuse_later(source);
    abuse_what_few_devices_have(source);
}

/// The commands that came after the classic verbs.
fn abuse_later(source: &mut dyn FnMut() -> u64) {
    let (pd, mr, srq) = (PdHandle(1), MrHandle(1), SrqHandle(1));
    let kind = MwType::TYPE_2;
    abuse(&AllocMw { pd, kind }, source, drop);
    abuse(&Destroy(MwHandle(1)), source, drop);
    abuse(&QueryMr(mr), source, drop);
    abuse(&ReregMr(Default::default()), source, drop);
    abuse(&QuerySrq(srq), source, drop);
    abuse(&Destroy(srq), source, drop);
    let driver = || DriverData::output::<[u8; 24]>();
    let resize = ResizeCq {
        cq: CqHandle(1),
        cqe: 1,
        driver: driver(),
    };
    abuse(&resize, source, drop);
    let query = QueryContext {
        driver_answer: Some((0x1000, 16)),
    };
    abuse(&query, source, drop);
    let handles = InfoHandles { object: 1, room: 4 };
    abuse(&handles, source, drop);
}

/// The commands to which no test on soft-RoCE gets an answer.
fn abuse_what_few_devices_have(source: &mut dyn FnMut() -> u64) {
    for kind in [SrqKind::Basic, XRC] {
        abuse(&create_srq(kind), source, drop);
    }
    let (xrcd, qpn) = (XrcdHandle(1), 0);
    let (file, oflags, user_handle) = (Some(3), 0, 1);
    abuse(&OpenXrcd { file, oflags }, source, drop);
    let open = OpenQp {
        xrcd,
        qpn,
        user_handle,
    };
    abuse(&open, source, drop);
    abuse(&create_xrc_target(), source, drop);
    abuse(&Destroy(xrcd), source, drop);
    let (length, log_align) = (64, 3);
    abuse(&AllocDm { length, log_align }, source, drop);
    let register = RegDmMr {
        pd: PdHandle(1),
        dm: DmHandle(1),
        offset: 0,
        length,
        access: 0,
    };
    abuse(&register, source, drop);
    let (dm, offset) = (DmHandle(1), 0);
    abuse(&ExportDmabuf { dm, offset }, source, mem::forget);
    abuse(&Destroy(dm), source, drop);
}
