//! Enhanced connection establishment: options that both ends of a connection have to use.
//!
//! Creating a queue pair tells what queue pairs of its type can have; each command that changes its state
//! tells what it has from then on: of the options that were asked for those that it can have. What the
//! options do is not modelled.

use crate::object::qp::Transport;

/// The version of the options, in the highest bits, which a request names to be understood.
const VERSION: u32 = 0x1000_0000;
const VERSION_MASK: u32 = 0xf000_0000;

/// What queue pairs of that type can have.
pub(crate) const fn supported(transport: Transport) -> u32 {
    match transport {
        Transport::Rc => VERSION | 0b11,
        _ => VERSION | 0b01,
    }
}

/// What a queue pair of that type gets of what is asked for: nothing, if that is of another version.
pub(crate) const fn granted(transport: Transport, asked: u32) -> u32 {
    if asked & VERSION_MASK == VERSION {
        asked & supported(transport)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_not_granted() {
        assert_eq!(granted(Transport::Rc, 0x1000_0000), 0x1000_0000);
        assert_eq!(granted(Transport::Rc, 0x1f00_0006), 0x1000_0002);
        assert_eq!(granted(Transport::Ud, 0x1000_0003), 0x1000_0001);
        assert_eq!(granted(Transport::Rc, 0x2000_0003), 0, "another version");
        assert_eq!(granted(Transport::Rc, 0), 0);
    }
}
