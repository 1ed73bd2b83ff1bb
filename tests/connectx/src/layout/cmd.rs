//! Headers of commands, and the small fields of those whose input or output has no structure of its own.

use super::Field;

pub(crate) const OPCODE: Field = Field::new(0x0, 16);
/// The context of the user whose command it is; 0 for the driver's own.
pub(crate) const UID: Field = Field::new(0x10, 16);
pub(crate) const OP_MOD: Field = Field::new(0x30, 16);
pub(crate) const STATUS: Field = Field::new(0x0, 8);
pub(crate) const SYNDROME: Field = Field::new(0x20, 32);

/// The number of an object, where most commands have it in input and output.
pub(crate) const OBJECT: Field = Field::new(0x48, 24);
/// Whether a command has more of a queue pair's context than that, where it begins, and a stream in it.
pub(crate) const QPC_EXT: Field = Field::new(0x40, 1);
pub(crate) const QPC_DATA_EXT_END: usize = 0x1d0;
pub(crate) const DCI_STREAM_CHANNEL_ID: Field = Field::new(0x880 + 0x10, 16);
/// Of an object that has no commands of its own: its kind, its number, and how many it stands for.
pub(crate) const OBJ_TYPE: Field = Field::new(0x30, 16);
pub(crate) const OBJ_ID: Field = Field::new(0x40, 32);
pub(crate) const LOG_OBJ_RANGE: Field = Field::new(0x63, 5);
/// The event queue's number, and that of a counter set.
pub(crate) const OBJECT_8: Field = Field::new(0x58, 8);

pub(crate) const CURRENT_ISSI: Field = Field::new(0x50, 16);
pub(crate) const SUPPORTED_ISSI_DW0: Field = Field::new(0x360, 32);
pub(crate) const NUM_PAGES: Field = Field::new(0x60, 32);
pub(crate) const INPUT_NUM_ENTRIES: Field = Field::new(0x60, 32);
pub(crate) const OUTPUT_NUM_ENTRIES: Field = Field::new(0x40, 32);
pub(crate) const DUMP_FILL_MKEY: Field = Field::new(0x40, 32);
pub(crate) const RESD_LKEY: Field = Field::new(0x60, 32);
pub(crate) const REGISTER_ID: Field = Field::new(0x50, 16);
/// Set if the pages of a new key say themselves whether they may be used.
pub(crate) const PG_ACCESS: Field = Field::new(0x60, 1);
pub(crate) const IEEE_VENDOR_ID: Field = Field::new(0x148, 24);
pub(crate) const EVENT_BITMASK: Field = Field::new(0x2c0, 64);
pub(crate) const MODIFY_CQ_FIELD_SELECT: Field = Field::new(0x60, 32);
pub(crate) const OPT_PARAM_MASK: Field = Field::new(0x80, 32);
/// The connection's options, in the input of commands that make and change queue pairs.
pub(crate) const ECE_ASKED: Field = Field::new(0xa0, 32);
/// The same in their output.
pub(crate) const ECE_GRANTED: Field = Field::new(0x60, 32);
/// The mask of RTS2RTS_QP that goes on where the first ends.
pub(crate) const OPT_PARAM_MASK_95_32: Field = Field::new(0x840, 64);
/// The ports that packets leave by, in the answer to QUERY_LAG.
pub(crate) const TX_REMAP_AFFINITY_2: Field = Field::new(0x74, 4);
pub(crate) const TX_REMAP_AFFINITY_1: Field = Field::new(0x7c, 4);
/// Of MODIFY_RMP: the state that the pool is in, and what is to be changed.
pub(crate) const RMP_STATE: Field = Field::new(0x40, 4);
pub(crate) const RMP_BITMASK: Field = Field::new(0x80, 64);
pub(crate) const LWM: Field = Field::new(0x70, 16);
pub(crate) const GID_INDEX: Field = Field::new(0x70, 16);
pub(crate) const GIDS_NUM: Field = Field::new(0x60, 16);
pub(crate) const FLOW_TABLE_ID: Field = Field::new(0xa8, 24);
pub(crate) const FLOW_GROUP_ID: Field = Field::new(0xc0, 32);
pub(crate) const UCTX_UID: Field = Field::new(0x50, 16);

/// Where a completion queue lies in a user's memory.
pub(crate) const CQ_UMEM_OFFSET: Field = Field::new(0x280, 64);
pub(crate) const CQ_UMEM_ID: Field = Field::new(0x2c0, 32);
pub(crate) const CQ_UMEM_VALID: Field = Field::new(0x2e0, 1);
/// Where the rings of a queue pair lie in a user's memory.
pub(crate) const WQ_UMEM_OFFSET: Field = Field::new(0x800, 64);
pub(crate) const WQ_UMEM_ID: Field = Field::new(0x840, 32);
pub(crate) const WQ_UMEM_VALID: Field = Field::new(0x860, 1);
/// How many units of 16 bytes the list has that comes with a memory key.
pub(crate) const TRANSLATIONS_OCTWORD_ACTUAL_SIZE: Field = Field::new(0x300, 32);
/// Set if the pages of a key are those of a user's memory.
pub(crate) const MKEY_UMEM_VALID: Field = Field::new(0x61, 1);

/// Where most contexts begin in a command's input and output.
pub(crate) const CONTEXT: usize = 0x10;
/// Where a queue pair's context begins.
pub(crate) const QP_CONTEXT: usize = 0x18;
/// Where a receive memory pool's context begins.
pub(crate) const RMP_CONTEXT: usize = 0x20;
/// Where the addresses of pages begin in commands that make queues and keys.
pub(crate) const PAS: usize = 0x110;
