//! The same work requests, posted by this library and by libmlx5: what the two write into the rings of the software ConnectX
//! and to its doorbells is compared field by field, as the model's tap saw it.
//!
//! `cargo vm test` runs these in guests that have the adapter. The C program for libmlx5's side is compiled by the host.

mod differences;
mod fields;
#[path = "../hca/mod.rs"]
#[allow(dead_code, reason = "one function is enough here")]
mod hca;
mod list;
mod names;
mod ours;
mod tapped;
mod theirs;

use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};
use serde_json::json;

use hca::{Control, Hca, NO_COPIES, takes_copies};
use list::Kind;

/// The result of anything here.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The device of both sides.
const DEVICE: &str = "mlx5_0";

fn main() -> ExitCode {
    let tests = [
        ("rc", Kind::Rc),
        ("uc", Kind::Uc),
        ("ud", Kind::Ud),
        ("srq", Kind::Shared),
    ];
    let tests = tests.map(|(name, kind)| test(format!("requests::{name}"), kind));
    libtest_mimic::run(&Arguments::from_args(), tests.into()).exit_code()
}

fn test(name: String, kind: Kind) -> Trial {
    Trial::ignorable_test(name, move || match (Hca::of_guest(), theirs::program()) {
        (None, _) => Ok(Completion::ignored_with(
            "no adapter here: run `cargo vm test --hca connectx`",
        )),
        (_, None) => Ok(Completion::ignored_with(
            "libmlx5's program is not there: the host has no C compiler",
        )),
        (Some(hca), Some(program)) => match compare(hca, &program, kind) {
            Ok(true) => Ok(Completion::Completed),
            Ok(false) => Ok(Completion::ignored_with(NO_COPIES)),
            Err(error) => Err(error.into()),
        },
    })
}

/// Catches whatever our driver writes otherwise than libmlx5 does, unless it is said why. False if the device takes no copies of
/// requests, which are compared too.
fn compare(hca: Hca, program: &Path, kind: Kind) -> Result<bool> {
    if !takes_copies(DEVICE)? {
        return Ok(false);
    }
    let context = uverbs::open(DEVICE)?;
    let (gid_index, gid) = match context.best_gid(1)? {
        Some(best) => best,
        None => (0, context.query_gid(1, 0)?.gid),
    };
    drop(context);
    let steps = list::steps(kind, hca.roce);
    let mut control = Control::open()?;
    control.ask("tap_start", json!({}))?;
    let names = theirs::run(program, kind, gid_index, &steps)?;
    let theirs = tapped::read(&control.ask("tap_take", json!({}))?, kind, &steps, &names)
        .map_err(|error| format!("libmlx5: {error}"))?;
    control.ask("tap_start", json!({}))?;
    let names = ours::run(kind, (gid_index, gid), hca.roce, &steps)?;
    let ours = tapped::read(&control.ask("tap_take", json!({}))?, kind, &steps, &names)
        .map_err(|error| format!("ours: {error}"))?;
    let found = differences::unexplained(
        kind,
        hca.roce,
        &[
            (&ours.sends, &theirs.sends),
            (&ours.receives, &theirs.receives),
            (&ours.doorbells, &theirs.doorbells),
        ],
    );
    if !found.is_empty() {
        return Err(found.join("\n").into());
    }
    // Else the list would not try what it is there for.
    if kind != Kind::Shared && (ours.wrapped == 0 || theirs.wrapped == 0) {
        return Err("no inline request went on at the start of its ring".into());
    }
    Ok(true)
}
