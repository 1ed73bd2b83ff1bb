//! The command as a program: its exit codes and what it prints, where no device is needed.

use std::fs::File;
use std::process::{Command, Output, Stdio};

fn uverbs(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uverbs"));
    command.args(words.split_whitespace()).stdin(Stdio::null());
    command
}

fn output(words: &str) -> Output {
    uverbs(words).output().unwrap()
}

/// A file that cannot be written.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// Catches an exit code that says that the device failed, where the reader of the output has ended.
#[test]
fn output_that_nobody_reads_ends_the_command_as_its_signal_would() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = uverbs("doctor").stdout(writer).output().unwrap();
    assert_eq!((ended.status.code(), ended.stderr), (Some(141), Vec::new()));
    let ended = uverbs("doctor").stdout(full()).output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(said.contains("cannot write to standard output"), "{said}");
}

/// Catches a panic in the message itself, as that of `eprintln`.
#[test]
fn the_exit_code_is_the_same_where_standard_error_cannot_be_written() {
    for words in [
        "info -d no_such_device",
        "--trace perf show /no/such/file",
        "devices --no-such-option",
    ] {
        let expected = output(words).status.code();
        let status = uverbs(words).stderr(full()).status().unwrap();
        assert_eq!(status.code(), expected, "{words}");
        assert!(expected.is_some_and(|code| code < 100), "{words}");
    }
}
