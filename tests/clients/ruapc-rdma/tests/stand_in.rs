//! What ruapc's own tests do not try, in a guest with soft-RoCE and without libibverbs.

use std::error::Error;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use ruapc_bufpool::{Buffer, BufferPool, BufferPoolBuilder, Device, DeviceIndex, DeviceSet};
use ruapc_rdma::{
    ActiveDevice, CompletionBatch, CompletionCursor, CompletionQueue, ErrorKind, GidType,
    QpConnectionConfig, QueuePair, ReadFailure, ReadRequest, ReadSegment, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_send_flags, ibv_wc,
};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;
type Test = fn() -> Result;

fn main() -> ExitCode {
    let tests: [(&str, Test); 5] = [
        ("libibverbs_is_not_there", libibverbs_is_not_there),
        ("messages_of_pieces_arrive", messages_of_pieces_arrive),
        ("reads_own_their_buffers", reads_own_their_buffers),
        (
            "plans_that_cannot_be_are_refused",
            plans_that_cannot_be_are_refused,
        ),
        (
            "completions_of_others_are_refused",
            completions_of_others_are_refused,
        ),
    ];
    let trial = |(name, test): (&str, Test)| {
        Trial::ignorable_test(name, move || match std::env::var_os("VM_GUEST") {
            None => Ok(Completion::ignored_with("needs a guest")),
            Some(_) => test().map(|()| Completion::Completed).map_err(Failed::from),
        })
    };
    let trials = tests.into_iter().map(trial).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Catches a guest in which libibverbs may have done the work: rdma-core's programs are there, and cannot
/// start.
fn libibverbs_is_not_there() -> Result {
    let devinfo = Command::new("ibv_devinfo").output()?;
    let said = String::from_utf8_lossy(&devinfo.stderr);
    assert!(!devinfo.status.success(), "ibv_devinfo works");
    assert!(
        said.contains("libibverbs.so.1: cannot open shared object file"),
        "{said}"
    );
    Ok(())
}

#[derive(Debug)]
struct Registered {
    device: ActiveDevice,
    index: DeviceIndex,
}

impl Device for Registered {
    type Registrar = ActiveDevice;

    fn registrar(&self) -> &ActiveDevice {
        &self.device
    }

    fn index(&self) -> DeviceIndex {
        self.index
    }

    fn set_index(&mut self, index: DeviceIndex) {
        self.index = index;
    }
}

/// Two queue pairs that are connected, on one completion queue.
struct Pair {
    a: QueuePair,
    b: QueuePair,
    cq: Arc<CompletionQueue>,
    pool: Arc<BufferPool>,
    devices: Arc<DeviceSet<Registered>>,
}

impl Pair {
    fn new() -> Result<Self> {
        let device = ActiveDevice::available()?.pop().ok_or("no device")?;
        let mut devices = DeviceSet::default();
        devices.push(Registered {
            device,
            index: DeviceIndex::default(),
        });
        let devices = Arc::new(devices);
        let cq = CompletionQueue::create(devices.devices()[0].device.context(), 64, None)?;
        let (a, b) = (queue_pair(&devices, &cq)?, queue_pair(&devices, &cq)?);
        connect(&devices, &a, &b)?;
        connect(&devices, &b, &a)?;
        Ok(Self {
            a,
            b,
            cq,
            pool: BufferPoolBuilder::new(devices.clone()).build(),
            devices,
        })
    }

    fn buffer(&self, bytes: &[u8]) -> Result<Buffer> {
        let mut buffer = self.pool.allocate(bytes.len())?;
        buffer.set_len(0);
        buffer.extend_from_slice(bytes)?;
        Ok(buffer)
    }

    /// The next completion, and what it released.
    fn next(&self) -> Result<(ibv_wc, Option<ruapc_rdma::WrBuffers>)> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            let mut batch = CompletionBatch::<1>::new();
            if let Some(completion) = self.cq.poll_batch(&mut batch)?.next() {
                let of = match completion.qp_num() == self.a.qp_num() {
                    true => &self.a,
                    false => &self.b,
                };
                let done = of.complete(completion, &mut CompletionCursor::default())?;
                return Ok((*done.wc, done.buffer));
            }
            std::thread::yield_now();
        }
        Err("no completion for a minute".into())
    }
}

fn queue_pair(devices: &DeviceSet<Registered>, cq: &Arc<CompletionQueue>) -> Result<QueuePair> {
    let Registered { device, index } = &devices.devices()[0];
    let mut attr = ibv_qp_init_attr {
        cap: ibv_qp_cap {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 4,
            max_recv_sge: 1,
            ..ibv_qp_cap::default()
        },
        ..ibv_qp_init_attr::default()
    };
    Ok(QueuePair::create(device.pd(), cq, &mut attr, *index)?)
}

fn connect(devices: &DeviceSet<Registered>, this: &QueuePair, peer: &QueuePair) -> Result {
    let port = &devices.devices()[0].device.info().ports[0];
    let mut gids = port.gids.iter();
    let gid = gids.find(|gid| gid.gid_type == GidType::RoCEv2);
    let gid = gid.ok_or("no GID of RoCE v2")?;
    this.connect(&QpConnectionConfig {
        local_port_num: port.port_num,
        local_gid_index: gid.index,
        pkey_index: 0,
        link_layer: port.port_attr.link_layer,
        path_mtu: port.port_attr.active_mtu,
        remote_qp_num: peer.qp_num(),
        remote_gid: gid.gid,
        remote_lid: port.port_attr.lid,
        local_psn: this.qp_num(),
        remote_psn: peer.qp_num(),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        traffic_class: 0,
    })?;
    Ok(())
}

/// Catches pieces in a wrong order, immediate data in a wrong byte order, and buffers that go to somebody
/// else.
fn messages_of_pieces_arrive() -> Result {
    let pair = Pair::new()?;
    pair.b.recv(pair.pool.allocate(64)?)?;
    pair.b.recv(pair.pool.allocate(64)?)?;
    let pieces = [pair.buffer(b"pieces ")?, pair.buffer(b"of one message")?];
    let fenced = ibv_send_flags::IBV_SEND_FENCE | ibv_send_flags::IBV_SEND_SOLICITED;
    pair.a.send_gather(Box::new(pieces), Some(0x0102_0304))?;
    // It reports nothing, so it has its buffer until the next one has completed.
    pair.a.send_imm(pair.buffer(b"fenced")?, 7, fenced)?;
    let mut received = Vec::new();
    let mut sent = 0;
    while sent + received.len() < 3 {
        let (wc, buffers) = pair.next()?;
        assert!(wc.succ(), "{wc:?}");
        let buffers = buffers.ok_or("a completion without its buffers")?;
        if wc.is_send_imm() {
            assert!(buffers.into_single().is_none(), "not the pieces");
            sent += 1;
            continue;
        }
        let mut buffer = buffers.into_single().ok_or("not the receive's buffer")?;
        buffer.set_len(wc.byte_len as usize);
        received.push((buffer.to_vec(), wc.imm()));
    }
    let expected = [
        (b"pieces of one message".to_vec(), Some(0x0102_0304)),
        (b"fenced".to_vec(), Some(7)),
    ];
    assert_eq!(received, expected);
    let inline = pair
        .a
        .send(pair.buffer(b"x")?, ibv_send_flags::IBV_SEND_INLINE);
    assert_eq!(
        inline.err().map(|error| error.kind),
        Some(ErrorKind::IBPostSendFail)
    );
    Ok(())
}

/// Catches destinations that are given back while a READ may still write to them, and READs to a wrong place.
fn reads_own_their_buffers() -> Result {
    let pair = Pair::new()?;
    let source = pair.buffer(b"0123456789abcdef")?;
    let key = source.memory_key(&pair.devices.devices()[0])?;
    let mut destination = pair.pool.allocate(32)?;
    destination.set_len(32);
    destination.fill(b'.');
    let part = |offset, len| ReadSegment {
        buffer: 0,
        offset,
        len,
    };
    let request = ReadRequest {
        remote_addr: source.as_ptr() as u64 + 4,
        rkey: key.rkey,
        segments: vec![part(20, 2), part(0, 6)],
    };
    let planned = pair.a.prepare_reads(vec![destination], vec![request]);
    let (mut posting, mut completion) = planned.map_err(|(error, _)| error)?;
    let handle = posting.handle();
    pair.a.post_read(&mut posting)?;
    assert_eq!(posting.remaining(), 0);
    assert!(posting.cancel().is_none(), "the device had it");
    assert!(handle.is_pending());
    let (wc, _) = pair.next()?;
    assert!(wc.succ() && wc.is_read(), "{wc:?}");
    let buffers = completion.try_recv().ok_or("no result")?;
    let buffers = buffers.map_err(|failure| format!("{failure:?}"))?;
    assert_eq!(&buffers[0][..], b"6789ab..............45..........");
    assert!(!handle.is_pending());
    Ok(())
}

/// Catches a READ beyond its buffers, or two that write to the same bytes.
fn plans_that_cannot_be_are_refused() -> Result {
    let pair = Pair::new()?;
    let plan = |parts: &[(usize, usize, usize)]| -> Result<bool> {
        let mut buffer = pair.pool.allocate(16)?;
        buffer.set_len(16);
        let part = |&(buffer, offset, len): &(usize, usize, usize)| ReadSegment {
            buffer,
            offset,
            len,
        };
        let request = ReadRequest {
            remote_addr: 4096,
            rkey: 1,
            segments: parts.iter().map(part).collect(),
        };
        match pair.a.prepare_reads(vec![buffer], vec![request]) {
            Ok((posting, mut completion)) => {
                assert!(posting.cancel().is_some(), "nothing was posted");
                assert!(matches!(
                    completion.try_recv(),
                    Some(Err(ReadFailure::Cancelled))
                ));
                Ok(true)
            }
            Err((error, buffers)) => {
                assert_eq!(error.kind, ErrorKind::InvalidReadPlan);
                assert_eq!(buffers.len(), 1, "the buffer is given back");
                Ok(false)
            }
        }
    };
    assert!(plan(&[(0, 0, 8), (0, 8, 8)])?);
    let refused: [&[_]; 7] = [
        &[],
        &[(1, 0, 1)],
        &[(0, 0, 0)],
        &[(0, 9, 8)],
        &[(0, usize::MAX, 2)],
        &[(0, 0, 8), (0, 7, 1)],
        &[(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 1), (0, 4, 1)],
    ];
    for parts in refused {
        assert!(!plan(parts)?, "{parts:?}");
    }
    Ok(())
}

/// Catches evidence that counts for another queue pair, or one of before with the same number.
fn completions_of_others_are_refused() -> Result {
    let pair = Pair::new()?;
    let first = pair.a.identity().first_sequence();
    assert_eq!(pair.cq.qp_registry_stats().active, 2);
    pair.a.recv(pair.pool.allocate(64)?)?;
    let mut fail = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_ERR,
        ..ibv_qp_attr::default()
    };
    pair.a
        .modify(&mut fail, ibv_qp_attr_mask::IBV_QP_STATE.0 as i32)?;
    let mut batch = CompletionBatch::<4>::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    let completion = loop {
        if let Some(completion) = pair.cq.poll_batch(&mut batch)?.next() {
            break completion;
        }
        assert!(Instant::now() < deadline, "the receive was not flushed");
        batch = CompletionBatch::new();
    };
    let refused = pair
        .b
        .complete(completion, &mut CompletionCursor::default());
    assert_eq!(
        refused.err().map(|error| error.kind),
        Some(ErrorKind::InvalidCompletion)
    );
    let Pair { a, cq, devices, .. } = pair;
    drop(a);
    assert_eq!(cq.qp_registry_stats().active, 1);
    let next = queue_pair(&devices, &cq)?;
    assert!(next.identity().first_sequence() > first);
    Ok(())
}
