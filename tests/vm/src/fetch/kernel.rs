//! Stock kernels by series: which suite has which, and what to do when the suite has moved on.

use std::fs;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::apt::{Apt, Installed, Wanted};
use super::progress::Progress;
use super::unpack;
use crate::kernel::Kernel;
use crate::store::Store;

/// A kernel series and the suites that are asked for it, in this order.
struct Series {
    name: &'static str,
    suites: &'static [&'static str],
}

/// The series that the project is tested on, oldest first.
const SERIES: [Series; 3] = [
    Series {
        name: "6.1",
        suites: &["bookworm"],
    },
    Series {
        name: "6.12",
        suites: &["bookworm-backports", "trixie"],
    },
    Series {
        name: "7.2",
        suites: &["trixie-backports"],
    },
];

/// The package that depends on the newest kernel of a suite.
const META_PACKAGE: &str = "linux-image-amd64";

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

/// The kernels that a word of the command line means: all series, oldest first, or the one of that name.
pub(crate) fn asked_for(word: &str) -> Vec<&str> {
    match word {
        "all" => SERIES.iter().map(|series| series.name).collect(),
        one => vec![one],
    }
}

/// Fetches the kernel of a series, or `latest`; returns at once if it is there.
///
/// # Errors
/// If there is no such series, or it cannot be fetched.
pub(crate) fn ensure(store: &Store, name: &str, progress: &Progress) -> Result<Kernel> {
    let series = find(name)?;
    let stamp = format!("kernels/{}", series.name);
    if let Some(fetched) = store.stamp::<Fetched>(&stamp)
        && fetched.kernel.image.is_file()
    {
        if let Some(note) = fetched.moved_on {
            progress.note(&note);
        }
        return Ok(fetched.kernel);
    }
    let fetched = fetch(store, series, progress)?;
    store.write_stamp(&stamp, &fetched)?;
    progress.note(&format!(
        "Linux {} is there: {} {}",
        series.name, fetched.package, fetched.version
    ));
    if let Some(note) = &fetched.moved_on {
        progress.note(note);
    }
    Ok(fetched.kernel)
}

fn find(name: &str) -> Result<&'static Series> {
    let found = if name == "latest" {
        SERIES.last()
    } else {
        SERIES.iter().find(|series| series.name == name)
    };
    found.with_context(|| {
        let names = asked_for("all");
        format!(
            "no kernel series `{name}`: there are {}, latest, and the path of a system kernel",
            names.join(", ")
        )
    })
}

fn fetch(store: &Store, series: &Series, progress: &Progress) -> Result<Fetched> {
    let choice = choose(store, series, progress)?;
    let wanted = Wanted {
        packages: parts(&choice.apt, &choice.package)?,
        installed: Installed::These(SURROUNDINGS.map(str::to_owned).to_vec()),
        prefer: None,
    };
    let downloads = store.path(format!("kernels/{}-packages", series.name));
    let files = choice.apt.download(&wanted, &downloads, progress)?;
    let root = store.path(format!("kernels/{}", series.name));
    unpack::all(&files, &root, progress)?;
    fs::remove_dir_all(&downloads).with_context(|| format!("removing {}", downloads.display()))?;
    let kernel = Kernel::in_tree(series.name, &root)?;
    let moved_on = (!is_of_series(&choice.package, series.name)).then(|| {
        format!(
            "suite {} has moved on: asked for Linux {}, taking {}",
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

/// The first suite that has the series; if none has, the first that has any kernel.
fn choose(store: &Store, series: &Series, progress: &Progress) -> Result<Choice> {
    let mut other = None;
    let mut failures = Vec::new();
    for suite in series.suites {
        match newest(store, suite, progress) {
            Ok(choice) if is_of_series(&choice.package, series.name) => return Ok(choice),
            Ok(choice) => other = other.or(Some(choice)),
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    match other {
        Some(choice) => Ok(choice),
        None => bail!("no kernel for {}: {}", series.name, failures.join("\n")),
    }
}

/// The newest kernel of a suite, by its meta package.
fn newest(store: &Store, suite: &'static str, progress: &Progress) -> Result<Choice> {
    let apt = Apt::open(store, &[suite], progress)?;
    let meta = apt
        .offered(META_PACKAGE)?
        .with_context(|| format!("suite {suite} has no {META_PACKAGE}"))?;
    let package = meta
        .depends
        .into_iter()
        .find(|name| name.starts_with("linux-image-"));
    let package = package
        .with_context(|| format!("{META_PACKAGE} of suite {suite} names no kernel package"))?;
    Ok(Choice {
        apt,
        suite,
        package,
        version: meta.version,
    })
}

/// The packages that hold the kernel: newer ones split it into an image, its modules, and the list of built-in ones.
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

/// Whether a package such as `linux-image-6.12.95+deb12-amd64` is of the series `6.12`.
fn is_of_series(package: &str, series: &str) -> bool {
    let rest = package
        .strip_prefix("linux-image-")
        .and_then(|version| version.strip_prefix(series));
    rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
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
    fn latest_is_the_last_series_and_others_are_refused() {
        assert_eq!(find("latest").map(|series| series.name).ok(), Some("7.2"));
        let error = find("5.10")
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(error.contains("6.1, 6.12, 7.2, latest"), "{error}");
    }
}
