//! Where the two differ by right, and why. What is not said here fails the test, and what is said in vain
//! fails it too.

use crate::list::Kind;
use crate::tapped::{Entry, WRAPS};

/// A difference that is as it should be.
#[derive(Debug)]
pub(crate) struct Difference {
    /// The lists that have it.
    of: &'static [Kind],
    /// On ports of this kind only (RoCE?); on both if it is not said.
    roce: Option<bool>,
    /// What requests have it: those in whose words this is.
    what: &'static str,
    /// The field, or all whose names begin so.
    field: &'static str,
    /// Whether it is this one.
    is_it: fn(ours: &str, theirs: &str) -> bool,
    why: &'static str,
}

const ALL: &[Kind] = &[Kind::Rc, Kind::Uc, Kind::Ud];

const TABLE: &[Difference] = &[
    Difference {
        of: ALL,
        roce: None,
        what: "INLINE",
        field: "inline.padding",
        is_it: |_, _| true,
        why: "behind the bytes lies what the ring or the space for wrapped requests had there; nobody looks at it",
    },
    Difference {
        of: &[Kind::Rc, Kind::Uc, Kind::Shared],
        roce: None,
        what: "SEND",
        field: "copied",
        is_it: |ours, theirs| ours == "56" && theirs == "0",
        why: "a request that is a control segment alone is copied to the register too; libmlx5 makes an exception of it",
    },
    Difference {
        of: &[Kind::Keys],
        roce: None,
        what: "Raw",
        field: "copied",
        is_it: |ours, theirs| ours == "56" && theirs == "0",
        why: "as before",
    },
    Difference {
        of: &[Kind::Keys],
        roce: None,
        what: "Gather",
        field: "ctrl.fm_ce_se",
        is_it: |ours, theirs| flags(ours) == flags(theirs).map(|flags| flags | SMALL_FENCE),
        why: "behind a request of the program's own the next one waits for the change of a key before it; libmlx5 forgets \
              that with the program's request",
    },
    Difference {
        of: ALL,
        roce: None,
        what: WRAPS,
        field: "copied",
        is_it: |ours, theirs| ours == "0" && theirs != "0",
        why: "a request that goes on at the start of its ring is not copied: the device fetches it",
    },
    Difference {
        of: &[Kind::Rc],
        roce: None,
        what: "FETCH_AND_ADD",
        field: "atomic.compare",
        is_it: |ours, _| ours == "0x0",
        why: "nothing is compared; libmlx5 leaves there what the ring had",
    },
    Difference {
        of: &[Kind::Rc],
        roce: None,
        what: "LOCAL_INV",
        field: "mkey.tag",
        is_it: |ours, theirs| ours != "0x00" && theirs == "0x00",
        why: "the key keeps its low byte, so that the window can be bound again by the key that is known of it",
    },
    Difference {
        of: &[Kind::Ud],
        roce: Some(true),
        what: "to address 2",
        field: "av.rlid",
        is_it: |ours, theirs| [ours, theirs].iter().all(|port| is_source_port(port)),
        why: "without a flow label any UDP port will do: here one for each handle, in libmlx5 a random one",
    },
    Difference {
        of: &[Kind::Shared],
        roce: None,
        what: ", 0, ",
        field: "data[",
        is_it: |_, _| true,
        why: "a slice without bytes is left out: the device takes the length 0 for 2 GiB. libmlx5 leaves it out of requests of \
              a queue pair's own queue, but not of those of a shared one",
    },
    Difference {
        of: &[Kind::Shared],
        roce: None,
        what: ", 0, ",
        field: "old[",
        is_it: |_, _| true,
        why: "as before: the slices behind it are one place further to the front",
    },
];

/// The bit of a control segment that has a request wait for a change of a memory key.
const SMALL_FENCE: u8 = 0x20;

/// The flags of a control segment.
fn flags(text: &str) -> Option<u8> {
    u8::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Whether it is a port that RoCE sends from.
fn is_source_port(text: &str) -> bool {
    let digits = text.strip_prefix("0x");
    digits.and_then(|digits| u16::from_str_radix(digits, 16).ok()) >= Some(0xc000)
}

/// The differences of two lists of entries that nobody has explained, in words, and the explanations that
/// were of no use.
pub(crate) fn unexplained(kind: Kind, roce: bool, lists: &[(&[Entry], &[Entry])]) -> Vec<String> {
    let table: Vec<&Difference> = TABLE
        .iter()
        .filter(|difference| {
            difference.of.contains(&kind) && difference.roce.is_none_or(|on| on == roce)
        })
        .collect();
    let mut used = vec![false; table.len()];
    let mut found = Vec::new();
    for (ours, theirs) in lists {
        if ours.len() != theirs.len() {
            found.push(format!(
                "{} entries, libmlx5 has {}",
                ours.len(),
                theirs.len()
            ));
        }
        for (ours, theirs) in ours.iter().zip(*theirs) {
            for (field, ours_has, theirs_has) in differing(ours, theirs) {
                let known = table.iter().position(|difference| {
                    field.starts_with(difference.field)
                        && ours.what.contains(difference.what)
                        && (difference.is_it)(ours_has, theirs_has)
                });
                match known {
                    Some(index) => used[index] = true,
                    None => found.push(format!(
                        "{}: {field} is {ours_has}, libmlx5 has {theirs_has}",
                        ours.what
                    )),
                }
            }
        }
    }
    let vain = table.iter().zip(used).filter(|(_, used)| !used);
    found.extend(vain.map(|(difference, _)| {
        format!(
            "no longer so: {} of {:?} differs, since {}",
            difference.field, difference.what, difference.why
        )
    }));
    found
}

/// The fields that are not the same.
fn differing<'a>(ours: &'a Entry, theirs: &'a Entry) -> Vec<(&'a str, &'a str, &'a str)> {
    let value = |entry: &'a Entry, name: &str| {
        let found = entry.fields.iter().find(|(field, _)| field == name);
        found.map_or("absent", |(_, value)| value.as_str())
    };
    let of_ours = ours.fields.iter().map(|(name, _)| name.as_str());
    let of_theirs = theirs.fields.iter().map(|(name, _)| name.as_str());
    let absent = of_theirs.filter(|name| value(ours, name) == "absent");
    of_ours
        .chain(absent)
        .map(|name| (name, value(ours, name), value(theirs, name)))
        .filter(|(_, ours, theirs)| ours != theirs)
        .collect()
}
