//! Attributes of the methods of completion counters. Since Linux 7.3.

/// Attributes of [`crate::method::comp_cntr::CREATE`].
pub mod create_comp_cntr {
    ids! { u16, "UVERBS_ATTR_CREATE_COMP_CNTR_";
        /// Answer: handle of the new counter.
        HANDLE = 0;
    }
}

/// Attributes of [`crate::method::comp_cntr::DESTROY`].
pub mod destroy_comp_cntr {
    ids! { u16, "UVERBS_ATTR_DESTROY_COMP_CNTR_";
        /// Handle of the counter.
        HANDLE = 0;
    }
}

/// Attributes of [`crate::method::comp_cntr::MODIFY`].
pub mod modify_comp_cntr {
    ids! { u16, "UVERBS_ATTR_MODIFY_COMP_CNTR_";
        /// Handle of the counter.
        HANDLE = 0;
        /// [`crate::enums::CompCntrEntry`].
        ENTRY = 1;
        /// [`crate::enums::CompCntrModifyOp`].
        OP = 2;
        /// Value to set or to add (`u64`).
        VALUE = 3;
    }
}

/// Attributes of [`crate::method::comp_cntr::READ`].
pub mod read_comp_cntr {
    ids! { u16, "UVERBS_ATTR_READ_COMP_CNTR_";
        /// Handle of the counter.
        HANDLE = 0;
        /// [`crate::enums::CompCntrEntry`].
        ENTRY = 1;
        /// Answer: its value (`u64`).
        RESP_VALUE = 2;
    }
}
