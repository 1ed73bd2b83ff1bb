//! Commands of the device itself that the kernel passes on (DEVX): what libmlx5 queries and sets by them.
//!
//! The kernel checks which commands a user may give, and that a queue pair's number is that of the handle
//! (`drivers/infiniband/hw/mlx5/devx.c`). Their formats are those of `include/linux/mlx5/mlx5_ifc.h`.

use uverbs_uapi::handle::CqHandle;
use uverbs_uapi::mlx5::{attr, method, object};
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::refusal::{Answer, Refused};
use crate::command::{Command, CommandFd, Decode, Malformed, Request};
#[cfg(feature = "c-abi")]
use crate::driver::contract::BusAtomics;
use crate::driver::contract::QpName;
use crate::error::{Errno, Result, Subject, Verb};

/// Numbers of commands (`MLX5_CMD_OP_*`).
mod op {
    pub(super) const QUERY_HCA_CAP: u16 = 0x100;
    pub(super) const QUERY_CQ: u16 = 0x402;
    pub(super) const RTS2RTS_QP: u16 = 0x505;
    pub(super) const QUERY_QP: u16 = 0x50b;
    pub(super) const QUERY_LAG: u16 = 0x842;
}

/// The header of every command; the kernel sets the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    opcode: U16,
    uid: U16,
    reserved: U16,
    op_mod: U16,
}

impl Header {
    fn new(opcode: u16, op_mod: u16) -> Self {
        Self {
            opcode: U16::new(opcode),
            op_mod: U16::new(op_mod),
            ..Self::default()
        }
    }
}

/// A command without parameters, or on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
struct Short {
    header: Header,
    number: U32,
    reserved: U32,
}

/// Bytes before the parameters in every answer.
const STATUS: usize = 8;
/// Bytes of the capabilities, and where they begin in the answer.
const CAPABILITIES: usize = 4096;
const CAPABILITIES_AT: usize = 16;
/// Bytes of a queue pair's context, and where it begins in commands and answers.
const CONTEXT: usize = 0xe8;
const CONTEXT_AT: usize = 0x18;

/// Whether bit `number` is set, counted from the first byte's highest.
fn bit(bytes: &[u8], number: usize) -> bool {
    let byte = bytes.get(number / 8).copied().unwrap_or_default();
    byte & (0x80 >> (number % 8)) != 0
}

/// Gives the device a command, and takes its refusal as an error.
pub(super) fn ask<C, T>(fd: &CommandFd, command: &C) -> Result<T>
where
    C: Command<Reply = Answer<T>>,
{
    let answer = fd.execute(command)?;
    answer.map_err(|refused| refused.error(C::VERB, command.subject()))
}

/// Asks what the device can do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryCapabilities;

/// What the device can do about the paths of a queue pair's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ways {
    /// Queue pairs report whether data are written in order.
    pub(super) data_in_order: bool,
    /// Queue pairs for datagrams, UC ones and RC ones may receive out of order.
    pub(super) out_of_order: [bool; 3],
    /// The UDP source port can change in the state RTS.
    pub(super) udp_source_port: bool,
    /// Streams can be reset: commands may have more of a queue pair's context than it has itself.
    pub(super) streams: bool,
    /// The ports that may be bonded.
    pub(super) lag_ports: u8,
    /// Queue pairs have a physical port although nothing is bonded.
    pub(super) lag_affinity: bool,
    /// It can change in the state RTS.
    pub(super) lag_changes: bool,
}

impl Ways {
    /// Reads them from the general capabilities (`cmd_hca_cap`).
    fn read(capabilities: &[u8]) -> Self {
        Self {
            data_in_order: bit(capabilities, 0x62),
            out_of_order: [0x330, 0x331, 0x334].map(|number| bit(capabilities, number)),
            udp_source_port: bit(capabilities, 0x151),
            streams: bit(capabilities, 0x122)
                && capabilities
                    .get(0x58b / 8)
                    .is_some_and(|byte| byte & 0x1f != 0),
            lag_changes: bit(capabilities, 0x152),
            lag_affinity: bit(capabilities, 0x278),
            lag_ports: capabilities.get(0x27c / 8).map_or(0, |byte| byte & 0xf),
        }
    }
}

impl Command for QueryCapabilities {
    type Reply = Answer<Ways>;
    const VERB: Verb = Verb::DevxGeneralCmd;
    const REFUSED_BY_DEVICE: Option<Errno> = Some(Errno::REMOTEIO);

    fn subject(&self) -> Subject {
        Subject::the("device")
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        query_capabilities(request, 0);
        Some(|_, answer| capabilities(answer, Ways::read))
    }
}

/// Asks which atomic operations are atomic on the bus.
#[cfg(feature = "c-abi")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryAtomics;

#[cfg(feature = "c-abi")]
impl QueryAtomics {
    /// Reads them from the capabilities of atomic operations (`atomic_caps`).
    fn read(capabilities: &[u8]) -> BusAtomics {
        let field = |at: usize| match capabilities.get(at..at + 2) {
            Some(&[high, low]) => u16::from_be_bytes([high, low]),
            _ => 0,
        };
        BusAtomics {
            fetch_add: field(0x50),
            swap: field(0x52),
            compare_swap: field(0x54),
        }
    }
}

#[cfg(feature = "c-abi")]
impl Command for QueryAtomics {
    type Reply = Answer<BusAtomics>;
    const VERB: Verb = Verb::DevxGeneralCmd;
    const REFUSED_BY_DEVICE: Option<Errno> = Some(Errno::REMOTEIO);

    fn subject(&self) -> Subject {
        Subject::the("device")
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        query_capabilities(request, 3);
        Some(|_, answer| capabilities(answer, Self::read))
    }
}

/// Queries capabilities of a kind as they are now: 0 for the general ones, 3 for those of atomic operations.
fn query_capabilities(request: &mut Request, kind: u16) {
    let output = CAPABILITIES_AT + CAPABILITIES;
    general(request, op::QUERY_HCA_CAP, kind << 1 | 1, output);
}

/// What `read` makes of the capabilities in an answer.
fn capabilities<T>(
    answer: &Request,
    read: impl FnOnce(&[u8]) -> T,
) -> std::result::Result<Answer<T>, Malformed> {
    let bytes = answer.answer_bytes(attr::devx_other::CMD_OUT)?;
    let capabilities = bytes.get(CAPABILITIES_AT..).unwrap_or_default();
    Ok(Refused::granted(bytes).map(|_| read(capabilities)))
}

fn general(request: &mut Request, opcode: u16, op_mod: u16, output: usize) {
    let command = Short {
        header: Header::new(opcode, op_mod),
        number: U32::ZERO,
        reserved: U32::ZERO,
    };
    request
        .method(object::DEVX, method::devx::OTHER)
        .input(attr::devx_other::CMD_IN, &command)
        .output(attr::devx_other::CMD_OUT, output);
}

/// Queries how the ports are bonded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryLag;

/// How the ports are bonded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lag {
    /// Whether they are bonded.
    pub(super) bonded: bool,
    /// The ports by which packets for the first and the second port leave.
    pub(super) active: [u8; 2],
}

impl Command for QueryLag {
    type Reply = Answer<Lag>;
    const VERB: Verb = Verb::DevxGeneralCmd;
    const REFUSED_BY_DEVICE: Option<Errno> = Some(Errno::REMOTEIO);

    fn subject(&self) -> Subject {
        Subject::the("device")
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        general(request, op::QUERY_LAG, 0, STATUS + 8);
        Some(|_, answer| {
            let bytes: [u8; STATUS + 8] = answer.answer(attr::devx_other::CMD_OUT)?;
            let [.., state, _, _, second, first] = bytes;
            Ok(Refused::granted(&bytes).map(|_| Lag {
                bonded: state & 7 != 0,
                active: [first & 0xf, second & 0xf],
            }))
        })
    }
}

/// Queries a queue pair's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryQp(pub(super) QpName);

/// The fields of a queue pair's context that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QpContext {
    pub(super) data_in_order: bool,
    /// 0 if it was given none.
    pub(super) lag_port: u8,
}

impl Command for QueryQp {
    type Reply = Answer<QpContext>;
    const VERB: Verb = Verb::DevxQpQuery;
    const REFUSED_BY_DEVICE: Option<Errno> = Some(Errno::REMOTEIO);

    fn subject(&self) -> Subject {
        Subject::numbered("QP", self.0.qpn.into())
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::devx_obj_query as id;
        let command = Short {
            header: Header::new(op::QUERY_QP, 0),
            number: U32::new(self.0.qpn),
            reserved: U32::ZERO,
        };
        request
            .method(object::DEVX_OBJ, method::devx_obj::QUERY)
            .handle(id::HANDLE, self.0.handle.0)
            .input(id::CMD_IN, &command)
            .output(id::CMD_OUT, size_of::<ChangeSending>());
        Some(|_, answer| {
            let bytes = answer.answer_bytes(id::CMD_OUT)?;
            let context = bytes.get(CONTEXT_AT..).unwrap_or_default();
            Ok(Refused::granted(bytes).map(|_| QpContext {
                data_in_order: bit(context, 0x5a),
                lag_port: context.first().map_or(0, |byte| byte & 0xf),
            }))
        })
    }
}

/// Queries a completion queue's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryCq {
    pub(super) handle: CqHandle,
    pub(super) cqn: u32,
}

/// The fields of a completion queue's context that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CqContext {
    /// The device writes no more completions: it had no room for one, or could not write it.
    pub(super) has_failed: bool,
    /// How many it has written: the lower 24 bits.
    pub(super) produced: u32,
}

/// The part of the answer that is read (`query_cq_out`): the queue's context begins after the header.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
struct CqAnswer {
    header: [u8; 0x10],
    /// Status (4 bits), and flags.
    status: U32,
    reserved: [u8; 0x28],
    /// Entries that were written (24 bits).
    producer_counter: U32,
}

/// Bytes of the whole answer except a list of pages: a header, the context, and reserved bytes.
const CQ_ANSWER: usize = 0x10 + 0x40 + 0xc0;

impl CqAnswer {
    fn context(self) -> Answer<CqContext> {
        Refused::granted(&self.header).map(|_| CqContext {
            has_failed: self.status.get() >> 28 != 0,
            produced: self.producer_counter.get() & 0xff_ffff,
        })
    }
}

impl Command for QueryCq {
    type Reply = Answer<CqContext>;
    const VERB: Verb = Verb::DevxCqQuery;
    const REFUSED_BY_DEVICE: Option<Errno> = Some(Errno::REMOTEIO);

    fn subject(&self) -> Subject {
        Subject::numbered("CQ", self.handle.0.into())
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::devx_obj_query as id;
        let command = Short {
            header: Header::new(op::QUERY_CQ, 0),
            number: U32::new(self.cqn),
            reserved: U32::ZERO,
        };
        request
            .method(object::DEVX_OBJ, method::devx_obj::QUERY)
            .handle(id::HANDLE, self.handle.0)
            .input(id::CMD_IN, &command)
            .output(id::CMD_OUT, CQ_ANSWER);
        Some(|_, answer| {
            let answer: CqAnswer = answer.answer(id::CMD_OUT)?;
            Ok(answer.context())
        })
    }
}

/// The command that changes a queue pair in the state RTS. The answer with its context has the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromZeros, IntoBytes, Immutable)]
#[repr(C)]
struct ChangeSending {
    header: [u8; 8],
    qpn: U32,
    reserved: U32,
    /// Which parameters change.
    mask: U32,
    reserved_2: U32,
    context: [u8; CONTEXT],
    reserved_3: U64,
    /// More bits of the mask.
    mask_95_32: U64,
}

/// Bytes of the further context that a command may have (`qpc_ext`).
const MORE_CONTEXT: usize = 0xc0;

/// A change of a queue pair in the state RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Another UDP source port.
    UdpSourcePort(u16),
    /// Another physical port.
    LagPort(u8),
    /// A failed stream continues.
    Stream(u16),
}

/// Changes a queue pair in the state RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChangeQp {
    pub(super) qp: QpName,
    pub(super) change: Change,
}

impl ChangeQp {
    /// The command, followed by the further context if that is what changes.
    fn bytes(self) -> Vec<u8> {
        let mut bytes = self.command().as_bytes().to_vec();
        if let Change::Stream(stream) = self.change {
            let mut more = [0; MORE_CONTEXT];
            more[2..4].copy_from_slice(&stream.to_be_bytes());
            bytes.extend(more);
        }
        bytes
    }

    fn command(self) -> ChangeSending {
        /// `MLX5_QPC_OPT_MASK_RTS2RTS_LAG_TX_PORT_AFFINITY`.
        const LAG_PORT: u32 = 1 << 15;
        /// `MLX5_QPC_OPT_MASK_32_UDP_SPORT`.
        const UDP_SOURCE_PORT: u64 = 1 << 2;
        /// `MLX5_QPC_OPT_MASK_32_DCI_STREAM_CHANNEL_ID`.
        const STREAM: u64 = 1 << 0;
        /// The further context follows the command.
        const HAS_MORE: u32 = 1 << 31;
        /// Where the port lies in the context: in the primary path.
        const UDP_SOURCE_PORT_AT: usize = 0x18 + 0x22;
        let mut command = ChangeSending::new_zeroed();
        let header = Header::new(op::RTS2RTS_QP, 0);
        command.header.copy_from_slice(header.as_bytes());
        command.qpn = U32::new(self.qp.qpn);
        match self.change {
            Change::UdpSourcePort(port) => {
                command.mask_95_32 = U64::new(UDP_SOURCE_PORT);
                let place = UDP_SOURCE_PORT_AT..UDP_SOURCE_PORT_AT + 2;
                command.context[place].copy_from_slice(&port.to_be_bytes());
            }
            Change::LagPort(port) => {
                command.mask = U32::new(LAG_PORT);
                command.context[0] = port & 0xf;
            }
            Change::Stream(_) => {
                command.qpn = U32::new(self.qp.qpn | HAS_MORE);
                command.mask_95_32 = U64::new(STREAM);
            }
        }
        command
    }
}

impl Command for ChangeQp {
    type Reply = Answer<()>;
    const VERB: Verb = Verb::DevxQpModify;
    const REFUSED_BY_DEVICE: Option<Errno> = Some(Errno::REMOTEIO);

    fn subject(&self) -> Subject {
        Subject::numbered("QP", self.qp.qpn.into())
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::devx_obj_modify as id;
        request
            .method(object::DEVX_OBJ, method::devx_obj::MODIFY)
            .handle(id::HANDLE, self.qp.handle.0)
            .array(id::CMD_IN, &self.bytes())
            .output(id::CMD_OUT, 2 * STATUS);
        Some(|_, answer| {
            let bytes = answer.answer_bytes(id::CMD_OUT)?;
            Ok(Refused::granted(bytes).map(drop))
        })
    }
}

#[cfg(test)]
mod tests {
    use uverbs_uapi::handle::QpHandle;

    use super::*;

    const QP: QpName = QpName {
        handle: QpHandle(3),
        qpn: 0x12_3456,
    };

    fn bytes(change: Change) -> Vec<u8> {
        let change = ChangeQp { qp: QP, change };
        change.bytes()
    }

    #[test]
    fn a_change_has_one_parameter_at_its_place() {
        let mut expected = vec![0; 0x110];
        expected[..2].copy_from_slice(&[5, 5]);
        expected[9..12].copy_from_slice(&[0x12, 0x34, 0x56]);
        let mut port = expected.clone();
        // The path begins at 0x18 in the context, and the port at bit 0x110 of the path.
        port[0x18 + 0x18 + 0x22..][..2].copy_from_slice(&[0xc0, 0x01]);
        port[0x10f] = 4;
        assert_eq!(bytes(Change::UdpSourcePort(0xc001)), port);
        let mut stream = expected.clone();
        stream[8] = 0x80;
        stream[0x10f] = 1;
        stream.resize(0x1d0, 0);
        stream[0x112..0x114].copy_from_slice(&[1, 7]);
        assert_eq!(bytes(Change::Stream(0x107)), stream);
        expected[0x18] = 2;
        expected[0x12] = 0x80;
        assert_eq!(bytes(Change::LagPort(2)), expected);
    }

    /// Would catch capabilities that are read from other places than where the device has them.
    #[cfg(feature = "c-abi")]
    #[test]
    fn atomic_operations_on_the_bus_are_told_apart() {
        let mut capabilities = [0xff; CAPABILITIES];
        capabilities[0x50..0x56].copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        let expected = BusAtomics {
            fetch_add: 0x102,
            swap: 0x304,
            compare_swap: 0x506,
        };
        assert_eq!(QueryAtomics::read(&capabilities), expected);
        assert_eq!(QueryAtomics::read(&[]), BusAtomics::default());
    }

    #[test]
    fn a_completion_queue_tells_how_far_it_is() {
        let mut bytes = [0; CQ_ANSWER];
        bytes[0x3c..0x40].copy_from_slice(&[0xff, 1, 2, 3]);
        let read = |bytes: &[u8]| CqAnswer::read_from_prefix(bytes).unwrap().0.context();
        let expected = CqContext {
            has_failed: false,
            produced: 0x1_0203,
        };
        assert_eq!(read(&bytes), Ok(expected));
        bytes[0x10] = 0x90;
        assert!(read(&bytes).unwrap().has_failed);
        // Would catch a refusal that is taken for an answer, or loses what the device said.
        (bytes[0], bytes[7]) = (5, 9);
        let refused = read(&bytes).unwrap_err();
        let error = refused.error(QueryCq::VERB, Subject::numbered("CQ", 3));
        let text = error.to_string();
        assert!(text.contains("BAD_RES_ERR, 0x5); syndrome 0x9"), "{text}");
    }

    #[test]
    fn capabilities_are_read_bit_by_bit() {
        let ways = |set: &[(usize, u8)]| {
            let mut bytes = vec![0; CAPABILITIES];
            for (at, value) in set {
                bytes[*at] |= value;
            }
            Ways::read(&bytes)
        };
        assert_eq!(ways(&[]), Ways::default());
        assert_eq!(Ways::read(&[]), Ways::default(), "a short answer");
        assert!(ways(&[(0xc, 0x20)]).data_in_order);
        assert_eq!(ways(&[(0x66, 0x88)]).out_of_order, [true, false, true]);
        assert!(ways(&[(0x2a, 0x40)]).udp_source_port);
        assert!(ways(&[(0x24, 0x20), (0xb1, 4)]).streams);
        assert!(!ways(&[(0x24, 0x20)]).streams && !ways(&[(0xb1, 4)]).streams);
        assert!(ways(&[(0x2a, 0x20)]).lag_changes);
        assert!(ways(&[(0x4f, 0x80)]).lag_affinity);
        assert_eq!(ways(&[(0x4f, 0x82)]).lag_ports, 2);
    }
}
