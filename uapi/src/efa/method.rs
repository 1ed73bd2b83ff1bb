//! EFA's own methods.

/// Methods of [`crate::object::MR`].
pub mod mr {
    use crate::ioctl::DRIVER_NS;

    ids! { u16, "EFA_IB_METHOD_MR_";
        /// The interconnects that a region is reached by. Linux 6.12 has it, 6.1 has not.
        QUERY = DRIVER_NS;
    }
}
