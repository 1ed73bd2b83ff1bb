//! Memory keys.

use zerocopy::IntoBytes;

use super::{Structure, structure};

structure! {
    /// Creates a memory key. A list of units of 16 bytes follows it ([`CreateMkeyIn::with_list`]).
    CreateMkeyIn = "create_mkey_in", 272 {
        OPCODE: 0x0, 16;
        UID: 0x10, 16;
        OP_MOD: 0x30, 16;
        PG_ACCESS: 0x60, 1;
        MKEY_UMEM_VALID: 0x61, 1;
        /// Units in the list, a multiple of 4.
        TRANSLATIONS_OCTWORD_ACTUAL_SIZE: 0x300, 32;
        [MEMORY_KEY_MKEY_ENTRY: Mkc = 0x80];
    }
    command 0x200 => CreateMkeyOut
}

impl CreateMkeyIn {
    /// The most units that fit into a command, whose bytes are counted in 16 bits.
    pub const MOST_UNITS: usize = ((u16::MAX as usize - size_of::<Self>()) / size_of::<Klm>()) & !3;

    /// The command with a list of parts of other keys, padded to whole blocks of four units. It sets the
    /// number of units, and their room in the context.
    ///
    /// # Panics
    ///
    /// If there are more than [`MOST_UNITS`](Self::MOST_UNITS).
    pub fn with_list(mut self, list: &[Klm]) -> Vec<u8> {
        let units = list.len().next_multiple_of(4);
        assert!(units <= Self::MOST_UNITS, "a list of {units} units");
        self.set(Self::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, units as u64);
        self.inner_mut(Self::MEMORY_KEY_MKEY_ENTRY)
            .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, units as u64);
        let mut command = self.as_bytes().to_vec();
        command.extend_from_slice(list.as_bytes());
        command.resize(size_of::<Self>() + units * size_of::<Klm>(), 0);
        command
    }
}

structure! {
    /// The index of a new memory key, which is the key without its low byte.
    CreateMkeyOut = "create_mkey_out", 16 {
        STATUS: 0x0, 8;
        SYNDROME: 0x20, 32;
        MKEY_INDEX: 0x48, 24;
    }
}

structure! {
    /// Queries the context of a memory key.
    QueryMkeyIn = "query_mkey_in", 16 {
        OPCODE: 0x0, 16;
        OP_MOD: 0x30, 16;
        MKEY_INDEX: 0x48, 24;
        PG_ACCESS: 0x60, 1;
    }
    command 0x201 => QueryMkeyOut
}

structure! {
    /// The context of a memory key.
    QueryMkeyOut = "query_mkey_out", 304 {
        STATUS: 0x0, 8;
        SYNDROME: 0x20, 32;
        [MEMORY_KEY_MKEY_ENTRY: Mkc = 0x80];
    }
}

structure! {
    /// The context of a memory key. The access mode is 0 for bus addresses, 1 for pages, 2 for parts of other
    /// keys, 3 for such parts of one size.
    Mkc = "mkc", 64 {
        FREE: 0x1, 1;
        ACCESS_MODE_4_2: 0x3, 3;
        RELAXED_ORDERING_WRITE: 0xd, 1;
        UMR_EN: 0x10, 1;
        /// Peers may use atomic operations.
        A: 0x11, 1;
        /// Peers may write.
        RW: 0x12, 1;
        /// Peers may read.
        RR: 0x13, 1;
        /// This side may write.
        LW: 0x14, 1;
        /// This side may read.
        LR: 0x15, 1;
        ACCESS_MODE_1_0: 0x16, 2;
        QPN: 0x20, 24;
        MKEY_7_0: 0x38, 8;
        LENGTH64: 0x60, 1;
        BSF_EN: 0x61, 1;
        EN_RINVAL: 0x67, 1;
        PD: 0x68, 24;
        START_ADDR: 0x80, 64;
        LEN: 0xc0, 64;
        BSF_OCTWORD_SIZE: 0x100, 32;
        TRANSLATIONS_OCTWORD_SIZE: 0x1a0, 32;
        RELAXED_ORDERING_READ: 0x1d9, 1;
        /// For parts of one size, the logarithm of that. Older devices know the lower 5 bits.
        LOG_PAGE_SIZE: 0x1da, 6;
    }
}

structure! {
    /// A part of what another key covers (`struct mlx5_klm` of the kernel's `qp.h`).
    Klm = "klm", 16 {
        /// Bytes.
        BCOUNT: 0x0, 32;
        /// The other key.
        KEY: 0x20, 32;
        /// Where the part begins, as an address of that key.
        VA: 0x40, 64;
    }
}
