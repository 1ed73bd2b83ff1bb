//! An array moves with its owner, so the device would write to where it was.

use uverbs::{Access, Pd};

fn register(pd: &Pd) {
    let _ = pd.register([0u8; 4096], Access::LOCAL_WRITE);
}

fn main() {}
