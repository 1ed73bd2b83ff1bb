//! Keys that cover parts of several regions, one after the other or in rows, and the requests that give them
//! these parts.

use std::any::Any;
use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::{Range, RangeBounds};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_uapi::flags::Access;
use zerocopy::IntoBytes;

use super::Direct;
use super::layout::{CreateMkeyIn, CreateMkeyOut, Input, Klm, Mkc, Structure};
use super::object::DevxObject;
use super::refusal::CommandError;
use crate::driver::mlx5::Device;
use crate::driver::mlx5::umr::{Layout, Part};
use crate::error::{DestroyError, Error, Result, Subject, Verb};
use crate::flight::{Parked, Stands};
use crate::mr::{Nameable, OutOfBounds, RemoteKey, RemoteSlice};
use crate::pd::{Pd, PdUse, User};
use crate::qp::transport::BindWindow;
use crate::qp::{PostError, Request, Transport};
use crate::work::{LocalKey, LocalSlice, PdTag};

/// What is wrong with a description of parts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GatherError {
    /// A part does not lie within its region, or has more than 2 GiB.
    OutOfBounds(OutOfBounds),
    /// A part has no bytes.
    Empty,
    /// A region, or the key, belongs to another protection domain.
    ForeignPd,
    /// A region does not give this side the access that the key would give.
    Access(Access),
    /// Keys over parts do not have these access flags.
    Flags(Access),
    /// There are no parts, or more than this number, which fit into the command or into the key. It is 0 for
    /// a key that has room for none: a command gave it those that it has.
    Count(usize),
    /// The rows are not possible; the text says why.
    Rows(&'static str),
    /// The command failed.
    Command(CommandError),
    /// The request cannot be posted.
    Post(PostError),
}

impl fmt::Display for GatherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBounds(error) => fmt::Display::fmt(error, f),
            Self::Empty => f.write_str("a part has no bytes"),
            Self::ForeignPd => {
                f.write_str("a region or the key belongs to another protection domain")
            }
            Self::Access(access) => {
                write!(
                    f,
                    "a region was registered without {access:?}, which the key is to give"
                )
            }
            Self::Flags(access) => write!(f, "a key over parts cannot have {access:?}"),
            Self::Count(0) => f.write_str(
                "the key has the parts that its command gave it, and takes none by requests",
            ),
            Self::Count(most) => write!(f, "the key covers 1 to {most} parts"),
            Self::Rows(why) => write!(f, "rows cannot be like this: {why}"),
            Self::Command(error) => fmt::Display::fmt(error, f),
            Self::Post(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl std::error::Error for GatherError {}

impl From<PostError> for GatherError {
    fn from(error: PostError) -> Self {
        Self::Post(error)
    }
}

/// What stays registered as long as a key may name it.
type Kept = Arc<dyn Any + Send + Sync>;

/// A part of a region for a key.
struct Piece {
    part: Part,
    /// How many bytes further on it lies in each row.
    stride: u16,
    /// Where it begins in its region, and how many bytes the region has.
    place: (u64, u64),
    access: Access,
    pd: PdTag,
    region: Kept,
}

/// The description of what a key covers: parts of several regions.
///
/// To peers it looks like one region: its addresses count from 0, and the parts follow each other in the
/// order in which they were added. With [`rows`](Self::rows) the whole sequence is repeated, and parts with a
/// stride lie further on in each row: so a key can cover a column of a matrix, or interleave several columns.
///
/// [`create`](Self::create) makes a key of it. A request, [`Request::gather`], gives it to a key that exists.
///
/// ```no_run
/// use std::sync::Arc;
/// use uverbs::{Access, direct::mlx5::Direct};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = uverbs::open("mlx5_0")?;
/// let pd = context.alloc_pd()?;
/// let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
/// let [first, second] = [0, 1].map(|_| pd.register(vec![0u8; 4096], access).map(Arc::new));
/// let (first, second) = (first?, second?);
/// let direct = Direct::of(&context)?;
/// let key = direct.gather(&pd, Access::REMOTE_READ).part(&first, 0..100)?.part(&second, 0..4096)?.create()?;
/// println!("{}", key.remote());        // 4196 bytes at address 0
/// # Ok(()) }
/// ```
#[must_use = "it is a description"]
pub struct Gathers<'a> {
    direct: &'a Direct,
    pd: &'a Pd,
    access: Access,
    rows: u32,
    pieces: Vec<Piece>,
}

impl fmt::Debug for Gathers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathers")
            .field("access", &self.access)
            .field("rows", &self.rows)
            .field("parts", &self.pieces.len())
            .finish()
    }
}

impl Direct {
    /// Starts the description of a key that covers parts of several regions of a protection domain. `access`
    /// is what the key allows: remote read, write and atomic operations to peers, and
    /// [`LOCAL_WRITE`](Access::LOCAL_WRITE) to requests of this side. Other flags are refused by
    /// [`create`](Gathers::create) and [`Request::gather`].
    #[doc(alias = "mlx5dv_create_mkey")]
    pub fn gather<'a>(&'a self, pd: &'a Pd, access: Access) -> Gathers<'a> {
        Gathers {
            direct: self,
            pd,
            access,
            rows: 1,
            pieces: Vec::new(),
        }
    }

    /// Allocates a key with room for `parts` parts, which requests give it ([`Request::gather`]). Until then
    /// it covers nothing. Rows take the room of one part more than they have.
    ///
    /// # Errors
    ///
    /// [`GatherError::Command`]: the domain belongs to another context, or the device refuses. Manual page:
    /// `mlx5dv_create_mkey(3)`.
    #[doc(alias = "mlx5dv_create_mkey")]
    pub fn alloc_key(&self, pd: &Pd, parts: u16) -> Result<GatheredKey, GatherError> {
        let created = self.empty_key(pd, parts, false);
        let EmptyKey { object, key, units } = created.map_err(GatherError::Command)?;
        let mut allocated = GatheredKey::new(object, pd, key);
        allocated.room = units.into();
        Ok(allocated)
    }

    /// As [`alloc_key`](Self::alloc_key); peers may invalidate it if `is_invalidated` is true.
    pub(crate) fn empty_key(
        &self,
        pd: &Pd,
        units: u16,
        is_invalidated: bool,
    ) -> Result<EmptyKey, CommandError> {
        let Some(units) = units.checked_next_multiple_of(LIST_BLOCK) else {
            let why = format!("a key for {units} parts: there are at most 65532");
            return Err(Error::invalid(Verb::DevxObjCreate, Subject::the("key"), why).into());
        };
        let command = empty(self.pdn(pd)?, units, is_invalidated);
        let mut output = CreateMkeyOut::default();
        let object = self
            .create_object(command.as_bytes(), output.as_mut_bytes())
            .map_err(|error| error.about(Subject::the("key")))?;
        Ok(EmptyKey {
            object,
            key: key(&output),
            units,
        })
    }
}

/// A new key that gets its parts by requests.
pub(crate) struct EmptyKey {
    pub(crate) object: DevxObject,
    pub(crate) key: u32,
    /// Units of its translation: each part is one.
    pub(crate) units: u16,
}

/// Units of a block: a translation consists of whole blocks.
const LIST_BLOCK: u16 = 4;

/// The new key; its low byte is 0.
fn key(created: &CreateMkeyOut) -> u32 {
    (created.get(CreateMkeyOut::MKEY_INDEX) as u32) << 8
}

/// What keys can give.
const GIVEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

/// The access that a region must give this side for what the key gives.
fn needed(access: Access) -> Access {
    let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    match access.intersects(writes) {
        true => Access::LOCAL_WRITE,
        false => Access::empty(),
    }
}

impl Gathers<'_> {
    /// Adds a part of a region, in bytes from its start. The key keeps the region registered.
    ///
    /// # Errors
    ///
    /// The part does not lie within the region, has no bytes, or has more than 2 GiB.
    pub fn part<R: Nameable + Send + Sync + 'static>(
        self,
        region: &Arc<R>,
        range: Range<usize>,
    ) -> Result<Self, GatherError> {
        self.strided(region, range, 0)
    }

    /// As [`part`](Self::part), but in each row the part lies `stride` bytes further on.
    ///
    /// # Errors
    ///
    /// As for [`part`](Self::part), for the first row.
    pub fn strided<R: Nameable + Send + Sync + 'static>(
        mut self,
        region: &Arc<R>,
        range: Range<usize>,
        stride: u16,
    ) -> Result<Self, GatherError> {
        let start = range.start as u64;
        let (slice, length, access) = region.part(range).map_err(GatherError::OutOfBounds)?;
        let length = length as u64;
        if slice.is_empty() {
            return Err(GatherError::Empty);
        }
        self.pieces.push(Piece {
            part: Part {
                address: slice.address(),
                length: slice.len() as u32,
                lkey: slice.lkey().0,
            },
            stride,
            place: (start, length),
            access,
            pd: region.pd().0,
            region: Arc::clone(region) as Kept,
        });
        Ok(self)
    }

    /// Repeats the sequence of parts `count` times. Only a request can give a key rows, whose parts have at
    /// most 65,535 bytes each.
    #[doc(alias = "mlx5dv_wr_mr_interleaved")]
    pub fn rows(mut self, count: u32) -> Self {
        self.rows = count;
        self
    }

    /// Refuses what no key can cover, or more than `most` units.
    fn check(&self, most: usize) -> Result<(), GatherError> {
        let head = usize::from(self.rows != 1);
        if self.pieces.is_empty() || self.pieces.len() + head > most {
            return Err(GatherError::Count(most.saturating_sub(head)));
        }
        if self.pieces.iter().any(|piece| piece.pd != self.pd.tag()) {
            return Err(GatherError::ForeignPd);
        }
        let none = self.access.difference(GIVEN);
        if !none.is_empty() {
            return Err(GatherError::Flags(none));
        }
        let needed = needed(self.access);
        if self
            .pieces
            .iter()
            .any(|piece| !piece.access.contains(needed))
        {
            return Err(GatherError::Access(needed));
        }
        if self.rows == 1 {
            return Ok(());
        }
        let Some(behind_first) = self.rows.checked_sub(1) else {
            return Err(GatherError::Rows("there are none"));
        };
        for piece in &self.pieces {
            let bytes = u64::from(piece.part.length);
            if bytes > u16::MAX.into() {
                return Err(GatherError::Rows("a part has more than 65,535 bytes"));
            }
            let (start, length) = piece.place;
            let end = start + u64::from(behind_first) * u64::from(piece.stride) + bytes;
            if end > length {
                let error = OutOfBounds { start, end, length };
                return Err(GatherError::OutOfBounds(error));
            }
        }
        Ok(())
    }

    /// The layout of what the key covers, which has been checked.
    fn layout(&self) -> Layout {
        let pieces = self.pieces.iter();
        match self.rows {
            1 => Layout::List(pieces.map(|piece| piece.part).collect()),
            rows => Layout::Rows(
                rows,
                pieces.map(|piece| (piece.part, piece.stride)).collect(),
            ),
        }
    }

    fn into_regions(self) -> impl Iterator<Item = Kept> {
        self.pieces.into_iter().map(|piece| piece.region)
    }

    /// Creates a key that covers the parts, by a command.
    ///
    /// # Errors
    ///
    /// A region belongs to another domain, or has less access; the access has a flag that keys do not have;
    /// there are no parts, or more than fit into a command; there are [`rows`](Self::rows); the device
    /// refuses. Manual page: `mlx5dv_create_mkey(3)`.
    pub fn create(self) -> Result<GatheredKey, GatherError> {
        self.check(CreateMkeyIn::MOST_UNITS)?;
        let layout = self.layout();
        let Layout::List(parts) = &layout else {
            return Err(GatherError::Rows("only a request gives them"));
        };
        let length = layout.length();
        let Self {
            direct, pd, access, ..
        } = self;
        let pdn = direct
            .pdn(pd)
            .map_err(|error| GatherError::Command(error.into()))?;
        let command = command(pdn, access, length, parts);
        let mut output = CreateMkeyOut::default();
        let object = direct.create_object(&command, output.as_mut_bytes());
        let object =
            object.map_err(|error| GatherError::Command(error.about(Subject::the("key"))))?;
        let mut created = GatheredKey::new(object, pd, key(&output));
        *created.held.cover_mut() = Cover {
            length,
            access,
            regions: self.into_regions().collect(),
            former: 0,
        };
        Ok(created)
    }
}

/// The context of a key in the mode for parts of other keys, for any queue pair.
fn set_parts(context: &mut Mkc, pdn: u32) -> &mut Mkc {
    const PARTS: u64 = 2;
    const ANY: u64 = 0xff_ffff;
    context
        .set(Mkc::ACCESS_MODE_1_0, PARTS)
        .set(Mkc::LR, 1)
        .set(Mkc::QPN, ANY)
        .set(Mkc::PD, pdn.into())
}

/// The command that creates a key with its parts.
fn command(pdn: u32, access: Access, length: u64, parts: &[Part]) -> Vec<u8> {
    let mut command = CreateMkeyIn::new();
    let gives = |right: Access| u64::from(access.contains(right));
    let writes = needed(access).contains(Access::LOCAL_WRITE);
    set_parts(command.inner_mut(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY), pdn)
        .set(Mkc::LW, writes.into())
        .set(Mkc::RR, gives(Access::REMOTE_READ))
        .set(Mkc::RW, gives(Access::REMOTE_WRITE))
        .set(Mkc::A, gives(Access::REMOTE_ATOMIC))
        .set(Mkc::LEN, length);
    let list: Vec<Klm> = parts
        .iter()
        .map(|part| {
            let mut unit = Klm::default();
            unit.set(Klm::BCOUNT, part.length.into())
                .set(Klm::KEY, part.lkey.into())
                .set(Klm::VA, part.address);
            unit
        })
        .collect();
    command.with_list(&list)
}

/// The command that creates a key that gets its parts by requests.
fn empty(pdn: u32, units: u16, is_invalidated: bool) -> CreateMkeyIn {
    let mut command = CreateMkeyIn::new();
    set_parts(command.inner_mut(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY), pdn)
        .set(Mkc::FREE, 1)
        .set(Mkc::UMR_EN, 1)
        .set(Mkc::EN_RINVAL, is_invalidated.into())
        .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, units.into());
    command
}

impl<'q, T: Transport> Request<'_, 'q, T> {
    /// Replaces the parts of a key from [`Direct::alloc_key`]. Later requests of the same queue pair may use
    /// them, and so may peers when this request has completed
    /// ([`WcOpcode::DRIVER1`](crate::WcOpcode::DRIVER1)). RC queue pairs have this operation.
    ///
    /// The parts are in the request: `n` of them, rounded up to a multiple of four, need 112 + 16 · `n` bytes
    /// of [`max_inline_data`](crate::Caps::max_inline_data). Four always fit, and 52 are the most.
    ///
    /// The key also keeps the earlier regions, until [`forget_former`](GatheredKey::forget_former). If the
    /// request fails, or its batch is dropped, the key covers what it covered before, and its
    /// [length](GatheredKey::len) here is wrong.
    ///
    /// The batch borrows the key until it is rung: later requests in it may name the key, and nobody can drop
    /// it. This does not compile:
    ///
    /// ```compile_fail,E0505
    /// use uverbs::{Qp, Rc, direct::mlx5::{GatherError, GatheredKey, Gathers}};
    ///
    /// fn post(qp: &mut Qp<Rc>, key: GatheredKey, parts: Gathers<'_>) -> Result<(), GatherError> {
    ///     let mut batch = qp.batch();
    ///     batch.signaled(1).gather(&key, parts)?;
    ///     drop(key);
    ///     batch.ring()?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GatherError::Post`] with [`PostError::NotInTransport`] on queue pairs other than RC, and with
    /// [`PostError::InlineTooLong`]. The description is refused as by [`Gathers::create`]; the key or the
    /// queue pair belongs to another domain; the key does not have the room. Manual page:
    /// `mlx5dv_wr_mkey_configure(3)`.
    #[doc(alias = "mlx5dv_wr_mkey_configure")]
    #[doc(alias = "mlx5dv_wr_mr_list")]
    pub fn gather(self, key: &'q GatheredKey, parts: Gathers<'_>) -> Result<(), GatherError>
    where
        T: BindWindow,
    {
        parts.check(key.room)?;
        let pd = parts.pd.tag();
        if key.pd.tag() != pd || self.pd() != pd {
            return Err(GatherError::ForeignPd);
        }
        let layout = parts.layout();
        let (length, access) = (layout.length(), parts.access);
        let given = access | needed(access);
        let rkey = key.rkey.0;
        // Until the request is in the ring: others may give the key parts by another queue pair.
        let mut cover = key.held.cover();
        let former = cover.regions.len();
        // First: once the request is in the ring, the device may know these regions. Relaxed: the batch's
        // borrow has ended before `drop` loads it.
        cover.regions.extend(parts.into_regions());
        key.is_named.store(true, Ordering::Relaxed);
        let posted = self.put_own::<Device>(|queue, at, request| {
            queue.write_gathering(at, request, rkey, Some(given), Some(&layout))
        });
        if let Err(error) = posted {
            // If only the doorbell has failed, the request is in the ring.
            let gone = match error {
                PostError::Doorbell(_) => Vec::new(),
                _ => cover.regions.split_off(former),
            };
            // Without the lock: these may be the last of their regions.
            drop(cover);
            drop(gone);
            return Err(error.into());
        }
        (cover.former, cover.length, cover.access) = (former, length, access);
        Ok(())
    }

    /// A request in the device's format, without a control segment from this library: its first 16 bytes are
    /// the control segment, of which the index and the queue pair's number are filled in. The options of the
    /// request have no effect; its id has.
    ///
    /// # Errors
    ///
    /// [`PostError::Direct`] if the number of units in the control segment does not match the bytes;
    /// [`PostError::InlineTooLong`] if it is longer than the longest request of the queue;
    /// [`PostError::NotInTransport`] on queue pairs other than RC ones of this device. Manual page:
    /// `mlx5dv_wr_raw_wqe(3)`.
    ///
    /// # Safety
    ///
    /// It is a request that the device accepts. Until it has completed, the keys in it name the same memory,
    /// nobody has a reference to memory that it writes to, and nobody writes through a reference to memory
    /// that it reads. If it changes a key, this holds for all memory that the key covers, as long as it
    /// covers it.
    #[doc(alias = "mlx5dv_wr_raw_wqe")]
    pub unsafe fn raw(self, request: &[u8]) -> Result<(), PostError>
    where
        T: BindWindow,
    {
        self.put_own::<Device>(|queue, at, (wr_id, _)| queue.write_raw(at, wr_id, request))
    }
}

/// A key that covers parts of several regions, which it keeps registered.
///
/// Dropping it destroys it and releases the regions: at once, or when the requests in flight that name it or
/// give it parts have completed. If the device refuses, the regions are leaked rather than freed while the
/// device may use them.
///
/// Requests of peers that name it fail once it is destroyed.
pub struct GatheredKey {
    held: ManuallyDrop<Held>,
    rkey: RemoteKey,
    /// Units that a request may give it; 0 for a key that got its parts by a command.
    room: usize,
    /// Whether requests of this side may name it.
    is_named: AtomicBool,
    pd: PdUse,
}

/// The key with the regions that it may name.
struct Held {
    object: DevxObject,
    /// Dropped after the key. Requests change it while batches borrow the key.
    cover: Mutex<Cover>,
}

/// What the key covers when the requests so far have been executed.
struct Cover {
    length: u64,
    access: Access,
    regions: Vec<Kept>,
    /// How many of the regions are from before the last request.
    former: usize,
}

impl Held {
    // It is consistent after each store, so a panic elsewhere did no harm.
    fn cover(&self) -> MutexGuard<'_, Cover> {
        self.cover.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cover_mut(&mut self) -> &mut Cover {
        let cover = self.cover.get_mut();
        cover.unwrap_or_else(PoisonError::into_inner)
    }
}

impl GatheredKey {
    /// A key that covers nothing.
    fn new(object: DevxObject, pd: &Pd, key: u32) -> Self {
        Self {
            held: ManuallyDrop::new(Held {
                object,
                cover: Mutex::new(Cover {
                    length: 0,
                    access: Access::empty(),
                    regions: Vec::new(),
                    former: 0,
                }),
            }),
            rkey: RemoteKey(key),
            room: 0,
            is_named: AtomicBool::new(false),
            pd: pd.user(User::Mr),
        }
    }

    /// The key for a peer.
    pub fn rkey(&self) -> RemoteKey {
        self.rkey
    }

    /// Bytes of all parts.
    pub fn len(&self) -> u64 {
        self.held.cover().length
    }

    /// Whether it has no parts yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All parts as a peer addresses them, from address 0 on. Send it to the peer.
    pub fn remote(&self) -> RemoteSlice {
        RemoteSlice {
            address: 0,
            length: self.len(),
            rkey: self.rkey,
        }
    }

    /// A part of what it covers, for a work request of this side, in bytes from the start of the first part.
    ///
    /// # Errors
    ///
    /// The range does not lie within it, or has more than 2 GiB.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<LocalSlice<'_>, OutOfBounds> {
        // Relaxed: every slice has been given back before `drop` loads it.
        self.is_named.store(true, Ordering::Relaxed);
        let (length, access) = {
            let cover = self.held.cover();
            (cover.length, cover.access)
        };
        let tag = match needed(access).contains(Access::LOCAL_WRITE) {
            true => self.pd.tag(),
            false => self.pd.tag().read_only(),
        };
        LocalSlice::within(range, 0, length, LocalKey(self.rkey.0), tag)
    }

    /// The object, for commands that query its state.
    pub fn object(&self) -> &DevxObject {
        &self.held.object
    }

    /// Releases the regions that it covered before the last request that gave it parts.
    ///
    /// # Safety
    ///
    /// That request has completed successfully, and so have all requests of this side that name the key and
    /// were posted before it completed. The requests that gave it parts were posted to one queue pair, or
    /// each when the one before had completed.
    pub unsafe fn forget_former(&mut self) {
        let Cover {
            regions, former, ..
        } = self.held.cover_mut();
        regions.drain(..*former);
        *former = 0;
    }

    /// How far the queues are that have requests in flight which may name it.
    fn stands(&self) -> Stands {
        self.pd.reap();
        // Relaxed: see `slice`.
        match self.is_named.load(Ordering::Relaxed) {
            true => self.pd.flights().stands(LocalKey(self.rkey.0)),
            false => Stands::default(),
        }
    }

    /// Destroys the key, and releases the regions.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`](crate::Cause::Busy) if requests in flight may name it; the kernel or the device
    /// refuses. The error returns it.
    #[doc(alias = "mlx5dv_destroy_mkey")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        let stands = self.stands();
        let result = match stands.is_empty() {
            true => self.held.object.destroy_in_place(),
            false => {
                let by = format!("requests in flight may name it: {stands}");
                Err(self.held.object.busy(by))
            }
        };
        DestroyError::of(self, result)
    }
}

impl Drop for GatheredKey {
    fn drop(&mut self) {
        // First: this may drop other memory, whose destructor may panic. Then the key stays.
        let stands = self.stands();
        // SAFETY: it is moved out once, here.
        let held = unsafe { ManuallyDrop::take(&mut self.held) };
        if !stands.is_empty() {
            self.pd.flights().wait(stands, Box::new(held));
        }
    }
}

// The regions keep the domain. So the domain does not end while a key waits that has regions, and if the
// kernel keeps a queue for good, all of them stay.
impl Parked for Held {
    fn release(self: Box<Self>) -> Option<Box<dyn Parked>> {
        drop(self);
        None
    }

    fn leak(mut self: Box<Self>) {
        self.object.leave();
        mem::forget(mem::take(&mut self.cover_mut().regions));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // If the kernel refuses, or a subscriber of traces panics, the regions stay.
        let regions = ManuallyDrop::new(mem::take(&mut self.cover_mut().regions));
        if self.object.end() {
            drop(ManuallyDrop::into_inner(regions));
        }
    }
}

impl fmt::Debug for GatheredKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cover = self.held.cover();
        f.debug_struct("GatheredKey")
            .field("rkey", &self.rkey)
            .field("len", &cover.length)
            .field("regions", &cover.regions.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_the_parts_and_the_rights() {
        let part = |lkey, address, length| Part {
            address,
            length,
            lkey,
        };
        let parts = [
            part(0x1100, 0x7f00_0000_0010, 0x20),
            part(0x2200, 0x1000, 0x30),
        ];
        let bytes = command(0x12_3456, Access::REMOTE_READ, 0x50, &parts);
        let mut expected = vec![0; 0x110 + 4 * 16];
        expected[..2].copy_from_slice(&[2, 0]);
        expected[0x63] = 4;
        let context = &mut expected[0x10..0x50];
        // Reads of peers and of this side; mode 2; any queue pair; domain; length; room.
        context[2] = 0b0001_0110;
        context[4..7].copy_from_slice(&[0xff; 3]);
        context[0xd..0x10].copy_from_slice(&[0x12, 0x34, 0x56]);
        context[0x1f] = 0x50;
        context[0x37] = 4;
        let list = &mut expected[0x110..];
        list[3] = 0x20;
        list[6..8].copy_from_slice(&[0x11, 0]);
        list[10..16].copy_from_slice(&[0x7f, 0, 0, 0, 0, 0x10]);
        list[19] = 0x30;
        list[22..24].copy_from_slice(&[0x22, 0]);
        list[30..32].copy_from_slice(&[0x10, 0]);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_key_is_created_without_memory() {
        let command = empty(0x12_3456, 8, true);
        let context = command.inner(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
        for (field, value) in [
            (Mkc::FREE, 1),
            (Mkc::UMR_EN, 1),
            (Mkc::LR, 1),
            (Mkc::LW, 0),
            (Mkc::EN_RINVAL, 1),
            (Mkc::ACCESS_MODE_1_0, 2),
            (Mkc::QPN, 0xff_ffff),
            (Mkc::PD, 0x12_3456),
            (Mkc::TRANSLATIONS_OCTWORD_SIZE, 8),
        ] {
            assert_eq!(context.get(field), value);
        }
    }

    #[test]
    fn writes_of_peers_need_regions_that_may_be_written() {
        assert_eq!(needed(Access::REMOTE_READ), Access::empty());
        assert_eq!(needed(Access::REMOTE_WRITE), Access::LOCAL_WRITE);
        assert_eq!(needed(Access::REMOTE_ATOMIC), Access::LOCAL_WRITE);
        assert_eq!(needed(Access::LOCAL_WRITE), Access::LOCAL_WRITE);
    }
}
