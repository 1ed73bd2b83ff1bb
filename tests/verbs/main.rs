//! What verbs do, with real traffic, on soft-RoCE and on the adapter: run by `cargo vm test` in a guest, and ignored on the
//! host.
//!
//! Each module lists its tests; what a kernel or a device does not have is ignored with the reason, after the refusal has
//! been looked at.

mod beyond;
mod cq;
#[path = "../device/mod.rs"]
mod device;
mod devinfo;
mod dmabuf;
mod ece;
#[path = "../hca/mod.rs"]
#[expect(dead_code, reason = "what adapter there is says `device`")]
mod hca;
mod inline_scatter;
mod lacking;
mod many;
mod mr;
mod mw;
mod native_mr;
mod opcodes;
#[path = "../peers/program.rs"]
mod program;
mod qp;
mod refusal;
mod resource;
mod shapes;
mod srq;
mod support;
mod ud;
mod unplug;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let tests = [
        beyond::tests(),
        cq::tests(),
        devinfo::tests(),
        dmabuf::tests(),
        ece::tests(),
        inline_scatter::tests(),
        lacking::tests(),
        many::tests(),
        mr::tests(),
        mw::tests(),
        native_mr::tests(),
        opcodes::tests(),
        qp::tests(),
        refusal::tests(),
        resource::tests(),
        shapes::tests(),
        srq::tests(),
        ud::tests(),
        unplug::tests(),
    ];
    let tests = tests.into_iter().flatten().collect();
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}
