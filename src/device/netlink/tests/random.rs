//! Random and mutated answers: an error or a value, never a panic.

use proptest::prelude::*;

use super::*;
use crate::device::netlink::{answers as parse, resources};

proptest! {
    #[test]
    fn random_bytes_never_panic(datagrams: Vec<Vec<u8>>) {
        let script = || Script::new([datagrams.clone()]);
        let _ = Netlink::over(script()).list(|_| false);
        let _ = Netlink::over(script()).chardev(0);
        let _ = Netlink::over(script()).ports(0);
    }

    #[test]
    fn random_attributes_never_panic(payload: Vec<u8>) {
        let _ = parse::device(&payload);
        let _ = parse::chardev(&payload);
        let _ = parse::port(&payload);
    }

    /// Tables of one entry with random attributes, of the kinds that entries have.
    #[test]
    fn random_objects_never_panic(
        attributes in prop::collection::vec(
            (15_u16..100, prop::collection::vec(any::<u8>(), 0..40)),
            0..12,
        ),
    ) {
        let entry: Vec<u8> = attributes
            .iter()
            .flat_map(|(kind, value)| attribute(*kind, value))
            .collect();
        let of = |table, kind| attribute(table, &attribute(kind, &entry));
        let _ = resources::summary(&of(attr::RES_SUMMARY, attr::RES_SUMMARY_ENTRY));
        let _ = resources::pds(&of(attr::RES_PD, attr::RES_PD_ENTRY));
        let _ = resources::mrs(&of(attr::RES_MR, attr::RES_MR_ENTRY));
        let _ = resources::cqs(&of(attr::RES_CQ, attr::RES_CQ_ENTRY));
        let _ = resources::qps(&of(attr::RES_QP, attr::RES_QP_ENTRY));
        let _ = resources::srqs(&of(attr::RES_SRQ, attr::RES_SRQ_ENTRY));
        let _ = resources::contexts(&of(attr::RES_CTX, attr::RES_CTX_ENTRY));
        let _ = resources::qp_counters(&of(attr::STAT_COUNTER, attr::STAT_COUNTER_ENTRY));
        let _ = resources::cm_ids(&of(attr::RES_CM_ID, attr::RES_CM_ID_ENTRY));
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
                let _ = Netlink::over(script()).ports(0);
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
