//! EFA's own methods.

/// Methods of [`crate::object::MR`].
pub mod mr {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "EFA_IB_METHOD_MR_";
        /// The interconnects by which the device reaches a region. Linux 6.12 has it, 6.1 does not.
        QUERY = DRIVER_NS;
    }
}
