//! Which user ids identify one user.
//!
//! The kernel reports the user at the other end of a connection as a number of this process's user namespace.
//! All users that the namespace does not map have one number, the overflow user (`from_kuid_munged`). This
//! process's own user may have that number too. So it identifies a user only if every user is mapped, as in
//! the initial namespace. See user_namespaces(7).

/// The kernel's default overflow user.
const USUAL_OVERFLOW_USER: u32 = 65534;

/// Whether a user id from the kernel identifies one user, and is not that of all unmapped users.
pub(super) fn is_certain(user: u32) -> bool {
    if user != overflow_user() {
        return true;
    }
    // Without /proc this is unknown.
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_everybody(&map))
}

fn overflow_user() -> u32 {
    std::fs::read_to_string("/proc/sys/kernel/overflowuid")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(USUAL_OVERFLOW_USER)
}

/// Whether a map contains every user. Its lines have a first id inside, a first id outside and a count.
fn maps_everybody(map: &str) -> bool {
    let counts = map.lines().map(|line| {
        let count = line.split_ascii_whitespace().nth(2)?;
        count.parse::<u64>().ok()
    });
    // The last number of 32 bits is not a user.
    counts.sum::<Option<u64>>() == Some(u32::MAX.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_map_of_all_users_maps_everybody() {
        assert!(maps_everybody("         0          0 4294967295\n"));
        assert!(maps_everybody("0 0 1000\n1000 1000 4294966295\n"));
        for partial in [
            "",
            "0 1000 1\n",
            "65534 1000 1\n",
            "0 100000 65536\n",
            "0 0",
            "nonsense",
        ] {
            assert!(!maps_everybody(partial), "{partial:?}");
        }
    }

    #[test]
    fn other_numbers_are_certain() {
        assert!(is_certain(0));
        assert!(is_certain(1000));
    }
}
