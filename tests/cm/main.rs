//! Connections by address: the module `cm` against itself and against rdma-core's programs, and what becomes
//! of it when peers, addresses or time run out.

mod breakage;
mod connect;
mod datagrams;
mod domains;
mod down;
mod faults;
mod forked;
mod ground;
mod hostile;
mod infiniband;
mod killed;
mod listen;
mod load;
mod loss;
mod model;
mod programs;
mod refused;
mod resolve;
mod xrc;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(status) =
        support::role::play(&[&killed::ROLES[..], &model::ROLES[..], &refused::ROLES[..]].concat())
    {
        return status;
    }
    support::run_all([
        connect::tests(),
        listen::tests(),
        faults::tests(),
        forked::tests(),
        killed::tests(),
        breakage::tests(),
        hostile::tests(),
        loss::tests(),
        down::tests(),
        domains::tests(),
        model::tests(),
        datagrams::tests(),
        load::tests(),
        programs::tests(),
        refused::tests(),
        resolve::tests(),
        xrc::tests(),
        infiniband::tests(),
    ])
}
