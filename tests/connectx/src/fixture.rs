//! What the unit tests start from: a function with memory of its own, and objects that are made as the driver
//! makes them.

use crate::command::{Handler, Status};
use crate::function::Function;
use crate::layout::{Field, cmd};
use crate::port::{Port, PortKind};
use crate::subnet::Subnet;
use crate::tap::Tap;
use vfio_model::memory::GuestMemory;
use vfio_model::report::Report;

/// Bytes of the memory, which begins at address 0.
const MEMORY: usize = 0x8000;

/// A function with an InfiniBand port, and no objects.
pub(crate) fn function() -> Function {
    let port = Port::new(PortKind::InfiniBand, 0);
    let mut function = Function::new(
        port,
        Subnet::default(),
        Report::new("connectx", false),
        Tap::default(),
    );
    function.memory = GuestMemory::anonymous(0, MEMORY);
    function
}

/// Marks 16 entries of a completion queue that is to be made there, of either size, as drivers do.
pub(crate) fn mark_entries(function: &Function, at: u64) {
    for place in 1..=32 {
        assert_eq!(function.memory.write(at + place * 64 - 1, &[0xf1]), Ok(()));
    }
}

/// Executes a command that makes an object from a context, which begins at that byte of the input, and pages.
/// Gives the command's output.
pub(crate) fn create(
    function: &mut Function,
    command: Handler,
    context_at: usize,
    fields: &[(Field, u64)],
    pages: &[u64],
) -> Result<[u8; 16], Status> {
    let mut input = vec![0; cmd::PAS];
    for (field, value) in fields {
        field.set(&mut input[context_at..], *value);
    }
    input.extend(pages.iter().flat_map(|page| page.to_be_bytes()));
    let mut output = [0; 16];
    command(function, &input, &mut output)?;
    Ok(output)
}
