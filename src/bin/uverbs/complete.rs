//! Shell completion of this host's names: devices, their ports, and the indices of their GIDs. The shell
//! calls this program for them, through the script of [`completions`](crate::completions).

use std::collections::BTreeMap;

use clap::CommandFactory;
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};

/// The variable with which a shell requests completion.
pub(crate) const VARIABLE: &str = "UVERBS_COMPLETE";

/// Answers a shell's request, and ends the program then.
pub(crate) fn for_shell() {
    CompleteEnv::with_factory(crate::Cli::command)
        .var(VARIABLE)
        .complete();
}

/// The names of the devices.
pub(crate) fn devices() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let devices = all().into_iter();
        let named = devices.map(|device| {
            let driver = device.driver().map(|driver| driver.to_string().into());
            CompletionCandidate::new(device.name()).help(driver)
        });
        named.collect()
    })
}

/// The numbers of ports, of all devices: the shell does not say for which one.
pub(crate) fn ports() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let ports = all().into_iter().flat_map(|device| {
            let ports = device.ports().unwrap_or_default().into_iter();
            let name = device.name().to_owned();
            ports.map(move |port| (port.number, name.clone()))
        });
        candidates(ports)
    })
}

/// The indices of GIDs, of all devices, as for [`ports`].
pub(crate) fn gids() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let gids = all().into_iter().flat_map(|device| {
            let entries = crate::gids::by_sysfs(&device).unwrap_or_default();
            let name = device.name().to_owned();
            let told = entries.into_iter();
            told.map(move |entry| (entry.index, format!("{name} {}", entry.gid)))
        });
        candidates(gids)
    })
}

/// The devices; none if they cannot be listed, which a shell does not report.
fn all() -> Vec<uverbs::Device> {
    uverbs::devices().unwrap_or_default()
}

/// Numbers, each once, with what it is on each device.
fn candidates(numbers: impl Iterator<Item = (u32, String)>) -> Vec<CompletionCandidate> {
    let mut by_number: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (number, what) in numbers {
        by_number.entry(number).or_default().push(what);
    }
    by_number
        .into_iter()
        .map(|(number, what)| {
            CompletionCandidate::new(number.to_string()).help(Some(what.join(", ").into()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_several_devices_comes_once() {
        let ports = [(1, "a"), (2, "a"), (1, "b")];
        let found = candidates(
            ports
                .map(|(port, name)| (port, name.to_owned()))
                .into_iter(),
        );
        let told: Vec<_> = found
            .iter()
            .map(|it| {
                (
                    it.get_value().to_str(),
                    it.get_help().map(|help| help.to_string()),
                )
            })
            .collect();
        let expected = [
            (Some("1"), Some("a, b".to_owned())),
            (Some("2"), Some("a".to_owned())),
        ];
        assert_eq!(told, expected);
    }
}
