//! Random and mutated answers: an error or a value, never a panic.

use proptest::prelude::*;

use super::*;
use crate::device::netlink::answers as parse;

proptest! {
    #[test]
    fn random_bytes_never_panic(datagrams: Vec<Vec<u8>>) {
        let script = || Script::new([datagrams.clone()]);
        let _ = Netlink::over(script()).list(|_| false);
        let _ = Netlink::over(script()).chardev(0);
        let _ = Netlink::over(script()).ports(0, "rxe0");
    }

    #[test]
    fn random_attributes_never_panic(payload: Vec<u8>) {
        let _ = parse::device(&payload);
        let _ = parse::chardev(&payload);
        let _ = parse::port(&payload);
    }

    #[test]
    fn mutated_answers_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        for (kind, payload) in [
            (GET, rxe_device(0, "rxe0")),
            (GET_CHARDEV, rxe_chardev()),
            (PORT_GET, rxe_port("rxe0", 1)),
        ] {
            let mut datagram = [message(kind, MULTI, 0, &payload).repeat(3), done()].concat();
            for (at, byte) in &flips {
                let at = at.index(datagram.len());
                datagram[at] = *byte;
            }
            let cut = datagram[..cut.index(datagram.len())].to_vec();
            for datagram in [datagram, cut] {
                let script = || Script::new(vec![vec![datagram.clone()]; 2]);
                let _ = Netlink::over(script()).list(|_| false);
                let _ = Netlink::over(script()).chardev(0);
                let _ = Netlink::over(script()).ports(0, "rxe0");
            }
        }
    }

    #[test]
    fn a_cut_dump_is_never_taken_for_a_whole_one(cut in any::<prop::sample::Index>()) {
        let whole = [part(&rxe_device(0, "rxe0")), part(&rxe_device(1, "rxe1")), done()].concat();
        let cut = cut.index(whole.len());
        prop_assert!(list([vec![whole[..cut].to_vec()]]).is_err());
    }
}
