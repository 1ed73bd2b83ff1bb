//! From numbers back to names, so that traces are readable. Names are the kernel's without their common
//! prefix.
//!
//! Numbers in the driver namespace have a different meaning for each driver. They get mlx5's names, the only
//! driver here that has any.

use crate::{cmd, mlx5, object};

mod objects;

pub use objects::OBJECTS;

/// The ids of one id space with their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// The prefix of every name in the kernel's headers.
    pub prefix: &'static str,
    /// Number and name without the prefix, in the order of the numbers.
    pub ids: &'static [(u32, &'static str)],
}

impl Ids {
    /// The name of a number, without the prefix.
    #[must_use]
    pub fn name(&self, id: u32) -> Option<&'static str> {
        self.ids
            .iter()
            .find(|(known, _)| *known == id)
            .map(|(_, name)| *name)
    }
}

/// An object type with its methods.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// The object type.
    pub id: u16,
    /// Its methods, the core's and the driver's.
    pub methods: &'static [Ids],
    /// For each method the attributes, the core's and the driver's.
    pub attrs: &'static [(u16, &'static [Ids])],
}

/// All object types, core and driver.
pub const OBJECT_IDS: &[Ids] = &[object::IDS, mlx5::object::IDS];

/// Name of an object type: `CQ`.
#[must_use]
pub fn object_name(object: u16) -> Option<&'static str> {
    find(OBJECT_IDS, object)
}

/// Name of a method: `CREATE` of a CQ.
#[must_use]
pub fn method_name(object: u16, method: u16) -> Option<&'static str> {
    find(lookup(object)?.methods, method)
}

/// Name of an attribute: `COMP_CHANNEL`.
#[must_use]
pub fn attr_name(object: u16, method: u16, attr: u16) -> Option<&'static str> {
    let (_, attrs) = lookup(object)?.attrs.iter().find(|(id, _)| *id == method)?;
    find(attrs, attr)
}

/// Name of a command of the write interface: `ALLOC_PD`, and `EX_CREATE_CQ` with
/// [`cmd::FLAG_EXTENDED`].
#[must_use]
pub fn command_name(command: u32) -> Option<&'static str> {
    cmd::IDS.name(command)
}

fn find(tables: &[Ids], id: u16) -> Option<&'static str> {
    tables.iter().find_map(|table| table.name(id.into()))
}

fn lookup(object: u16) -> Option<&'static Object> {
    OBJECTS.iter().find(|known| known.id == object)
}
