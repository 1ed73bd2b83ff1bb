//! libmlx5's side: the C program beside this file, which the host has compiled.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::Result;

use crate::DEVICE;
use crate::list::{self, Kind, Step};
use crate::names::Names;

/// Where the program is, if there is one: where the tests were started there may be no compiler.
pub(crate) fn program() -> Option<PathBuf> {
    let directory = PathBuf::from(std::env::var_os("VM_C_PROGRAMS")?);
    Some(directory.join("post")).filter(|path| path.is_file())
}

/// Has the list posted, and tells what the objects are called.
pub(crate) fn run(program: &Path, kind: Kind, gid_index: u8, steps: &[Step]) -> Result<Names> {
    let numbers = [
        u32::from(kind == Kind::Shared),
        gid_index.into(),
        list::SEND_WR,
        list::RECV_WR,
        list::SEND_SGE,
        list::RECV_SGE,
        list::INLINE,
    ];
    let mut child = Command::new(program)
        .args([DEVICE, kind.transport()])
        .args(numbers.map(|number| number.to_string()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut script = child.stdin.take().ok_or("no standard input")?;
    let written = steps.iter().try_for_each(|step| writeln!(script, "{step}"));
    drop(script);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("libmlx5's program ended with {}: {said}", output.status).into());
    }
    written?;
    let text = String::from_utf8(output.stdout)?;
    let numbers = text.split_whitespace().map(str::parse);
    let numbers: Vec<u64> = numbers.collect::<std::result::Result<_, _>>()?;
    let [
        first,
        second,
        memory,
        lkey,
        rkey,
        window1,
        window2,
        gathered,
    ] = numbers[..]
    else {
        return Err(format!("libmlx5's program said {text}").into());
    };
    Ok(Names {
        queue_pairs: [first as u32, second as u32],
        memory,
        keys: [lkey as u32, rkey as u32],
        windows: [window1 as u32, window2 as u32],
        gathered: gathered as u32,
    })
}
