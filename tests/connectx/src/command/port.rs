//! Commands about the port: its state, its addresses, its registers.

use super::Status;
use crate::function::Function;
use crate::layout::cmd;
use crate::layout::port::{pmtu, ptys, pvlc, vport};
use crate::subnet::MANAGER_LID;

/// "All entries" in place of an index.
const ALL: u64 = 0xffff;
/// The default partition, with full membership.
const DEFAULT_PKEY: [u8; 4] = [0, 0, 0xff, 0xff];

const PORT_DOWN: u64 = 1;
const PORT_ACTIVE: u64 = 4;
/// The physical state in which the other end is looked for.
const POLLING: u64 = 2;
const LINK_UP: u64 = 5;
/// Follow the physical state.
const POLICY_FOLLOW: u64 = 2;
/// Which of the capabilities the driver may change: all that are offered by software.
const CHANGEABLE: u32 = 0xffff_ffff;
/// Where a register's content begins.
const REGISTER: usize = 0x10;

/// Answers QUERY_HCA_VPORT_CONTEXT.
///
/// # Errors
/// None.
pub(super) fn query_context(
    function: &mut Function,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let port = &function.port;
    let context = output.get_mut(cmd::CONTEXT..).ok_or(Status::BadParameter)?;
    let (state, physical) = if port.is_up {
        (PORT_ACTIVE, LINK_UP)
    } else {
        (PORT_DOWN, POLLING)
    };
    for (field, value) in [
        (vport::HAS_SMI, 0),
        (vport::PORT_PHYSICAL_STATE, physical),
        (vport::VPORT_STATE_POLICY, POLICY_FOLLOW),
        (vport::PORT_STATE, state),
        (vport::VPORT_STATE, state),
        (vport::SYSTEM_IMAGE_GUID, port.guid),
        (vport::PORT_GUID, port.guid),
        (vport::NODE_GUID, port.guid),
        (vport::CAP_MASK1, port.capabilities.into()),
        (vport::CAP_MASK1_FIELD_SELECT, CHANGEABLE.into()),
        (vport::LID, port.lid.into()),
        (vport::SUBNET_TIMEOUT, 18),
        (vport::SM_LID, MANAGER_LID.into()),
    ] {
        field.set(context, value);
    }
    Ok(())
}

/// Executes MODIFY_HCA_VPORT_CONTEXT, which the driver uses for capabilities only.
///
/// # Errors
/// If something else is to be changed.
pub(super) fn modify_context(
    function: &mut Function,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Status> {
    let context = input.get(cmd::CONTEXT..).ok_or(Status::BadInputLength)?;
    // Capabilities have a mask of their own; this one selects the other fields.
    if vport::FIELD_SELECT.is_set(context) {
        return Err(Status::BadParameter);
    }
    let mask = vport::CAP_MASK1_FIELD_SELECT.get32(context);
    let wanted = vport::CAP_MASK1.get32(context);
    let capabilities = &mut function.port.capabilities;
    *capabilities = *capabilities & !mask | wanted & mask;
    Ok(())
}

/// Answers QUERY_HCA_VPORT_GID. There is one GID.
///
/// # Errors
/// If there is no GID of that index.
pub(super) fn query_gid(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let index = cmd::GID_INDEX.get(input);
    cmd::GIDS_NUM.set(output, 1);
    if index == 0 || index == ALL {
        copy(output, &function.port.gid());
    }
    Ok(())
}

/// Answers QUERY_HCA_VPORT_PKEY. The first entry is the default partition, the others are invalid.
///
/// # Errors
/// None.
pub(super) fn query_pkey(_: &mut Function, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let index = cmd::GID_INDEX.get(input);
    if index == 0 || index == ALL {
        copy(output, &DEFAULT_PKEY);
    }
    Ok(())
}

/// Answers QUERY_VPORT_STATE.
///
/// # Errors
/// None.
pub(super) fn query_state(
    function: &mut Function,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    if let Some(byte) = output.get_mut(0xf) {
        // Wanted to be up, and the state.
        *byte = 0x10 | u8::from(function.port.is_up);
    }
    Ok(())
}

/// Answers MAD_IFC with an empty packet: the port has no agents.
///
/// # Errors
/// None.
pub(super) fn mad(_: &mut Function, _: &[u8], _: &mut [u8]) -> Result<(), Status> {
    Ok(())
}

/// Executes ACCESS_REG, for the registers that the driver reads of an InfiniBand port.
///
/// # Errors
/// If there is no such register.
pub(super) fn access_register(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let register = cmd::REGISTER_ID.get(input);
    let content = output.get_mut(REGISTER..).ok_or(Status::BadParameter)?;
    match register {
        0x5003 => {
            for field in [pmtu::MAX_MTU, pmtu::ADMIN_MTU, pmtu::OPER_MTU] {
                field.set(content, 4096);
            }
        }
        0x5004 => link(content),
        // Lanes, administration, counters, pauses, buffers, error correction: nothing to tell.
        0x5002 | 0x5006..=0x5008 | 0x500b | 0x500c | 0x5023 => {}
        0x500f => {
            pvlc::VL_HW_CAP.set(content, 4);
            pvlc::VL_OPERATIONAL.set(content, 4);
        }
        0x6001 => {
            let name = format!("software ConnectX {}", function.port.lid);
            for (to, from) in content.iter_mut().zip(name.bytes()) {
                *to = from;
            }
        }
        _ => {
            function
                .report
                .trace(|| format!("register {register:#x} is not known to the model"));
            return Err(Status::BadParameter);
        }
    }
    Ok(())
}

/// Four lanes of EDR, or 100 Gbit/s of Ethernet.
fn link(content: &mut [u8]) {
    const FOUR_LANES: u64 = 1 << 1;
    const EDR: u64 = 1 << 5;
    /// 100GBASE-CR4.
    const ETHERNET_100: u64 = 1 << 20;
    for field in [
        ptys::ETH_PROTO_CAPABILITY,
        ptys::ETH_PROTO_ADMIN,
        ptys::ETH_PROTO_OPER,
    ] {
        field.set(content, ETHERNET_100);
    }
    ptys::PROTO_MASK.set(content, 0b101);
    ptys::IB_LINK_WIDTH_CAPABILITY.set(content, FOUR_LANES);
    ptys::IB_LINK_WIDTH_OPER.set(content, FOUR_LANES);
    ptys::IB_PROTO_CAPABILITY.set(content, EDR);
    ptys::IB_PROTO_OPER.set(content, EDR);
}

/// Puts bytes behind the header.
fn copy(output: &mut [u8], bytes: &[u8]) {
    for (to, from) in output.iter_mut().skip(cmd::CONTEXT).zip(bytes) {
        *to = *from;
    }
}
