//! The joiner's side: a protection domain of another process, by the id and the key of its offer.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use uverbs_uapi::handle::{MrHandle, PdHandle};

use super::address::Address;
use super::key::ShareKey;
use super::message::Refusal;
use super::request::{self, Delivery, Failed, Time};
use super::{FOREVER, user};
use crate::context::Context;
use crate::error::{Cause, Errno, Error, Result, Subject, Verb};
use crate::import::{ImportedMr, ImportedPd};
use crate::work::LocalKey;

const VERB: Verb = Verb::SharePd;

/// A request to join an offer.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use uverbs::share::{Address, Join, ShareKey};
///
/// let key: ShareKey = std::fs::read_to_string("/run/heap.key")?.trim().parse()?;
/// let mut joined = Join::new(Address::Path("/run/heap.sock".into()), key).join()?;
/// let heap = joined.take_mr("heap").ok_or("the offer has no heap")?;
/// let mut cq = joined.context().create_cq(64)?;
/// let mut qp = joined.pd().create_qp::<uverbs::Rc>(&cq, uverbs::Caps::default())?;
/// println!("{:?}", heap.mr().remote());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Join {
    address: Address,
    key: ShareKey,
    time: Time,
    offered_by: Vec<u32>,
}

impl Join {
    /// A request to join the offer at an address.
    pub fn new(address: Address, key: ShareKey) -> Self {
        Self {
            address,
            key,
            time: Time::Each(Duration::from_secs(10)),
            offered_by: vec![rustix::process::geteuid().as_raw(), 0],
        }
    }

    /// The time limit of each step, connecting and waiting for the answer; 10 s by default. It does not make
    /// the joiner wait for an offer that does not exist. It replaces a [deadline](Self::deadline).
    pub fn patience(mut self, limit: Duration) -> Self {
        self.time = Time::Each(limit.min(FOREVER));
        self
    }

    /// The joiner waits until the deadline for the path to exist, for an exporter to listen, for the
    /// connection and for the answer. It replaces [`patience`](Self::patience).
    ///
    /// If an exporter ends before it answers, the joiner waits for the next one. A socket to which this user
    /// may not connect is an error once it has been so for a second: one that is being made gets its mode
    /// last. Anything else that is wrong, such as the key or the listening user, is an error at once.
    ///
    /// At a path the joiner sleeps until something happens to the name (inotify(7)), and checks once a
    /// second. Abstract names and directories that this process cannot read have no such events: there it
    /// retries after 1 ms, 2 ms and so on up to 100 ms.
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.time = Time::Until(deadline);
        self
    }

    /// Also trusts an exporter of this user. By default the joiner trusts only this process's user and root,
    /// and sends the key to no other.
    pub fn offered_by(mut self, user: u32) -> Self {
        self.offered_by.push(user);
        self
    }

    /// Joins.
    ///
    /// # Errors
    ///
    /// `EACCES` if the key is wrong or this user is not allowed; [`Cause::Invalid`] if the listening user is
    /// not trusted, or if a handle of the offer names another region by now; [`Cause::Busy`] if too many
    /// processes have joined. Without a deadline, `ENOENT` or `ECONNREFUSED` if no exporter listens at the
    /// address, `ECONNRESET` if the exporter ends before it answers. `ETIMEDOUT` if the time is up;
    /// [`Error::detail`] says what was missing. Also as for [`Context::import`], [`Context::import_pd`] and
    /// [`Pd::import_mr`](crate::Pd::import_mr). Manual page: `ibv_share_pd(3)`, of Oracle's libibverbs.
    #[doc(alias = "ibv_share_pd")]
    pub fn join(self) -> Result<Joined> {
        let trusts = |user| self.offered_by.contains(&user);
        let delivery = request::obtain(&self.address, &self.key, trusts, self.time);
        open(delivery.map_err(|failed| self.explain(failed))?)
    }

    fn explain(&self, failed: Failed) -> Error {
        let subject = Subject::named("offer", &self.address);
        let cause = match failed {
            Failed::Os(Errno::AGAIN) => return self.late("the exporter did not serve its offer"),
            Failed::Late(last) => return self.late(missing(&last)),
            Failed::Os(errno) => Cause::Os(errno),
            Failed::Barred | Failed::Refused(Refusal::Denied) => Cause::Os(Errno::ACCESS),
            Failed::Refused(Refusal::Full) => {
                Cause::Busy("as many processes have joined as the exporter allows".into())
            }
            Failed::Refused(Refusal::Later) => return self.late(PUT_OFF),
            Failed::Refused(Refusal::Malformed) => {
                Cause::Unsupported("the exporter speaks another version of the protocol".into())
            }
            Failed::Stranger(user) if !user::is_certain(user) => Cause::Invalid(
                format!("user {user} listens there, which stands for all users that this process's user namespace does not map; the key was not told")
                    .into(),
            ),
            Failed::Stranger(user) => Cause::Invalid(
                format!("user {user} listens there, who is not trusted; the key was not told")
                    .into(),
            ),
            Failed::Malformed(why) => Cause::Invalid(
                format!("what listens there is no exporter: its answer is wrong: {why}").into(),
            ),
        };
        Error::new(VERB, subject, cause)
    }

    /// The error for the end of the time limit.
    fn late(&self, missing: &str) -> Error {
        let subject = Subject::named("offer", &self.address);
        let limit = match self.time {
            Time::Each(limit) => format!("in {limit:?}"),
            Time::Until(_) => "until the deadline".into(),
        };
        Error::os(VERB, subject, Errno::TIMEDOUT).with_detail(format!("{missing} {limit}"))
    }
}

const PUT_OFF: &str = "the exporter put the request off, as wrong keys of this user kept coming,";

/// What was missing, given the failure of the last try.
fn missing(failed: &Failed) -> &'static str {
    match failed {
        Failed::Os(Errno::NOENT) => "there was no socket at the path",
        Failed::Os(Errno::CONNREFUSED) => "nobody listened at the address",
        Failed::Refused(Refusal::Later) => PUT_OFF,
        _ => "exporters went without an answer",
    }
}

/// Makes objects from the delivery.
fn open(delivery: Delivery) -> Result<Joined> {
    let Delivery {
        grant,
        mut files,
        lease,
    } = delivery;
    let missing = || Error::invalid(VERB, Subject::the("offer"), "a file descriptor is missing");
    let context = Context::import(files.pop_front().ok_or_else(missing)?)?;
    let pd = context.import_leased_pd(PdHandle(grant.pd), Some(lease))?;
    let mut mrs = Vec::new();
    for region in grant.regions {
        let memory = match region.has_memory {
            true => Some(files.pop_front().ok_or_else(missing)?),
            false => None,
        };
        let mr = pd.import_mr(MrHandle(region.handle))?;
        if (mr.lkey(), mr.len()) != (LocalKey(region.lkey), region.length) {
            let subject = Subject::named("region", &region.name);
            let why = "the exporter has deregistered or changed it";
            return Err(Error::invalid(VERB, subject, why));
        }
        mrs.push(SharedMr {
            name: region.name,
            mr,
            memory,
        });
    }
    Ok(Joined { context, pd, mrs })
}

/// What a process gets when it joins an offer.
///
/// The exporter counts this process as a user until the [`ImportedPd`] and all of its objects here are
/// dropped, or the process ends.
#[derive(Debug)]
pub struct Joined {
    context: Context,
    pd: ImportedPd,
    mrs: Vec<SharedMr>,
}

impl Joined {
    /// The exporter's context, imported.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The protection domain.
    pub fn pd(&self) -> &ImportedPd {
        &self.pd
    }

    /// The memory regions of the offer that have not been taken.
    pub fn mrs(&self) -> &[SharedMr] {
        &self.mrs
    }

    /// Takes the memory region with this name out.
    pub fn take_mr(&mut self, name: &str) -> Option<SharedMr> {
        let at = self.mrs.iter().position(|mr| mr.name == name)?;
        Some(self.mrs.remove(at))
    }

    /// Takes the protection domain and drops the rest.
    pub fn into_pd(self) -> ImportedPd {
        self.pd
    }
}

/// A memory region of an offer.
#[derive(Debug)]
pub struct SharedMr {
    name: String,
    mr: ImportedMr,
    memory: Option<OwnedFd>,
}

impl SharedMr {
    /// The name that the exporter gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The region.
    pub fn mr(&self) -> &ImportedMr {
        &self.mr
    }

    /// The file that the region's memory maps, if the exporter gave it.
    ///
    /// The exporter may truncate it at any time; an access beyond its end then raises SIGBUS. If you do not
    /// trust the exporter that far, check for `F_SEAL_SHRINK` (fcntl(2)) before mapping the file.
    pub fn memory(&self) -> Option<&OwnedFd> {
        self.memory.as_ref()
    }

    /// The region and the file, separately.
    pub fn into_parts(self) -> (ImportedMr, Option<OwnedFd>) {
        (self.mr, self.memory)
    }
}
