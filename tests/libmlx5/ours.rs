//! Our side: posts the requests of a list through the library.

use std::ops::Range;
use std::sync::Arc;

use support::{QKEY, Result, completions, nothing};
use uverbs::direct::mlx5::{Direct, GatheredKey};
use uverbs::uapi::enums::WrOpcode;
use uverbs::uapi::flags::{Access, SendFlags};
use uverbs::{
    AddressVector, Ah, Batch, Caps, ConnectOptions, Context, Cq, Gid, Inline, LocalSlice, Mr, Pd,
    Qp, Srq,
    mw::{Mw, Type1, Type2},
    qp::QpType,
    transport::Any,
};

use crate::DEVICE;
use crate::list::{self, Address, Kind, Request, Slice, Step};
use crate::names::Names;

/// What there is to post with.
struct Side {
    qps: [Qp<Any>; 2],
    /// For sends and for receives.
    cqs: [[Cq; 2]; 2],
    srq: Option<Srq>,
    addresses: Vec<Ah>,
    window1: Mw<Type1>,
    window2: Mw<Type2>,
    memory: Arc<Mr<Vec<u8>>>,
    key: Option<GatheredKey>,
    path: AddressVector,
    pd: Pd,
}

/// Posts the list, and tells what the objects are called.
pub(crate) fn run(kind: Kind, gid: (u8, Gid), roce: bool, steps: &[Step]) -> Result<Names> {
    let context = uverbs::open(DEVICE)?;
    let mut side = Side::new(&context, kind, gid, roce)?;
    let names = Names {
        queue_pairs: [side.qps[0].qpn(), side.qps[1].qpn()],
        memory: side.memory.iova(),
        keys: [side.memory.lkey().0, side.memory.rkey().0],
        windows: [side.window1.rkey().0, side.window2.rkey().0],
        gathered: side.key.as_ref().map_or(0, |key| key.rkey().0),
    };
    for step in steps {
        side.step(step)
            .map_err(|error| format!("ours, at `{step}`: {error}"))?;
    }
    Ok(names)
}

impl Side {
    fn new(context: &Context, kind: Kind, (index, gid): (u8, Gid), roce: bool) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let bytes = (0..list::MEMORY).map(|at| (at % 251) as u8).collect();
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND;
        let memory: Mr<Vec<u8>> = pd
            .register(bytes, access)
            .map_err(|refused| refused.error)?;
        let key = match kind {
            Kind::Keys => Some(Direct::of(context)?.alloc_key(&pd, 12)?),
            _ => None,
        };
        let (window1, mut window2) = (pd.alloc_mw::<Type1>()?, pd.alloc_mw::<Type2>()?);
        // The kernel counts the low byte on from window to window. A window that begins with one of a bind
        // would be taken for bound.
        while list::TAGS.contains(&(window2.rkey().0 as u8)) {
            window2 = pd.alloc_mw::<Type2>()?;
        }
        let srq = match kind {
            Kind::Shared => Some(pd.srq(list::RECV_WR).max_sge(list::RECV_SGE).create()?),
            _ => None,
        };
        let transport = match kind {
            Kind::Rc | Kind::Shared | Kind::Keys => QpType::RC,
            Kind::Uc => QpType::UC,
            Kind::Ud => QpType::UD,
        };
        let queues = || -> Result<[Cq; 2]> { Ok([context.create_cq(63)?, context.create_cq(63)?]) };
        let cqs = [queues()?, queues()?];
        let create = |[sends, receives]: &[Cq; 2]| {
            let builder = pd.qp(sends).recv_cq(receives).caps(Caps {
                max_send_wr: list::SEND_WR,
                max_recv_wr: list::RECV_WR,
                max_send_sge: list::SEND_SGE,
                max_recv_sge: list::RECV_SGE,
                max_inline_data: list::INLINE,
            });
            match &srq {
                Some(srq) => builder.srq(srq).create_any(transport),
                None => builder.create_any(transport),
            }
        };
        let mut qps = [create(&cqs[0])?, create(&cqs[1])?];
        let options = ConnectOptions {
            gid_index: roce.then_some(index),
            ..ConnectOptions::default()
        };
        if kind == Kind::Ud {
            for qp in &mut qps {
                qp.activate(QKEY, &options)?;
            }
        } else {
            let ends = [
                qps[0].endpoint_with(&options)?,
                qps[1].endpoint_with(&options)?,
            ];
            qps[0].connect_with(&ends[1], &options)?;
            qps[1].connect_with(&ends[0], &options)?;
        }
        let path = AddressVector {
            dlid: context.query_port(1)?.lid,
            ..AddressVector::global(1, index, gid)
        };
        Ok(Self {
            qps,
            cqs,
            srq,
            addresses: Vec::new(),
            window1,
            window2,
            memory: Arc::new(memory),
            key,
            path,
            pd,
        })
    }

    fn step(&mut self, step: &Step) -> Result {
        match step {
            Step::Address(address) => self.address(*address),
            Step::Receive { queue, slices } => self.receive(*queue, slices),
            Step::Bind {
                qp,
                flags,
                access,
                window,
            } => self.bind(*qp, *flags, *access, *window),
            Step::Gather {
                flags,
                access,
                rows,
                parts,
            } => self.gather(*flags, *access, *rows, parts),
            Step::Raw => self.raw(),
            Step::Post {
                qp,
                requests,
                receives,
            } => self.post(*qp, requests, *receives),
        }
    }

    fn address(&mut self, to: Address) -> Result {
        let path = AddressVector {
            dgid: self.path.dgid.filter(|_| to.global),
            flow_label: to.flow_label,
            hop_limit: to.hop_limit,
            traffic_class: to.class,
            sl: to.sl,
            src_path_bits: to.path_bits,
            static_rate: to.rate,
            ..self.path.clone()
        };
        self.addresses.push(self.pd.create_ah(&path)?);
        Ok(())
    }

    fn receive(&mut self, queue: usize, slices: &[Slice]) -> Result {
        let slices = local(&self.memory, slices)?;
        let mut batch = match &mut self.srq {
            Some(srq) if queue == list::SHARED => srq.batch(),
            _ => self.qps[queue].recv_batch(),
        };
        batch.post(0, slices)?;
        batch.ring();
        Ok(())
    }

    fn bind(&mut self, qp: usize, flags: SendFlags, access: Access, slice: Slice) -> Result {
        let mut batch = self.qps[qp].batch();
        let request = start(&mut batch, flags);
        if slice.1 == 0 {
            request.unbind_mw(&mut self.window1)?;
        } else {
            let part = self.memory.window(range(slice), access)?;
            request.bind_mw(&mut self.window1, part)?;
        }
        batch.ring()?;
        wait(&mut self.cqs[qp][0], 1)
    }

    fn gather(
        &mut self,
        flags: SendFlags,
        access: Access,
        rows: u32,
        parts: &[(Slice, u16)],
    ) -> Result {
        let direct = Direct::of(self.pd.context())?;
        let mut description = direct.gather(&self.pd, access).rows(rows);
        for (slice, stride) in parts {
            description = description.strided(&self.memory, range(*slice), *stride)?;
        }
        let key = self.key.as_ref().ok_or("no key")?;
        let mut batch = self.qps[0].batch();
        start(&mut batch, flags).gather(key, description)?;
        batch.ring()?;
        wait(&mut self.cqs[0][0], 1)
    }

    fn raw(&mut self) -> Result {
        const NOP: u8 = 0;
        const COMPLETES: u8 = 8;
        let mut nothing = [0; 16];
        (nothing[3], nothing[7], nothing[11]) = (NOP, 1, COMPLETES);
        // SAFETY: it names no memory.
        unsafe { self.qps[0].one(0).raw(&nothing)? };
        wait(&mut self.cqs[0][0], 1)
    }

    fn post(&mut self, qp: usize, requests: &[Request], receives: u32) -> Result {
        let to = self.qps[1 - qp].qpn();
        let mut batch = self.qps[qp].batch();
        for request in requests {
            push(
                start(&mut batch, request.flags),
                request,
                &self.memory,
                &mut self.window2,
                (&self.addresses, to),
            )?;
        }
        batch.ring()?;
        wait(&mut self.cqs[qp][0], list::signaled(requests))?;
        wait(&mut self.cqs[1 - qp][1], receives)
    }
}

/// The bytes of a slice of a list.
fn range((offset, length): Slice) -> Range<usize> {
    offset as usize..offset as usize + length as usize
}

fn local<'r>(memory: &'r Mr<Vec<u8>>, slices: &[Slice]) -> Result<Vec<LocalSlice<'r>>> {
    let slice = |&slice: &Slice| memory.slice(range(slice));
    Ok(slices
        .iter()
        .map(slice)
        .collect::<std::result::Result<_, _>>()?)
}

/// Starts a request of the batch with these flags.
fn start<'b, 'q>(batch: &'b mut Batch<'q, Any>, flags: SendFlags) -> uverbs::Request<'b, 'q, Any> {
    let mut request = match flags.contains(SendFlags::SIGNALED) {
        true => batch.signaled(1),
        false => batch.unsignaled(0),
    };
    if flags.contains(SendFlags::SOLICITED) {
        request = request.solicited();
    }
    if flags.contains(SendFlags::FENCE) {
        request = request.fence();
    }
    request
}

/// Adds a request of a list to the batch.
fn push<'q>(
    started: uverbs::Request<'_, 'q, Any>,
    request: &Request,
    memory: &'q Mr<Vec<u8>>,
    window: &mut Mw<Type2>,
    (addresses, peer): (&[Ah], u32),
) -> Result {
    let slices = local(memory, &request.slices)?;
    let mut bytes = Vec::new();
    if request.is_inline() {
        let (offset, length) = request.slices[0];
        bytes.resize(length as usize, 0);
        memory.read_at(offset as usize, &mut bytes)?;
    }
    let inline = request.is_inline();
    let imm = request.immediate;
    let (first, second) = request.operands;
    let remote = memory.remote().slice(request.offset as usize..)?;
    let to = request
        .address
        .map(|address| addresses[address].to(peer, QKEY));
    match (request.opcode, to) {
        (WrOpcode::SEND, Some(to)) if inline => started.to(to).send(Inline(&bytes))?,
        (WrOpcode::SEND, Some(to)) => started.to(to).send(slices)?,
        (WrOpcode::SEND_WITH_IMM, Some(to)) if inline => {
            started.to(to).send_imm(Inline(&bytes), imm)?
        }
        (WrOpcode::SEND_WITH_IMM, Some(to)) => started.to(to).send_imm(slices, imm)?,
        (WrOpcode::SEND, None) if inline => started.send(Inline(&bytes))?,
        (WrOpcode::SEND, None) => started.send(slices)?,
        (WrOpcode::SEND_WITH_IMM, None) if inline => started.send_imm(Inline(&bytes), imm)?,
        (WrOpcode::SEND_WITH_IMM, None) => started.send_imm(slices, imm)?,
        (WrOpcode::SEND_WITH_INV, None) if inline => {
            started.send_inv(Inline(&bytes), window.rkey())?
        }
        (WrOpcode::SEND_WITH_INV, None) => started.send_inv(slices, window.rkey())?,
        (WrOpcode::RDMA_WRITE, None) if inline => started.write(Inline(&bytes), remote)?,
        (WrOpcode::RDMA_WRITE, None) => started.write(slices, remote)?,
        (WrOpcode::RDMA_WRITE_WITH_IMM, None) if inline => {
            started.write_imm(Inline(&bytes), remote, imm)?
        }
        (WrOpcode::RDMA_WRITE_WITH_IMM, None) => started.write_imm(slices, remote, imm)?,
        (WrOpcode::RDMA_READ, None) => started.read(slices, remote)?,
        (WrOpcode::ATOMIC_CMP_AND_SWP, None) => {
            started.compare_swap(slices[0], remote, first, second)?
        }
        (WrOpcode::ATOMIC_FETCH_AND_ADD, None) => started.fetch_add(slices[0], remote, first)?,
        (WrOpcode::LOCAL_INV, None) => started.local_inv(window.rkey())?,
        (WrOpcode::BIND_MW, None) => {
            let access = Access::from_bits_retain(first as u32);
            let part = memory.window(range(request.slices[0]), access)?;
            started.bind_mw_as(window, second as u8, part)?
        }
        _ => return Err("no such request".into()),
    }
    Ok(())
}

/// Takes so many completions, all of which must be successes.
fn wait(cq: &mut Cq, count: u32) -> Result {
    for wc in completions(cq, count as usize)? {
        wc.ok()?;
    }
    nothing(cq)
}
