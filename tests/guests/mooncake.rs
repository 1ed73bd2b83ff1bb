//! Mooncake's transfer engine between two guests: a target in the first, hosts in the second, each with all
//! functions of its adapter.

use libtest_mimic::Trial;
use support::library::Library;
use support::mooncake::{Layout, Node, Side, wheel};
use support::{Hca, Result, test_on_adapter};

use crate::{meet, serves};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_on_adapter("engines::mooncake_cache", cache),
        test_on_adapter("engines::mooncake_after_a_killed_host", killed_host),
        test_on_adapter("engines::mooncake_after_a_killed_target", killed_target),
    ]
}

/// This guest.
fn node(hca: Hca) -> Result<Node> {
    // The second guest's addresses follow those of the first.
    let number = if serves()? { 1 } else { hca.functions + 1 };
    Ok(Node {
        namespace: None,
        address: format!("10.9.0.{number}"),
        devices: hca.devices().collect(),
    })
}

/// A target for the other guest, which is told where it is.
fn target(library: &Library, node: &Node) -> Result<Side> {
    let (target, line) = Side::target(library, node, Layout::Cache)?;
    meet(&line)?;
    Ok(target)
}

/// Waits until the other guest's host has transferred, and looks at what came.
fn look(mut target: Side, node: &Node) -> Result {
    meet("")?;
    target.is_connected_on(node)?;
    target.has_all()?;
    // The host stays until its transfers have been looked at.
    meet("").map(drop)
}

/// Transfers once to and from the target of this line, and stays until the other guest has looked at it.
fn transfer(host: &mut Side, line: &str, node: &Node) -> Result {
    host.transfer(line)?;
    host.is_connected_on(node)?;
    meet("")?;
    meet("").map(drop)
}

/// Catches what the engine understands differently over the two libraries, or by way of a fabric: many
/// regions, batches of many blocks, two functions of the adapter on either side.
fn cache(hca: Hca) -> Result {
    wheel()?;
    let node = node(hca)?;
    let ours = Library::ours()?;
    for (one, other) in ours.pairs() {
        let result = match serves()? {
            true => target(one, &node).and_then(|target| look(target, &node)),
            false => {
                let mut host = Side::host(other, &node, Layout::Cache)?;
                meet("").and_then(|line| transfer(&mut host, &line, &node))
            }
        };
        result.map_err(|error| format!("{other:?} to {one:?}: {error}"))?;
    }
    Ok(())
}

/// Catches a target that is spoiled by a host which is killed in the midst of transfers: it serves another.
fn killed_host(hca: Hca) -> Result {
    wheel()?;
    let node = node(hca)?;
    let ours = Library::ours()?;
    if serves()? {
        return look(target(&ours, &node)?, &node);
    }
    let line = meet("")?;
    let mut host = Side::host(&ours, &node, Layout::Cache)?;
    host.begin(&line, true)?;
    host.kill()?;
    let mut host = Side::host(&ours, &node, Layout::Cache)?;
    transfer(&mut host, &line, &node)
}

/// Catches a host that hangs, or is spoiled, when its target is killed in the midst of transfers: it is told
/// so, and goes on with the next one. Beside it one does so on the distribution's library.
fn killed_target(hca: Hca) -> Result {
    wheel()?;
    let node = node(hca)?;
    let ours = Library::ours()?;
    for library in [&Library::Theirs, &ours] {
        let result = match serves()? {
            true => serve_twice(library, &node),
            false => transfer_to_both(library, &node),
        };
        result.map_err(|error| format!("{library:?}: {error}"))?;
    }
    Ok(())
}

/// A target that is killed when the host has begun, and one after it.
fn serve_twice(library: &Library, node: &Node) -> Result {
    let first = target(library, node)?;
    meet("")?;
    first.kill()?;
    look(target(library, node)?, node)
}

/// A host of both targets.
fn transfer_to_both(library: &Library, node: &Node) -> Result {
    let first = meet("")?;
    let mut host = Side::host(library, node, Layout::Cache)?;
    host.begin(&first, true)?;
    meet("")?;
    host.ends_failed()?;
    let second = meet("")?;
    transfer(&mut host, &second, node)
}
