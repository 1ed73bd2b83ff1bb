//! What is built of others: under which licences, from where, and what is in two versions in what a user
//! builds.
//!
//! Known vulnerabilities are not looked up: their list is on the network.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, PackageId};

use checks::workspace;

/// Licences under which crates may be used, in the words of their manifests.
const LICENCES: [&str; 14] = [
    "(MIT OR Apache-2.0) AND Unicode-3.0",
    "Apache-2.0",
    "Apache-2.0 OR BSD-3-Clause",
    "Apache-2.0 OR MIT",
    "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
    "Apache-2.0 / MIT",
    "Apache-2.0/MIT",
    "BSD-2-Clause OR Apache-2.0 OR MIT",
    "BSD-3-Clause",
    "MIT",
    "MIT OR Apache-2.0",
    "MIT/Apache-2.0",
    "Unlicense OR MIT",
    "Zlib",
];

/// Licences of what only tools here are built of, besides those.
const LICENCES_OF_TOOLS: [&str; 4] = [
    "Apache-2.0 WITH LLVM-exception",
    "CC-BY-4.0 AND MIT",
    "ISC",
    "MPL-2.0",
];

/// The packages that users build, and what is in two versions there.
const PUBLISHED: [(&str, &[&str]); 4] = [
    ("uverbs-queue", &[]),
    ("uverbs-uapi", &[]),
    // zerocopy's macros, and those of what compio needs.
    ("uverbs", &["syn"]),
    // zerocopy's and clap's macros.
    ("uverbs-cli", &["syn"]),
];

/// All packages of the workspace and what they are built of on this kind of machine.
fn metadata() -> Metadata {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    MetadataCommand::new()
        .current_dir(workspace())
        .other_options(["--offline", "--filter-platform", &platform].map(str::to_owned))
        .exec()
        .unwrap()
}

#[test]
fn licences_are_known() {
    let metadata = metadata();
    let published = PUBLISHED
        .iter()
        .flat_map(|(name, _)| built(&metadata, name));
    let published: BTreeSet<&PackageId> = published.collect();
    for package in &metadata.packages {
        let licence = package.license.as_deref().unwrap_or("no licence");
        let is_of_tools = !published.contains(&package.id);
        assert!(
            LICENCES.contains(&licence) || is_of_tools && LICENCES_OF_TOOLS.contains(&licence),
            "{} {}: {licence}; if that is acceptable, add it to the list in {}",
            package.name,
            package.version,
            file!()
        );
    }
}

#[test]
fn sources_are_the_registry_or_this_workspace() {
    let metadata = metadata();
    for package in &metadata.packages {
        let known = match &package.source {
            Some(source) => source.is_crates_io(),
            None => metadata.workspace_members.contains(&package.id),
        };
        assert!(known, "{} comes from {:?}", package.name, package.source);
    }
}

/// What a package is built of, without what only its tests need.
fn built<'a>(metadata: &'a Metadata, name: &str) -> BTreeSet<&'a PackageId> {
    let nodes = &metadata.resolve.as_ref().unwrap().nodes;
    let nodes: BTreeMap<&PackageId, _> = nodes.iter().map(|node| (&node.id, node)).collect();
    let package = metadata
        .packages
        .iter()
        .find(|package| package.name == name);
    let mut open = vec![&package.unwrap().id];
    let mut all = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !all.insert(id) {
            continue;
        }
        let needed = nodes[id].deps.iter().filter(|dependency| {
            let mut kinds = dependency.dep_kinds.iter();
            kinds.any(|kind| kind.kind != DependencyKind::Development)
        });
        open.extend(needed.map(|dependency| &dependency.pkg));
    }
    all
}

#[test]
fn what_is_built_twice_is_known() {
    let metadata = metadata();
    for (name, twice) in PUBLISHED {
        let mut versions: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for id in built(&metadata, name) {
            let package = &metadata[id];
            versions
                .entry(&package.name)
                .or_default()
                .push(&package.version);
        }
        assert!(versions.contains_key("zerocopy"), "{name}: {versions:?}");
        versions.retain(|_, versions| versions.len() > 1);
        let found: Vec<&str> = versions.keys().copied().collect();
        assert_eq!(found, twice, "{name}: {versions:?}");
    }
}

/// What `cargo vm clients` builds is a workspace of its own, whose Cargo.lock no other build looks at: with
/// one that is out of date it does not start.
#[test]
fn the_clients_lock_names_what_the_library_needs() {
    let path = workspace().join("tests/clients/ruapc-rdma/Cargo.lock");
    let lock = std::fs::read_to_string(path).unwrap();
    let metadata = metadata();
    for name in ["uverbs", "uverbs-queue", "uverbs-uapi"] {
        let line = format!("\nname = \"{name}\"\n");
        let mut locked = lock.split("[[package]]");
        let locked = locked.find(|package| package.contains(&line)).unwrap();
        let mut packages = metadata.packages.iter();
        let package = packages.find(|package| package.name == name).unwrap();
        let needed = package
            .dependencies
            .iter()
            .filter(|dependency| dependency.kind == DependencyKind::Normal && !dependency.optional);
        for dependency in needed {
            // With a version behind it where there are several.
            let named = ["\"", " "].map(|end| format!("\n \"{}{end}", dependency.name));
            assert!(
                named.iter().any(|named| locked.contains(named)),
                "{} of {name} is not in the Cargo.lock of tests/clients/ruapc-rdma: run `cargo update \
                 --offline --workspace` there",
                dependency.name
            );
        }
    }
}
