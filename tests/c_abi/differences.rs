//! Where the two libraries differ by right in what the C programs tell, and why. What is not said here fails the
//! test.

/// A difference that is as it should be.
struct Difference {
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
        program: "posting",
        check: "bad_opcode_third",
        fact: "",
        is_it: |_, _| true,
        _why: "rxe's provider posts an opcode that there is not, which puts the queue pair into the error state; here the \
              request is refused",
    },
    Difference {
        program: "extended",
        check: "inline_list",
        fact: "written",
        is_it: |ours, theirs| ours == "beforebehind" && theirs.is_empty(),
        _why: "rxe's provider forgets the bytes of a list",
    },
    Difference {
        program: "extended",
        check: "all_at_once",
        fact: "start",
        is_it: |ours, theirs| ours == "ENOENT" && theirs == "0",
        _why: "rxe's provider takes one completion too many from the ring behind the last one",
    },
    Difference {
        program: "extended",
        check: "empty_and_ended",
        fact: "",
        is_it: |ours, _| ["ENOENT", "0"].contains(&ours),
        _why: "as before",
    },
    Difference {
        program: "extended",
        check: "refused_completion_queues",
        fact: "unknown attribute",
        is_it: |ours, theirs| ["EINVAL", "EOPNOTSUPP"].contains(&ours) && theirs == "0",
        _why: "libibverbs does not say why it refuses",
    },
    Difference {
        program: "extended",
        check: "refused_completion_queues",
        fact: "unknown flag",
        is_it: |ours, theirs| ["EINVAL", "EOPNOTSUPP"].contains(&ours) && theirs == "an object",
        _why: "rxe's provider does not look at flags",
    },
    Difference {
        program: "threads",
        check: "one_extended_queue_pair",
        fact: "completed",
        is_it: |ours, _| ours.starts_with("200 "),
        _why: "rxe's provider loses requests when its ring is full in the second phase",
    },
    Difference {
        program: "attributes",
        check: "domains",
        fact: "",
        is_it: |ours, theirs| ours != "nothing" && theirs == "EOPNOTSUPP",
        _why: "parent domains work on soft-RoCE too",
    },
];

/// Whether this difference is as it should be.
pub(crate) fn is_known(program: &str, check: &str, fact: &str, ours: &str, theirs: &str) -> bool {
    TABLE.iter().any(|difference| {
        difference.program == program
            && difference.check == check
            && (difference.fact.is_empty() || difference.fact == fact)
            && (difference.is_it)(ours, theirs)
    })
}
