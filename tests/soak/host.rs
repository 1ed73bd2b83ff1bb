//! What can be tried without a device: that a plan follows from its seed, and that the accounts notice what
//! they are for.

use libtest_mimic::{Failed, Trial};
use uverbs::qp::QpType;

use crate::ledger::{Arrival, Ledger, Message, Sent};
use crate::message::{self, Key};
use crate::plan::{Change, Op, Plan, Request, Step};
use crate::shadow::{Atomic, Shadow, Word};

type Result = std::result::Result<(), Failed>;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        Trial::test("plan::same_seed_same_plan", same_seed_same_plan),
        Trial::test("plan::has_everything", has_everything),
        Trial::test("plan::has_every_change", has_every_change),
        Trial::test("ledger::a_completion_comes_once", a_completion_comes_once),
        Trial::test(
            "ledger::a_completion_is_not_skipped",
            a_completion_is_not_skipped,
        ),
        Trial::test(
            "ledger::a_doubled_message_is_known",
            a_doubled_message_is_known,
        ),
        Trial::test("shadow::a_wrong_byte_is_seen", a_wrong_byte_is_seen),
        Trial::test("shadow::an_atomic_is_done_once", an_atomic_is_done_once),
        Trial::test("message::says_which_it_is", says_which_it_is),
    ]
}

fn ensure(holds: bool, what: &str) -> Result {
    match holds {
        true => Ok(()),
        false => Err(what.into()),
    }
}

fn steps(seed: u64, pair: u16) -> Vec<Step> {
    let mut plan = Plan::new(seed, pair);
    (0..100).map(|_| plan.step()).collect()
}

/// Catches a plan that depends on anything but seed and pair.
fn same_seed_same_plan() -> Result {
    for pair in 0..4 {
        ensure(steps(7, pair) == steps(7, pair), "the same seed")?;
        ensure(steps(7, pair) != steps(8, pair), "another seed")?;
    }
    ensure(steps(7, 0) != steps(7, 4), "another pair")
}

/// Catches a change that no plan has any more.
fn has_every_change() -> Result {
    let changes: Vec<Change> = (0..8)
        .flat_map(|pair| steps(1, pair))
        .filter_map(|step| match step {
            Step::Change { change, .. } => Some(change),
            Step::Traffic(_) => None,
        })
        .collect();
    let has = |is: fn(&Change) -> bool, what| ensure(changes.iter().any(is), what);
    has(|change| matches!(change, Change::Error { .. }), "no errors")?;
    has(|change| matches!(change, Change::Reset { .. }), "no resets")?;
    has(
        |change| matches!(change, Change::Destroy { memory: false, .. }),
        "no ends",
    )?;
    has(
        |change| matches!(change, Change::Destroy { memory: true, .. }),
        "no other memory",
    )
}

/// Catches an operation that no plan has any more.
fn has_everything() -> Result {
    use Op::*;
    let mut ops = std::collections::BTreeSet::new();
    for step in (0..8).flat_map(|pair| steps(1, pair)) {
        let bursts = match step {
            Step::Traffic(bursts) => bursts,
            Step::Change { during, .. } => vec![during],
        };
        let requests = bursts.into_iter().flat_map(|burst| burst.from).flatten();
        ops.extend(requests.map(|request| request.op));
    }
    let all = [
        Send,
        SendImm,
        SendInline,
        SendImmInline,
        SendInv,
        Write,
        WriteInline,
        WriteImm,
        WriteWindow,
        Read,
        FetchAdd,
        CompareSwap,
        Bind,
        LocalInv,
    ];
    ensure(
        all.iter().all(|op| ops.contains(op)),
        "an operation is missing",
    )?;
    let transports = [0, 1, 2, 3].map(|pair| Plan::new(1, pair).transport());
    ensure(
        transports == [QpType::RC, QpType::RC, QpType::UC, QpType::UD],
        "a transport is missing",
    )
}

fn request(signaled: bool) -> Request {
    Request {
        op: Op::Send,
        length: 20,
        signaled,
        cut: 0,
        number: 0,
    }
}

fn sent(serial: u32, signaled: bool) -> Sent {
    Sent {
        serial,
        request: request(signaled),
        slot: 0,
    }
}

/// Catches a ledger that takes a completion twice, or one of a request that was not posted.
fn a_completion_comes_once() -> Result {
    let mut ledger = Ledger::default();
    ledger.sends(sent(1, true));
    ledger.receives(5);
    ensure(ledger.sent(1).is_ok(), "the first time")?;
    ensure(ledger.sent(1).is_err(), "the second time")?;
    ensure(ledger.received(5).is_ok(), "a receive")?;
    ensure(ledger.received(5).is_err(), "the receive once more")?;
    ensure(ledger.outstanding() == (0, 0), "nothing is left")
}

/// Catches a ledger that does not miss a completion: of silent requests none need come, of others each must.
fn a_completion_is_not_skipped() -> Result {
    let mut ledger = Ledger::default();
    for (serial, signaled) in [(1, false), (2, true), (3, true)] {
        ledger.sends(sent(serial, signaled));
    }
    let (silent, this) = ledger.sent(2)?;
    ensure(
        silent == [sent(1, false)] && this == sent(2, true),
        "a silent one before",
    )?;
    ledger.sends(sent(4, true));
    ensure(ledger.sent(4).is_err(), "3 was skipped")?;
    ledger.receives(1);
    ledger.receives(2);
    ensure(ledger.received(2).is_err(), "a receive was skipped")
}

/// Catches a message that is taken for new when it is not, or that nobody sent.
fn a_doubled_message_is_known() -> Result {
    let mut ledger = Ledger::default();
    let key = Key {
        pair: 0,
        side: 1,
        serial: 9,
    };
    let message = Message {
        key,
        request: request(true),
        slot: 0,
    };
    ledger.may_get(message);
    ensure(ledger.arrives(9)? == (message, Arrival::First), "at first")?;
    ensure(ledger.arrives(9)? == (message, Arrival::Again), "once more")?;
    ensure(ledger.arrives(8).is_err(), "one that was not sent")
}

/// Catches memory that is not compared, and a write that counts before it may have been done.
fn a_wrong_byte_is_seen() -> Result {
    let key = Key {
        pair: 0,
        side: 0,
        serial: 1,
    };
    let mut shadow = Shadow::new(8);
    ensure(
        shadow.check(&[0, 0, 1, 0, 0, 0, 0, 0]).is_err(),
        "a byte of nobody",
    )?;
    shadow.may_be_written(key, vec![7; 4]);
    ensure(
        shadow.check(&[7, 0, 7, 0, 0, 0, 0, 0]).is_ok(),
        "written in part",
    )?;
    ensure(
        shadow.check(&[0, 0, 0, 0, 7, 0, 0, 0]).is_err(),
        "beyond the write",
    )?;
    shadow.is_written(key);
    ensure(shadow.check(&[7, 7, 7, 7, 0, 0, 0, 0]).is_ok(), "written")?;
    ensure(
        shadow.check(&[7, 0, 7, 7, 0, 0, 0, 0]).is_err(),
        "not written",
    )
}

/// Catches an atomic that is lost, or done twice.
fn an_atomic_is_done_once() -> Result {
    let mut word = Word::default();
    word.may_be_changed(1, Atomic::Add(5));
    word.may_be_changed(2, Atomic::Add(5));
    word.is_changed(1, 0)?;
    ensure(word.is_changed(2, 10).is_err(), "the first was done twice")?;
    let mut word = Word::default();
    word.may_be_changed(1, Atomic::Add(5));
    ensure(word.settle(10).is_err(), "done twice, and not completed")?;
    let compare = Atomic::Swap {
        compare: 10,
        swap: 3,
    };
    word.may_be_changed(2, compare);
    ensure(word.last() == 3, "swapped")?;
    word.settle(3)?;
    Ok(())
}

/// Catches a message that cannot be told from another.
fn says_which_it_is() -> Result {
    let key = Key {
        pair: 300,
        side: 1,
        serial: u32::MAX,
    };
    let bytes = key.message(100);
    ensure(Key::read(&bytes) == Some((key, 100)), "key and length")?;
    ensure(
        key.message(101)[..100] != bytes[..],
        "the length changes the bytes",
    )?;
    let mut other = bytes.clone();
    other[99] ^= 1;
    ensure(message::check(&other, &bytes).is_err(), "a changed byte")?;
    ensure(key.message(5) == bytes[..5], "short ones are cut")
}
