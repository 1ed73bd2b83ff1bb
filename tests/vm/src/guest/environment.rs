//! The environment that a command gets in the guest: a selection of the caller's, and where it is.

use std::collections::BTreeMap;

use crate::hca::Hca;

/// Variables that go through as they are.
const THROUGH: [&str; 5] = ["PATH", "TERM", "LANG", "USER", "LOGNAME"];

/// Variables that go through if their names begin so.
const THROUGH_PREFIXES: [&str; 4] = ["LC_", "RUST_", "CARGO_", "UVERBS_"];

/// Directories that administrators' programs lie in (`ip`, `rdma`), for callers whose PATH has them not.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Makes the environment for a guest with that kernel and adapter. `VM_GUEST` is 1 there, `VM_KERNEL` the
/// kernel's release, and `VM_HCA` tells the adapter, if there is one.
pub(crate) fn environment(
    release: &str,
    hca: Option<&Hca>,
    extra: &[(String, String)],
) -> BTreeMap<String, String> {
    let hca = hca.map(|hca| ("VM_HCA".to_owned(), hca.to_string()));
    let extra: Vec<_> = hca.into_iter().chain(extra.iter().cloned()).collect();
    select(
        std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        }),
        release,
        &extra,
    )
}

fn select(
    callers: impl Iterator<Item = (String, String)>,
    release: &str,
    extra: &[(String, String)],
) -> BTreeMap<String, String> {
    let goes_through = |name: &str| {
        THROUGH.contains(&name)
            || THROUGH_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix))
    };
    let mut chosen: BTreeMap<String, String> =
        callers.filter(|(name, _)| goes_through(name)).collect();
    let path = chosen.entry("PATH".to_owned()).or_default();
    for directory in SYSTEM_DIRECTORIES {
        if !path.split(':').any(|part| part == directory) {
            path.push_str(if path.is_empty() { "" } else { ":" });
            path.push_str(directory);
        }
    }
    // The file system is read-only but for /tmp, /run and /dev/shm.
    let own = [
        ("HOME", "/tmp"),
        ("TMPDIR", "/tmp"),
        ("VM_GUEST", "1"),
        ("VM_KERNEL", release),
    ];
    chosen.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
    chosen.extend(extra.iter().cloned());
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_goes_through_and_system_directories_are_added() {
        let callers = [
            ("PATH", "/home/me/bin:/usr/bin"),
            ("RUST_BACKTRACE", "1"),
            ("SECRET_TOKEN", "x"),
            ("HOME", "/home/me"),
        ];
        let callers = callers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let chosen = select(
            callers.into_iter(),
            "6.1.0",
            &[("RUST_BACKTRACE".to_owned(), "0".to_owned())],
        );
        assert_eq!(chosen["PATH"], "/home/me/bin:/usr/bin:/usr/sbin:/sbin:/bin");
        assert_eq!(chosen["RUST_BACKTRACE"], "0");
        assert_eq!(chosen["HOME"], "/tmp");
        assert_eq!(chosen["VM_KERNEL"], "6.1.0");
        assert!(!chosen.contains_key("SECRET_TOKEN"));
    }
}
