//! What goes over the wire: every operation of every transport, the shapes that messages and their memory can
//! have, load, and what fails. With soft-RoCE and with the adapter, in guests of `cargo vm test`; elsewhere
//! every test is ignored.

mod beside;
mod data;
mod dc;
mod errors;
mod full;
mod inline_scatter;
mod load;
mod loose;
mod many;
mod null_mr;
mod opcodes;
mod regions;
mod registers;
mod resets;
mod shapes;
mod slots;
mod ud;
mod xrc;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(status) = support::role::play(&registers::ROLES) {
        return status;
    }
    support::run_all([
        data::tests(),
        opcodes::tests(),
        regions::tests(),
        shapes::tests(),
        inline_scatter::tests(),
        load::tests(),
        full::tests(),
        loose::tests(),
        many::tests(),
        null_mr::tests(),
        registers::tests(),
        errors::tests(),
        resets::tests(),
        beside::tests(),
        xrc::tests(),
        dc::tests(),
        // The last, for one of them leaves its context behind, whose registers others would count.
        ud::tests(),
    ])
}
