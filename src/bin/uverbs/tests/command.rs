//! The command as a program: its exit codes and what it prints, where no device is needed.

use std::fs::File;
use std::process::{Command, Output, Stdio};

use serde_json::json;

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

/// Catches exit codes of connections by address that are others than those of connections over TCP. What
/// depends on a device is expected where there is none.
#[test]
fn peers_that_have_no_address_have_the_same_exit_code_everywhere() {
    let without_device = output("devices").status.code() == Some(3);
    // It is never sent to a name server: a label has at most 63 characters.
    let name = "x".repeat(64);
    for (words, code, told) in [
        (
            format!("rping -c -a {name}"),
            5,
            "cannot resolve the name of the peer",
        ),
        (
            format!("pingpong rc {name} --cm"),
            5,
            "cannot resolve the name of the peer",
        ),
        (
            format!("doctor {name}"),
            5,
            "cannot resolve the name of the peer",
        ),
        (format!("rping -s -a {name}"), 3, "cannot listen on"),
        ("rping -c -a fe80::1".into(), 2, "needs its scope"),
        ("pingpong ud fe80::1 --cm".into(), 2, "needs its scope"),
        (
            "perf latency send fe80::1".into(),
            2,
            "needs its network device",
        ),
        ("rping -c -a 192.0.2.1".into(), 3, "no RDMA device"),
        ("rping -s".into(), 3, "no RDMA device"),
        ("pingpong uc --cm".into(), 3, "no RDMA device"),
        ("pingpong rc fe80::1 --cm=gid".into(), 3, "no RDMA device"),
        ("doctor --serve".into(), 3, "no RDMA device"),
    ] {
        if told == "no RDMA device" && !without_device {
            continue;
        }
        let ended = output(&words);
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(code), "{words}: {said}");
        assert!(said.contains(told), "{words}: {said}");
    }
}

/// Catches an option that is taken and has no effect.
#[test]
fn options_that_would_be_ignored_are_refused() {
    for words in [
        "resource -p 1",
        "--trace exec -- true",
        "rping -s -C 1",
        "rping -s -V",
        "rping -c -a 10.9.0.1 -P",
        "statistic -a --json",
        "statistic -a -w",
        "perf serve -p 0",
        "rping -s -p 0",
        "pingpong rc --timeout 0",
        "rping -s --timeout 0",
        "perf latency send 127.0.0.1 --timeout 0",
        "perf latency send 127.0.0.1 --timeout 601",
        "perf latency send 127.0.0.1 -T 0",
        "perf latency send 127.0.0.1 -s 1K,16..2",
        "perf latency send 127.0.0.1 -d rxe0,rxe1,rxe0",
        "perf serve -d rxe0,rxe0",
        "pingpong rc --connect-timeout 3",
        "pingpong srd -r 7",
        "doctor -p 9",
    ] {
        let ended = output(words);
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{words}: {said}");
    }
}

/// Catches a result that is lost because its plots cannot be written.
#[test]
fn a_result_is_shown_although_its_plots_cannot_be_written() {
    let side = json!({
        "host": "here", "kernel": "6.12", "uverbs": "", "time": 0, "device": "rxe0", "port": 1, "cpus": 2,
    });
    let result = json!({ "client": side, "server": side, "runs": [] });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, result.to_string()).unwrap();
    let path = file.path().display();
    let ended = output(&format!("perf show {path} --svg /dev/full"));
    let said = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("client: here, rxe0 port 1"), "{said}");
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("cannot write /dev/full"), "{said}");
}

/// Catches a program that runs on rdma-core's library, since that lies where a package puts libraries.
#[test]
fn a_program_runs_on_no_other_library() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [programs, libraries] = ["bin", "lib"].map(|name| directory.path().join(name));
    std::fs::create_dir(&programs).unwrap();
    std::fs::create_dir(&libraries).unwrap();
    let program = programs.join("uverbs");
    // A link: a copy could not be started while a process that another thread forks has it open for writing.
    std::fs::hard_link(env!("CARGO_BIN_EXE_uverbs"), &program).unwrap();
    let library = libraries.join("libibverbs.so.1");
    let exec = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("exec").args(words).args(["--", "true"]);
        let ended = command.output().unwrap();
        (
            ended.status.code(),
            String::from_utf8(ended.stderr).unwrap(),
        )
    };
    std::fs::write(&library, "\x7fELF of rdma-core").unwrap();
    for words in [&[][..], &["--library", library.to_str().unwrap()]] {
        let (code, said) = exec(words);
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains("not this project's"), "{said}");
    }
    // What `exec` looks for in a library of ours.
    std::fs::write(&library, "\0UVERBS_1\0").unwrap();
    assert_eq!(exec(&[]), (Some(0), String::new()));
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
