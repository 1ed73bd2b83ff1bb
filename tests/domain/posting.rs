//! Posting to the queue pairs of a thread domain.

use std::thread;

use libtest_mimic::Trial;
use support::{Result, completions, open, same, test_without_leaks};
use uverbs::{
    Access, Caps, Context, Cq, InDomain, Inline, Mr, ParentDomain, PostError, Qp, Rc, ThreadDomain,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("posting::queue_pairs_of_a_domain_take_turns", by_turns),
        test_without_leaks("posting::a_domain_goes_to_another_thread", elsewhere),
        test_without_leaks("posting::another_domain_is_refused", foreign),
        test_without_leaks("posting::only_in_a_thread_domain", without),
        test_without_leaks("posting::a_queue_pair_outlives_its_domain", outlives),
    ]
}

/// Queue pairs of the domain.
const QUEUE_PAIRS: usize = 5;
/// Bytes of the largest message; more than a doorbell register takes.
const LONGEST: usize = 400;

/// A thread domain with queue pairs that are connected to themselves.
struct Domain {
    td: ThreadDomain,
    qps: Vec<Qp<Rc, InDomain>>,
    cq: Cq,
    memory: Mr<Vec<u8>>,
    domain: ParentDomain,
}

impl Domain {
    fn new(context: &Context) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let td = context.alloc_td();
        let domain = pd.parent_domain().thread_domain(&td).create()?;
        let cq = context.create_cq(255)?;
        let caps = Caps {
            max_inline_data: LONGEST as u32,
            ..Caps::default()
        };
        let qps = (0..QUEUE_PAIRS).map(|_| -> Result<_> {
            let mut qp = domain.qp(&cq).caps(caps).create_in_domain::<Rc>()?;
            let own = qp.endpoint()?;
            qp.connect(&own)?;
            Ok(qp)
        });
        let qps = qps.collect::<Result<_>>()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let memory = domain.register(vec![0u8; QUEUE_PAIRS * LONGEST], access)?;
        Ok(Self {
            td,
            qps,
            cq,
            memory,
            domain,
        })
    }

    /// Has each queue pair write its own bytes of `length` to its own place, in every way of posting by
    /// turns, and looks whether they are there.
    fn write(&mut self, round: u64, length: usize) -> Result {
        let byte = |index: usize| (round as u8).wrapping_mul(31).wrapping_add(index as u8);
        for (index, qp) in self.qps.iter_mut().enumerate() {
            let bytes = [byte(index); LONGEST];
            let from = index * LONGEST;
            let to = self.memory.remote().slice(from..from + length)?;
            let id = round * 100 + index as u64;
            match (round + index as u64) % 3 {
                0 => qp
                    .one(&mut self.td, id)?
                    .write(Inline(&bytes[..length]), to)?,
                1 => {
                    let mut batch = qp.batch(&mut self.td)?;
                    batch.signaled(id).write(Inline(&bytes[..length]), to)?;
                    same(batch.ring()?, 1, "requests")?;
                }
                _ => {
                    // What is not rung is never seen, and the domain is free again.
                    let mut lost = qp.batch(&mut self.td)?;
                    lost.unsignaled(0).write(Inline(&[0xee; LONGEST]), to).ok();
                    drop(lost);
                    let mut batch = qp.batch(&mut self.td)?;
                    batch
                        .unsignaled(0)
                        .write(Inline(&[0xdd]), self.memory.remote().slice(from..=from)?)?;
                    batch.signaled(id).write(Inline(&bytes[..length]), to)?;
                    same(batch.ring()?, 2, "requests")?;
                }
            }
        }
        let mut done = Vec::new();
        for wc in completions(&mut self.cq, QUEUE_PAIRS)? {
            wc.ok()?;
            done.push(wc.wr_id);
        }
        done.sort_unstable();
        let all: Vec<u64> = (0..QUEUE_PAIRS as u64)
            .map(|index| round * 100 + index)
            .collect();
        same(done, all, "ids")?;
        for index in 0..QUEUE_PAIRS {
            let mut found = [0; LONGEST];
            self.memory.read_at(index * LONGEST, &mut found)?;
            same(&found[..length], &[byte(index); LONGEST][..length], "bytes")?;
        }
        Ok(())
    }
}

/// Catches a doorbell of one queue pair that another's takes away: requests that a register takes whole, some
/// that it does not, and batches, of several queue pairs in one register.
fn by_turns() -> Result {
    let mut domain = Domain::new(&open()?)?;
    for round in 0..60 {
        let length = [8, 32, 64, 200, LONGEST][round as usize % 5];
        domain.write(round, length)?;
    }
    Ok(())
}

/// Catches what stays behind in the thread that posted first.
fn elsewhere() -> Result {
    let mut domain = Domain::new(&open()?)?;
    for round in 0..6 {
        domain = thread::spawn(move || -> std::result::Result<Domain, String> {
            domain.write(round, 48).map_err(|error| error.to_string())?;
            Ok(domain)
        })
        .join()
        .map_err(|_| "the thread panicked")??;
    }
    Ok(())
}

/// Catches a queue pair that rings in a domain that is not its own, and one that is of no use afterwards.
fn foreign() -> Result {
    let context = open()?;
    let (mut one, mut other) = (Domain::new(&context)?, Domain::new(&context)?);
    let refused = one.qps[0].batch(&mut other.td).map(drop);
    same(refused, Err(PostError::ForeignDomain), "a batch")?;
    let refused = one.qps[0].one(&mut other.td, 1).map(drop);
    same(refused, Err(PostError::ForeignDomain), "a request")?;
    one.write(1, 8)?;
    other.write(2, 8)
}

/// Catches a queue pair that counts as one of a thread domain where there is none, and one without that needs
/// it.
fn without() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(15)?;
    let bare = pd.parent_domain().create()?;
    for pd in [&pd, &*bare] {
        let error = pd.qp(&cq).create_in_domain::<Rc>().unwrap_err();
        same(
            error.to_string().contains("no thread domain"),
            true,
            "the error",
        )?;
    }
    let td = context.alloc_td();
    let domain = pd.parent_domain().thread_domain(&td).create()?;
    let mut qp = domain.create_qp::<Rc>(&cq, Caps::default())?;
    let refused = qp.one(1).send(Inline(b"too early"));
    same(
        matches!(refused, Err(PostError::WrongState { .. })),
        true,
        "a batch without a domain",
    )
}

/// Catches a register that goes with the thread domain while the queue pair has it, and a queue pair that
/// keeps the domain's value alive.
fn outlives() -> Result {
    let context = open()?;
    let Domain {
        td,
        mut qps,
        cq,
        memory,
        domain,
    } = Domain::new(&context)?;
    let said = td.dealloc().unwrap_err();
    same(
        said.error.to_string().contains("1 parent domain uses it"),
        true,
        "the error",
    )?;
    drop(said);
    for qp in &mut qps {
        qp.recv_batch().ring();
        qp.reset()?;
    }
    drop((qps, cq, memory, domain));
    Ok(())
}
