//! Attributes of destructors whose only argument is the handle.

/// Attributes of [`crate::method::pd::DESTROY`].
pub mod destroy_pd {
    ids! { u16, "UVERBS_ATTR_DESTROY_PD_";
        /// Handle of the PD.
        HANDLE = 0;
    }
}

/// Attributes of [`crate::method::xrcd::DESTROY`].
pub mod destroy_xrcd {
    ids! { u16, "UVERBS_ATTR_DESTROY_XRCD_";
        /// Handle of the XRC domain.
        HANDLE = 0;
    }
}

/// Attributes of [`crate::method::ah::DESTROY`].
pub mod destroy_ah {
    ids! { u16, "UVERBS_ATTR_DESTROY_AH_";
        /// Handle of the AH.
        HANDLE = 0;
    }
}
