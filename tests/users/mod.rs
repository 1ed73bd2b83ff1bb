//! All packages of a suite that need libibverbs, librdmacm or a provider library: their programs and
//! libraries find all names here, and start.
//!
//! Each runs in the suite's own tree, as in a container whose libraries of rdma-core have been replaced: in
//! namespaces of its own, without a network, on file systems that it cannot write to. So nobody needs rights,
//! and daemons do no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::built::{self, build};
use super::{LIBRARIES, Result, exports, is_ours};

/// What must be among the programs and libraries that need those of this project in each suite.
const USERS: [&str; 20] = [
    "ceph-osd",
    "dpdk-testpmd",
    "fi_info",
    "fio",
    "ib_write_bw",
    "ibacm",
    "libfabric.so.1",
    "libgloo",
    "libmpi.so",
    "librados.so.2",
    "librte_net_mlx5.so",
    "NPopenmpi",
    "opainfo",
    "qemu-system-x86_64",
    "qperf",
    "radosgw",
    "rping",
    "srp_daemon",
    "tgtd",
    "ucmatose",
];

/// What does not start, and why: a file's name, and the reason behind it.
const LEFT_OUT: &str = include_str!("left_out.txt");

/// How long a program may run that goes on, in seconds. It has started then.
const LIMIT_S: u32 = 10;

/// Runs a program in a tree, and tells its status: TREE LIBRARIES LIMIT PROGRAM... The libraries in that
/// directory take the place of the tree's, if it is not empty. The tree may have no env(1) and no sh(1).
const IN_TREE: &str = r#"
set -e
tree=$1 ours=$2 limit=$3; shift 3
mount --bind "$tree" "$tree"
for library in ${ours:+"$ours"/*}; do
    theirs="$tree/usr/lib/x86_64-linux-gnu/$(basename "$library")"
    if [ -e "$theirs" ]; then mount --bind "$library" "$theirs"; fi
done
mount -t proc proc "$tree/proc"
for place in tmp run var dev; do mount -t tmpfs tmpfs "$tree/$place"; done
mkdir "$tree/var/tmp" "$tree/dev/shm"
for device in null zero random urandom; do
    : > "$tree/dev/$device"; mount --bind "/dev/$device" "$tree/dev/$device"
done
mount -o remount,bind,ro "$tree"
cd "$tree"
set +e
timeout --signal=KILL "$limit" env LD_BIND_NOW=1 chroot "$tree" "$@" < /dev/null
echo "
ended with $?" >&2
"#;

/// A file that the loader links, in a tree.
struct File {
    path: PathBuf,
    name: String,
    needed: Vec<String>,
    is_program: bool,
    is_link: bool,
}

/// Catches a name or a version that something in a suite is linked to and that is not here.
pub(crate) fn find_their_names(root: &Path) -> Result {
    let mut here = BTreeSet::new();
    for (package, built) in LIBRARIES {
        let exports = exports(&build(package, built)?)?;
        here.extend(exports.iter().map(|name| format!("{built}.1 {name}")));
    }
    let (mut looked_at, mut found) = (BTreeSet::new(), Vec::new());
    for file in linked_files(root)? {
        if !file.needed.iter().any(|name| is_ours(name)) {
            continue;
        }
        for (library, import) in built::imports(&file.path).unwrap_or_default() {
            let import = format!("{library} {import}");
            if is_ours(&library) && !here.contains(&import) {
                found.push(format!("{}: {import}", file.name));
            }
        }
        looked_at.insert(file.name);
    }
    println!("{} looked at: {looked_at:?}", looked_at.len());
    match found.is_empty() && !looked_at.is_empty() {
        true => Ok(()),
        false => Err(format!("missing:\n{}", found.join("\n")).into()),
    }
}

/// Catches a program that needs one of the libraries, by itself or by way of others, and does not start on
/// ours; and a library of which that is so and that cannot be loaded. Scripts are not tried: what they run
/// and what they load is.
pub(crate) fn start(root: &Path) -> Result<Option<String>> {
    let refused = Command::new("unshare")
        .args(["--map-root-user", "--mount", "true"])
        .output();
    if !refused.is_ok_and(|output| output.status.success()) {
        return Ok(Some("this user may not make namespaces".to_owned()));
    }
    let place = tempfile::tempdir()?;
    for (package, built) in LIBRARIES {
        let to = place.path().join(format!("{built}.1"));
        fs::copy(build(package, built)?, to)?;
    }
    let root = &root.canonicalize()?;
    let tree = Tree::new(root, place.path())?;
    let mut left_out = left_out();
    let (mut started, mut bad) = (BTreeSet::new(), Vec::new());
    for file in users_in(root)? {
        let on_ours = tree.run(&file, true)?;
        let reason = left_out.remove(&file.name);
        match (on_ours.is_good(), reason) {
            (true, _) => {
                println!("{}: {on_ours}", file.name);
                started.insert(file.name);
            }
            (false, Some(reason)) => println!("{} is left out: {reason}", file.name),
            (false, None) => {
                let on_theirs = tree.run(&file, false)?;
                bad.push(format!(
                    "{}: {on_ours}\n  on the suite's own: {on_theirs}",
                    file.path.display()
                ));
            }
        }
    }
    println!("{} start", started.len());
    // A library's file has the rest of its version in its name.
    let has_started = |name: &str| started.iter().any(|file| file.starts_with(name));
    let untried: Vec<_> = USERS
        .into_iter()
        .filter(|name| !has_started(name))
        .collect();
    match bad.is_empty() && untried.is_empty() {
        true => Ok(None),
        false => Err(format!(
            "not among them: {untried:?}; do not start:\n{}",
            bad.join("\n")
        )
        .into()),
    }
}

/// A suite's tree, in which programs run.
struct Tree<'p> {
    root: &'p Path,
    ours: &'p Path,
    python: String,
}

impl<'p> Tree<'p> {
    fn new(root: &'p Path, ours: &'p Path) -> Result<Self> {
        for name in ["bin", "sbin", "lib", "lib64"] {
            let link = root.join(name);
            if !link.is_symlink() {
                std::os::unix::fs::symlink(format!("usr/{name}"), link)?;
            }
        }
        for name in ["dev", "proc", "run", "tmp", "var"] {
            fs::create_dir_all(root.join(name))?;
        }
        let programs = fs::read_dir(root.join("usr/bin"))?;
        let mut names = programs.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let python = names
            .find(|name| name.starts_with("python3.") && !name.contains('-'))
            .ok_or("the suite's packages have no Python, by which libraries are loaded")?;
        Ok(Self { root, ours, python })
    }

    /// Starts a program, or loads a library.
    fn run(&self, file: &File, on_ours: bool) -> Result<Outcome> {
        let within = Path::new("/").join(file.path.strip_prefix(self.root)?);
        let mut command = Command::new("unshare");
        command
            .args([
                "--map-root-user",
                "--mount",
                "--pid",
                "--fork",
                "--net",
                "--ipc",
                "--uts",
            ])
            .args(["sh", "-c", IN_TREE, "in-tree"])
            .arg(self.root)
            .arg(if on_ours { self.ours } else { Path::new("") })
            .arg(LIMIT_S.to_string())
            .env_clear()
            .envs([("PATH", "/usr/bin:/usr/sbin:/bin:/sbin"), ("HOME", "/tmp")]);
        match file.is_program {
            true => command.arg(within).arg("--version"),
            false => command
                .arg(format!("/usr/bin/{}", self.python))
                .args(["-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1], mode=2)"])
                .arg(within),
        };
        Ok(Outcome::of(&command.output()?, file.is_program))
    }
}

/// How a program ended.
enum Outcome {
    /// It ran: its status, or none if it still runs.
    Started(Option<u32>),
    /// The loader or a signal ended it.
    Failed(String),
}

impl Outcome {
    fn is_good(&self) -> bool {
        matches!(self, Self::Started(_))
    }

    fn of(output: &Output, is_program: bool) -> Self {
        let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
        let said = said.concat();
        let last = said.lines().next_back().unwrap_or_default();
        let status = last.strip_prefix("ended with ");
        let status = status.and_then(|status| status.parse::<u32>().ok());
        let loaders = [
            "error while loading shared libraries",
            "symbol lookup error",
            "undefined symbol",
            "not found (required by",
        ];
        let complaint = said
            .lines()
            .find(|line| loaders.iter().any(|words| line.contains(words)));
        match (status, complaint) {
            (None, _) => Self::Failed(format!("it was not run: {said}")),
            (_, Some(complaint)) => Self::Failed(complaint.to_owned()),
            // What timeout(1) says of a program that it has killed.
            (Some(137), None) => Self::Started(None),
            // It was not found, or not executed, or a signal of a fault ended it. Other numbers are also what
            // programs return that do not know the option.
            (Some(status @ (125..=127 | 132..=136 | 139 | 159)), None) => {
                Self::Failed(format!("status {status}: {said}"))
            }
            (Some(status), None) if status != 0 && !is_program => Self::Failed(said),
            (status, None) => Self::Started(status),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(Some(status)) => write!(to, "starts, and ends with {status}"),
            Self::Started(None) => to.write_str("starts, and goes on"),
            Self::Failed(why) => to.write_str(why.trim()),
        }
    }
}

/// The files that are known not to start, with the reasons.
fn left_out() -> BTreeMap<String, &'static str> {
    let lines = LEFT_OUT.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once(' '))
        .map(|(name, reason)| (name.to_owned(), reason))
        .collect()
}

/// The files of a tree that need one of the libraries, by themselves or by way of others.
fn users_in(root: &Path) -> Result<Vec<File>> {
    let files = linked_files(root)?;
    let mut users: BTreeSet<String> = LIBRARIES.map(|(_, built)| format!("{built}.1")).into();
    loop {
        let found: Vec<String> = files
            .iter()
            .filter(|file| !users.contains(&file.name))
            .filter(|file| file.needed.iter().any(|name| users.contains(name)))
            .map(|file| file.name.clone())
            .collect();
        if found.is_empty() {
            break;
        }
        users.extend(found);
    }
    // The suite's own, whose place ours take, lie in files of longer names as well.
    let is_one_of_ours = |name: &str| LIBRARIES.iter().any(|(_, built)| name.starts_with(built));
    Ok(files
        .into_iter()
        .filter(|file| users.contains(&file.name) && !file.is_link && !is_one_of_ours(&file.name))
        .collect())
}

/// All programs and libraries below a directory, by way of links as well: a library's other name is one by
/// which others are linked to it.
fn linked_files(root: &Path) -> Result<Vec<File>> {
    let (root, mut files) = (root.canonicalize()?, Vec::new());
    collect(&root, &root, &mut files)?;
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

fn collect(root: &Path, directory: &Path, files: &mut Vec<File>) -> Result {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let path = entry.path();
        if kind.is_dir() {
            collect(root, &path, files)?;
            continue;
        }
        // A link may lead out of the tree.
        let Ok(leads_to) = path.canonicalize() else {
            continue;
        };
        if !leads_to.starts_with(root) || !leads_to.is_file() || !is_elf(&leads_to)? {
            continue;
        }
        let Some(built::Needs { needed, is_program }) = built::needs(&path) else {
            continue;
        };
        let name = entry.file_name().to_string_lossy().into_owned();
        files.push(File {
            path,
            name,
            needed,
            is_program,
            is_link: kind.is_symlink(),
        });
    }
    Ok(())
}

/// Looks before the whole file is read.
fn is_elf(path: &Path) -> Result<bool> {
    let mut magic = Vec::new();
    fs::File::open(path)?.take(4).read_to_end(&mut magic)?;
    Ok(magic == *b"\x7fELF")
}
