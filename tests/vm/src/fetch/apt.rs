//! apt with a private state: it reads other suites and downloads their packages, and the system is not
//! touched.
//!
//! The machine's configuration stays in force (proxies, time-outs), but for its hooks, pins and directories.
//! Lists are verified against the machine's keyring and packages against the lists, by apt itself.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::statvfs::statvfs;

use super::output::{Archive, Offered, parse_show, parse_uri_line, percent};
use super::progress::Progress;
use super::sources::{self, Kind, Source};
use crate::arch::Arch;
use crate::process;
use crate::store::Store;

/// Which packages apt takes as installed when it resolves dependencies.
#[derive(Clone, Debug)]
pub(crate) enum Installed {
    /// None: everything down to libc is downloaded.
    Nothing,
    /// Those of this machine: only what it lacks is downloaded.
    ThisMachine,
    /// As before, and these in any version that is asked for.
    ThisMachineAnd(Vec<String>),
    /// These, in any version that is asked for: so they are not downloaded.
    These(Vec<String>),
    /// All: the packages alone are downloaded.
    AllElse,
}

/// Packages to download, with all that they need and that is not installed.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Their names.
    pub(crate) packages: Vec<String>,
    /// What counts as installed.
    pub(crate) installed: Installed,
    /// The suite that is preferred where several have a package.
    pub(crate) prefer: Option<&'static str>,
}

impl Wanted {
    /// These packages, whichever suite has them.
    pub(crate) fn new(
        packages: impl IntoIterator<Item = impl Into<String>>,
        installed: Installed,
    ) -> Self {
        Self {
            packages: packages.into_iter().map(Into::into).collect(),
            installed,
            prefer: None,
        }
    }
}

/// The name of an empty package status.
const NOTHING: &str = "nothing-installed";

/// Which packages this machine has.
const STATUS: &str = "/var/lib/dpkg/status";

/// How much room a package needs once it is unpacked, at most, in multiples of its file: modules of Linux
/// 6.1, which are not compressed by themselves, take six times as much.
const UNPACKED: u64 = 7;

/// apt on a set of suites, for packages of one architecture.
pub(crate) struct Apt {
    arch: Arch,
    directory: PathBuf,
    config: PathBuf,
    suites: String,
}

impl Apt {
    /// Writes the private configuration and brings the lists of these suites up to date.
    ///
    /// # Errors
    /// If the machine has no apt, or no source for Debian's archive, or a list cannot be had or verified.
    pub(crate) fn open(
        store: &Store,
        arch: Arch,
        suites: &[&str],
        progress: &Progress,
    ) -> Result<Self> {
        Self::of(store, Kind::Binary, arch, suites, progress)
    }

    /// As [`Apt::open`], with the lists of source packages alone.
    ///
    /// # Errors
    /// As of [`Apt::open`].
    pub(crate) fn of_sources(store: &Store, suite: &str, progress: &Progress) -> Result<Self> {
        Self::of(store, Kind::Source, Arch::X86_64, &[suite], progress)
    }

    fn of(
        store: &Store,
        kind: Kind,
        arch: Arch,
        suites: &[&str],
        progress: &Progress,
    ) -> Result<Self> {
        require_apt()?;
        let of_kind = match kind {
            Kind::Binary => "",
            Kind::Source => "-source",
        };
        let name = format!("{}{}{of_kind}", suites.join("+"), arch.suffix());
        let directory = store.directory("apt")?;
        for part in ["lists/partial", "archives/partial"] {
            store.directory(Path::new("apt").join(part))?;
        }
        let list = directory.join(format!("{name}.sources"));
        let stanza = archive()?.stanza(kind, arch.debian(), suites);
        fs::write(&list, stanza).with_context(|| format!("writing {}", list.display()))?;
        fs::write(directory.join(NOTHING), "").context("writing an empty package status")?;
        let config = directory.join(format!("{name}.conf"));
        fs::write(&config, configuration(arch, &directory, &list))
            .with_context(|| format!("writing {}", config.display()))?;
        let apt = Self {
            arch,
            directory,
            config,
            suites: suites.join(" "),
        };
        apt.run(
            &format!("reading the package lists of {}", apt.suites),
            apt.command("apt-get")
                .args(["-qq", "-o", "APT::Status-Fd=1", "update"]),
            progress,
        )?;
        Ok(apt)
    }

    /// What the suites offer under this name; none if there is no such package.
    ///
    /// # Errors
    /// If apt-cache fails for another reason.
    pub(crate) fn offered(&self, package: &str) -> Result<Option<Offered>> {
        let step = format!("looking up {package}");
        let found = process::output(
            &step,
            self.command("apt-cache").args([
                "search",
                "--names-only",
                &format!("^{}$", escaped(package)),
            ]),
        )?;
        if found.trim().is_empty() {
            return Ok(None);
        }
        let text = process::output(
            &step,
            self.command("apt-cache")
                .args(["show", "--no-all-versions", package]),
        )?;
        Ok(parse_show(&text))
    }

    /// The names of all packages that begin so.
    ///
    /// # Errors
    /// If apt-cache fails.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let names = process::output(
            &format!("looking for {prefix}*"),
            self.command("apt-cache").args(["pkgnames", prefix]),
        )?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// The packages that depend on one of these, by name.
    ///
    /// # Errors
    /// If apt-cache fails.
    pub(crate) fn users_of(&self, packages: &[&str]) -> Result<Vec<String>> {
        let list = process::output(
            &format!("looking for what needs {}", packages.join(", ")),
            self.command("apt-cache")
                .args(["rdepends", "--important"])
                .args(packages),
        )?;
        // A package's name, a heading, and below it what needs the package; alternatives have a bar.
        let indented = list.lines().filter_map(|line| line.strip_prefix(' '));
        let mut names: Vec<String> = indented
            .map(|line| line.trim_start_matches(['|', ' ']).to_owned())
            .collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Those of these packages that can be installed beside those before them, with all that they need, on an
    /// empty system. The others are told.
    ///
    /// # Errors
    /// If apt cannot be started.
    pub(crate) fn together(&self, packages: &[String], progress: &Progress) -> Result<Vec<String>> {
        let mut together = packages.to_vec();
        let mut good = 0;
        while !self.has_plan(&together)? {
            // The first so many are good, and so many are not.
            let mut bad = together.len();
            while bad - good > 1 {
                let middle = good.midpoint(bad);
                match self.has_plan(&together[..middle])? {
                    true => good = middle,
                    false => bad = middle,
                }
            }
            let package = together.remove(good);
            let suites = &self.suites;
            progress.note(&format!(
                "{package} of {suites} is left out: it conflicts with the others, or is not there"
            ));
        }
        Ok(together)
    }

    /// Whether apt finds a consistent set of packages in which these are.
    fn has_plan(&self, packages: &[String]) -> Result<bool> {
        let wanted = Wanted::new(packages.iter().cloned(), Installed::Nothing);
        let mut plan = self.install(&wanted, &self.directory.join("archives"))?;
        let planned = plan.arg("--print-uris").output();
        Ok(planned.context("starting apt-get")?.status.success())
    }

    /// The versions of a package that the suites have, newest first.
    ///
    /// # Errors
    /// If apt-cache fails.
    pub(crate) fn versions(&self, package: &str) -> Result<Vec<String>> {
        let table = process::output(
            &format!("looking for versions of {package}"),
            self.command("apt-cache").args(["madison", package]),
        )?;
        let versions = table.lines().filter_map(|line| line.split('|').nth(1));
        Ok(versions.map(|version| version.trim().to_owned()).collect())
    }

    /// Downloads packages into a directory, and gives the files. Those that are there already and whole are
    /// not downloaded again, half ones are continued, and all are checked against the lists.
    ///
    /// # Errors
    /// If apt cannot find a consistent set, or cannot get or verify a package, or there is no room.
    pub(crate) fn download(
        &self,
        wanted: &Wanted,
        into: &Path,
        progress: &Progress,
    ) -> Result<Vec<PathBuf>> {
        fs::create_dir_all(into.join("partial"))
            .with_context(|| format!("making {}", into.display()))?;
        let step = format!("downloading {}", wanted.packages.join(" "));
        let mut plan = self.install(wanted, &self.directory.join("archives"))?;
        let plan = process::output(&step, plan.arg("--print-uris"))?;
        let archives: Vec<Archive> = plan.lines().filter_map(parse_uri_line).collect();
        require_room(
            into,
            archives.iter().map(|archive| archive.size).sum::<u64>() * UNPACKED,
        )?;
        let mut command = self.install(wanted, into)?;
        if !matches!(wanted.installed, Installed::AllElse) {
            command.arg("--download-only");
        }
        command.args(["-o", "APT::Status-Fd=1"]);
        self.run(&step, &mut command, progress)?;
        files(&step, &archives, into)
    }

    /// Downloads the files of a source package into a directory, checked against the lists, and gives them.
    ///
    /// # Errors
    /// If no list has the package, or apt cannot get or verify a file, or there is no room.
    pub(crate) fn download_source(
        &self,
        package: &str,
        into: &Path,
        progress: &Progress,
    ) -> Result<Vec<PathBuf>> {
        fs::create_dir_all(into).with_context(|| format!("making {}", into.display()))?;
        let step = format!("downloading the source of {package}");
        let command = || {
            let mut command = self.command("apt-get");
            // It downloads into the current directory.
            command.current_dir(into);
            command.args(["-qq", "source", "--download-only", package]);
            command
        };
        let plan = process::output(&step, command().arg("--print-uris"))?;
        let archives: Vec<Archive> = plan.lines().filter_map(parse_uri_line).collect();
        require_room(
            into,
            archives.iter().map(|archive| archive.size).sum::<u64>() * UNPACKED,
        )?;
        let mut download = command();
        self.run(&step, download.args(["-o", "APT::Status-Fd=1"]), progress)?;
        files(&step, &archives, into)
    }

    /// The command that resolves dependencies and, if left alone, would install; the files go to `archives`.
    fn install(&self, wanted: &Wanted, archives: &Path) -> Result<Command> {
        let mut command = self.command("apt-get");
        if matches!(wanted.installed, Installed::AllElse) {
            fs::create_dir_all(archives)
                .with_context(|| format!("making {}", archives.display()))?;
            // It downloads into the current directory.
            command.args(["-qq", "download"]).args(&wanted.packages);
            command.current_dir(archives);
            return Ok(command);
        }
        command.args(["-qq", "install", "--yes", "--no-install-recommends"]);
        command
            .arg("-o")
            .arg(format!("Dir::Cache::archives={}", archives.display()));
        let status = match &wanted.installed {
            Installed::Nothing | Installed::AllElse => self.directory.join(NOTHING),
            Installed::ThisMachine => PathBuf::from(STATUS),
            Installed::ThisMachineAnd(names) => {
                let own = fs::read_to_string(STATUS)
                    .context("reading which packages this machine has")?;
                self.write_status(own + "\n" + &pretended_status(self.arch, names))?
            }
            Installed::These(names) => self.write_status(pretended_status(self.arch, names))?,
        };
        command
            .arg("-o")
            .arg(format!("Dir::State::status={}", status.display()));
        if let Some(suite) = wanted.prefer {
            command.args(["--target-release", suite]);
        }
        command.args(&wanted.packages);
        Ok(command)
    }

    /// Writes a package status, and gives the file.
    fn write_status(&self, status: String) -> Result<PathBuf> {
        let name = format!("pretended{}", self.arch.suffix());
        let file = self.directory.join(name);
        fs::write(&file, status).with_context(|| format!("writing {}", file.display()))?;
        Ok(file)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .arg("-c")
            .arg(&self.config)
            .env("LC_ALL", "C")
            .current_dir(&self.directory)
            .stdin(Stdio::null());
        command
    }

    /// Runs apt-get, turning its status lines into progress.
    fn run(&self, step: &str, command: &mut Command, progress: &Progress) -> Result<()> {
        progress.step(step);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        process::end_with_parent(command);
        let mut child = command
            .spawn()
            .with_context(|| format!("{step}: cannot start apt-get"))?;
        let errors = child
            .stderr
            .take()
            .map(|stderr| std::thread::spawn(move || std::io::read_to_string(stderr)));
        let mut said = String::new();
        for line in child
            .stdout
            .take()
            .map(BufReader::new)
            .into_iter()
            .flat_map(BufRead::lines)
            .map_while(Result::ok)
        {
            match percent(&line) {
                Some(percent) => progress.percent(percent),
                None => said.push_str(&format!("{line}\n")),
            }
        }
        let status = child
            .wait()
            .with_context(|| format!("{step}: waiting for apt-get"))?;
        let errors = errors
            .and_then(|thread| thread.join().ok())
            .and_then(Result::ok)
            .unwrap_or_default();
        // To apt-get update a list that cannot be had is a warning, since it may have an older one; here that
        // is an error.
        let incomplete = errors
            .lines()
            .any(|line| line.starts_with("E:") || line.contains("Failed to fetch"));
        if !status.success() || incomplete {
            bail!(
                "{step}: apt-get failed ({status}, suites: {}, `{}`)\n{}",
                self.suites,
                process::describe(command),
                process::last_lines(&format!("{said}{errors}"), 12)
            );
        }
        Ok(())
    }
}

/// The codename of the release that this machine runs, such as `bookworm`.
///
/// # Errors
/// If /etc/os-release has none.
pub(crate) fn codename() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let name = name.map(|name| name.trim_matches('"').to_owned());
    name.filter(|name| !name.is_empty())
        .context("/etc/os-release names no VERSION_CODENAME")
}

fn archive() -> Result<Source> {
    let sources = sources::read(
        Path::new("/etc/apt/sources.list"),
        Path::new("/etc/apt/sources.list.d"),
    )?;
    sources::debian_archive(&sources, &codename().unwrap_or_default()).context(
        "no entry for Debian's archive (with component main) in /etc/apt/sources.list or /etc/apt/sources.list.d; \
         add one, or name a QEMU and a kernel of this system (--qemu, --kernel /boot/vmlinuz-VERSION)",
    )
}

fn require_apt() -> Result<()> {
    for program in ["apt-get", "apt-cache", "dpkg-deb"] {
        if !process::exists(program) {
            bail!(
                "{program} is not on this machine: packages are fetched on Debian only; \
                 elsewhere name a QEMU and a kernel of the system (--qemu, --kernel /boot/vmlinuz-VERSION)"
            );
        }
    }
    Ok(())
}

/// The private configuration, read after the machine's own.
fn configuration(arch: Arch, directory: &Path, list: &Path) -> String {
    let arch = arch.debian();
    let directory = directory.display();
    let list = list.display();
    format!(
        "#clear APT::Update;\n#clear DPkg;\n#clear APT::Default-Release;\n\
         #clear APT::Architectures;\nAPT::Architecture \"{arch}\";\nAPT::Architectures {{ \"{arch}\"; }};\n\
         Dir::Etc::SourceList \"{list}\";\nDir::Etc::SourceParts \"/dev/null\";\n\
         Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n\
         Dir::State \"{directory}\";\nDir::State::Lists \"{directory}/lists\";\n\
         Dir::State::status \"{directory}/{NOTHING}\";\nDir::State::extended_states \"{directory}/extended_states\";\n\
         Dir::Cache \"{directory}\";\nDir::Cache::archives \"{directory}/archives\";\n\
         Dir::Cache::pkgcache \"\";\nDir::Cache::srcpkgcache \"\";\nDir::Log \"{directory}\";\n\
         APT::Sandbox::User \"\";\nAPT::Get::List-Cleanup \"false\";\nDebug::NoLocking \"true\";\n\
         Acquire::Languages \"none\";\nAcquire::Retries \"3\";\n"
    )
}

/// A package status (dpkg-query(1) reads the same form) in which these packages are installed.
fn pretended_status(arch: Arch, names: &[String]) -> String {
    let arch = arch.debian();
    let stanza = |name: &String| {
        format!(
            "Package: {name}\nStatus: install ok installed\nArchitecture: {arch}\nVersion: 9999\n\
             Maintainer: none\nDescription: pretended\n\n"
        )
    };
    names.iter().map(stanza).collect()
}

/// Where the files of these archives lie.
fn files(step: &str, archives: &[Archive], directory: &Path) -> Result<Vec<PathBuf>> {
    let files: Vec<PathBuf> = archives
        .iter()
        .map(|archive| directory.join(&archive.name))
        .collect();
    match files.iter().find(|file| !file.is_file()) {
        Some(missing) => bail!("{step}: apt left out {}", missing.display()),
        None => Ok(files),
    }
}

/// Fails if there are fewer bytes free where the directory is.
fn require_room(directory: &Path, bytes: u64) -> Result<()> {
    let status = statvfs(directory)
        .with_context(|| format!("looking for room in {}", directory.display()))?;
    let free = status.blocks_available() * status.fragment_size();
    if free < bytes {
        bail!(
            "no room: {} needs about {} MB, and {} MB are free",
            directory.display(),
            bytes >> 20,
            free >> 20
        );
    }
    Ok(())
}

fn escaped(package: &str) -> String {
    package.replace('.', "\\.").replace('+', "\\+")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_machine_has_room_for_everything() {
        let error = require_room(&std::env::temp_dir(), u64::MAX)
            .err()
            .map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.starts_with("no room: ")));
    }

    #[test]
    fn a_name_in_a_search_is_taken_literally() {
        assert_eq!(
            escaped("linux-image-7.2+deb13"),
            "linux-image-7\\.2\\+deb13"
        );
    }
}
