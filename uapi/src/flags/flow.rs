//! Flags of flow rules, flow actions and counters.

use bitflags::bitflags;

bitflags! {
    /// How a flow rule works.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FlowAttrFlags: u32 {
        /// Packets continue to later rules.
        const DONT_TRAP = 1 << 1;
        /// Applies to sent packets.
        const EGRESS = 1 << 2;
    }
}

bitflags! {
    /// How an ESP action works (`enum ib_uverbs_flow_action_esp_flags`); a missing bit means the other
    /// choice.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FlowActionEspFlags: u32 {
        /// The device does everything; otherwise only the encryption.
        const FULL_OFFLOAD = 1 << 0;
        /// Transport mode; otherwise tunnel mode.
        const TRANSPORT = 1 << 1;
        /// Encrypts; otherwise decrypts.
        const ENCRYPT = 1 << 2;
        /// The extended sequence number is in a new window.
        const ESN_NEW_WINDOW = 1 << 3;
    }
}

bitflags! {
    /// How to read counters (`enum ib_uverbs_read_counters_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ReadCountersFlags: u32 {
        /// The driver's last values are recent enough.
        const PREFER_CACHED = 1 << 0;
    }
}
