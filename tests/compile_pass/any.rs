//! A transport chosen at run time has all operations; the transport decides when they are called.

use uverbs::{qp::QpType, transport::Any, ConnectOptions, Cq, Endpoint, LocalSlice, Pd, PostError, Qp, RemoteSlice, Result, UdPeer};

pub fn create(pd: &Pd, cq: &Cq, peer: Option<&Endpoint>) -> Result<Qp<Any>> {
    let mut qp = match peer {
        Some(_) => pd.qp(cq).create_any(QpType::RC)?,
        None => pd.qp(cq).create_any(QpType::UD)?,
    };
    match peer {
        Some(peer) => qp.connect(peer)?,
        None => qp.activate(0x1111_1111, &ConnectOptions::default())?,
    }
    Ok(qp)
}

pub fn post(
    qp: &mut Qp<Any>,
    to: UdPeer<'_>,
    here: LocalSlice,
    there: RemoteSlice,
) -> std::result::Result<usize, PostError> {
    let mut batch = qp.batch();
    batch.unsignaled(0).send(here)?;
    batch.unsignaled(0).to(to).send(here)?;
    batch.unsignaled(0).write(here, there)?;
    batch.unsignaled(0).read(here, there)?;
    batch.unsignaled(0).fetch_add(here, there, 1)?;
    batch.ring()
}

fn main() {}
