//! Commands: what the driver asks the device for, one line in [`COMMANDS`] for each.
//!
//! A command that is not there is answered with "bad operation" and reported. The handlers stand with the
//! objects that they make, change and destroy.

mod ethernet;
mod initialize;
mod port;
pub(crate) mod queue;
mod simple;
mod status;

pub(crate) use self::ethernet::ADDRESSES;
pub(crate) use self::status::Status;

use crate::capability;
use crate::function::Function;
use crate::layout::cmd;
use crate::object::{cq, dct, eq, memic, mkey, multicast, page, qp, reserved, rq, sq, srq, umem};

/// What executes a command: input in, output out; the output is zero before.
pub(crate) type Handler = fn(&mut Function, &[u8], &mut [u8]) -> Result<(), Status>;

/// The number of the command that makes event queues; see [`crate::object::eq`].
pub(crate) const CREATE_EQ: u16 = 0x301;

/// All commands, by their numbers and names in the driver's header.
const COMMANDS: [(u16, &str, Handler); 106] = [
    (0x100, "QUERY_HCA_CAP", capability::query),
    (0x101, "QUERY_ADAPTER", initialize::query_adapter),
    (0x102, "INIT_HCA", initialize::succeed),
    (0x103, "TEARDOWN_HCA", initialize::succeed),
    (0x104, "ENABLE_HCA", initialize::succeed),
    (0x105, "DISABLE_HCA", initialize::succeed),
    (0x107, "QUERY_PAGES", page::query),
    (0x108, "MANAGE_PAGES", page::manage),
    (0x109, "SET_HCA_CAP", capability::set),
    (0x10a, "QUERY_ISSI", initialize::query_issi),
    (0x10b, "SET_ISSI", initialize::set_issi),
    (0x10d, "SET_DRIVER_VERSION", initialize::succeed),
    (0x200, "CREATE_MKEY", mkey::create),
    (0x201, "QUERY_MKEY", mkey::query),
    (0x202, "DESTROY_MKEY", mkey::destroy),
    (0x203, "QUERY_SPECIAL_CONTEXTS", mkey::query_special),
    (0x205, "ALLOC_MEMIC", memic::alloc),
    (0x206, "DEALLOC_MEMIC", memic::dealloc),
    (CREATE_EQ, "CREATE_EQ", eq::create),
    (0x302, "DESTROY_EQ", eq::destroy),
    (0x303, "QUERY_EQ", eq::query),
    (0x400, "CREATE_CQ", cq::create),
    (0x401, "DESTROY_CQ", cq::destroy),
    (0x402, "QUERY_CQ", cq::query),
    (0x403, "MODIFY_CQ", cq::modify),
    (0x500, "CREATE_QP", qp::create),
    (0x501, "DESTROY_QP", qp::destroy),
    (0x502, "RST2INIT_QP", qp::modify),
    (0x503, "INIT2RTR_QP", qp::modify),
    (0x504, "RTR2RTS_QP", qp::modify),
    (0x505, "RTS2RTS_QP", qp::modify),
    (0x506, "SQERR2RTS_QP", qp::modify),
    (0x507, "2ERR_QP", qp::modify),
    (0x50a, "2RST_QP", qp::modify),
    (0x50b, "QUERY_QP", qp::query),
    (0x50d, "MAD_IFC", port::mad),
    (0x50e, "INIT2INIT_QP", qp::modify),
    (0x705, "CREATE_XRC_SRQ", srq::create_xrc),
    (0x706, "DESTROY_XRC_SRQ", srq::destroy),
    (0x707, "QUERY_XRC_SRQ", srq::query_xrc),
    (0x708, "ARM_XRC_SRQ", srq::arm_xrc),
    (0x710, "CREATE_DCT", dct::create),
    (0x711, "DESTROY_DCT", dct::destroy),
    (0x712, "DRAIN_DCT", dct::drain),
    (0x713, "QUERY_DCT", dct::query),
    (0x750, "QUERY_VPORT_STATE", port::query_state),
    (0x762, "QUERY_HCA_VPORT_CONTEXT", port::query_context),
    (0x763, "MODIFY_HCA_VPORT_CONTEXT", port::modify_context),
    (0x764, "QUERY_HCA_VPORT_GID", port::query_gid),
    (0x765, "QUERY_HCA_VPORT_PKEY", port::query_pkey),
    (0x770, "QUERY_VPORT_COUNTER", initialize::succeed),
    (0x800, "ALLOC_PD", simple::alloc_pd),
    (0x801, "DEALLOC_PD", simple::dealloc_pd),
    (0x802, "ALLOC_UAR", simple::alloc_uar),
    (0x803, "DEALLOC_UAR", simple::dealloc_uar),
    (0x805, "ACCESS_REG", port::access_register),
    (0x806, "ATTACH_TO_MCG", multicast::attach),
    (0x807, "DETACH_FROM_MCG", multicast::detach),
    (0x80e, "ALLOC_XRCD", simple::alloc_xrcd),
    (0x80f, "DEALLOC_XRCD", simple::dealloc_xrcd),
    (
        0x816,
        "ALLOC_TRANSPORT_DOMAIN",
        simple::alloc_transport_domain,
    ),
    (
        0x817,
        "DEALLOC_TRANSPORT_DOMAIN",
        simple::dealloc_transport_domain,
    ),
    (0x842, "QUERY_LAG", qp::query_lag),
    (0x90c, "CREATE_RMP", srq::create_rmp),
    (0x90d, "MODIFY_RMP", srq::modify_rmp),
    (0x90e, "DESTROY_RMP", srq::destroy_rmp),
    (0x90f, "QUERY_RMP", srq::query_rmp),
    (0x754, "QUERY_NIC_VPORT_CONTEXT", ethernet::query_vport),
    (0x755, "MODIFY_NIC_VPORT_CONTEXT", initialize::succeed),
    (0x760, "QUERY_ROCE_ADDRESS", ethernet::query_address),
    (0x761, "SET_ROCE_ADDRESS", ethernet::set_address),
    (0x751, "MODIFY_VPORT_STATE", initialize::succeed),
    (0x771, "ALLOC_Q_COUNTER", ethernet::alloc_counter),
    (0x772, "DEALLOC_Q_COUNTER", ethernet::dealloc_counter),
    (0x773, "QUERY_Q_COUNTER", initialize::succeed),
    (0x829, "SET_L2_TABLE_ENTRY", initialize::succeed),
    (0x82b, "DELETE_L2_TABLE_ENTRY", initialize::succeed),
    (0x900, "CREATE_TIR", ethernet::alloc),
    (0x901, "MODIFY_TIR", ethernet::touch),
    (0x902, "DESTROY_TIR", ethernet::dealloc),
    (0x904, "CREATE_SQ", sq::create),
    (0x905, "MODIFY_SQ", sq::modify),
    (0x906, "DESTROY_SQ", sq::destroy),
    (0x908, "CREATE_RQ", rq::create),
    (0x909, "MODIFY_RQ", rq::modify),
    (0x90a, "DESTROY_RQ", rq::destroy),
    (0x912, "CREATE_TIS", ethernet::alloc),
    (0x913, "MODIFY_TIS", ethernet::touch),
    (0x914, "DESTROY_TIS", ethernet::dealloc),
    (0x916, "CREATE_RQT", ethernet::alloc),
    (0x917, "MODIFY_RQT", ethernet::touch),
    (0x918, "DESTROY_RQT", ethernet::dealloc),
    (0x92f, "SET_FLOW_TABLE_ROOT", initialize::succeed),
    (0x930, "CREATE_FLOW_TABLE", ethernet::alloc),
    (0x931, "DESTROY_FLOW_TABLE", ethernet::dealloc_table),
    (0x933, "CREATE_FLOW_GROUP", ethernet::alloc),
    (0x934, "DESTROY_FLOW_GROUP", ethernet::dealloc_group),
    (0x936, "SET_FLOW_TABLE_ENTRY", initialize::succeed),
    (0x938, "DELETE_FLOW_TABLE_ENTRY", initialize::succeed),
    (0x93c, "MODIFY_FLOW_TABLE", initialize::succeed),
    (0xa00, "CREATE_GENERAL_OBJECT", reserved::create),
    (0xa03, "DESTROY_GENERAL_OBJECT", reserved::destroy),
    (0xa04, "CREATE_UCTX", simple::create_context),
    (0xa06, "DESTROY_UCTX", simple::destroy_context),
    (0xa08, "CREATE_UMEM", umem::create),
    (0xa0a, "DESTROY_UMEM", umem::destroy),
];

/// The number of the command with that name.
pub(crate) fn opcode(name: &str) -> Option<u16> {
    let mut commands = COMMANDS.iter();
    let found = commands.find(|(_, known, _)| *known == name);
    found.map(|(opcode, ..)| *opcode)
}

/// Whose event queues are that the driver shares with users (`MLX5_SHARED_RESOURCE_UID`).
const SHARED: u32 = 0xffff;

/// Whether the context is there whose command it is.
fn is_of_context(function: &Function, input: &[u8]) -> bool {
    let uid = cmd::UID.get32(input);
    uid == 0 || uid == SHARED || function.objects.contexts.contains(uid)
}

/// Executes one command and gives its output.
pub(crate) fn execute(function: &mut Function, input: &[u8], output_length: usize) -> Vec<u8> {
    let mut output = vec![0; output_length];
    let opcode = cmd::OPCODE.get(input) as u16;
    let known = COMMANDS.iter().find(|(number, ..)| *number == opcode);
    let result = match known {
        Some((_, _, handler)) => match function.faults.of_command(opcode) {
            Some(status) => Err(status),
            None if !is_of_context(function, input) => Err(Status::BadParameter),
            None => handler(function, input, &mut output),
        },
        None => {
            function
                .report
                .violation(format!("command {opcode:#x} is not known to the model"));
            Err(Status::BadOperation)
        }
    };
    let name = known.map_or("?", |(_, name, _)| name);
    function.report.trace(|| {
        let op_mod = cmd::OP_MOD.get(input);
        format!("{name} ({opcode:#x}, op_mod {op_mod:#x}): {result:?}")
    });
    if let Err(status) = result {
        output.fill(0);
        cmd::STATUS.set(&mut output, u64::from(status.code()));
        // The driver only prints it: which command refused.
        cmd::SYNDROME.set(&mut output, u64::from(opcode));
    }
    output
}
