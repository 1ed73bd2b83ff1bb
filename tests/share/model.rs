//! Random sequences of create, destroy, drop, import, unimport, disown, fork, kill and end in any order, by
//! several processes with one file, against a simple model of who may be destroyed when.
//!
//! The model: an object of the kernel's is there from its creation until somebody destroys it, and a PD
//! cannot be destroyed while an MR or a QP is in it, whosever that is. A process that frees a PD on which
//! objects of its own stand is refused by the library; one on which only others' stand, by the kernel. What
//! an owner drops is destroyed when the last of its own objects in it goes, or left behind if others' are in
//! it. What an importer lets go of is as it was, and so is what a process had that is killed. At quiet points
//! the kernel's lists of handles and its counts must be those of the model; at the end, when the last holder
//! of the file has gone, nothing is left.
//!
//! The model keeps to what [`uverbs::import::ImportedPd`] asks of its users: nobody destroys for everyone
//! what somebody owns, and what has been destroyed by another is only let go of.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use support::random::{Random, seed_and_steps};
use support::{Objects, Result, device, open, skip, test_without_leaks};
use uverbs::Context;

use crate::process::{Process, inheritable};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test_without_leaks(
        "model::several_processes",
        several_processes,
    )]
}

/// Steps between quiet points.
const PERIOD: usize = 200;

/// Items that all processes together hold at most; beyond, only destruction is left.
const MOST: usize = 40;

/// Processes that there are at most.
const CROWD: usize = 6;

/// How long an answer or an end may take. Only a hang takes this long.
const LIMIT: Duration = Duration::from_secs(30);

/// `EBUSY`, `ENOENT` and `EINVAL` as workers tell them.
const BUSY: &str = "errno 16";
const NO_ENTRY: &str = "errno 2";
const INVALID: &str = "errno 22";

/// A handle that no object ever has here.
const NOBODY: u32 = 60_000;

/// What a process has, as the model knows it. `over` is the number of the PD item that it was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Pd {
        handle: u32,
        owned: bool,
        /// Its handle is held. Items that were made with it keep it alive without.
        held: bool,
        users: usize,
    },
    Mr {
        handle: u32,
        owned: bool,
        over: u32,
    },
    Qp {
        pd: u32,
        over: u32,
    },
}

/// A worker process.
struct Worker {
    pidfd: OwnedFd,
    input: UnixStream,
    output: BufReader<UnixStream>,
    items: BTreeMap<u32, Item>,
    /// Items whose object another process has destroyed.
    stale: BTreeSet<u32>,
}

/// A PD of the kernel's.
#[derive(Default)]
struct KernelPd {
    owned: bool,
    /// MRs and QPs in it.
    children: usize,
}

struct KernelMr {
    owned: bool,
    pd: u32,
}

struct World {
    context: Context,
    listener: UnixListener,
    workers: Vec<Worker>,
    pds: BTreeMap<u32, KernelPd>,
    mrs: BTreeMap<u32, KernelMr>,
    /// QPs, each with a CQ.
    qps: usize,
    /// The number of the next item.
    next: u32,
    random: Random,
}

/// Catches an order of steps, of any process, after which library, kernel and model differ in what is
/// refused or what is there.
fn several_processes() -> Result {
    if !device().can_be_imported() {
        return skip("contexts of this device cannot be imported");
    }
    let (seed, steps) = seed_and_steps(1500)?;
    let kinds = ["pd", "mr", "qp", "cq", "ctx"];
    let before = Objects::of_all_devices()?.counts(kinds)?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("model");
    let address = path.to_str().ok_or("a path that is no text")?;
    let mut world = World {
        context: open()?,
        listener: UnixListener::bind(&path)?,
        workers: Vec::new(),
        pds: BTreeMap::new(),
        mrs: BTreeMap::new(),
        qps: 0,
        next: 0,
        random: Random::new(seed),
    };
    let (file, number) = inheritable(&world.context)?;
    let mut first = Vec::new();
    for _ in 0..2 {
        first.push(Process::start("worker", &[address, &number])?);
        world.welcome()?;
    }
    drop(file);
    let mut did: BTreeMap<&str, usize> = BTreeMap::new();
    for step in 1..=steps {
        let told = |why| format!("seed {seed}, step {step}: {why}");
        *did.entry(world.step().map_err(told)?).or_default() += 1;
        if step % PERIOD == 0 || step == steps {
            let [pd, mr, qp, cq, ctx] = before;
            let expected = [
                pd + world.pds.len(),
                mr + world.mrs.len(),
                qp + world.qps,
                cq + world.qps,
                ctx + 1,
            ];
            let now = Objects::of_all_devices()?.counts(kinds)?;
            if now != expected {
                return Err(told(format!("{kinds:?} are {now:?}, not {expected:?}").into()).into());
            }
            world.agree().map_err(told)?;
        }
    }
    println!("model: {did:?}");
    // Some by order, some not; what is left goes with the file.
    while let Some(worker) = world.workers.pop() {
        match world.workers.len() % 2 {
            0 => worker.kill()?,
            _ => worker.end()?,
        }
    }
    Ok(())
}

impl Worker {
    /// Gives an order and hears the answer.
    fn ask(&mut self, order: &str) -> Result<String> {
        writeln!(self.input, "{order}")?;
        self.hear()
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("a worker has ended".into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Kills it as nothing can be caught, and waits until it is gone.
    fn kill(self) -> Result {
        pidfd_send_signal(&self.pidfd, Signal::KILL)?;
        self.await_end()
    }

    /// Has it drop all it has, the oldest first, and end.
    fn end(mut self) -> Result {
        writeln!(self.input, "end")?;
        self.await_end()
    }

    fn await_end(self) -> Result {
        let limit = LIMIT.try_into()?;
        let mut ended = [PollFd::new(&self.pidfd, PollFlags::IN)];
        match retry_on_intr(|| poll(&mut ended, Some(&limit)))? {
            1 => Ok(()),
            _ => Err("a worker does not end".into()),
        }
    }
}

impl World {
    /// Takes in the worker that connects next.
    fn welcome(&mut self) -> Result {
        let (input, _) = self.listener.accept()?;
        input.set_read_timeout(Some(LIMIT))?;
        let mut output = BufReader::new(input.try_clone()?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let pid = Pid::from_raw(line.trim_end().parse()?).ok_or("pid 0")?;
        self.workers.push(Worker {
            pidfd: pidfd_open(pid, PidfdFlags::empty())?,
            input,
            output,
            items: BTreeMap::new(),
            stale: BTreeSet::new(),
        });
        Ok(())
    }

    /// Does one thing at random, and says what.
    fn step(&mut self) -> Result<&'static str> {
        let at = self.random.below(self.workers.len());
        let items: usize = self.workers.iter().map(|worker| worker.items.len()).sum();
        match self.random.below(100) {
            0..2 if self.workers.len() > 2 => self.kill(at),
            2..4 if self.workers.len() > 2 => self.end(at),
            4..8 if self.workers.len() < CROWD => self.fork(at),
            8..55 if items < MOST => self.make(at),
            55..60 => self.disown(at),
            60..75 => self.give_up(at, "drop"),
            _ => self.give_up(at, "destroy"),
        }
    }

    /// A random item of a worker of which this is true.
    fn any(&mut self, at: usize, wanted: impl Fn(&Item) -> bool) -> Option<(u32, Item)> {
        let items = self.workers[at].items.iter();
        let wanted: Vec<_> = items
            .filter(|(_, item)| wanted(item))
            .map(|(&number, &item)| (number, item))
            .collect();
        let count = wanted.len();
        (count > 0).then(|| wanted[self.random.below(count)])
    }

    /// A random one of these.
    fn one_of(&mut self, handles: Vec<u32>) -> Option<u32> {
        let count = handles.len();
        (count > 0).then(|| handles[self.random.below(count)])
    }

    fn kill(&mut self, at: usize) -> Result<&'static str> {
        let worker = self.workers.remove(at);
        let items = worker.items.clone();
        worker.kill()?;
        for item in items.into_values() {
            match item {
                Item::Pd {
                    handle,
                    owned: true,
                    ..
                } => self.pd(handle)?.owned = false,
                Item::Mr {
                    handle,
                    owned: true,
                    ..
                } => self.mr(handle)?.owned = false,
                _ => {}
            }
        }
        Ok("kill")
    }

    fn end(&mut self, at: usize) -> Result<&'static str> {
        while let Some((&number, _)) = self.workers[at]
            .items
            .iter()
            .find(|(_, item)| !matches!(item, Item::Pd { held: false, .. }))
        {
            self.dropped(at, number)?;
        }
        self.workers.remove(at).end()?;
        Ok("end")
    }

    fn fork(&mut self, at: usize) -> Result<&'static str> {
        expect(&self.workers[at].ask("fork")?, "ok")?;
        self.welcome()?;
        Ok("fork")
    }

    /// Has a worker make or import something.
    fn make(&mut self, at: usize) -> Result<&'static str> {
        let stale = self.workers[at].stale.clone();
        let pd = self.any(at, |item| matches!(item, Item::Pd { held: true, .. }));
        let pd = pd.and_then(|(number, item)| match item {
            Item::Pd { handle, .. } if !stale.contains(&number) => Some((number, handle)),
            _ => None,
        });
        match (self.random.below(9), pd) {
            (0 | 1, _) => self.alloc(at),
            (2, _) | (_, None) => self.import(at),
            (3..6, Some((over, pd))) => self.register(at, over, pd),
            (6, Some((over, pd))) => self.queue_pair(at, over, pd),
            (_, Some((over, _))) => self.import_mr(at, over),
        }
    }

    fn alloc(&mut self, at: usize) -> Result<&'static str> {
        let handle = self.created(at, "alloc", &[])?;
        let new = KernelPd {
            owned: true,
            children: 0,
        };
        if self.pds.insert(handle, new).is_some() {
            return Err(format!("PD {handle} is there already").into());
        }
        let owned = true;
        self.keep(
            at,
            Item::Pd {
                handle,
                owned,
                held: true,
                users: 0,
            },
        )?;
        Ok("alloc")
    }

    fn import(&mut self, at: usize) -> Result<&'static str> {
        let handle = match self.random.below(8) {
            0 => self.one_of(self.mrs.keys().copied().collect()),
            _ => self.one_of(self.pds.keys().copied().collect()),
        };
        let handle = handle.unwrap_or(NOBODY);
        let order = format!("import {} {handle}", self.next);
        let answer = self.workers[at].ask(&order)?;
        if !self.pds.contains_key(&handle) {
            expect(&answer, "missing")?;
            return Ok("import in vain");
        }
        expect(&answer, &format!("ok {handle}"))?;
        let owned = false;
        self.keep(
            at,
            Item::Pd {
                handle,
                owned,
                held: true,
                users: 0,
            },
        )?;
        Ok("import")
    }

    fn register(&mut self, at: usize, over: u32, pd: u32) -> Result<&'static str> {
        let handle = self.created(at, "register", &[over])?;
        let owned = true;
        if self.mrs.insert(handle, KernelMr { owned, pd }).is_some() {
            return Err(format!("MR {handle} is there already").into());
        }
        self.pd(pd)?.children += 1;
        self.keep(
            at,
            Item::Mr {
                handle,
                owned,
                over,
            },
        )?;
        Ok("register")
    }

    fn queue_pair(&mut self, at: usize, over: u32, pd: u32) -> Result<&'static str> {
        self.created(at, "qp", &[over])?;
        self.qps += 1;
        self.pd(pd)?.children += 1;
        self.keep(at, Item::Qp { pd, over })?;
        Ok("create a QP")
    }

    fn import_mr(&mut self, at: usize, over: u32) -> Result<&'static str> {
        let handle = match self.random.below(8) {
            0 => self.one_of(self.pds.keys().copied().collect()),
            _ => self.one_of(self.mrs.keys().copied().collect()),
        };
        let handle = handle.unwrap_or(NOBODY);
        let order = format!("import_mr {} {over} {handle}", self.next);
        let answer = self.workers[at].ask(&order)?;
        if !self.mrs.contains_key(&handle) {
            let known = self.pds.contains_key(&handle);
            expect(&answer, if known { INVALID } else { NO_ENTRY })?;
            return Ok("import an MR in vain");
        }
        expect(&answer, &format!("ok {handle}"))?;
        let owned = false;
        self.keep(
            at,
            Item::Mr {
                handle,
                owned,
                over,
            },
        )?;
        Ok("import an MR")
    }

    /// Has a worker create an object, and gives its handle.
    fn created(&mut self, at: usize, order: &str, with: &[u32]) -> Result<u32> {
        let with: String = with.iter().map(|number| format!(" {number}")).collect();
        let answer = self.workers[at].ask(&format!("{order} {}{with}", self.next))?;
        let handle = answer.strip_prefix("ok ");
        Ok(handle
            .ok_or_else(|| format!("{order} was answered {answer:?}"))?
            .parse()?)
    }

    /// Notes a worker's new item.
    fn keep(&mut self, at: usize, item: Item) -> Result {
        if let Item::Mr { over, .. } | Item::Qp { over, .. } = item {
            *self.users(at, over)? += 1;
        }
        self.workers[at].items.insert(self.next, item);
        self.next += 1;
        Ok(())
    }

    fn disown(&mut self, at: usize) -> Result<&'static str> {
        let owns = |item: &Item| {
            matches!(
                item,
                Item::Pd {
                    owned: true,
                    held: true,
                    ..
                } | Item::Mr { owned: true, .. }
            )
        };
        let Some((number, item)) = self.any(at, owns) else {
            return Ok("nothing to disown");
        };
        expect(&self.workers[at].ask(&format!("disown {number}"))?, "ok")?;
        match item {
            Item::Pd { handle, .. } => self.pd(handle)?.owned = false,
            Item::Mr { handle, .. } => self.mr(handle)?.owned = false,
            Item::Qp { .. } => {}
        }
        if let Some(Item::Pd { owned, .. } | Item::Mr { owned, .. }) =
            self.workers[at].items.get_mut(&number)
        {
            *owned = false;
        }
        Ok("disown")
    }

    /// Has a worker drop or destroy something.
    fn give_up(&mut self, at: usize, order: &'static str) -> Result<&'static str> {
        let held = |item: &Item| !matches!(item, Item::Pd { held: false, .. });
        let Some((number, item)) = self.any(at, held) else {
            return Ok("nothing to give up");
        };
        if order == "drop" || !self.may_destroy(at, number, item) {
            expect(&self.workers[at].ask(&format!("drop {number}"))?, "ok")?;
            self.dropped(at, number)?;
            return Ok("drop");
        }
        let expected = match item {
            Item::Pd { users: 1.., .. } => "busy",
            Item::Pd { handle, .. } if self.pd(handle)?.children > 0 => BUSY,
            _ => "ok",
        };
        expect(
            &self.workers[at].ask(&format!("destroy {number}"))?,
            expected,
        )?;
        if expected != "ok" {
            return Ok(if expected == BUSY {
                "destroy in vain, by the kernel"
            } else {
                "destroy in vain, by the library"
            });
        }
        self.workers[at].items.remove(&number);
        match item {
            Item::Pd { handle, .. } => self.pd_is_gone(handle),
            Item::Mr { handle, over, .. } => {
                self.mr_is_gone(handle)?;
                self.released(at, over)?;
            }
            Item::Qp { pd, over } => {
                self.qp_is_gone(pd)?;
                self.released(at, over)?;
            }
        }
        Ok("destroy")
    }

    /// Whether an item may be destroyed by the rules: it is its worker's own, or nobody's any more.
    fn may_destroy(&self, at: usize, number: u32, item: Item) -> bool {
        if self.workers[at].stale.contains(&number) {
            return false;
        }
        match item {
            Item::Pd { handle, owned, .. } => owned || !self.pds[&handle].owned,
            Item::Mr { handle, owned, .. } => owned || !self.mrs[&handle].owned,
            Item::Qp { .. } => true,
        }
    }

    /// A worker has dropped an item.
    fn dropped(&mut self, at: usize, number: u32) -> Result {
        let item = self.workers[at].items.get_mut(&number);
        match item.ok_or("no such item")? {
            Item::Pd { held, users, .. } => {
                *held = false;
                if *users == 0 {
                    self.ended(at, number)?;
                }
            }
            &mut Item::Mr {
                handle,
                owned,
                over,
            } => {
                self.forget(at, number);
                if owned {
                    self.mr_is_gone(handle)?;
                }
                self.released(at, over)?;
            }
            &mut Item::Qp { pd, over } => {
                self.forget(at, number);
                self.qp_is_gone(pd)?;
                self.released(at, over)?;
            }
        }
        Ok(())
    }

    /// One of the items that keep a worker's PD item has gone.
    fn released(&mut self, at: usize, number: u32) -> Result {
        *self.users(at, number)? -= 1;
        if let Some(Item::Pd {
            held: false,
            users: 0,
            ..
        }) = self.workers[at].items.get(&number)
        {
            self.ended(at, number)?;
        }
        Ok(())
    }

    /// Nothing of a worker's keeps a PD item any more. If the PD was its own it is destroyed, or left behind.
    fn ended(&mut self, at: usize, number: u32) -> Result {
        let item = self.workers[at].items.get(&number).copied();
        self.forget(at, number);
        if let Some(Item::Pd {
            handle,
            owned: true,
            ..
        }) = item
        {
            let pd = self.pd(handle)?;
            pd.owned = false;
            if pd.children == 0 {
                self.pd_is_gone(handle);
            }
        }
        Ok(())
    }

    fn forget(&mut self, at: usize, number: u32) {
        let worker = &mut self.workers[at];
        worker.items.remove(&number);
        worker.stale.remove(&number);
    }

    fn pd_is_gone(&mut self, gone: u32) {
        self.pds.remove(&gone);
        self.make_stale(|item| matches!(item, Item::Pd { handle, .. } if *handle == gone));
    }

    fn mr_is_gone(&mut self, gone: u32) -> Result {
        let mr = self.mrs.remove(&gone).ok_or("no such MR")?;
        self.pd(mr.pd)?.children -= 1;
        self.make_stale(|item| matches!(item, Item::Mr { handle, .. } if *handle == gone));
        Ok(())
    }

    fn qp_is_gone(&mut self, pd: u32) -> Result {
        self.qps -= 1;
        self.pd(pd)?.children -= 1;
        Ok(())
    }

    fn make_stale(&mut self, is_gone: impl Fn(&Item) -> bool) {
        for Worker { items, stale, .. } in &mut self.workers {
            let gone = items.iter().filter(|(_, item)| is_gone(item));
            stale.extend(gone.map(|(&number, _)| number));
        }
    }

    fn pd(&mut self, handle: u32) -> Result<&mut KernelPd> {
        Ok(self.pds.get_mut(&handle).ok_or("no such PD")?)
    }

    fn mr(&mut self, handle: u32) -> Result<&mut KernelMr> {
        Ok(self.mrs.get_mut(&handle).ok_or("no such MR")?)
    }

    fn users(&mut self, at: usize, number: u32) -> Result<&mut usize> {
        match self.workers[at].items.get_mut(&number) {
            Some(Item::Pd { users, .. }) => Ok(users),
            other => Err(format!("not a PD: {other:?}").into()),
        }
    }

    /// Compares the kernel's lists of handles with the model's.
    fn agree(&self) -> Result {
        let pds: BTreeSet<u32> = self.context.pd_handles()?.iter().map(|pd| pd.0).collect();
        let mrs: BTreeSet<u32> = self.context.mr_handles()?.iter().map(|mr| mr.0).collect();
        let expected = (
            self.pds.keys().copied().collect(),
            self.mrs.keys().copied().collect(),
        );
        match (pds, mrs) == expected {
            true => Ok(()),
            false => Err(format!("the handles are not {expected:?}").into()),
        }
    }
}

fn expect(answer: &str, expected: &str) -> Result {
    match answer == expected {
        true => Ok(()),
        false => Err(format!("the answer is {answer:?}, not {expected:?}").into()),
    }
}
