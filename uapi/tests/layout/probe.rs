//! Runs the C compiler to find out what a set of headers declares, and its sizes, offsets and values.

use crate::header::Declared;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The headers this crate describes.
const HEADERS: &[&str] = &[
    "rdma/ib_user_verbs.h",
    "rdma/ib_user_ioctl_cmds.h",
    "rdma/ib_user_ioctl_verbs.h",
    "rdma/rdma_user_ioctl.h",
    "rdma/rdma_user_ioctl_cmds.h",
    "rdma/rdma_user_rxe.h",
    "rdma/mlx5_user_ioctl_cmds.h",
    "rdma/mlx5_user_ioctl_verbs.h",
    "rdma/mlx5-abi.h",
    "rdma/efa-abi.h",
    "rdma/rdma_netlink.h",
    "rdma/rdma_user_cm.h",
    "rdma/ib_user_sa.h",
];

/// libibverbs' header, which has the numbers that the kernel's own headers do not export.
pub(crate) const VERBS_H: &str = "infiniband/verbs.h";

/// librdmacm's header, which has the numbers of events.
pub(crate) const RDMA_CMA_H: &str = "rdma/rdma_cma.h";

/// The oldest kernel whose headers have everything that has no date in [`crate::history`].
const OLDEST: Version = (6, 1);

/// A kernel version: only major and minor.
pub(crate) type Version = (u32, u32);

/// Why a set of headers cannot be tested.
pub(crate) enum Unusable {
    /// The machine lacks something.
    Skip(String),
    /// The user requested it, or the compiler refuses what it must accept.
    Fail(String),
}

/// One directory of headers.
pub(crate) struct Set {
    pub(crate) dir: PathBuf,
    named: bool,
    declared: OnceLock<Result<(Version, Declared), String>>,
}

impl Set {
    pub(crate) fn new(dir: PathBuf, named: bool) -> Self {
        Self {
            dir,
            named,
            declared: OnceLock::new(),
        }
    }

    /// Whether the set has a header.
    pub(crate) fn has(&self, header: &str) -> bool {
        self.dir.join(header).is_file()
    }

    /// The version of the set, and its declarations.
    pub(crate) fn declared(&self) -> Result<&(Version, Declared), Unusable> {
        if Command::new("cc").arg("--version").output().is_err() {
            return Err(Unusable::Skip("there is no C compiler `cc`".into()));
        }
        if let Some(missing) = HEADERS.iter().find(|header| !self.has(header)) {
            let message = format!("{} has no {missing}", self.dir.display());
            return Err(match self.named {
                true => Unusable::Fail(message),
                false => Unusable::Skip(format!("{message}: install linux-libc-dev")),
            });
        }
        let declared = self.declared.get_or_init(|| {
            let declared = Declared::parse(&self.preprocess(HEADERS)?, HEADERS);
            Ok((self.version()?, declared))
        });
        match declared {
            Ok((version, _)) if *version < OLDEST => Err(Unusable::Skip(format!(
                "{} is of Linux {version:?}, older than {OLDEST:?}",
                self.dir.display()
            ))),
            Ok(declared) => Ok(declared),
            Err(message) => Err(Unusable::Fail(message.clone())),
        }
    }

    /// The declarations of libibverbs' header.
    pub(crate) fn verbs_h(&self) -> Result<Declared, String> {
        let headers = [VERBS_H, "infiniband/verbs_api.h"];
        Ok(Declared::parse(&self.preprocess(&[VERBS_H])?, &headers))
    }

    /// The declarations of librdmacm's header.
    pub(crate) fn rdma_cma_h(&self) -> Result<Declared, String> {
        Ok(Declared::parse(
            &self.preprocess(&[RDMA_CMA_H])?,
            &[RDMA_CMA_H],
        ))
    }

    /// Values of constants.
    pub(crate) fn values<'a>(
        &self,
        headers: &[&str],
        names: impl Iterator<Item = &'a str>,
    ) -> Result<BTreeMap<String, u64>, String> {
        let mut body = String::new();
        for name in names {
            let _ = writeln!(
                body,
                r#"printf("{name} %llu\n", (unsigned long long)({name}));"#
            );
        }
        let lines = self.run("values", headers, &body)?;
        Ok(lines
            .into_iter()
            .map(|(name, numbers)| (name, numbers[0]))
            .collect())
    }

    /// Offset and size of struct members, written `struct_name.member.member`; a struct itself is
    /// at offset 0.
    pub(crate) fn layouts<'a>(
        &self,
        paths: impl Iterator<Item = &'a str>,
    ) -> Result<BTreeMap<String, (u64, u64)>, String> {
        let mut body = String::new();
        for path in paths {
            let (name, member) = path.split_once('.').unwrap_or((path, ""));
            let (offset, size) = match member {
                "" => ("0".into(), format!("sizeof(struct {name})")),
                _ => (
                    format!("offsetof(struct {name}, {member})"),
                    format!("sizeof(((struct {name} *)0)->{member})"),
                ),
            };
            let _ = writeln!(
                body,
                r#"printf("{path} %llu %llu\n", (unsigned long long){offset}, (unsigned long long){size});"#
            );
        }
        let lines = self.run("layouts", HEADERS, &body)?;
        Ok(lines
            .into_iter()
            .map(|(path, numbers)| (path, (numbers[0], numbers[1])))
            .collect())
    }

    /// Values of constants of the kernel's headers.
    pub(crate) fn kernel_values<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<BTreeMap<String, u64>, String> {
        self.values(HEADERS, names)
    }

    fn version(&self) -> Result<Version, String> {
        let values = self.values(&["linux/version.h"], ["LINUX_VERSION_CODE"].into_iter())?;
        let code = values["LINUX_VERSION_CODE"];
        Ok(((code >> 16) as u32, (code >> 8 & 0xff) as u32))
    }

    fn preprocess(&self, headers: &[&str]) -> Result<String, String> {
        let source = self.write("declared", headers, "")?;
        let output = self.cc(&source, &["-E", "-dD"])?;
        String::from_utf8(output.stdout).map_err(|error| error.to_string())
    }

    /// Runs a C program that prints lines of a name and numbers.
    fn run(
        &self,
        what: &str,
        headers: &[&str],
        body: &str,
    ) -> Result<Vec<(String, Vec<u64>)>, String> {
        let source = self.write(what, headers, body)?;
        let program = source.with_extension("");
        self.cc(&source, &["-o", &program.to_string_lossy()])?;
        let output = Command::new(&program)
            .output()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let output = String::from_utf8(output.stdout).map_err(|error| error.to_string())?;
        output.lines().map(parse_line).collect()
    }

    fn write(&self, what: &str, headers: &[&str], body: &str) -> Result<PathBuf, String> {
        let dir: String = self
            .dir
            .to_string_lossy()
            .replace(|c: char| !c.is_alphanumeric(), "_");
        let header: String = headers[0].replace(|c: char| !c.is_alphanumeric(), "_");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{dir}_{header}_{what}.c"));
        let mut text = String::from("#include <stddef.h>\n#include <stdio.h>\n");
        for header in headers {
            let _ = writeln!(text, "#include <{header}>");
        }
        let _ = writeln!(text, "int main(void) {{\n{body}return 0;\n}}");
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    fn cc(&self, source: &Path, args: &[&str]) -> Result<Output, String> {
        let output = Command::new("cc")
            .args(["-w", "-I"])
            .arg(&self.dir)
            .args(args)
            .arg(source)
            .output()
            .map_err(|error| format!("cc: {error}"))?;
        match output.status.success() {
            true => Ok(output),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

fn parse_line(line: &str) -> Result<(String, Vec<u64>), String> {
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default().to_owned();
    let numbers: Result<Vec<u64>, _> = words.map(str::parse).collect();
    match numbers {
        Ok(numbers) if !numbers.is_empty() => Ok((name, numbers)),
        _ => Err(format!("unexpected output: {line}")),
    }
}
