//! Objects that have no commands of their own.

use super::structure;

structure! {
    /// The header of a command that creates an object of a kind, or a set of 2 to this power of them.
    GeneralObjInCmdHdr = "general_obj_in_cmd_hdr", 16 {
        OPCODE: 0x0, 16;
        UID: 0x10, 16;
        OBJ_TYPE: 0x30, 16;
        OBJ_ID: 0x40, 32;
        LOG_OBJ_RANGE: 0x63, 5;
    }
    command 0xa00 => GeneralObjOutCmdHdr
}

structure! {
    /// The number of a new object.
    GeneralObjOutCmdHdr = "general_obj_out_cmd_hdr", 16 {
        STATUS: 0x0, 8;
        SYNDROME: 0x20, 32;
        OBJ_ID: 0x40, 32;
    }
}
