//! A WRITE of an initiator of dynamic connections, for callgrind to count. `dc.c` has a function of the same
//! name that does the same through libibverbs and libmlx5.

use anyhow::{Result, ensure};
use uverbs::{
    Access, Caps, ConnectOptions, Context, DcPeer, LocalSlice, Qp, RemoteSlice, transport::Dc,
};

use crate::instructions::{WRITE, drain, row};
use crate::pair::DEPTH;

const KEY: u64 = 0x0123_4567_89ab_cdef;

/// Posts one signaled WRITE.
#[inline(never)]
#[unsafe(export_name = "op_dc_write")]
fn post_write(
    qp: &mut Qp<Dc>,
    to: DcPeer<'_>,
    from: &LocalSlice,
    into: &RemoteSlice,
    wr_id: u64,
) -> bool {
    let mut batch = qp.batch();
    let request = batch.signaled(wr_id).to(to);
    request.write(from, *into).is_ok() && batch.ring().is_ok()
}

/// Does it in turn, as [`crate::instructions::run`].
///
/// # Errors
/// As there.
pub fn run(context: &Context) -> Result<()> {
    let (pd, options) = (context.alloc_pd()?, ConnectOptions::default());
    let mut cq = context.create_cq(2 * DEPTH)?;
    let srq = pd.srq(1).create()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let memory = pd.register(vec![0; 4096], access)?;
    let target = pd.dc_target(&cq, &srq, KEY).create()?;
    let way = pd.create_ah(&context.path_to(&target.endpoint(), &options)?)?;
    let caps = Caps {
        max_send_wr: DEPTH,
        ..Caps::default()
    };
    let mut qp = pd.create_qp::<Dc>(&cq, caps)?;
    qp.activate_initiator(&options)?;
    let to = way.to_target(target.number(), target.key());
    let local = memory.slice(..WRITE)?;
    let remote = memory.remote().slice(2048..2048 + WRITE)?;
    row("dc_write", || {
        ensure!(
            post_write(&mut qp, to, &local, &remote, 7),
            "posting a WRITE"
        );
        drain(&mut cq, 1)
    })
}
