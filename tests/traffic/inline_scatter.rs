//! Payloads that come in completions: that they do, and that they then are where the request wanted them.
//!
//! Behind each small message goes a large one, which the device writes to memory. Messages arrive in order:
//! once the large one is there so is the small one, and as long as nobody polls its buffer must be untouched.

use std::sync::Arc;

use libtest_mimic::Trial;
use support::{Result, Wc, completion, device, fail, open, same, skip, test, until};
use uverbs::{
    Access, Caps, Cq, Inline, LocalSlice, Mr, Pd, Qp, Rc, Srq, Uc, Ud, WcOpcode, WcStatus,
    alloc::GuardPages,
    qp::QpBuilder,
    transport::{Connected, Peer, Reaches, StaticTransport},
};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 8] = [
        ("inline_scatter::lacking", lacking),
        ("inline_scatter::rc", || every_size::<Rc>(false)),
        ("inline_scatter::uc", || every_size::<Uc>(false)),
        ("inline_scatter::shared_queue", || every_size::<Rc>(true)),
        ("inline_scatter::reads_and_atomics", reads_and_atomics),
        ("inline_scatter::beside_others", beside_others),
        ("inline_scatter::on_a_domain", on_a_domain),
        ("inline_scatter::destroyed_or_reset", destroyed_or_reset),
    ];
    tests.map(|(name, run)| test(name, run)).into()
}

const SIZES: [usize; 8] = [0, 1, 31, 32, 33, 63, 64, 65];
/// What lies where nothing was written.
const UNTOUCHED: u8 = 0xa5;
/// Bytes of a message that is never in a completion.
const LARGE: usize = 100;
/// Bytes of the region, and where the large message goes.
const REGION: usize = 1024;
const MARKER: usize = 512;

/// Why a test that needs the device's help does not run.
fn only_mlx5() -> Result {
    match device().is_mlx5() {
        true => Ok(()),
        false => skip("soft-RoCE has no inline scatter; `lacking` looks at the refusal"),
    }
}

/// Catches the wish of a queue pair that is passed over, so that its receives name memory that they need not.
fn lacking() -> Result {
    let context = open()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(8)?);
    // SAFETY: nothing is posted.
    let wish = || unsafe { pd.qp(&cq).inline_scatter() };
    let refused = match device().is_rxe() {
        true => wish().create::<Rc>().err(),
        false => wish().create::<Ud>().err(),
    };
    let Some(refused) = refused else {
        return fail("a queue pair with inline scatter");
    };
    let told = refused.is_unsupported() && refused.to_string().contains("inline scatter");
    same(told, true, &refused.to_string())
}

/// A sender, and a receiver whose small messages come in completions.
struct Ends<T: StaticTransport> {
    sender: Qp<T>,
    receiver: Qp<T>,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    pd: Pd,
}

/// Room for lists.
fn caps() -> Caps {
    Caps {
        max_recv_sge: 3,
        max_send_sge: 3,
        ..Caps::default()
    }
}

/// What every queue pair here is.
fn with_inline_scatter(builder: QpBuilder<'_>) -> QpBuilder<'_> {
    // SAFETY: the tests post slices of regions that are known by their addresses in this process and stay
    // until the completion or the queue pair's end; they look at the memory from the thread that polls.
    unsafe { builder.caps(caps()).inline_scatter() }
}

impl<T: StaticTransport + Connected + Reaches<Peer>> Ends<T> {
    fn new(entry_bytes: u32, shared: bool) -> Result<Self> {
        let context = open()?;
        let pd = context.alloc_pd()?;
        let send_cq = context.create_cq(64)?;
        let recv_cq = context.cq(15).entry_bytes(entry_bytes).create()?;
        let srq = match shared {
            true => Some(pd.srq(15).max_sge(3).create()?),
            false => None,
        };
        let mut sender = pd.qp(&send_cq).caps(caps()).create::<T>()?;
        let mut builder = with_inline_scatter(pd.qp(&recv_cq));
        if let Some(srq) = &srq {
            builder = builder.srq(srq);
        }
        let mut receiver = builder.create::<T>()?;
        connect(&mut sender, &mut receiver)?;
        Ok(Self {
            sender,
            receiver,
            send_cq,
            recv_cq,
            srq,
            pd,
        })
    }

    /// Posts a receive into these slices, and one for the marker.
    fn post(&mut self, slices: &[LocalSlice], region: &Mr<Vec<u8>>) -> Result {
        let mut batch = match &mut self.srq {
            Some(srq) => srq.batch(),
            None => self.receiver.recv_batch(),
        };
        let marker = region.slice(MARKER..MARKER + LARGE)?;
        batch.post(1, slices)?;
        batch.post(2, marker)?;
        batch.ring();
        Ok(())
    }

    /// Sends the data and then the marker, and waits until that is in memory.
    fn send(&mut self, data: &[u8], region: &Mr<Vec<u8>>) -> Result {
        let marker = [data, &[0x77; LARGE]].concat();
        let outbox = self.pd.register(marker, Access::LOCAL_WRITE)?;
        let split = data.len();
        let mut batch = self.sender.batch();
        let small = outbox.slice(..split)?;
        match data.len() {
            0 => batch.unsignaled(0).send(&[] as &[LocalSlice])?,
            _ => batch.unsignaled(0).send(small)?,
        };
        batch
            .signaled(9)
            .send(outbox.slice(split..split + LARGE)?)?;
        batch.ring()?;
        completion(&mut self.send_cq)?.is(WcOpcode::SEND)?;
        arrived(region)
    }

    /// The completions of both, when the first one's data must be in memory.
    fn received(&mut self) -> Result<Wc> {
        let small = completion(&mut self.recv_cq)?;
        same(small.wr_id, 1, "the first completion")?;
        Ok(small)
    }

    fn marker_received(&mut self) -> Result {
        let wc = completion(&mut self.recv_cq)?;
        wc.is(WcOpcode::RECV)?;
        same((wc.wr_id, wc.byte_len), (2, LARGE as u32), "the marker")
    }
}

fn connect<T: StaticTransport + Connected + Reaches<Peer>>(a: &mut Qp<T>, b: &mut Qp<T>) -> Result {
    let (from, to) = (a.endpoint()?, b.endpoint()?);
    a.connect(&to)?;
    b.connect(&from)?;
    Ok(())
}

fn region(pd: &Pd) -> Result<Mr<Vec<u8>>> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    Ok(pd.register(vec![UNTOUCHED; REGION], access)?)
}

/// Waits until the marker is whole.
fn arrived(region: &Mr<Vec<u8>>) -> Result {
    until("the large message", || {
        let mut bytes = [UNTOUCHED; LARGE];
        region.read_at(MARKER, &mut bytes)?;
        Ok((!bytes.contains(&UNTOUCHED)).then_some(()))
    })
}

/// Whether into several slices, and how many bytes.
fn shapes() -> impl Iterator<Item = (bool, usize)> {
    let with_all = |several| SIZES.map(|size| (several, size));
    [false, true].into_iter().flat_map(with_all)
}

/// Three slices with gaps between them, or one.
fn slices(region: &Mr<Vec<u8>>, several: bool) -> Result<Vec<LocalSlice<'_>>> {
    Ok(match several {
        true => vec![
            region.slice(3..23)?,
            region.slice(40..41)?,
            region.slice(100..200)?,
        ],
        false => vec![region.slice(7..107)?],
    })
}

/// What the region below the marker has once the data have come into those slices.
fn expected(data: &[u8], several: bool) -> Vec<u8> {
    let mut bytes = vec![UNTOUCHED; MARKER];
    let places: &[usize] = if several { &[3, 40, 100] } else { &[7] };
    let lengths: &[usize] = if several { &[20, 1, 100] } else { &[100] };
    let mut rest = data;
    for (place, length) in places.iter().zip(lengths) {
        let (now, later) = rest.split_at(rest.len().min(*length));
        bytes[*place..*place + now.len()].copy_from_slice(now);
        rest = later;
    }
    bytes
}

/// Fails unless the region has these data in those slices, and nothing else below the marker.
fn has(region: &Mr<Vec<u8>>, data: &[u8], several: bool, what: &str) -> Result {
    let mut found = vec![0; MARKER];
    region.read_at(0, &mut found)?;
    let wanted = expected(data, several);
    match found.iter().zip(&wanted).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => fail(format!(
            "{what}: byte {at} of the region is {:#x}, not {:#x}",
            found[at], wanted[at]
        )),
    }
}

fn data(size: usize) -> Vec<u8> {
    (1..=size as u8).collect()
}

/// Catches data that are lost or put in the wrong place on their way through a completion, entries whose data
/// are looked for in the wrong half, and inline scatter that is asked for and not had.
fn every_size<T: StaticTransport + Connected + Reaches<Peer>>(shared: bool) -> Result {
    only_mlx5()?;
    for (entry_bytes, most) in [(64, 32), (128, 64)] {
        let mut ends = Ends::<T>::new(entry_bytes, shared)?;
        for (several, size) in shapes() {
            let what = format!("{size} bytes, entries of {entry_bytes}, several slices: {several}");
            let region = region(&ends.pd)?;
            let data = data(size);
            ends.post(&slices(&region, several)?, &region)?;
            ends.send(&data, &region)?;
            let early = if size <= most { &[][..] } else { &data[..] };
            has(
                &region,
                early,
                several,
                &format!("{what}, before it is polled"),
            )?;
            let wc = ends.received()?;
            wc.is(WcOpcode::RECV)?;
            same(wc.byte_len as usize, size, &what)?;
            has(&region, &data, several, &what)?;
            ends.marker_received()?;
        }
    }
    Ok(())
}

/// Catches what a READ or an atomic operation brings back in the wrong place: with all requests signaled it
/// comes in the completion too.
fn reads_and_atomics() -> Result {
    only_mlx5()?;
    for (entry_bytes, most) in [(64, 32), (128, 64)] {
        let context = open()?;
        let pd = context.alloc_pd()?;
        let mut cq = context.cq(15).entry_bytes(entry_bytes).create()?;
        let other_cq = context.create_cq(15)?;
        let builder = with_inline_scatter(pd.qp(&cq)).signal_all(true);
        let mut reader = builder.create::<Rc>()?;
        let mut other = pd.create_qp::<Rc>(&other_cq, caps())?;
        connect(&mut reader, &mut other)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let source = pd.register(data(200), access)?;
        for (several, size) in shapes() {
            let what = format!("{size} bytes, entries of {entry_bytes}, several slices: {several}");
            let region = region(&pd)?;
            // What is read is as long as the slices are.
            let mut left = size;
            let mut into = Vec::new();
            for slice in slices(&region, several)? {
                let now = left.min(slice.len());
                into.push(slice.slice(..now)?);
                left -= now;
            }
            let mut batch = reader.batch();
            batch
                .signaled(1)
                .read(&into, source.remote().slice(..size)?)?;
            let marker = region.slice(MARKER..MARKER + LARGE)?;
            batch
                .signaled(2)
                .read(marker, source.remote().slice(..LARGE)?)?;
            batch.ring()?;
            arrived(&region)?;
            let whole = data(size);
            let early = if size <= most { &[][..] } else { &whole[..] };
            has(
                &region,
                early,
                several,
                &format!("{what}, before it is polled"),
            )?;
            let wc = completion(&mut cq)?;
            wc.is(WcOpcode::RDMA_READ)?;
            same((wc.wr_id, wc.byte_len as usize), (1, size), &what)?;
            has(&region, &whole, several, &what)?;
            same(completion(&mut cq)?.wr_id, 2, "the marker")?;
        }
        let counter = pd.register(41_u64.to_ne_bytes().to_vec(), access)?;
        for (old, compare) in [(41_u64, None), (42, Some(42)), (50, None)] {
            let region = region(&pd)?;
            let (request, into) = (reader.one(3), region.slice(8..16)?);
            match compare {
                None => request.fetch_add(into, counter.remote(), 1)?,
                Some(compare) => request.compare_swap(into, counter.remote(), compare, 50)?,
            }
            let wc = completion(&mut cq)?;
            same(
                (wc.wr_id, wc.status, wc.byte_len),
                (3, WcStatus::SUCCESS, 8),
                "atomic",
            )?;
            let mut found = [0; 8];
            region.read_at(8, &mut found)?;
            same(u64::from_ne_bytes(found), old, "what was there")?;
        }
    }
    Ok(())
}

/// Catches a completion queue that treats queue pairs alike: one has its data in completions, the other in
/// memory.
fn beside_others() -> Result {
    only_mlx5()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let mut send_cq = context.create_cq(15)?;
    let mut cq = context.cq(15).entry_bytes(64).create()?;
    let mut senders = [
        pd.create_qp::<Rc>(&send_cq, caps())?,
        pd.create_qp::<Rc>(&send_cq, caps())?,
    ];
    let mut receivers = [
        with_inline_scatter(pd.qp(&cq)).create::<Rc>()?,
        pd.create_qp::<Rc>(&cq, caps())?,
    ];
    for (sender, receiver) in senders.iter_mut().zip(&mut receivers) {
        connect(sender, receiver)?;
    }
    for turn in 0..20_u8 {
        let inboxes = [region(&pd)?, region(&pd)?];
        let text = [turn; 24];
        for (place, inbox) in inboxes.iter().enumerate() {
            let mut batch = receivers[place].recv_batch();
            batch.post(place as u64, inbox.slice(..64)?)?;
            batch.ring();
            let mut batch = senders[place].batch();
            batch.signaled(7).send(Inline(&text))?;
            batch.ring()?;
            // RC: it has arrived then.
            completion(&mut send_cq)?.is(WcOpcode::SEND)?;
        }
        let early = [[UNTOUCHED; 24], text];
        for (inbox, early) in inboxes.iter().zip(early) {
            let mut found = [0; 24];
            inbox.read_at(0, &mut found)?;
            same(found, early, "before it is polled")?;
        }
        for (place, inbox) in inboxes.iter().enumerate() {
            let wc = completion(&mut cq)?;
            wc.is(WcOpcode::RECV)?;
            same(
                (wc.wr_id, wc.qp_num),
                (place as u64, receivers[place].qpn()),
                "whose it is",
            )?;
            let mut found = [0; 25];
            inbox.read_at(0, &mut found)?;
            same(
                found[..24] == text && found[24] == UNTOUCHED,
                true,
                "the message",
            )?;
        }
    }
    Ok(())
}

/// Catches rings that are looked for elsewhere than where the allocator has put them.
fn on_a_domain() -> Result {
    only_mlx5()?;
    let context = open()?;
    let plain = context.alloc_pd()?;
    let domain = plain.parent_domain();
    let domain = domain.allocator(Arc::new(GuardPages::new())).create()?;
    for (entry_bytes, shared) in [(64, false), (128, false), (128, true)] {
        let mut send_cq = context.create_cq(15)?;
        let cq = context.cq(15).domain(&domain).entry_bytes(entry_bytes);
        let mut cq = cq.create()?;
        let mut srq = match shared {
            true => Some(domain.srq(7).create()?),
            false => None,
        };
        let mut sender = plain.create_qp::<Rc>(&send_cq, caps())?;
        let mut builder = with_inline_scatter(domain.qp(&cq));
        if let Some(srq) = &srq {
            builder = builder.srq(srq);
        }
        let mut receiver = builder.create::<Rc>()?;
        connect(&mut sender, &mut receiver)?;
        let inbox = region(&domain)?;
        for turn in 0..100_u8 {
            let mut batch = match &mut srq {
                Some(srq) => srq.batch(),
                None => receiver.recv_batch(),
            };
            batch.post(turn.into(), inbox.slice(5..40)?)?;
            batch.ring();
            let mut batch = sender.batch();
            batch.signaled(7).send(Inline(&[turn; 30]))?;
            batch.ring()?;
            completion(&mut send_cq)?.is(WcOpcode::SEND)?;
            let wc = completion(&mut cq)?;
            wc.is(WcOpcode::RECV)?;
            same(wc.wr_id, turn.into(), "the request")?;
            let mut found = [0; 30];
            inbox.read_at(5, &mut found)?;
            same(found, [turn; 30], "the message")?;
        }
    }
    Ok(())
}

/// Catches data that are copied, or passed off as there, when their buffer may be gone.
fn destroyed_or_reset() -> Result {
    only_mlx5()?;
    for reset in [false, true] {
        let mut ends = Ends::<Rc>::new(64, false)?;
        let region = region(&ends.pd)?;
        ends.post(&slices(&region, false)?, &region)?;
        ends.send(&data(20), &region)?;
        if reset {
            ends.receiver.reset()?;
            same(
                ends.recv_cq.poll()?.iter().count(),
                0,
                "completions after a reset",
            )?;
        } else {
            let Ends {
                receiver,
                mut recv_cq,
                ..
            } = ends;
            if let Err(refused) = receiver.destroy() {
                return Err(refused.error.into());
            }
            completion(&mut recv_cq)?.failed(WcStatus::WR_FLUSH_ERR)?;
            completion(&mut recv_cq)?.is(WcOpcode::RECV)?;
        }
        has(&region, &[], false, "the buffer")?;
    }
    Ok(())
}
