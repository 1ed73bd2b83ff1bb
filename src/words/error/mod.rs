//! Errors of verbs: which verb failed, on which object, and why.
//!
//! Every control-path error names the verb that failed, the object that it was called on, and the cause. If
//! the cause is an errno, the error adds what that errno means *for this verb* and, if known, the limit that
//! was reached. Posting and polling have their own small error types ([`crate::PostError`],
//! [`crate::cq::PollError`], [`crate::wc::CompletionError`]), which cost nothing on success.

mod alloc;
mod meaning;
mod parse;
mod refusal;
mod verb;

use std::borrow::Cow;
use std::fmt;
use std::io;

pub use alloc::AllocError;
pub use parse::ParseError;
pub use refusal::{Refusal, RejectReason};
pub use rustix::io::Errno;
pub use verb::Verb;

/// The result of a verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The object of an error: its kind, and its number or name.
#[derive(Clone, PartialEq, Eq)]
pub struct Subject {
    what: Cow<'static, str>,
    id: Option<Id>,
}

/// A number, and how it is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Id {
    Decimal(u64),
    Hexadecimal(u32),
}

impl Subject {
    /// An object known by its number: a kernel handle, a port, a GID index.
    pub(crate) const fn numbered(kind: &'static str, id: u64) -> Self {
        Self {
            what: Cow::Borrowed(kind),
            id: Some(Id::Decimal(id)),
        }
    }

    /// An object known by its number on the wire, which completions carry too.
    pub(crate) const fn on_the_wire(kind: &'static str, number: u32) -> Self {
        Self {
            what: Cow::Borrowed(kind),
            id: Some(Id::Hexadecimal(number)),
        }
    }

    /// An object known by its name or path.
    pub(crate) fn named(kind: &str, name: impl fmt::Display) -> Self {
        Self {
            what: Cow::Owned(format!("{kind} {name}")),
            id: None,
        }
    }

    /// An object that does not exist yet, or the only one of its kind.
    pub(crate) const fn the(kind: &'static str) -> Self {
        Self {
            what: Cow::Borrowed(kind),
            id: None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id {
            Some(Id::Decimal(id)) => write!(f, "{} {id}", self.what),
            Some(Id::Hexadecimal(id)) => write!(f, "{} {id:#x}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a verb failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The kernel refused with this errno.
    Os(Errno),
    /// The kernel, the driver or the device lacks what was requested; the text says what is missing. If the
    /// kernel refused it, [`Error::errno`] is the kernel's errno.
    Unsupported(Cow<'static, str>),
    /// The request was refused before it reached the kernel; the text says which argument and why.
    Invalid(Cow<'static, str>),
    /// Others still use it, or all of it: objects, requests in flight, buffers of a pool. The text names
    /// them; the call may succeed later.
    Busy(Cow<'static, str>),
    /// There is no such device, port, GID or the like; the text names it.
    NotFound(Cow<'static, str>),
    /// The kernel's answer is malformed; the text says what is wrong with it.
    Malformed(Cow<'static, str>),
    /// A parent domain's allocator refused or returned unusable memory; this is its error.
    Allocator(AllocError),
    /// The peer refused the connection.
    Refused(Refusal),
    /// The caller's time limit has passed; the text says what was awaited and for how long.
    TimedOut(Cow<'static, str>),
    /// A request that was posted has failed, or its completion is lost; the text says which and why.
    Failed(Cow<'static, str>),
}

impl Cause {
    /// A limit has passed and nothing came; the text gives the limit in milliseconds, unless it is shorter
    /// than one.
    pub(crate) fn nothing_within(limit: std::time::Duration) -> Self {
        if limit.is_zero() {
            return Self::TimedOut("nothing had come, and there was no time left to wait".into());
        }
        let told = match u64::try_from(limit.as_millis()) {
            Ok(milliseconds @ 1..) => std::time::Duration::from_millis(milliseconds),
            Ok(0) | Err(_) => limit,
        };
        Self::TimedOut(format!("nothing came within {told:?}").into())
    }
}

/// A failed verb: which verb, on which object, and why.
///
/// ```
/// use uverbs::{Cause, error::Verb};
///
/// let Err(error) = uverbs::open("mlx5_7") else { return };
/// // "find_device on device mlx5_7: not found: ..."
/// println!("{error}");
/// assert_eq!(error.verb(), Verb::FindDevice);
/// match error.cause() {
///     Cause::NotFound(there_are) => println!("{there_are}"),
///     Cause::Os(errno) => println!("the kernel says {errno}"),
///     _ if error.is_device_gone() => println!("open it again when it is listed"),
///     _ => {}
/// }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    verb: Verb,
    subject: Subject,
    cause: Cause,
    /// The kernel's errno, if the cause is not [`Cause::Os`].
    errno: Option<Errno>,
    /// The kernel still has the device, whatever the errno usually means.
    device_is_there: bool,
    detail: Option<Cow<'static, str>>,
}

impl Error {
    pub(crate) fn new(verb: Verb, subject: Subject, cause: Cause) -> Self {
        Self(Box::new(Inner {
            verb,
            subject,
            cause,
            errno: None,
            device_is_there: false,
            detail: None,
        }))
    }

    /// The device has failed a command, with an errno that usually means that it has been removed.
    pub(crate) fn failed_by_device(verb: Verb, subject: Subject, errno: Errno) -> Self {
        let mut error = Self::os(verb, subject, errno);
        error.0.device_is_there = true;
        error
    }

    /// The kernel answered that it, the driver or the device lacks what was requested.
    pub(crate) fn unsupported_by_kernel(
        verb: Verb,
        subject: Subject,
        errno: Errno,
        missing: impl Into<Cow<'static, str>>,
    ) -> Self {
        let mut error = Self::unsupported(verb, subject, missing);
        error.0.errno = Some(errno);
        error
    }

    pub(crate) fn os(verb: Verb, subject: Subject, errno: Errno) -> Self {
        Self::new(verb, subject, Cause::Os(errno))
    }

    pub(crate) fn invalid(verb: Verb, subject: Subject, why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(verb, subject, Cause::Invalid(why.into()))
    }

    pub(crate) fn unsupported(
        verb: Verb,
        subject: Subject,
        missing: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(verb, subject, Cause::Unsupported(missing.into()))
    }

    pub(crate) fn malformed(
        verb: Verb,
        subject: Subject,
        what: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(verb, subject, Cause::Malformed(what.into()))
    }

    /// Names the object as users know it, if the command knows only its handle.
    pub(crate) fn about(mut self, subject: Subject) -> Self {
        self.0.subject = subject;
        self
    }

    /// Adds a detail found after the failure, such as the limit that was reached, to the details known
    /// already.
    pub(crate) fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        let detail = detail.into();
        self.0.detail = Some(match self.0.detail.take() {
            Some(known) => format!("{known}; {detail}").into(),
            None => detail,
        });
        self
    }

    /// The verb that failed.
    pub fn verb(&self) -> Verb {
        self.0.verb
    }

    /// The object that the verb was called on, or that it should have created.
    pub fn subject(&self) -> &Subject {
        &self.0.subject
    }

    /// Why it failed.
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }

    /// Details found after the failure, such as the limit that was reached.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }

    /// The kernel's errno, if the kernel refused.
    pub fn errno(&self) -> Option<Errno> {
        match self.0.cause {
            Cause::Os(errno) => Some(errno),
            _ => self.0.errno,
        }
    }

    /// The nearest kind of `std::io::Error`.
    pub fn io_kind(&self) -> io::ErrorKind {
        match self.0.cause {
            Cause::Os(errno) => errno.kind(),
            Cause::Unsupported(_) => io::ErrorKind::Unsupported,
            Cause::Invalid(_) => io::ErrorKind::InvalidInput,
            Cause::Busy(_) => io::ErrorKind::ResourceBusy,
            Cause::NotFound(_) => io::ErrorKind::NotFound,
            Cause::Malformed(_) => io::ErrorKind::InvalidData,
            Cause::Allocator(_) | Cause::Failed(_) => io::ErrorKind::Other,
            Cause::Refused(_) => io::ErrorKind::ConnectionRefused,
            Cause::TimedOut(_) => io::ErrorKind::TimedOut,
        }
    }

    /// True if the kernel, driver or device lacks what was requested.
    pub fn is_unsupported(&self) -> bool {
        match self.0.cause {
            Cause::Unsupported(_) => true,
            Cause::Os(errno) => {
                errno == Errno::OPNOTSUPP || errno == Errno::PROTONOSUPPORT || errno == Errno::NOSYS
            }
            _ => false,
        }
    }

    /// True if the device has been removed while it was open.
    pub fn is_device_gone(&self) -> bool {
        let is_removal = |errno| meaning::is_removal(self.0.verb, errno);
        !self.0.device_is_there && matches!(self.0.cause, Cause::Os(errno) if is_removal(errno))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            verb,
            subject,
            cause,
            errno,
            device_is_there,
            detail,
        } = &*self.0;
        write!(f, "{verb} on {subject}: ")?;
        match cause {
            Cause::Os(errno) => {
                write!(f, "{}", OsText(*errno))?;
                let meaning = match device_is_there {
                    true => Some(meaning::FAILED_BY_DEVICE),
                    false => meaning::of(*verb, *errno),
                };
                if let Some(meaning) = meaning {
                    write!(f, ": {meaning}")?;
                }
            }
            Cause::Unsupported(what) => match errno {
                Some(errno) => write!(f, "not supported ({}): {what}", OsText(*errno))?,
                None => write!(f, "not supported: {what}")?,
            },
            Cause::Invalid(why) => write!(f, "invalid argument: {why}")?,
            Cause::Busy(by) => write!(f, "busy: {by}")?,
            Cause::NotFound(what) => write!(f, "not found: {what}")?,
            Cause::Malformed(what) => write!(f, "the kernel's answer is malformed: {what}")?,
            Cause::Allocator(error) => write!(f, "{error}")?,
            Cause::Refused(refusal) => write!(f, "refused by the peer: {}", refusal.reason)?,
            Cause::TimedOut(what) => write!(f, "timed out: {what}")?,
            Cause::Failed(what) => f.write_str(what)?,
        }
        match detail {
            Some(detail) => write!(f, " ({detail})"),
            None => Ok(()),
        }
    }
}

/// `{:?}` prints the text, so that `fn main() -> Result<(), uverbs::Error>` shows it; `{:#?}` prints the
/// fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        f.debug_struct("Error")
            .field("verb", &self.0.verb)
            .field("subject", &self.0.subject)
            .field("cause", &self.0.cause)
            .field("errno", &self.errno())
            .field("detail", &self.0.detail)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.cause {
            Cause::Allocator(error) => Some(error.get_ref()),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        io::Error::new(error.io_kind(), error)
    }
}

/// The system's text for an errno, without the "(os error N)" that std appends.
struct OsText(Errno);

impl fmt::Display for OsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = io::Error::from_raw_os_error(self.0.raw_os_error()).to_string();
        f.write_str(text.split(" (os error").next().unwrap_or(&text))
    }
}

/// A failed destroy verb, with the object: it still exists, and the caller still owns it.
pub struct DestroyError<T> {
    /// The object, unchanged.
    pub object: T,
    /// Why it could not be destroyed.
    pub error: Error,
}

impl<T> DestroyError<T> {
    /// The result of destroying an object: an error returns the object.
    pub(crate) fn of(object: T, result: Result<()>) -> Result<(), Self> {
        result.map_err(|error| Self { object, error })
    }
}

impl<T> fmt::Debug for DestroyError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<T> fmt::Display for DestroyError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<T> std::error::Error for DestroyError<T> {}

impl<T> From<DestroyError<T>> for Error {
    /// Keeps the error and drops the object.
    fn from(failed: DestroyError<T>) -> Self {
        failed.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_verb_object_errno_and_meaning() {
        let error = Error::os(Verb::DeallocPd, Subject::numbered("PD", 3), Errno::BUSY);
        assert_eq!(
            error.to_string(),
            format!(
                "dealloc_pd on PD 3: Device or resource busy: {}",
                meaning::of(Verb::DeallocPd, Errno::BUSY).unwrap()
            )
        );
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(format!("{error:#?}").contains("cause: Os("));
        assert_eq!(error.io_kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(error.errno(), Some(Errno::BUSY));
    }

    /// Catches a program that takes its device for removed because an address leads nowhere.
    #[test]
    fn a_removed_device_is_told_from_a_missing_one() {
        let gone = |verb, errno| Error::os(verb, Subject::the("device"), errno).is_device_gone();
        assert!(gone(Verb::RegMr, Errno::IO) && gone(Verb::ResolveAddr, Errno::IO));
        assert!(gone(Verb::Connect, Errno::NODEV) && gone(Verb::GetCmEvent, Errno::NODEV));
        assert!(gone(Verb::QueryResources, Errno::NODEV));
        for verb in [
            Verb::BindAddr,
            Verb::ResolveAddr,
            Verb::ResolveRoute,
            Verb::JoinMulticast,
            Verb::ModifyQp,
            Verb::CreateAh,
        ] {
            assert!(!gone(verb, Errno::NODEV), "{verb}");
        }
        assert!(!gone(Verb::RegMr, Errno::NOMEM));
        let failed = Error::failed_by_device(Verb::RegMr, Subject::the("MR"), Errno::IO);
        assert!(!failed.is_device_gone());
        assert!(
            failed
                .to_string()
                .ends_with("the device has failed the command")
        );
        // What the connection manager answers about an identifier whose device has gone.
        assert!(gone(Verb::GetRequest, Errno::NXIO) && gone(Verb::QueryId, Errno::NXIO));
        assert!(!gone(Verb::OpenDevice, Errno::NXIO) && !gone(Verb::CreateId, Errno::NXIO));
    }

    /// Catches an offer whose failure is told as that of an object of the kernel's.
    #[test]
    fn an_offer_at_a_place_that_is_not_there_says_so() {
        let told = |errno| Error::os(Verb::AllocShpd, Subject::the("offer"), errno).to_string();
        assert!(told(Errno::NOENT).contains("the directory does not exist"));
        assert!(told(Errno::PERM).contains("another process has replaced the socket"));
    }

    /// Catches a file that may not be mapped, or read, and is told as one that may not be written.
    #[test]
    fn only_what_is_written_fails_because_of_write() {
        let told = |verb| Error::os(verb, Subject::the("it"), Errno::ACCESS).to_string();
        assert!(told(Verb::RegMr).contains("write() is for the opener alone"));
        for verb in [Verb::MapQueue, Verb::QueryPkey, Verb::QueryResources] {
            assert!(!told(verb).contains("write()"), "{verb}");
        }
    }

    #[test]
    fn detail_comes_last() {
        let error =
            Error::invalid(Verb::RegMr, Subject::the("MR"), "length is 0").with_detail("why not");
        assert_eq!(
            error.to_string(),
            "reg_mr on MR: invalid argument: length is 0 (why not)"
        );
        assert!(!error.is_unsupported());
    }

    #[test]
    fn what_the_kernel_lacks_comes_with_its_errno() {
        let error = Error::unsupported_by_kernel(
            Verb::OpenXrcd,
            Subject::the("XRC domain"),
            Errno::OPNOTSUPP,
            "the driver does not have this verb",
        );
        assert_eq!(
            error.to_string(),
            "open_xrcd on XRC domain: not supported (Operation not supported): \
             the driver does not have this verb"
        );
        assert!(error.is_unsupported());
        assert_eq!(error.errno(), Some(Errno::OPNOTSUPP));
    }

    /// Catches a limit printed with nine digits, and a limit of 0 ns.
    #[test]
    fn limits_are_told_as_people_say_them() {
        use std::time::Duration;
        let told = |limit| match Cause::nothing_within(limit) {
            Cause::TimedOut(what) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            told(Duration::from_nanos(1_943_072_957)),
            "nothing came within 1.943s"
        );
        assert_eq!(
            told(Duration::from_micros(200)),
            "nothing came within 200µs"
        );
        assert!(!told(Duration::ZERO).contains("0ns"));
    }

    #[test]
    fn becomes_an_io_error_of_its_kind() {
        let io = io::Error::from(Error::os(Verb::RegMr, Subject::the("MR"), Errno::NOMEM));
        assert_eq!(io.kind(), io::ErrorKind::OutOfMemory);
    }
}
