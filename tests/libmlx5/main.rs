//! The same work requests, posted by this library and by libmlx5: what the two write into the rings of the
//! software ConnectX and to its doorbells is compared field by field, as the model's tap saw it.
//!
//! `cargo vm test` runs these in guests that have the adapter. The C program for libmlx5's side is compiled
//! by the host.

mod differences;
mod fields;
mod list;
mod names;
mod ours;
mod tapped;
mod theirs;

use std::process::ExitCode;

use serde_json::json;
use support::hca::needs_copies;
use support::{Control, Hca, Result, fail, skip, test_on_adapter};

use list::Kind;

/// The device of both sides.
const DEVICE: &str = "mlx5_0";

fn main() -> ExitCode {
    let tests = [
        ("rc", Kind::Rc),
        ("uc", Kind::Uc),
        ("ud", Kind::Ud),
        ("srq", Kind::Shared),
        ("keys", Kind::Keys),
    ];
    support::run_all([tests
        .map(|(name, kind)| {
            test_on_adapter(format!("requests::{name}"), move |hca| compare(hca, kind))
        })
        .into()])
}

/// Catches whatever our driver writes otherwise than libmlx5 does, unless it is said why. Requests that are
/// copied to the doorbell are compared too.
fn compare(hca: Hca, kind: Kind) -> Result {
    let Some(program) = theirs::program() else {
        return skip("libmlx5's program is not there: the host has no C compiler");
    };
    needs_copies(DEVICE)?;
    let context = uverbs::open(DEVICE)?;
    let (gid_index, gid) = match context.best_gid(1)? {
        Some(best) => best,
        None => (0, context.query_gid(1, 0)?.gid),
    };
    drop(context);
    let steps = list::steps(kind, hca.roce);
    let mut control = Control::open()?;
    control.ask("tap_start", json!({}))?;
    let names = theirs::run(&program, kind, gid_index, &steps)?;
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
        return fail(found.join("\n"));
    }
    // Else the list would not try what it is there for.
    if !matches!(kind, Kind::Shared | Kind::Keys) && (ours.wrapped == 0 || theirs.wrapped == 0) {
        return fail("no inline request went on at the start of its ring");
    }
    Ok(())
}
