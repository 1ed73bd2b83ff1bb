//! What verbs do on soft-RoCE, with real traffic: run by `cargo vm test` in a guest, and ignored on the host.
//!
//! Each module lists its tests; what a kernel does not have is ignored with the reason, after the kernel's refusal has
//! been looked at.

mod cq;
mod dmabuf;
mod lacking;
mod mr;
mod mw;
mod native_mr;
mod opcodes;
mod qp;
mod resource;
mod srq;
mod support;
mod ud;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let tests = [
        cq::tests(),
        dmabuf::tests(),
        lacking::tests(),
        mr::tests(),
        mw::tests(),
        native_mr::tests(),
        opcodes::tests(),
        qp::tests(),
        resource::tests(),
        srq::tests(),
        ud::tests(),
    ];
    let tests = tests.into_iter().flatten().collect();
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}
