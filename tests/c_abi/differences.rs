//! Where the two libraries differ by right in what the C programs tell, and why. What is not said here fails
//! the test.

use support::{device, kernel};

/// A difference that is as it should be.
struct Difference {
    /// Soft-RoCE's provider has it, or libmlx5; both if it is not said.
    of_rxe: Option<bool>,
    program: &'static str,
    check: &'static str,
    /// The fact; empty for all of the check.
    fact: &'static str,
    /// Whether it is this one.
    is_it: fn(ours: &str, theirs: &str) -> bool,
    /// For the reader.
    _why: &'static str,
}

const TABLE: &[Difference] = &[
    Difference {
        of_rxe: Some(true),
        program: "posting",
        check: "no_requests",
        fact: "receives",
        is_it: |ours, theirs| ours == "0" && theirs == "EINVAL",
        _why: "an empty list of receive requests is posted, as libmlx5 does it; rxe's provider refuses it",
    },
    Difference {
        of_rxe: Some(true),
        program: "posting",
        check: "bad_opcode_third",
        fact: "",
        is_it: |_, _| true,
        _why: "rxe's provider posts an opcode that there is not, which puts the queue pair into the error state; here the \
              request is refused",
    },
    Difference {
        of_rxe: Some(true),
        program: "posting",
        check: "atomic_write_third",
        fact: "",
        is_it: |_, _| true,
        _why: "rxe's provider posts it without a key, and with a pointer where its 8 bytes should be; here it is refused",
    },
    Difference {
        of_rxe: Some(true),
        program: "posting",
        check: "named_too_early",
        fact: "named",
        is_it: |ours, theirs| ours == "1" && theirs == "0",
        _why: "rxe's provider names no request",
    },
    Difference {
        of_rxe: Some(true),
        program: "posting",
        check: "named_too_early",
        fact: "sent",
        is_it: |_, _| true,
        _why: "with rxe's provider, a request that was refused is in the ring all the same, and is sent later",
    },
    Difference {
        of_rxe: Some(true),
        program: "extended",
        check: "inline_list",
        fact: "written",
        is_it: |ours, theirs| ours == "beforebehind" && theirs.is_empty(),
        _why: "rxe's provider forgets the bytes of a list",
    },
    Difference {
        of_rxe: Some(true),
        program: "extended",
        check: "all_at_once",
        fact: "start",
        is_it: |ours, theirs| ours == "ENOENT" && theirs == "0",
        _why: "rxe's provider takes one completion too many from the ring behind the last one",
    },
    Difference {
        of_rxe: Some(true),
        program: "extended",
        check: "empty_and_ended",
        fact: "",
        is_it: |ours, _| ["ENOENT", "0"].contains(&ours),
        _why: "as before",
    },
    Difference {
        of_rxe: Some(true),
        program: "extended",
        check: "refused_completion_queues",
        fact: "unknown flag",
        is_it: |ours, theirs| ours.starts_with("no object") && theirs == "an object",
        _why: "rxe's provider does not look at flags",
    },
    Difference {
        of_rxe: Some(true),
        program: "attributes",
        check: "queue_pairs",
        fact: "it has",
        is_it: |ours, theirs| ours == theirs.replace("sends 0, receives 0", "sends 1, receives 1"),
        _why: "Linux 6.1 tells other sizes of a queue pair that it is asked about than of one that it creates; here both \
              times they are those of the rings",
    },
    Difference {
        of_rxe: Some(true),
        program: "attributes",
        check: "moderation",
        fact: "",
        is_it: |ours, theirs| ours == "EINVAL" && theirs == "EOPNOTSUPP",
        _why: "that an attribute is not one of moderation is said before anything else",
    },
    Difference {
        of_rxe: Some(true),
        program: "threads",
        check: "one_extended_queue_pair",
        fact: "completed",
        is_it: |ours, _| ours.starts_with("200 "),
        _why: "rxe's provider loses requests when its ring is full in the second phase",
    },
    Difference {
        of_rxe: Some(true),
        program: "threads",
        check: "one_extended_queue_pair",
        fact: "written",
        is_it: |ours, _| ours == "8",
        _why: "as before: where all requests of a thread are lost, so is what it writes",
    },
    Difference {
        of_rxe: None,
        program: "threads",
        check: "reset_while_posting",
        fact: "wrong",
        is_it: |ours, _| ours == "0",
        _why: "libibverbs's providers empty the rings without their locks, and rxe's takes receives in every state",
    },
    Difference {
        of_rxe: None,
        program: "attributes",
        check: "stations",
        fact: "from nowhere",
        is_it: |ours, theirs| ours == "-EINVAL" && theirs == "-EPERM",
        _why: "libibverbs answers -1 here, whatever the reason",
    },
    Difference {
        of_rxe: Some(true),
        program: "extended",
        check: "refused_completion_queues",
        fact: "domain that is no parent",
        is_it: |ours, theirs| ours == "no object, EINVAL" && theirs == "an object",
        _why: "rxe's provider does not look at the domain; libmlx5 refuses it",
    },
    Difference {
        of_rxe: Some(true),
        program: "extended",
        check: "reset_while_posting",
        fact: "completion",
        is_it: |ours, theirs| ours == "3 success" && theirs == "2 success",
        _why: "rxe's provider keeps a request of before the reset, and posts it with the next",
    },
    Difference {
        of_rxe: Some(true),
        program: "lifetime",
        check: "closed_while_connected",
        fact: "",
        is_it: |ours, _| ["0", "transport retry counter exceeded, aaaaaaaa"].contains(&ours),
        _why: "rxe's provider leaves the rings mapped, by which the kernel keeps the file and all that was made through it",
    },
    Difference {
        of_rxe: Some(false),
        program: "lifetime",
        check: "closed_while_connected",
        fact: "",
        is_it: |ours, _| ["0", "transport retry counter exceeded, aaaaaaaa"].contains(&ours),
        _why: "libmlx5 leaves registers of queue pairs mapped, with the same effect",
    },
    Difference {
        of_rxe: Some(false),
        program: "extended",
        check: "refused_completion_queues",
        fact: "VLAN",
        is_it: |ours, theirs| ours == "no object, EOPNOTSUPP" && theirs == "an object",
        _why: "completions do not tell VLANs here",
    },
    Difference {
        of_rxe: Some(false),
        program: "extended",
        check: "refused_completion_queues",
        fact: "tags",
        is_it: |ours, theirs| ours == "no object, EOPNOTSUPP" && theirs == "an object",
        _why: "there is no matching of tags here",
    },
    Difference {
        of_rxe: Some(false),
        program: "domains",
        check: "buffers",
        fact: "",
        is_it: |_, _| true,
        _why: "rdma-core 44 does not have the functions",
    },
    Difference {
        of_rxe: Some(false),
        program: "dm",
        check: "exported",
        fact: "export",
        is_it: |ours, theirs| {
            let has = kernel() >= (7, 0);
            theirs == "no function" && ours == if has { "/dmabuf:" } else { "EOPNOTSUPP" }
        },
        _why: "rdma-core 44 does not have the function",
    },
    Difference {
        of_rxe: Some(false),
        program: "extended",
        check: "operations",
        fact: "received",
        is_it: without_grh,
        _why: "libmlx5 reads a flag where an inline payload lies",
    },
    Difference {
        of_rxe: Some(false),
        program: "extended",
        check: "all_at_once",
        fact: "completion",
        is_it: without_grh,
        _why: "as before",
    },
    Difference {
        of_rxe: Some(false),
        program: "extended",
        check: "one_by_one",
        fact: "completion",
        is_it: without_grh,
        _why: "as before",
    },
    Difference {
        of_rxe: Some(false),
        program: "attributes",
        check: "shared_queues",
        fact: "unknown attribute",
        is_it: |ours, theirs| ours == "no object, EOPNOTSUPP" && theirs == "an object",
        _why: "libmlx5 does not look at attributes",
    },
    Difference {
        of_rxe: Some(false),
        program: "attributes",
        check: "rarities",
        fact: "memory of the device",
        is_it: |ours, theirs| ours.ends_with("EOPNOTSUPP") && theirs.ends_with("EINVAL"),
        _why: "there is no memory of the device here",
    },
    Difference {
        of_rxe: Some(false),
        program: "attributes",
        check: "queue_pairs",
        fact: "raw packets",
        is_it: |ours, theirs| ours == "no object, EOPNOTSUPP" && theirs == "an object",
        _why: "there are no raw packets here",
    },
    Difference {
        of_rxe: Some(false),
        program: "attributes",
        check: "queries",
        fact: "it is",
        is_it: without_ethernet,
        _why: "an Ethernet port's flow rules and checksums of raw packets are not here, and not promised",
    },
    Difference {
        of_rxe: Some(false),
        program: "attributes",
        check: "queries",
        fact: "it has",
        is_it: without_ethernet,
        _why: "nor are segmentation and hashes",
    },
];

/// Whether ours is the same but for what only an Ethernet port has: two flags, segmentation and hashes.
fn without_ethernet(ours: &str, theirs: &str) -> bool {
    let without = theirs
        .replace("flags 25", "flags 1")
        .replace("segmentation 65536", "segmentation 0")
        .replace("hashes 256", "hashes 0");
    ours == without
}

/// Whether ours is the same but for the lowest of the flags, which tells of a GRH.
fn without_grh(ours: &str, theirs: &str) -> bool {
    let without = theirs
        .replace("flags 1", "flags 0")
        .replace("flags 3", "flags 2");
    ours == without
}

/// What this says of an object that was refused.
const REFUSED: &str = "no object, ";

/// Whether this difference is as it should be.
pub(crate) fn is_known(program: &str, check: &str, fact: &str, ours: &str, theirs: &str) -> bool {
    // Later versions know more events.
    let newer = program == "lifetime" && check == "words" && theirs.ends_with(" unknown");
    // Some of libibverbs' functions do not say why they refuse.
    let with_reason = ours.starts_with(REFUSED) && theirs == "no object, 0";
    newer
        || with_reason
        || TABLE.iter().any(|difference| {
            difference
                .of_rxe
                .is_none_or(|of_rxe| of_rxe == device().is_rxe())
                && difference.program == program
                && difference.check == check
                && (difference.fact.is_empty() || difference.fact == fact)
                && (difference.is_it)(ours, theirs)
        })
}
