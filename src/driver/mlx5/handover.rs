//! Queues on their way to an agent, and back.
//!
//! The agent learns where the rings lie and how far they are. All of them lie in dma-bufs, and the register
//! in a page on which no other queue pair rings. From then on nothing here reads the rings: the entries of
//! the completion queue count as not arrived ([`super::entries`]), and nobody posts. On the way back the
//! rings may hold anything. The queue pair is reset, which empties its rings, and the completion queue
//! continues where the device says that it is.

use std::sync::Arc;

use uverbs_queue::handover::{File, Handover, Kind, Overrun, Piece, Ring, VERSION};
use uverbs_queue::mlx5::DRIVER;
use uverbs_uapi::enums::QpType;
use uverbs_uapi::handle::CqHandle;

use super::cq::Cq;
use super::device_command::{QueryCq, ask};
use super::format::BLOCK;
use super::qp::QpCore;
use super::recv::RecvQueue;
use super::send::SendQueue;
use crate::alloc::Dmabuf;
use crate::command::CommandFd;
use crate::driver::contract::{self, HandedOver, SendQueue as _};
use crate::error::{Error, Result, Subject, Verb};

type Leaving<'a> = contract::LeavingQp<'a, SendQueue, RecvQueue, Arc<QpCore>, Cq>;

/// A part of a dma-buf: where it begins, and how many bytes it has.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) dmabuf: Dmabuf,
    pub(super) offset: u64,
    pub(super) length: usize,
}

impl Part {
    /// The part of a dma-buf that a buffer of `length` bytes takes; `None` if it lies in no dma-buf.
    pub(super) fn of(place: Option<(&Dmabuf, u64)>, length: usize) -> Option<Self> {
        let (dmabuf, offset) = place?;
        Some(Self {
            dmabuf: dmabuf.clone(),
            offset,
            length,
        })
    }
}

/// The parts of dma-bufs that a queue pair takes.
pub(super) struct QpParts {
    pub(super) recv: Part,
    pub(super) send: Part,
    pub(super) record: Part,
}

/// The dma-bufs that are handed over, each once.
#[derive(Default)]
struct Files(Vec<Dmabuf>);

impl Files {
    fn piece(&mut self, part: Part) -> Piece {
        let known = self.0.iter().position(|known| *known == part.dmabuf);
        let index = known.unwrap_or_else(|| {
            self.0.push(part.dmabuf);
            self.0.len() - 1
        });
        Piece {
            offset: part.offset,
            length: part.length as u64,
            file: File::dmabuf(index as u32),
            kind: Kind::MEMORY,
        }
    }
}

/// Hands a queue pair and its completion queue over.
pub(super) fn hand_over(leaving: Leaving<'_>) -> Result<HandedOver> {
    let Leaving {
        qpn,
        transport,
        backing: qp,
        send,
        recv,
        cq,
    } = leaving;
    let subject = || Subject::on_the_wire("QP", qpn);
    let refuse = |why: &'static str| Error::invalid(Verb::IntoDevice, subject(), why);
    if !matches!(transport, QpType::RC | QpType::UC) {
        return Err(refuse("an agent posts to RC and UC queue pairs alone"));
    }
    let Some(recv) = recv else {
        return Err(refuse("it receives from a shared queue"));
    };
    if qp.is_out_of_order() {
        return Err(refuse("it receives out of order"));
    }
    if qp.lands() {
        return Err(refuse("data come in its completions (inline scatter)"));
    }
    if !qp.lease.has_page() {
        let why = "others may ring on its register page: create it with `QpBuilder::for_agent`";
        return Err(refuse(why));
    }
    let parts = qp.parts().zip(cq.parts());
    let Some((
        QpParts {
            recv: recv_ring,
            send: send_ring,
            record,
        },
        (entries, completion_record),
    )) = parts
    else {
        let why = "a ring or a doorbell record lies in no dma-buf: create the queue pair and its completion \
                   queue on a domain whose allocator answers with those";
        return Err(refuse(why));
    };
    let mut files = Files::default();
    let receive = Ring {
        piece: files.piece(recv_ring),
        entries: qp.recv.count,
        entry_bytes: qp.recv.stride,
        count: recv.rung().into(),
    };
    let send = Ring {
        piece: files.piece(send_ring),
        entries: qp.send.blocks,
        entry_bytes: BLOCK as u32,
        count: send.position().at,
    };
    let (register, address) = qp.lease.register().piece();
    let value = Handover {
        version: VERSION,
        driver: DRIVER,
        qpn,
        cqn: cq.cqn(),
        overrun: match cq.ignores_overrun() {
            true => Overrun::IGNORED,
            false => Overrun::FAILS,
        },
        send,
        receive,
        completions: Ring {
            piece: files.piece(entries),
            entries: cq.count(),
            entry_bytes: cq.entry_bytes() as u32,
            count: cq.passed().into(),
        },
        record: files.piece(record),
        completion_record: files.piece(completion_record),
        register,
        ..Handover::default()
    };
    cq.leave(qp.is_mapped());
    Ok(HandedOver {
        value,
        dmabufs: files.0,
        register: address,
    })
}

/// Fails if a ring or a record of a queue lies where this process cannot clear it.
pub(super) fn may_take_back(handle: CqHandle, cq: &Cq) -> Result<()> {
    if !cq.can_come_back() {
        let subject = Subject::numbered("CQ", handle.0.into());
        let why = "a ring or a record lies where this process does not reach it: destroy the queue";
        return Err(Error::invalid(Verb::Reclaim, subject, why));
    }
    Ok(())
}

/// Takes a completion queue back. All queue pairs that report to it are at rest.
pub(super) fn take_back(fd: &CommandFd, handle: CqHandle, cq: &mut Cq) -> Result<()> {
    let query = QueryCq {
        handle,
        cqn: cq.cqn(),
    };
    let state = ask(fd, &query)?;
    if state.has_failed {
        let subject = Subject::numbered("CQ", handle.0.into());
        let why =
            "the device had no room for a completion, by what its record said: destroy the queue";
        return Err(Error::invalid(Verb::Reclaim, subject, why));
    }
    cq.come_back(state.produced);
    Ok(())
}
