//! What the function says that it can do, and what the driver has chosen of it (QUERY_HCA_CAP, SET_HCA_CAP).

use crate::command::{ADDRESSES, Status};
use crate::function::Function;
use crate::layout::ethernet::{flow_table, offload, roce};
use crate::layout::{Field, atomic, cmd, hca_cap};
use crate::object::{memic, qp, reserved};
use crate::pages::ADAPTER_PAGE_SHIFT;
use crate::pci::UARS_SIZE;
use crate::port::{Port, PortKind};
use crate::translate::MAX_INDIRECTION;

/// Kinds of capabilities, as in `op_mod` above its lowest bit.
const GENERAL: u64 = 0;
const OFFLOADS: u64 = 1;
const ON_DEMAND: u64 = 2;
const ATOMIC: u64 = 3;
const ROCE: u64 = 4;
const FLOW_TABLE: u64 = 7;
const DEVICE_MEMORY: u64 = 0xf;
const GENERAL_2: u64 = 0x20;

/// Where the capabilities begin in the commands.
const IN_COMMAND: usize = 0x10;

/// Compare-and-swap and fetch-and-add.
const ATOMIC_CS_AND_FA: u64 = 0b11;
/// Operands of 8 bytes.
const ATOMIC_8_BYTES: u64 = 1 << 3;

/// The same length, in the bits about the bus.
const SWAP_8_BYTES: u64 = 1 << 1;

/// Pages of 64 KiB, as the driver tells them.
const LARGEST_UAR_PAGE: u32 = 4;

/// The current capabilities.
#[derive(Debug)]
pub(crate) struct Capabilities {
    general: Vec<u8>,
    atomic: Vec<u8>,
}

impl Capabilities {
    /// What the function has at most, which is also what it starts with.
    pub(crate) fn new(port: &Port) -> Self {
        Self {
            general: general(port),
            atomic: atomics(),
        }
    }

    /// The binary logarithm of the bytes from one UAR to the next: the driver gives each UAR a page of its
    /// own, and has chosen how large its pages are.
    pub(crate) fn log_uar_distance(&self) -> u32 {
        ADAPTER_PAGE_SHIFT
            + hca_cap::LOG_UAR_PAGE_SZ
                .get32(&self.general)
                .min(LARGEST_UAR_PAGE)
    }
}

/// Answers QUERY_HCA_CAP.
///
/// # Errors
/// If the kind of capabilities is one that the model does not have.
pub(crate) fn query(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let op_mod = cmd::OP_MOD.get(input);
    let is_roce = function.port.kind == PortKind::Roce;
    let maximum = Capabilities::new(&function.port);
    let capabilities = if op_mod & 1 == 0 {
        &maximum
    } else {
        &function.objects.capabilities
    };
    let bytes = match op_mod >> 1 {
        GENERAL => &capabilities.general,
        ATOMIC => &capabilities.atomic,
        GENERAL_2 => &structure(&[
            (hca_cap::DP_ORDERING_FORCE, 1),
            (
                hca_cap::LOG_RESERVED_QPN_GRANULARITY,
                reserved::LOG_NUMBERS.into(),
            ),
        ]),
        DEVICE_MEMORY => &structure(&memic::CAPABILITIES),
        // Pages may be missing, but no request waits for one that is.
        ON_DEMAND if function.port.loads_pages => &vec![0; hca_cap::SIZE],
        OFFLOADS if is_roce => &structure(&OF_OFFLOADS),
        ROCE if is_roce => &structure(&OF_ROCE),
        FLOW_TABLE if is_roce => &structure(&OF_FLOW_TABLES),
        _ => return Err(Status::BadParameter),
    };
    for (to, from) in output.iter_mut().skip(IN_COMMAND).zip(bytes) {
        *to = *from;
    }
    Ok(())
}

/// Executes SET_HCA_CAP. For atomics the driver sends one field and nothing else, so the others stay.
///
/// # Errors
/// If the kind of capabilities is one that the model does not have, or the input is too short.
pub(crate) fn set(function: &mut Function, input: &[u8], _output: &mut [u8]) -> Result<(), Status> {
    let wanted = input.get(IN_COMMAND..).ok_or(Status::BadInputLength)?;
    let capabilities = &mut function.objects.capabilities;
    match cmd::OP_MOD.get(input) >> 1 {
        GENERAL => {
            for (to, from) in capabilities.general.iter_mut().zip(wanted) {
                *to = *from;
            }
            // No more than lie in the registers, one on each page of the driver's.
            let uars = UARS_SIZE >> capabilities.log_uar_distance();
            function.objects.uars.end_at(uars as u32);
        }
        ATOMIC => {
            let mode = atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE;
            mode.set(&mut capabilities.atomic, mode.get(wanted));
        }
        _ => return Err(Status::BadParameter),
    }
    Ok(())
}

fn atomics() -> Vec<u8> {
    let mut bytes = vec![0; hca_cap::SIZE];
    atomic::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1.set(&mut bytes, 1);
    atomic::ATOMIC_OPERATIONS.set(&mut bytes, ATOMIC_CS_AND_FA);
    atomic::ATOMIC_SIZE_QP.set(&mut bytes, ATOMIC_8_BYTES);
    atomic::ATOMIC_SIZE_DC.set(&mut bytes, ATOMIC_8_BYTES);
    // On the bus it has this one alone, which verbs do not have: UCX relies on those that verbs have.
    atomic::SWAP_PCI_ATOMIC.set(&mut bytes, SWAP_8_BYTES);
    bytes
}

fn general(port: &Port) -> Vec<u8> {
    let mut bytes = vec![0; hca_cap::SIZE];
    for (field, value) in LIMITS.into_iter().chain(FEATURES.map(|field| (field, 1))) {
        field.set(&mut bytes, value);
    }
    let port_type = match port.kind {
        PortKind::InfiniBand => 0,
        PortKind::Roce => 1,
    };
    if port.kind == PortKind::Roce {
        for (field, value) in OF_ETHERNET {
            field.set(&mut bytes, value);
        }
    }
    hca_cap::PORT_TYPE.set(&mut bytes, port_type);
    let disabled = u64::from(!port.loads_pages);
    hca_cap::UMR_MODIFY_ENTITY_SIZE_DISABLED.set(&mut bytes, disabled);
    // Newer drivers have no dma-bufs without this.
    hca_cap::PG.set(&mut bytes, port.loads_pages.into());
    bytes
}

/// Numbers, most of them binary logarithms.
const LIMITS: [(Field, u64); 44] = [
    (hca_cap::LOG_MAX_SRQ_SZ, 15),
    (hca_cap::LOG_MAX_QP_SZ, 15),
    (hca_cap::LOG_MAX_QP, 17),
    (hca_cap::LOG_MAX_SRQ, 15),
    (hca_cap::LOG_MAX_CQ_SZ, 22),
    (hca_cap::LOG_MAX_CQ, 16),
    (hca_cap::LOG_MAX_EQ_SZ, 22),
    (hca_cap::LOG_MAX_MKEY, 18),
    (hca_cap::LOG_MAX_EQ, 6),
    (hca_cap::MAX_INDIRECTION, MAX_INDIRECTION as u64),
    (hca_cap::LOG_MAX_MRW_SZ, 64),
    (hca_cap::LOG_MAX_BSF_LIST_SIZE, 6),
    (hca_cap::LOG_MAX_KLM_LIST_SIZE, 16),
    // Two that differ, so that whoever takes one for the other is seen.
    (hca_cap::LOG_MAX_RA_REQ_DC, 4),
    (hca_cap::LOG_MAX_RA_RES_DC, 5),
    (hca_cap::LOG_MAX_RA_REQ_QP, 4),
    (hca_cap::LOG_MAX_RA_RES_QP, 4),
    // The number of partition keys as an enumeration: 0 is 128.
    (hca_cap::PKEY_TABLE_SIZE, 0),
    (hca_cap::LOCAL_CA_ACK_DELAY, 16),
    (hca_cap::NUM_PORTS, 1),
    (hca_cap::LOG_MAX_MSG, 30),
    (hca_cap::CQE_VERSION, 1),
    (hca_cap::CMDIF_CHECKSUM, 1),
    // The part of BAR 0 with the UARs, in MiB.
    (hca_cap::UAR_SZ, 4),
    (hca_cap::LOG_PG_SZ, 12),
    (hca_cap::LOG_BF_REG_SIZE, 9),
    (hca_cap::MAX_WQE_SZ_SQ, 1024),
    (hca_cap::MAX_WQE_SZ_SQ_DC, 1024),
    (hca_cap::MAX_WQE_SZ_RQ, 512),
    (hca_cap::MAX_QP_MCG, 240),
    (hca_cap::LOG_MAX_MCG, 10),
    (hca_cap::LOG_MAX_TRANSPORT_DOMAIN, 10),
    (hca_cap::LOG_MAX_PD, 15),
    (hca_cap::LOG_MAX_XRCD, 15),
    (hca_cap::LOG_MAX_RMP, 15),
    (hca_cap::LOG_MAX_WQ_SZ, 20),
    (hca_cap::LOG_MAX_UCTX, 8),
    (hca_cap::LOG_MAX_UMEM, 12),
    (hca_cap::GENERAL_OBJ_TYPES, 1 << reserved::KIND),
    (hca_cap::LOG_MAX_DCI_STREAM_CHANNELS, qp::LOG_MOST_STREAMS),
    (hca_cap::LOG_MAX_DCI_ERRORED_STREAMS, qp::LOG_MOST_FAILURES),
    // Without send queues newer drivers do not try whether writes are combined, and give out no BlueFlame
    // registers.
    (hca_cap::LOG_MAX_SQ, 10),
    // The clock counts nanoseconds.
    (hca_cap::DEVICE_FREQUENCY_KHZ, 1_000_000),
    (hca_cap::NUM_OF_UARS_PER_PAGE, 1),
];

/// What the model has.
const FEATURES: [Field; 30] = [
    // Queue pairs may take packets in any order.
    hca_cap::HCA_CAP_2,
    hca_cap::DP_ORDERING_OOO_ALL_UD,
    hca_cap::DP_ORDERING_OOO_ALL_UC,
    hca_cap::DP_ORDERING_OOO_ALL_RC,
    hca_cap::QP_DATA_IN_ORDER,
    hca_cap::IB_VIRT,
    hca_cap::COMPACT_ADDRESS_VECTOR,
    hca_cap::UMR_INDIRECT_MKEY_DISABLED,
    // A key that stands for no memory.
    hca_cap::DUMP_FILL_MKEY,
    // Keys over parts of one size.
    hca_cap::FIXED_BUFFER_SIZE,
    hca_cap::DEVICE_MEMORY,
    hca_cap::ATOMIC,
    hca_cap::CQ_OI,
    hca_cap::CQ_RESIZE,
    hca_cap::CQ_MODERATION,
    hca_cap::IMAICL,
    hca_cap::SCTR_DATA_CQE,
    hca_cap::ECE_SUPPORT,
    hca_cap::QKV,
    hca_cap::PKV,
    hca_cap::SET_DETH_SQPN,
    // Without this the driver does not bind, and does not say why.
    hca_cap::XRC,
    hca_cap::DCT,
    // Of commands, to reset streams.
    hca_cap::QPC_EXTENSION,
    hca_cap::UD,
    hca_cap::UC,
    hca_cap::RC,
    hca_cap::BASIC_CYCLIC_RCV_WQE,
    hca_cap::BF,
    hca_cap::DRIVER_VERSION,
];

/// What an Ethernet port has besides.
const OF_ETHERNET: [(Field, u64); 18] = [
    (hca_cap::IB_VIRT, 0),
    (hca_cap::ETH_NET_OFFLOADS, 1),
    (hca_cap::ROCE, 1),
    (hca_cap::NIC_FLOW_TABLE, 1),
    (hca_cap::LOG_MAX_RQ, 10),
    (hca_cap::LOG_MAX_TIR, 10),
    (hca_cap::LOG_MAX_TIS, 10),
    (hca_cap::LOG_MAX_RQT, 10),
    (hca_cap::LOG_MAX_RQT_SIZE, 8),
    (hca_cap::LOG_MAX_TIS_PER_SQ, 4),
    (hca_cap::MAX_TC, 1),
    (hca_cap::LOG_MAX_VLAN_LIST, 7),
    (hca_cap::LOG_MAX_CURRENT_MC_LIST, 7),
    (hca_cap::LOG_MAX_CURRENT_UC_LIST, 7),
    // Queue pairs have a physical port, and may change it and their UDP source port.
    (hca_cap::RTS2RTS_QP_UDP_SPORT, 1),
    (hca_cap::RTS2RTS_LAG_TX_PORT_AFFINITY, 1),
    (hca_cap::LAG_TX_PORT_AFFINITY, 1),
    (hca_cap::NUM_LAG_PORTS, 2),
];

/// The driver insists on these for a netdev.
const OF_OFFLOADS: [(Field, u64); 6] = [
    (offload::CSUM_CAP, 1),
    (offload::VLAN_CAP, 1),
    (offload::SELF_LB_EN_MODIFIABLE, 1),
    (offload::MAX_LSO_CAP, 16),
    // Headers need not be inline.
    (offload::WQE_INLINE_MODE, 2),
    (offload::RSS_IND_TBL_CAP, 8),
];

/// RoCE versions 1 and 2, over IPv4 and IPv6.
const OF_ROCE: [(Field, u64); 6] = [
    (roce::L3_TYPE, 0b110),
    (roce::ROCE_VERSION, 0b101),
    (roce::R_ROCE_DEST_UDP_PORT, 4791),
    (roce::R_ROCE_MIN_SRC_UDP_PORT, 0xc000),
    (roce::R_ROCE_MAX_SRC_UDP_PORT, 0xffff),
    (roce::ROCE_ADDRESS_TABLE_SIZE, ADDRESSES as u64),
];

/// Tables for received frames.
const OF_FLOW_TABLES: [(Field, u64); 10] = [
    (flow_table::FT_SUPPORT, 1),
    (flow_table::FLOW_MODIFY_EN, 1),
    (flow_table::MODIFY_ROOT, 1),
    (flow_table::IDENTIFIED_MISS_TABLE_MODE, 1),
    (flow_table::FLOW_TABLE_MODIFY, 1),
    (flow_table::LOG_MAX_FT_SIZE, 16),
    (flow_table::MAX_FT_LEVEL, 64),
    (flow_table::LOG_MAX_FT_NUM, 8),
    (flow_table::LOG_MAX_DESTINATION, 8),
    (flow_table::LOG_MAX_FLOW, 8),
];

fn structure(fields: &[(Field, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; hca_cap::SIZE];
    for (field, value) in fields {
        field.set(&mut bytes, *value);
    }
    bytes
}
