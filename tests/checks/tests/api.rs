//! The library's public interface, item by item, beside the snapshot `uverbs.txt`. Who changes the interface
//! changes the snapshot too, so that the change is seen. `uverbs-uapi` has no snapshot: a test of its own
//! compares it with the kernel's headers.
//!
//! rustdoc writes the interface as JSON, which stable compilers do only when `RUSTC_BOOTSTRAP` allows it. The
//! format has a version. Where the crate `public-api` does not know the compiler's, the test is ignored.

use std::path::PathBuf;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use checks::{cargo, compare, workspace};

fn main() -> ExitCode {
    let test = Trial::ignorable_test("the_interface_is_as_it_was", check);
    libtest_mimic::run(&Arguments::from_args(), vec![test]).exit_code()
}

fn check() -> Result<Completion, Failed> {
    let api = public_api::Builder::from_rustdoc_json(json()?)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build();
    let api = match api {
        Ok(api) => api,
        Err(public_api::Error::SerdeJsonError(error)) => {
            return Ok(Completion::ignored_with(format!(
                "this compiler's rustdoc writes a format that the crate public-api does not read: {error}"
            )));
        }
        Err(error) => return Err(error.into()),
    };
    let items: Vec<String> = api.items().map(ToString::to_string).collect();
    compare("uverbs.txt", &items)?;
    Ok(Completion::Completed)
}

/// Has rustdoc write the interface, and gives the file. The directory is one of its own: `RUSTC_BOOTSTRAP`
/// has some dependencies built in another way.
fn json() -> Result<PathBuf, Failed> {
    let target = workspace().join("target/api");
    let output = cargo()
        .env("RUSTC_BOOTSTRAP", "1")
        .env_remove("RUSTDOCFLAGS")
        .args(["rustdoc", "--quiet", "--lib", "--package", "uverbs"])
        .arg("--target-dir")
        .arg(&target)
        .args(["--", "-Z", "unstable-options", "--output-format", "json"])
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(target.join("doc/uverbs.json"))
}
