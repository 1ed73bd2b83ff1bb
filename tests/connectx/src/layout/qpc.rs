//! The context of a queue pair (`qpc`), with its address path (`ads`) in place.

use super::Field;

pub(crate) const STATE: Field = Field::new(0x0, 4);
pub(crate) const LAG_TX_PORT_AFFINITY: Field = Field::new(0x4, 4);
pub(crate) const ST: Field = Field::new(0x8, 8);
pub(crate) const PM_STATE: Field = Field::new(0x13, 2);
pub(crate) const WQ_SIGNATURE: Field = Field::new(0x20, 1);
pub(crate) const DP_ORDERING_FORCE: Field = Field::new(0x27, 1);
pub(crate) const PD: Field = Field::new(0x28, 24);
pub(crate) const MTU: Field = Field::new(0x40, 3);
pub(crate) const LOG_MSG_MAX: Field = Field::new(0x43, 5);
pub(crate) const LOG_RQ_SIZE: Field = Field::new(0x49, 4);
pub(crate) const LOG_RQ_STRIDE: Field = Field::new(0x4d, 3);
pub(crate) const NO_SQ: Field = Field::new(0x50, 1);
pub(crate) const LOG_SQ_SIZE: Field = Field::new(0x51, 4);
pub(crate) const DATA_IN_ORDER: Field = Field::new(0x5a, 1);
pub(crate) const COUNTER_SET_ID: Field = Field::new(0x60, 8);
pub(crate) const UAR_PAGE: Field = Field::new(0x68, 24);
pub(crate) const USER_INDEX: Field = Field::new(0x88, 24);
pub(crate) const LOG_PAGE_SIZE: Field = Field::new(0xa3, 5);
pub(crate) const REMOTE_QPN: Field = Field::new(0xa8, 24);
pub(crate) const LOG_ACK_REQ_FREQ: Field = Field::new(0x380, 4);
pub(crate) const LOG_SRA_MAX: Field = Field::new(0x388, 3);
pub(crate) const RETRY_COUNT: Field = Field::new(0x38d, 3);
pub(crate) const RNR_RETRY: Field = Field::new(0x390, 3);
pub(crate) const NEXT_SEND_PSN: Field = Field::new(0x3c8, 24);
pub(crate) const LOG_NUM_DCI_STREAM_CHANNELS: Field = Field::new(0x3e3, 5);
pub(crate) const LOG_NUM_DCI_ERRORED_STREAMS: Field = Field::new(0x403, 5);
pub(crate) const CQN_SND: Field = Field::new(0x3e8, 24);
pub(crate) const DETH_SQPN: Field = Field::new(0x408, 24);
pub(crate) const LOG_RRA_MAX: Field = Field::new(0x488, 3);
pub(crate) const ATOMIC_MODE: Field = Field::new(0x48c, 4);
pub(crate) const RRE: Field = Field::new(0x490, 1);
pub(crate) const RWE: Field = Field::new(0x491, 1);
pub(crate) const RAE: Field = Field::new(0x492, 1);
pub(crate) const PAGE_OFFSET: Field = Field::new(0x494, 6);
pub(crate) const DP_ORDERING_1: Field = Field::new(0x49c, 1);
pub(crate) const MIN_RNR_NAK: Field = Field::new(0x4a3, 5);
pub(crate) const NEXT_RCV_PSN: Field = Field::new(0x4a8, 24);
pub(crate) const XRCD: Field = Field::new(0x4c8, 24);
pub(crate) const CQN_RCV: Field = Field::new(0x4e8, 24);
pub(crate) const DBR_ADDR: Field = Field::new(0x500, 64);
pub(crate) const Q_KEY: Field = Field::new(0x540, 32);
pub(crate) const RQ_TYPE: Field = Field::new(0x565, 3);
pub(crate) const SRQN_RMPN_XRQN: Field = Field::new(0x568, 24);
pub(crate) const CS_REQ: Field = Field::new(0x630, 8);
pub(crate) const CS_RES: Field = Field::new(0x638, 8);
pub(crate) const DBR_UMEM_VALID: Field = Field::new(0x683, 1);
pub(crate) const DBR_UMEM_ID: Field = Field::new(0x720, 32);

/// Bytes of the whole context.
pub(crate) const SIZE: usize = 0xe8;

/// The primary address path: where it begins, and its fields counted from the start of the context.
pub(crate) mod path {
    use super::Field;

    /// First byte of the path within the context.
    pub(crate) const START: usize = 0x18;
    /// Bytes of a path.
    pub(crate) const SIZE: usize = 0x2c;

    pub(crate) const PKEY_INDEX: Field = Field::new(0x10, 16).within(START);
    pub(crate) const RLID: Field = Field::new(0x30, 16).within(START);
    pub(crate) const ACK_TIMEOUT: Field = Field::new(0x40, 5).within(START);
    pub(crate) const SRC_ADDR_INDEX: Field = Field::new(0x48, 8).within(START);
    /// The two halves of the peer's GID.
    pub(crate) const RGID: [Field; 2] = [
        Field::new(0x80, 64).within(START),
        Field::new(0xc0, 64).within(START),
    ];
    pub(crate) const UDP_SPORT: Field = Field::new(0x110, 16).within(START);
    pub(crate) const RMAC: Field = Field::new(0x130, 48).within(START);
    pub(crate) const SL: Field = Field::new(0x124, 4).within(START);
    pub(crate) const VHCA_PORT_NUM: Field = Field::new(0x128, 8).within(START);
}
