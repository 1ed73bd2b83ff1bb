//! Stock kernels by series: which suite has which, and what to do when none has it any more.
//!
//! The meta package of a backports suite goes from series to series; the kernels of the series before stay in
//! the suite for a long time. So a kernel is looked for by its own name, and the meta package is asked only
//! if there is none. The last of the kernels that the project is tested on is the newest that a suite has,
//! whatever its series is.
//!
//! On arm64 a kernel has pages of 4 KiB, or of 16 KiB if the name asks for them: `latest-16k`.

use std::fs;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::apt::{Apt, Installed, Wanted};
use super::progress::Progress;
use super::unpack;
use crate::arch::Arch;
use crate::kernel::Kernel;
use crate::store::Store;

/// What a series of kernels is built for, as the names of its packages say it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Flavour {
    arch: Arch,
    /// The end of the packages' names.
    package: &'static str,
    /// What a report adds to the series.
    report: &'static str,
}

const AMD64: Flavour = Flavour {
    arch: Arch::X86_64,
    package: "amd64",
    report: "",
};

const ARM64: Flavour = Flavour {
    arch: Arch::Arm64,
    package: "arm64",
    report: " arm64",
};

const ARM64_16K: Flavour = Flavour {
    arch: Arch::Arm64,
    package: "arm64-16k",
    report: " arm64 16K",
};

impl Flavour {
    /// The flavour that a name asks for, and the rest of the name.
    fn of(arch: Arch, name: &str) -> (Self, &str) {
        match arch {
            Arch::X86_64 => (AMD64, name),
            Arch::Arm64 => match name.strip_suffix(PAGES_16K) {
                Some(series) => (ARM64_16K, series),
                None => (ARM64, name),
            },
        }
    }

    /// Where a kernel of this flavour lies among the kernels of the store.
    fn place(self, series: &str) -> String {
        match self.arch {
            Arch::X86_64 => series.to_owned(),
            Arch::Arm64 => format!("{}-{series}", self.package),
        }
    }
}

/// The end of a name that asks for pages of 16 KiB.
const PAGES_16K: &str = "-16k";

/// A kernel series and the suites that are asked for it, in this order.
#[derive(Clone, Copy)]
struct Series<'a> {
    name: &'a str,
    flavour: Flavour,
    suites: &'static [&'static str],
}

/// The word for the newest kernel that there is.
const LATEST: &str = "latest";

/// The same on arm64, with pages of 16 KiB.
const LATEST_16K: &str = "latest-16k";

/// The suites that are asked for the newest kernel, in this order.
const SUITES_OF_LATEST: [&str; 2] = ["trixie-backports", "trixie"];

/// The series that the project is tested on beside the newest kernel, oldest first.
const SERIES: [Series<'static>; 2] = [
    Series {
        name: "6.1",
        flavour: AMD64,
        suites: &["bookworm"],
    },
    Series {
        name: "6.12",
        flavour: AMD64,
        suites: &["bookworm-backports", "trixie"],
    },
];

/// The suites that are asked for any other series.
const SUITES: [&str; 4] = [
    "trixie-backports",
    "trixie",
    "bookworm-backports",
    "bookworm",
];

/// What a kernel's package depends on to be installed, which a guest has no use for.
const SURROUNDINGS: [&str; 4] = ["dracut", "initramfs-tools", "kmod", "linux-base"];

/// What the stamp of a fetched kernel says.
#[derive(Debug, Deserialize, Serialize)]
struct Fetched {
    kernel: Kernel,
    package: String,
    version: String,
    /// Set if it is not of the series asked for.
    moved_on: Option<String>,
}

/// The package of one suite that was chosen for a series.
struct Choice {
    apt: Apt,
    suite: &'static str,
    package: String,
    version: String,
}

/// The kernels that a word of the command line means: all that the project is tested on, oldest first, or the
/// one of that name.
pub(crate) fn asked_for(arch: Arch, word: &str) -> Vec<&str> {
    match (arch, word) {
        (Arch::Arm64, "all") => vec![LATEST, LATEST_16K],
        (Arch::X86_64, "all") => {
            let series = SERIES.iter().map(|series| series.name);
            series.chain([LATEST]).collect()
        }
        (_, one) => vec![one],
    }
}

/// Fetches the kernel of a series, or `latest`, the newest that there is; returns at once if it is there.
///
/// # Errors
/// If this is no series, or no suite has it, or it cannot be fetched.
pub(crate) fn ensure(store: &Store, arch: Arch, name: &str, progress: &Progress) -> Result<Kernel> {
    let (flavour, word) = Flavour::of(arch, name);
    let stamp = format!("kernels/{}", flavour.place(word));
    if let Some(fetched) = store.stamp::<Fetched>(&stamp)
        && fetched.kernel.image.is_file()
    {
        if let Some(note) = fetched.moved_on {
            progress.note(&note);
        }
        return Ok(fetched.kernel);
    }
    let fetched = if word == LATEST {
        // It lies where that of its series does, so that it is there once.
        let series = newest_series(store, flavour, progress)?;
        ensure(store, arch, &name.replace(LATEST, &series), progress)?;
        let fetched = store.stamp::<Fetched>(&format!("kernels/{}", flavour.place(&series)));
        fetched.with_context(|| format!("Linux {series} was fetched and is not there"))?
    } else {
        fetch(store, find(flavour, word)?, progress)?
    };
    store.write_stamp(&stamp, &fetched)?;
    progress.note(&format!(
        "Linux {name} is there: {} {}",
        fetched.package, fetched.version
    ));
    if let Some(note) = &fetched.moved_on {
        progress.note(note);
    }
    Ok(fetched.kernel)
}

/// The suites that are asked for a series, in this order.
///
/// # Errors
/// If this is no series.
pub(super) fn suites(arch: Arch, name: &str) -> Result<&'static [&'static str]> {
    let series = series(name);
    Ok(find(Flavour::of(arch, series).0, series)?.suites)
}

/// The series of a kernel by its name in reports, which add what the kernel is for.
pub(super) fn series(name: &str) -> &str {
    name.split_once(' ').map_or(name, |(series, _)| series)
}

/// The series of the newest kernel that the first suite has which has any.
fn newest_series(store: &Store, flavour: Flavour, progress: &Progress) -> Result<String> {
    let mut failures = vec![format!("no kernel: asked {}", SUITES_OF_LATEST.join(", "))];
    for suite in SUITES_OF_LATEST {
        let names = Apt::open(store, flavour.arch, &[suite], progress)
            .and_then(|apt| apt.names("linux-image-"));
        match names {
            Ok(names) => {
                let newest = newest(&names, flavour, |_| true).and_then(series_of);
                if let Some(series) = newest {
                    return Ok(series.to_owned());
                }
            }
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    bail!("{}", failures.join("\n"))
}

fn find(flavour: Flavour, name: &str) -> Result<Series<'_>> {
    if let Some(series) = SERIES.iter().find(|series| series.name == name) {
        return Ok(Series { flavour, ..*series });
    }
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    match name.split_once('.') {
        Some((major, minor)) if is_number(major) && is_number(minor) => Ok(Series {
            name,
            flavour,
            suites: &SUITES,
        }),
        _ => {
            let names = asked_for(flavour.arch, "all").join(", ");
            bail!(
                "no kernel series `{name}`: there are {names}, others that Debian has, such as 7.1, and the path of a \
                 system kernel"
            )
        }
    }
}

fn fetch(store: &Store, series: Series<'_>, progress: &Progress) -> Result<Fetched> {
    let choice = choose(store, series, progress)?;
    let surroundings = SURROUNDINGS.map(str::to_owned).to_vec();
    let parts = parts(&choice.apt, &choice.package)?;
    let wanted = Wanted::new(parts, Installed::These(surroundings));
    let place = series.flavour.place(series.name);
    let downloads = store.path(format!("kernels/{place}-packages"));
    let files = choice.apt.download(&wanted, &downloads, progress)?;
    let root = store.path(format!("kernels/{place}"));
    unpack::all(&files, &root, progress)?;
    fs::remove_dir_all(&downloads).with_context(|| format!("removing {}", downloads.display()))?;
    let of_series = is_of_series(&choice.package, series.name);
    // Reports say what was tested, not what was asked for.
    let name = if of_series {
        series.name
    } else {
        series_of(&choice.package).unwrap_or(&choice.package)
    };
    let kernel = Kernel::in_tree(&format!("{name}{}", series.flavour.report), &root)?;
    let moved_on = (!of_series).then(|| {
        format!(
            "suite {} has no Linux {} any more: taking {}",
            choice.suite, series.name, kernel.release
        )
    });
    Ok(Fetched {
        kernel,
        package: choice.package,
        version: choice.version,
        moved_on,
    })
}

/// The newest kernel of the series in the first suite that has any of it. If none has, what the meta package
/// of the first suite means, for the series that the project is tested on: it is tested on what Debian has
/// come to then.
fn choose(store: &Store, series: Series<'_>, progress: &Progress) -> Result<Choice> {
    let mut suites = Vec::new();
    let mut failures = Vec::new();
    for suite in series.suites {
        let found = Apt::open(store, series.flavour.arch, &[suite], progress).and_then(|apt| {
            let names = apt.names(&format!("linux-image-{}", series.name))?;
            Ok((
                apt,
                newest(&names, series.flavour, |name| {
                    is_of_series(name, series.name)
                })
                .map(str::to_owned),
            ))
        });
        match found {
            Ok((apt, Some(package))) => return choice(apt, suite, &package),
            Ok((apt, None)) => suites.push((apt, suite)),
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    let is_tested = SERIES.iter().any(|known| known.name == series.name);
    let Some((apt, suite)) = suites.into_iter().next().filter(|_| is_tested) else {
        let asked = series.suites.join(", ");
        failures.insert(
            0,
            format!("no kernel of series {}: asked {asked}", series.name),
        );
        bail!("{}", failures.join("\n"));
    };
    let meta_package = format!("linux-image-{}", series.flavour.package);
    let meta = apt
        .offered(&meta_package)?
        .with_context(|| format!("suite {suite} has no {meta_package}"))?;
    let package = meta
        .depends
        .into_iter()
        .find(|name| name.starts_with("linux-image-"));
    let package = package
        .with_context(|| format!("{meta_package} of suite {suite} names no kernel package"))?;
    choice(apt, suite, &package)
}

fn choice(apt: Apt, suite: &'static str, package: &str) -> Result<Choice> {
    let offered = apt
        .offered(package)?
        .with_context(|| format!("suite {suite} names {package} but does not have it"))?;
    Ok(Choice {
        apt,
        suite,
        package: package.to_owned(),
        version: offered.version,
    })
}

/// The newest of these packages that is wanted and an ordinary kernel: not a cloud or real-time one, not
/// unsigned, not a meta package.
fn newest(names: &[String], flavour: Flavour, is_wanted: impl Fn(&str) -> bool) -> Option<&str> {
    let version = |name: &str| -> Option<Vec<u64>> {
        let version = name
            .strip_prefix("linux-image-")?
            .strip_suffix(flavour.package)?
            .strip_suffix('-')?
            .replace("deb", "")
            .replace("bpo", "");
        let parts = version.split(['.', '-', '+', '~']);
        parts.map(|part| part.parse().ok()).collect()
    };
    names
        .iter()
        .filter(|name| is_wanted(name))
        .filter_map(|name| Some((version(name)?, name.as_str())))
        .max()
        .map(|(_, name)| name)
}

/// The packages that hold the kernel: newer ones split it into an image, its modules, and the list of
/// built-in ones.
fn parts(apt: &Apt, package: &str) -> Result<Vec<String>> {
    let offered = apt
        .offered(package)?
        .with_context(|| format!("the suite names {package} but does not have it"))?;
    let is_part = |name: &String| {
        ["linux-base-", "linux-binary-", "linux-modules-"]
            .iter()
            .any(|part| name.starts_with(part))
    };
    let parts: Vec<String> = offered.depends.into_iter().filter(is_part).collect();
    Ok(if parts.len() < 2 {
        vec![package.to_owned()]
    } else {
        parts
    })
}

/// Whether a package such as `linux-image-6.12.95+deb12-amd64` belongs to the series `6.12`.
fn is_of_series(package: &str, series: &str) -> bool {
    series_of(package) == Some(series)
}

/// The series of a kernel's package: `6.12` for `linux-image-6.12.95+deb12-amd64`.
fn series_of(package: &str) -> Option<&str> {
    let version = package.strip_prefix("linux-image-")?;
    let minor = version.find('.')? + 1;
    let digits = version[minor..].bytes().take_while(u8::is_ascii_digit);
    let end = minor + digits.count();
    version.get(..end).filter(|_| end > minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_compared_by_whole_numbers() {
        assert!(is_of_series("linux-image-6.1.0-50-amd64", "6.1"));
        assert!(is_of_series("linux-image-6.12.95+deb12-amd64", "6.12"));
        assert!(!is_of_series("linux-image-6.12.95+deb12-amd64", "6.1"));
        assert!(!is_of_series("linux-image-7.3.1+deb13-amd64", "7.2"));
    }

    #[test]
    fn the_newest_ordinary_kernel_of_a_series_is_taken() {
        let names = [
            "linux-image-7.2.9+deb13-amd64",
            "linux-image-7.2.12+deb13-cloud-amd64",
            "linux-image-7.2.12+deb13-rt-amd64",
            "linux-image-7.2.12+deb13-amd64-unsigned",
            "linux-image-7.2.11+deb13-amd64",
            "linux-image-7.20.1+deb13-amd64",
            "linux-image-7.3.4+deb13-amd64",
        ]
        .map(str::to_owned);
        let of_series = |series| newest(&names, AMD64, |name| is_of_series(name, series));
        assert_eq!(of_series("7.2"), Some("linux-image-7.2.11+deb13-amd64"));
        assert_eq!(of_series("7.1"), None);
        let old = [
            "linux-image-6.1.0-9-amd64".to_owned(),
            "linux-image-6.1.0-50-amd64".to_owned(),
        ];
        assert_eq!(
            newest(&old, AMD64, |_| true),
            Some("linux-image-6.1.0-50-amd64")
        );
    }

    #[test]
    fn the_newest_of_all_is_of_the_newest_series() {
        let names = [
            "linux-image-7.2.12+deb13-amd64",
            "linux-image-7.10.1+deb13-amd64",
            "linux-image-7.10.2+deb13-rt-amd64",
            "linux-image-7.3.4+deb13-amd64",
            "linux-image-amd64",
            "linux-image-rt-amd64",
        ]
        .map(str::to_owned);
        let newest = newest(&names, AMD64, |_| true);
        assert_eq!(newest, Some("linux-image-7.10.1+deb13-amd64"));
        assert_eq!(newest.and_then(series_of), Some("7.10"));
        assert_eq!(series_of("linux-image-amd64"), None);
    }

    #[test]
    fn a_kernel_of_arm64_is_told_by_its_pages() {
        let names = [
            "linux-image-7.3.4+deb13-arm64",
            "linux-image-7.3.4+deb13-arm64-16k",
            "linux-image-7.4.1+deb13-rt-arm64",
            "linux-image-7.4.1+deb13-arm64-16k-unsigned",
        ]
        .map(str::to_owned);
        assert_eq!(newest(&names, ARM64, |_| true), Some(names[0].as_str()));
        assert_eq!(newest(&names, ARM64_16K, |_| true), Some(names[1].as_str()));
        assert_eq!(asked_for(Arch::Arm64, "all"), ["latest", "latest-16k"]);
        assert_eq!(Flavour::of(Arch::Arm64, "6.12-16k"), (ARM64_16K, "6.12"));
        assert_eq!(ARM64_16K.place("7.3"), "arm64-16k-7.3");
        assert_eq!(AMD64.place("7.3"), "7.3");
    }

    #[test]
    fn latest_is_the_last_of_all_and_what_is_no_series_is_refused() {
        assert_eq!(asked_for(Arch::X86_64, "all"), ["6.1", "6.12", "latest"]);
        assert_eq!(asked_for(Arch::X86_64, "7.2"), ["7.2"]);
        assert_eq!(
            find(AMD64, "5.10").map(|series| series.name).ok(),
            Some("5.10")
        );
        let error = find(AMD64, "newest")
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(error.contains("6.1, 6.12, latest"), "{error}");
    }
}
