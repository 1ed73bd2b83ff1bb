//! What verbs do and refuse, object by object. With soft-RoCE and with the adapter, in guests of
//! `cargo vm test`; elsewhere every test is ignored.
//!
//! What a kernel or a device does not have is ignored with the reason, after the refusal has been looked at.

mod cq;
mod devinfo;
mod dm;
mod dmabuf;
mod doctor;
mod ece;
mod events;
mod gids;
mod lacking;
mod limits;
mod link;
mod mr;
mod mw;
mod native_mr;
mod perf;
mod probes;
mod qp;
mod refusal;
mod refused;
mod resource;
mod srq;
mod statistic;
mod topology;
mod ways;

use std::process::ExitCode;

fn main() -> ExitCode {
    let roles = [&limits::ROLES[..], &refused::ROLES].concat();
    if let Some(status) = support::role::play(&roles) {
        return status;
    }
    support::run_all([
        cq::tests(),
        devinfo::tests(),
        dm::tests(),
        dmabuf::tests(),
        doctor::tests(),
        ece::tests(),
        events::tests(),
        gids::tests(),
        lacking::tests(),
        limits::tests(),
        link::tests(),
        mr::tests(),
        mw::tests(),
        native_mr::tests(),
        perf::tests(),
        probes::tests(),
        qp::tests(),
        refusal::tests(),
        refused::tests(),
        resource::tests(),
        srq::tests(),
        statistic::tests(),
        topology::tests(),
        ways::tests(),
    ])
}
