//! The checks: compares this crate with a set of headers.

use crate::constants;
use crate::header::Declared;
use crate::history::{self, History};
use crate::probe::{self, Set, Version};
use crate::structs::{self, Layout};
use libtest_mimic::{Completion, Failed};
use std::collections::{BTreeMap, BTreeSet};
use uverbs_uapi::names::OBJECTS;

/// The newest kernel that the crate describes.
const NEWEST: Version = (7, 3);

/// Sizes of structs, offsets and sizes of fields.
pub(crate) fn structs(
    set: &Set,
    version: Version,
    declared: &Declared,
) -> Result<Completion, Failed> {
    let ours = paths(&structs::all());
    let mut faults = absence(ours.keys(), &declared.paths, version);
    let present = ours.keys().filter(|path| declared.paths.contains(*path));
    let theirs = set.layouts(present.map(String::as_str))?;
    for (path, theirs) in &theirs {
        let may_differ = history::changed(path).is_some_and(|since| version < since);
        if ours[path] != *theirs && !may_differ {
            faults.push(format!(
                "{path}: (offset, size) {:?}, in C {theirs:?}",
                ours[path]
            ));
        }
    }
    outcome(faults)
}

/// Values of constants.
pub(crate) fn constants(
    set: &Set,
    version: Version,
    declared: &Declared,
) -> Result<Completion, Failed> {
    let ours: BTreeMap<String, u64> = constants::kernel().into_iter().collect();
    let mut faults = absence(ours.keys(), &declared.constants, version);
    let present = ours
        .keys()
        .filter(|name| declared.constants.contains(*name));
    let theirs = set.kernel_values(present.map(String::as_str))?;
    faults.extend(differences(&ours, &theirs));
    outcome(faults)
}

/// Everything in the headers that the crate lacks must be out of scope. For headers of a kernel newer than
/// the crate, the test only prints what is missing.
pub(crate) fn nothing_left_out(
    _: &Set,
    version: Version,
    declared: &Declared,
) -> Result<Completion, Failed> {
    let paths = paths(&structs::all());
    let constants: BTreeMap<String, u64> = constants::kernel().into_iter().collect();
    let missing_paths = declared
        .paths
        .iter()
        .filter(|path| !paths.contains_key(*path));
    let missing_constants = declared
        .constants
        .iter()
        .filter(|name| !constants.contains_key(*name));
    let missing: Vec<String> = missing_paths
        .chain(missing_constants)
        .filter(|name| !history::out_of_scope(name))
        .map(|name| format!("{name}: in C only"))
        .collect();
    if version > NEWEST && !missing.is_empty() {
        let reason = format!(
            "Linux {version:?} is newer than {NEWEST:?}: {}",
            missing.join(", ")
        );
        return Ok(Completion::ignored_with(reason));
    }
    outcome(missing)
}

/// Numbers that only libibverbs' header has, if that is installed.
pub(crate) fn verbs_h(set: &Set, _: Version, _: &Declared) -> Result<Completion, Failed> {
    if !set.has(probe::VERBS_H) {
        let reason = format!(
            "{} has no {}: install libibverbs-dev",
            set.dir.display(),
            probe::VERBS_H
        );
        return Ok(Completion::ignored_with(reason));
    }
    let ours = constants::libibverbs().into_iter().collect();
    held_against(set, probe::VERBS_H, &ours, &set.verbs_h()?)
}

/// Numbers that only librdmacm's header has, if that is installed.
pub(crate) fn rdma_cma_h(set: &Set, _: Version, _: &Declared) -> Result<Completion, Failed> {
    if !set.has(probe::RDMA_CMA_H) {
        let reason = format!(
            "{} has no {}: install librdmacm-dev",
            set.dir.display(),
            probe::RDMA_CMA_H
        );
        return Ok(Completion::ignored_with(reason));
    }
    let ours = constants::librdmacm().into_iter().collect();
    held_against(set, probe::RDMA_CMA_H, &ours, &set.rdma_cma_h()?)
}

/// Numbers in a library's header.
fn held_against(
    set: &Set,
    header: &str,
    ours: &BTreeMap<String, u64>,
    declared: &Declared,
) -> Result<Completion, Failed> {
    let (present, missing): (Vec<&String>, _) = ours
        .keys()
        .partition(|name| declared.constants.contains(*name));
    let unexpected = missing
        .into_iter()
        .filter(|name| !history::lacking_in_libraries(name));
    let mut faults: Vec<String> = unexpected.map(|name| format!("{name}: not in C")).collect();
    let theirs = set.values(&[header], present.into_iter().map(String::as_str))?;
    faults.extend(differences(ours, &theirs));
    outcome(faults)
}

/// Every entry of the history is about something that the crate has.
pub(crate) fn history_is_used() -> Result<(), Failed> {
    let mut ours: BTreeSet<String> = paths(&structs::all()).into_keys().collect();
    ours.extend(constants::kernel().into_iter().map(|(name, _)| name));
    let stale = history::patterns()
        .filter(|pattern| !ours.iter().any(|name| history::matches(pattern, name)));
    match stale.collect::<Vec<_>>() {
        stale if stale.is_empty() => Ok(()),
        stale => Err(format!("nothing here is named {stale:?}").into()),
    }
}

/// No two methods of an object, no two attributes of a method share a number.
pub(crate) fn ids_are_unique() -> Result<(), Failed> {
    for object in OBJECTS {
        let attrs = object.attrs.iter().map(|(_, attrs)| *attrs);
        for space in std::iter::once(object.methods).chain(attrs) {
            let mut seen = BTreeSet::new();
            for (id, name) in space.iter().flat_map(|ids| ids.ids) {
                if !seen.insert(id) {
                    return Err(format!("{name} shares number {id} in object {}", object.id).into());
                }
            }
        }
    }
    Ok(())
}

/// Offset and size of every struct and field, from the start of the outermost struct.
fn paths(layouts: &[Layout]) -> BTreeMap<String, (u64, u64)> {
    let mut paths = BTreeMap::new();
    for layout in layouts {
        let base = offset_of_part(layout.path, layouts);
        paths.insert(layout.path.to_owned(), (base, layout.size as u64));
        // Padding that Rust must declare and C leaves implicit.
        let fields = layout
            .fields
            .iter()
            .filter(|field| !field.name.starts_with("_pad"));
        for field in fields {
            let name = field.name.trim_end_matches('_');
            let place = (base + field.offset as u64, field.size as u64);
            paths.insert(format!("{}.{name}", layout.path), place);
        }
    }
    paths
}

/// The offset of a part `struct.field.arm` in its struct: the field's offset, because an arm of a union
/// starts at the union's start.
fn offset_of_part(path: &str, layouts: &[Layout]) -> u64 {
    let mut parts = path.split('.');
    let (Some(name), Some(field)) = (parts.next(), parts.next()) else {
        return 0;
    };
    let layout = layouts.iter().find(|layout| layout.path == name);
    let fields = layout.into_iter().flat_map(|layout| &layout.fields);
    let mut offsets = fields
        .filter(|other| other.name == field)
        .map(|field| field.offset as u64);
    offsets.next().unwrap_or(u64::MAX)
}

/// What is missing although it should be there. What is there before its time is allowed, and compared like
/// the rest: distributions backport things to older kernels.
fn absence<'a>(
    ours: impl Iterator<Item = &'a String>,
    theirs: &BTreeSet<String>,
    version: Version,
) -> Vec<String> {
    let mut faults = Vec::new();
    for name in ours.filter(|name| !theirs.contains(*name)) {
        let history = history::of(name);
        let may_lack = match history {
            History::Always => false,
            History::Since(since) => version < since,
            History::Until(end) => version >= end,
        };
        if !may_lack {
            faults.push(format!(
                "{name}: not in C of {version:?}, known as {history:?}"
            ));
        }
    }
    faults
}

fn differences(ours: &BTreeMap<String, u64>, theirs: &BTreeMap<String, u64>) -> Vec<String> {
    let different = theirs.iter().filter(|(name, value)| ours[*name] != **value);
    different
        .map(|(name, value)| format!("{name}: {}, in C {value}", ours[name]))
        .collect()
}

fn outcome(faults: Vec<String>) -> Result<Completion, Failed> {
    match faults.is_empty() {
        true => Ok(Completion::Completed),
        false => Err(faults.join("\n").into()),
    }
}
