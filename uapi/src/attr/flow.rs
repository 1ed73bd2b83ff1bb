//! Attributes of the methods of flow rules, flow actions and counters.

/// Attributes of [`crate::method::flow::DESTROY`].
pub mod destroy_flow {
    ids! { u16, "UVERBS_ATTR_DESTROY_FLOW_";
        /// Handle of the rule.
        HANDLE = 0;
    }
}

/// Attributes of [`crate::method::flow_action::ESP_CREATE`].
pub mod create_flow_action_esp {
    ids! { u16, "UVERBS_ATTR_";
        /// Answer: handle of the new action.
        HANDLE = 0 => "CREATE_FLOW_ACTION_ESP_HANDLE";
        /// [`crate::types::FlowActionEsp`].
        ATTRS = 1 => "FLOW_ACTION_ESP_ATTRS";
        /// Extended sequence number (`u32`).
        ESN = 2 => "FLOW_ACTION_ESP_ESN";
        /// Key material: [`crate::enums::FlowActionEspKeymat`] (enumeration) with
        /// [`crate::types::FlowActionEspKeymatAesGcm`].
        KEYMAT = 3 => "FLOW_ACTION_ESP_KEYMAT";
        /// Protection against replay: [`crate::enums::FlowActionEspReplay`] (enumeration) with
        /// [`crate::types::FlowActionEspReplayBmp`].
        REPLAY = 4 => "FLOW_ACTION_ESP_REPLAY";
        /// [`crate::types::FlowActionEspEncap`].
        ENCAP = 5 => "FLOW_ACTION_ESP_ENCAP";
    }
}

/// Attributes of [`crate::method::flow_action::ESP_MODIFY`].
pub mod modify_flow_action_esp {
    ids! { u16, "UVERBS_ATTR_MODIFY_FLOW_ACTION_ESP_";
        /// Handle of the action; the other attributes are as in [`super::create_flow_action_esp`].
        HANDLE = 0;
    }
}

/// Attributes of [`crate::method::flow_action::DESTROY`].
pub mod destroy_flow_action {
    ids! { u16, "UVERBS_ATTR_DESTROY_FLOW_ACTION_";
        /// Handle of the action.
        HANDLE = 0;
    }
}

/// Attributes of [`crate::method::counters::CREATE`].
pub mod create_counters {
    ids! { u16, "UVERBS_ATTR_CREATE_COUNTERS_";
        /// Answer: handle of the new set.
        HANDLE = 0;
    }
}

/// Attributes of [`crate::method::counters::DESTROY`].
pub mod destroy_counters {
    ids! { u16, "UVERBS_ATTR_DESTROY_COUNTERS_";
        /// Handle of the set.
        HANDLE = 0;
    }
}

/// Attributes of [`crate::method::counters::READ`].
pub mod read_counters {
    ids! { u16, "UVERBS_ATTR_READ_COUNTERS_";
        /// Handle of the set.
        HANDLE = 0;
        /// Answer: the counters (`u64` each).
        BUFF = 1;
        /// [`crate::flags::ReadCountersFlags`].
        FLAGS = 2;
    }
}
