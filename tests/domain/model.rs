//! Random sequences of create, resize, destroy and drop in any order, against a simple model of who may be
//! destroyed when.
//!
//! The model: an object is alive as long as its handle is held or an object that was made with it is alive.
//! To destroy one succeeds if nothing alive was made with it, and otherwise is refused with the living
//! counted by kind. At quiet points the kernel's own counts must be those of the model, and the allocator's
//! live buffers too.

use std::collections::BTreeMap;
use std::sync::Arc;

use libtest_mimic::Trial;
use support::random::{Random, seed_and_steps};
use support::{Objects, Result, device, open, own_path, same, test_without_leaks};
use uverbs::{
    Access, AddressVector, Ah, Caps, Cause, Context, Cq, Mr, ParentDomain, Pd, Qp, Rc, Srq,
    ThreadDomain,
    alloc::{Counting, GuardPages, Purpose},
    error::DestroyError,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test_without_leaks(
        "model::random_orders_of_create_destroy_and_drop",
        run,
    )]
}

/// Steps between quiet points.
const PERIOD: usize = 250;

/// Objects that there are at most at a time; beyond, only destruction is left.
const MOST: usize = 60;

/// The kinds in the order in which a refusal counts them, thread domains and PDs last since they stand on
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mr,
    Ah,
    Qp,
    Cq,
    Srq,
    Domain,
    Td,
    Pd,
}

/// The kinds that a protection domain counts, by the name in the refusal.
const COUNTED: [(Kind, &str); 6] = [
    (Kind::Mr, "MR"),
    (Kind::Ah, "AH"),
    (Kind::Qp, "QP"),
    (Kind::Cq, "CQ"),
    (Kind::Srq, "SRQ"),
    (Kind::Domain, "parent domain"),
];

/// A handle of the library's.
enum Handle {
    Mr(Mr<Vec<u8>>),
    Ah(Ah),
    Qp(Box<Qp<Rc>>),
    Cq(Cq),
    Srq(Srq),
    Domain(ParentDomain),
    Td(ThreadDomain),
    Pd(Pd),
}

impl Handle {
    /// What a protection domain is wanted for.
    fn as_pd(&self) -> Option<&Pd> {
        match self {
            Handle::Pd(pd) => Some(pd),
            Handle::Domain(domain) => Some(domain),
            _ => None,
        }
    }

    /// Destroys the object; if it is refused, gives it back with what was said.
    fn destroy(self) -> std::result::Result<(), Box<(Handle, Cause)>> {
        fn back<T>(kind: fn(T) -> Handle) -> impl FnOnce(DestroyError<T>) -> Box<(Handle, Cause)> {
            move |failed| Box::new((kind(failed.object), failed.error.cause().clone()))
        }
        match self {
            Handle::Mr(mr) => mr.deregister().map(drop).map_err(back(Handle::Mr)),
            Handle::Ah(ah) => ah.destroy().map_err(back(Handle::Ah)),
            Handle::Qp(qp) => qp.destroy().map_err(back(|qp| Handle::Qp(Box::new(qp)))),
            Handle::Cq(cq) => cq.destroy().map_err(back(Handle::Cq)),
            Handle::Srq(srq) => srq.destroy().map_err(back(Handle::Srq)),
            Handle::Domain(domain) => domain.dealloc().map_err(back(Handle::Domain)),
            Handle::Td(td) => td.dealloc().map_err(back(Handle::Td)),
            Handle::Pd(pd) => pd.dealloc().map_err(back(Handle::Pd)),
        }
    }
}

/// What the model knows of an object.
struct Object {
    kind: Kind,
    /// What it was made with.
    parents: Vec<usize>,
    handle: Option<Handle>,
    /// Buffers that it holds of the allocator.
    buffers: usize,
    /// For a domain: rings of its objects come from the allocator.
    allocates: bool,
}

/// The objects that are alive, and what is needed to make more.
struct World {
    context: Context,
    path: AddressVector,
    allocator: Arc<Counting<GuardPages>>,
    /// By number; what is made with an object has a higher one.
    objects: BTreeMap<usize, Object>,
    /// How many have been made.
    made: usize,
    random: Random,
}

/// Catches an order of steps after which library, kernel and model differ in who is busy or what is there.
fn run() -> Result {
    // An adapter made of software is slow at making objects.
    let usual = if device().is_mlx5() { 1000 } else { 3000 };
    let (seed, steps) = seed_and_steps(usual)?;
    let before = Objects::now()?;
    let context = open()?;
    let mut world = World {
        path: own_path(&context)?,
        context,
        allocator: Arc::new(Counting::new(GuardPages::new())),
        objects: BTreeMap::new(),
        made: 0,
        random: Random::new(seed),
    };
    for step in 1..=steps {
        world
            .step()
            .map_err(|why| format!("seed {seed}, step {step}: {why}"))?;
        if step % PERIOD == 0 {
            world
                .agree(&before)
                .map_err(|why| format!("seed {seed}, step {step}: {why}"))?;
        }
    }
    let made = world.made;
    while let Some(at) = world.any(|object| object.handle.is_some()) {
        world.object(at).handle = None;
        world.bury();
    }
    world
        .agree(&before)
        .map_err(|why| format!("seed {seed}, at the end: {why}"))?;
    drop(world);
    assert_eq!(Objects::now()?, before);
    println!("model: {made} objects made");
    Ok(())
}

impl World {
    /// Does one thing at random.
    fn step(&mut self) -> Result {
        let held = self
            .objects
            .values()
            .filter(|object| object.handle.is_some())
            .count();
        match self.random.below(10) {
            0..6 if held < MOST => self.create(),
            0..7 => self.destroy(),
            7 => self.resize(),
            _ => {
                if let Some(at) = self.any(|object| object.handle.is_some()) {
                    self.object(at).handle = None;
                    self.bury();
                }
                Ok(())
            }
        }
    }

    /// A random object of which this is true.
    fn any(&mut self, is_wanted: impl Fn(&Object) -> bool) -> Option<usize> {
        let objects = self.objects.iter();
        let wanted: Vec<usize> = objects
            .filter(|(_, object)| is_wanted(object))
            .map(|(&at, _)| at)
            .collect();
        self.one_of(&wanted)
    }

    /// A random one of these objects.
    fn one_of(&mut self, objects: &[usize]) -> Option<usize> {
        let count = objects.len();
        (count > 0).then(|| objects[self.random.below(count)])
    }

    fn object(&mut self, at: usize) -> &mut Object {
        self.objects.get_mut(&at).expect("an object that is alive")
    }

    /// Forgets the dead: those without a handle that nothing alive was made with.
    fn bury(&mut self) {
        let numbers: Vec<usize> = self.objects.keys().rev().copied().collect();
        for at in numbers {
            if self.objects[&at].handle.is_none() && self.children(at).next().is_none() {
                self.objects.remove(&at);
            }
        }
    }

    /// What was made with an object, as often as that uses it: a QP whose sends and receives complete on one
    /// queue uses it twice.
    fn children(&self, at: usize) -> impl Iterator<Item = &Object> {
        let later = self.objects.range(at + 1..);
        later.flat_map(move |(_, child)| {
            child
                .parents
                .iter()
                .filter(move |&&parent| parent == at)
                .map(move |_| child)
        })
    }

    fn handle(&self, at: usize) -> Result<&Handle> {
        Ok(self.objects[&at]
            .handle
            .as_ref()
            .ok_or("the handle is gone")?)
    }

    fn create(&mut self) -> Result {
        let pd = self.any(|object| {
            object
                .handle
                .as_ref()
                .is_some_and(|handle| handle.as_pd().is_some())
        });
        let cq = self.any(|object| matches!(object.handle, Some(Handle::Cq(_))));
        let made = match (self.random.below(13), pd, cq) {
            (0, ..) | (_, None, _) => {
                Object::new(Handle::Pd(self.context.alloc_pd()?), Kind::Pd, vec![])
            }
            (1, ..) => Object::new(Handle::Td(self.context.alloc_td()), Kind::Td, vec![]),
            (2 | 3, Some(pd), _) => self.make_mr(pd)?,
            (4, Some(pd), _) => self.make_ah(pd)?,
            (5 | 6, Some(pd), Some(cq)) => self.make_qp(pd, cq)?,
            (7 | 8, ..) => self.make_cq()?,
            (9, Some(pd), _) => self.make_srq(pd)?,
            (_, Some(pd), _) => self.make_domain(pd)?,
        };
        self.objects.insert(self.made, made);
        self.made += 1;
        Ok(())
    }

    fn pd(&self, at: usize) -> Result<&Pd> {
        Ok(self.handle(at)?.as_pd().ok_or("not a PD")?)
    }

    fn make_mr(&self, pd: usize) -> Result<Object> {
        let mr = self.pd(pd)?.register(vec![0u8; 64], Access::LOCAL_WRITE)?;
        Ok(Object::new(Handle::Mr(mr), Kind::Mr, vec![pd]))
    }

    fn make_ah(&self, pd: usize) -> Result<Object> {
        let ah = self.pd(pd)?.create_ah(&self.path)?;
        Ok(Object::new(Handle::Ah(ah), Kind::Ah, vec![pd]))
    }

    fn make_qp(&mut self, pd: usize, cq: usize) -> Result<Object> {
        let recv = self
            .any(|object| matches!(object.handle, Some(Handle::Cq(_))))
            .unwrap_or(cq);
        let srq = self.one_of(&self.srqs_for(pd));
        let srq = srq.filter(|_| self.random.below(2) == 0);
        let (Handle::Cq(send_cq), Handle::Cq(recv_cq)) = (self.handle(cq)?, self.handle(recv)?)
        else {
            return Err("not CQs".into());
        };
        let caps = Caps {
            max_send_wr: 4,
            max_recv_wr: 4,
            ..Caps::default()
        };
        let mut builder = self.pd(pd)?.qp(send_cq).recv_cq(recv_cq).caps(caps);
        let mut parents = vec![pd, cq, recv];
        let mut buffers = device().qp_buffers();
        if let Some(at) = srq {
            let Handle::Srq(srq) = self.handle(at)? else {
                return Err("not an SRQ".into());
            };
            builder = builder.srq(srq);
            parents.push(at);
            buffers = device().qp_buffers_with_srq();
        }
        let qp = builder.create::<Rc>()?;
        let mut made = Object::new(Handle::Qp(Box::new(qp)), Kind::Qp, parents);
        made.buffers = if self.objects[&pd].allocates {
            buffers.len()
        } else {
            0
        };
        Ok(made)
    }

    /// The shared receive queues from which a queue pair of a domain can receive: on soft-RoCE those in the
    /// same protection domain.
    fn srqs_for(&self, pd: usize) -> Vec<usize> {
        let fits = |object: &Object| {
            let is_srq = matches!(object.handle, Some(Handle::Srq(_)));
            is_srq && (!device().is_rxe() || self.root(object.parents[0]) == self.root(pd))
        };
        let fitting = self.objects.iter().filter(|(_, object)| fits(object));
        fitting.map(|(&at, _)| at).collect()
    }

    /// The protection domain that a domain is of in the kernel.
    fn root(&self, mut pd: usize) -> usize {
        while let (Kind::Domain, [parent, ..]) =
            (self.objects[&pd].kind, &*self.objects[&pd].parents)
        {
            pd = *parent;
        }
        pd
    }

    fn make_srq(&self, pd: usize) -> Result<Object> {
        let srq = self.pd(pd)?.srq(4).create()?;
        let mut made = Object::new(Handle::Srq(srq), Kind::Srq, vec![pd]);
        if self.objects[&pd].allocates {
            made.buffers = device().srq_buffers().len();
        }
        Ok(made)
    }

    /// Gives a random completion queue or shared receive queue another size: its ring moves, and it is as
    /// busy as before.
    fn resize(&mut self) -> Result {
        let size = 1 + self.random.below(300) as u32;
        let queue =
            self.any(|object| matches!(object.handle, Some(Handle::Cq(_) | Handle::Srq(_))));
        match queue.and_then(|at| self.object(at).handle.as_mut()) {
            Some(Handle::Cq(cq)) => cq.resize(size)?,
            Some(Handle::Srq(srq)) if device().resizes_srqs() => srq.resize(size)?,
            _ => {}
        }
        Ok(())
    }

    /// A completion queue, on a domain or not.
    fn make_cq(&mut self) -> Result<Object> {
        let domain = self.any(|object| matches!(object.handle, Some(Handle::Domain(_))));
        let Some(at) = domain.filter(|_| self.random.below(3) > 0) else {
            return Ok(Object::new(
                Handle::Cq(self.context.create_cq(4)?),
                Kind::Cq,
                vec![],
            ));
        };
        let Handle::Domain(domain) = self.handle(at)? else {
            return Err("not a domain".into());
        };
        let cq = self.context.cq(4).domain(domain).create()?;
        let mut made = Object::new(Handle::Cq(cq), Kind::Cq, vec![at]);
        if self.objects[&at].allocates {
            made.buffers = device().cq_buffers().len();
        }
        Ok(made)
    }

    /// A domain over a protection domain or another domain, with a thread domain or an allocator or not.
    fn make_domain(&mut self, pd: usize) -> Result<Object> {
        let td = self.any(|object| matches!(object.handle, Some(Handle::Td(_))));
        let td = td.filter(|_| self.random.below(2) == 0);
        let own_allocator = self.random.below(2) == 0;
        let mut builder = self.pd(pd)?.parent_domain();
        if let Some(td) = td {
            let Handle::Td(td) = self.handle(td)? else {
                return Err("not a thread domain".into());
            };
            builder = builder.thread_domain(td);
        }
        if own_allocator {
            builder = builder.allocator(Arc::clone(&self.allocator));
        }
        let domain = builder.create()?;
        let mut made = Object::new(Handle::Domain(domain), Kind::Domain, vec![pd]);
        // Its own thread domain or that of the domain under it.
        let inherited = self.objects[&pd]
            .parents
            .iter()
            .copied()
            .find(|&at| self.objects[&at].kind == Kind::Td);
        made.parents.extend(td.or(inherited));
        made.allocates = own_allocator || self.objects[&pd].allocates;
        Ok(made)
    }

    /// Destroys a random object, and compares the answer with the model's.
    fn destroy(&mut self) -> Result {
        let Some(at) = self.any(|object| object.handle.is_some()) else {
            return Ok(());
        };
        let expected = self.refusal(at);
        let kind = self.objects[&at].kind;
        let handle = self.object(at).handle.take().ok_or("the handle is gone")?;
        let answer = handle.destroy().map_err(|refused| *refused);
        match (answer, expected) {
            (Ok(()), None) => {
                self.bury();
                Ok(())
            }
            (Err((handle, Cause::Busy(said))), Some(expected)) if said == expected => {
                self.object(at).handle = Some(handle);
                Ok(())
            }
            (Ok(()), Some(expected)) => {
                Err(format!("a {kind:?} was destroyed, though {expected}").into())
            }
            (Err((_, said)), expected) => {
                Err(format!("a {kind:?} said {said:?}, expected {expected:?}").into())
            }
        }
    }

    /// What an object must say when it is to be destroyed; `None` if it goes.
    fn refusal(&self, at: usize) -> Option<String> {
        let children: Vec<&Object> = self.children(at).collect();
        let count = children.len();
        if count == 0 {
            return None;
        }
        Some(match self.objects[&at].kind {
            Kind::Td if count == 1 => "1 parent domain uses it".into(),
            Kind::Td => format!("{count} parent domains use it"),
            Kind::Cq if count == 1 => "1 queue, of a QP or an SRQ, reports to it".into(),
            Kind::Cq => format!("{count} queues, of QPs or SRQs, report to it"),
            Kind::Srq => format!("{count} QPs receive from it"),
            _ => format!("in use by {}", by_kind(&children)),
        })
    }

    /// Compares the kernel's counts and the allocator's with the model's.
    fn agree(&self, before: &Objects) -> Result {
        let alive = || self.objects.values();
        let of = |kind| alive().filter(|object| object.kind == kind).count();
        let kinds = ["pd", "cq", "qp", "mr", "srq", "ctx"];
        let [pd, cq, qp, mr, srq, ctx] = before.counts(kinds)?;
        let expected = [
            pd + of(Kind::Pd),
            cq + of(Kind::Cq),
            qp + of(Kind::Qp),
            mr + of(Kind::Mr),
            srq + of(Kind::Srq),
            ctx + 1,
        ];
        let what = format!("the kernel's {kinds:?} beside the model's");
        same(Objects::now()?.counts(kinds)?, expected, &what)?;
        // Soft-RoCE's rings are the kernel's, so their places come back with the handle. Memory that the
        // device uses stays until the kernel has let go of the object.
        let until_the_end = device().purpose() == Purpose::Memory;
        let held = alive().filter(|object| until_the_end || object.handle.is_some());
        let buffers: usize = held.map(|object| object.buffers).sum();
        let live = self.allocator.inner().live();
        if live != buffers {
            return Err(format!("{live} buffers are live, the model has {buffers}").into());
        }
        Ok(())
    }
}

impl Object {
    fn new(handle: Handle, kind: Kind, parents: Vec<usize>) -> Self {
        Self {
            kind,
            parents,
            handle: Some(handle),
            buffers: 0,
            allocates: false,
        }
    }
}

/// "2 MRs, 1 QP", as the library says it.
fn by_kind(objects: &[&Object]) -> String {
    let counts = COUNTED.iter().filter_map(|&(kind, name)| {
        match objects.iter().filter(|object| object.kind == kind).count() {
            0 => None,
            1 => Some(format!("1 {name}")),
            count => Some(format!("{count} {name}s")),
        }
    });
    counts.collect::<Vec<_>>().join(", ")
}
