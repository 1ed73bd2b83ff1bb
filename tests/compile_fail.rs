//! What must not compile does not, and the compiler's message helps.
//!
//! The messages are compared word for word, and compilers word them differently, so that this is done with
//! one version of the compiler only. After a change: `TRYBUILD=overwrite cargo test --test compile_fail`.

use std::process::Command;

/// The compiler that the expected messages were written with.
const COMPILER: &str = "rustc 1.95.";

#[test]
fn misuse_does_not_compile_and_use_does() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/compile_pass/*.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().unwrap();
    let version = String::from_utf8_lossy(&version.stdout);
    if version.starts_with(COMPILER) {
        cases.compile_fail("tests/compile_fail/*.rs");
    } else {
        eprintln!("messages not compared: they are those of {COMPILER}*, and this is {version}");
    }
}
