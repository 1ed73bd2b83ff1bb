//! Requests, answers in parts, and everything that can go wrong between the two.

use super::*;

#[test]
fn a_request_is_what_the_kernel_expects() {
    let mut netlink = Netlink::over(Script::new([vec![message(
        GET_CHARDEV,
        0,
        0,
        &rxe_chardev(),
    )]]));
    netlink.chardev(7).unwrap();
    let expected = [
        message(GET_CHARDEV, 1, 1, &[])[4..12].to_vec(),
        0_u32.to_ne_bytes().to_vec(),
        attribute(attr::DEV_INDEX, &7_u32.to_ne_bytes()),
        attribute(attr::CHARDEV_TYPE, b"uverbs\0"),
    ]
    .concat();
    let request = &netlink.0.channel.requests[0];
    assert_eq!(request[..4], (request.len() as u32).to_ne_bytes());
    assert_eq!(request[4..], expected);
}

#[test]
fn a_search_ends_at_what_is_enough_and_other_questions_can_follow() {
    let dump = vec![
        part(&rxe_device(0, "rxe0")),
        part(&rxe_device(1, "rxe1")),
        part(&rxe_device(2, "rxe2")),
    ];
    let chardev = vec![message(GET_CHARDEV, 0, 0, &rxe_chardev())];
    let mut netlink = Netlink::over(Script::new([dump, chardev]));
    let infos = netlink.list(|info| info.name == "rxe1").unwrap();
    assert_eq!(infos.last().map(|info| info.index), Some(Some(1)));
    assert_eq!(infos.len(), 2);
    assert_eq!(netlink.chardev(1).unwrap().unwrap().name, "uverbs0");
}

#[test]
fn a_dump_may_come_in_many_datagrams_or_in_one() {
    let devices: Vec<_> = (0..40)
        .map(|index| part(&rxe_device(index, &format!("rxe{index}"))))
        .collect();
    let names: Vec<_> = (0..40).map(|index| format!("rxe{index}")).collect();
    let in_one = [devices.concat(), done()].concat();
    let in_three = vec![devices[..13].concat(), devices[13..].concat(), done()];
    let each = devices.into_iter().chain([done()]).collect();
    for datagrams in [vec![in_one], in_three, each] {
        assert_eq!(list([datagrams]).unwrap(), names);
    }
}

#[test]
fn no_devices_are_an_empty_list() {
    assert_eq!(list([vec![done()]]).unwrap(), [""; 0]);
}

#[test]
fn what_answers_another_question_is_passed_over() {
    let stale = message(GET, MULTI, 99, &rxe_device(5, "old"));
    let noise = message(NOOP, 0, 0, &[]);
    let datagrams = vec![
        [stale, noise].concat(),
        vec![],
        part(&rxe_device(0, "rxe0")),
        done(),
    ];
    assert_eq!(list([datagrams]).unwrap(), ["rxe0"]);
}

#[test]
fn an_interrupted_dump_is_asked_for_again() {
    let torn = [
        part(&rxe_device(0, "rxe0")),
        message(DONE, MULTI | INTERRUPTED, 0, &[0; 4]),
    ];
    let whole = [part(&rxe_device(1, "rxe1")), done()];
    assert_eq!(list([torn.to_vec(), whole.to_vec()]).unwrap(), ["rxe1"]);
    let text = malformed(list(vec![torn.to_vec(); 100]));
    assert!(text.contains("every time"), "{text}");
}

#[test]
fn an_overrun_is_asked_for_again() {
    let lost = vec![message(OVERRUN, 0, 0, &[]), done()];
    let whole = vec![part(&rxe_device(1, "rxe1")), done()];
    assert_eq!(list([lost, whole]).unwrap(), ["rxe1"]);
}

#[test]
fn a_datagram_that_does_not_fit_is_asked_for_again() {
    let devices: Vec<_> = (0..200)
        .map(|index| part(&rxe_device(index, "rxe0")))
        .collect();
    for end in [
        vec![devices.concat(), done()],
        vec![[devices.concat(), done()].concat()],
    ] {
        assert_eq!(list([end.clone(), end]).unwrap().len(), 200);
    }
}

#[test]
fn a_refusal_is_the_answer() {
    assert_eq!(
        list([vec![refusal(Errno::PERM)]]),
        Err(Failure::Refused(Errno::PERM))
    );
    let late = vec![
        part(&rxe_device(0, "rxe0")),
        message(
            DONE,
            MULTI,
            0,
            &(-Errno::NOMEM.raw_os_error()).to_ne_bytes(),
        ),
    ];
    assert_eq!(list([late]), Err(Failure::Refused(Errno::NOMEM)));
}

#[test]
fn an_answer_that_stops_short_is_malformed() {
    for datagrams in [vec![], vec![part(&rxe_device(0, "rxe0"))]] {
        assert_eq!(malformed(list([datagrams])), "the answer has no end");
    }
}

#[test]
fn nonsense_in_the_frame_is_malformed() {
    let mut long = part(&rxe_device(0, "rxe0"));
    long[0] += 4;
    let mut short = part(&[]);
    short[0] = 15;
    for (datagram, expected) in [
        (long, "longer than its datagram"),
        (short, "shorter than its header"),
        (vec![0; 7], "shorter than its header"),
        (message(GET_CHARDEV, 0, 0, &[]), "another type"),
        (message(ERROR, 0, 0, &[0, 0, 0]), "status is cut off"),
        (
            message(ERROR, 0, 0, &1_i32.to_ne_bytes()),
            "1 is no netlink status",
        ),
        (
            message(ERROR, 0, 0, &i32::MIN.to_ne_bytes()),
            "no netlink status",
        ),
        (
            message(ERROR, 0, 0, &(-4096_i32).to_ne_bytes()),
            "no netlink status",
        ),
    ] {
        let text = malformed(list([vec![datagram, done()]]));
        assert!(text.contains(expected), "{text}");
    }
}
