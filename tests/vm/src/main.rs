//! Boots a stock kernel in QEMU and runs programs of the host in it.
fn main() {}
