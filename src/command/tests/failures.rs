//! Commands that fail behind what the kernel was given with them: what is given back, and what stays.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use uverbs_uapi::handle::CqHandle;

use crate::command::samples::create_cq;
use crate::command::{
    Command, CommandFd, CreateCq, Decode, Destroy, Malformed, Request, Route, Undo, undo,
};
use crate::error::{Errno, Subject, Verb};
use crate::owned::tests::Listener;

/// Creates a completion queue, and finds no sense in the answer. With `HANDLE` the answer has the handle.
#[derive(Debug)]
struct Nonsense<const HANDLE: bool>(CreateCq);

impl<const HANDLE: bool> Command for Nonsense<HANDLE> {
    type Reply = ();
    const VERB: Verb = Verb::CreateCq;
    const UNDO: Option<Undo> = if HANDLE { Some(undo::<CqHandle>) } else { None };

    fn subject(&self) -> Subject {
        self.0.subject()
    }

    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        self.0.write(request)?;
        Some(|_, _| Err(Malformed::Contradicts("nonsense")))
    }
}

/// Creates an object that the device refuses, whose handle the kernel has written before that. The answer
/// makes sense or not.
#[derive(Debug)]
struct Refused<const SENSE: bool>;

impl<const SENSE: bool> Command for Refused<SENSE> {
    type Reply = Option<u32>;
    const VERB: Verb = Verb::CreateCq;
    const UNDO: Option<Undo> = Some(undo::<CqHandle>);
    const REFUSED_BY_DEVICE: Option<Errno> = Some(Errno::REMOTEIO);

    fn subject(&self) -> Subject {
        Subject::the("CQ")
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        request.method(1, 2).new_object(3).new_object(4);
        request.attribute(3)?.data = 7;
        request.attribute(4)?.data = 8;
        Some(|_, answer| match SENSE {
            true => Ok([3, 4].iter().find_map(|id| answer.new_handle(*id).ok())),
            false => Err(Malformed::Contradicts("nonsense")),
        })
    }
}

/// Would catch a handle that the kernel has freed, which may be another object's by now, and is destroyed.
#[test]
fn what_the_device_refuses_has_no_handle() {
    let (_kernel, fd) = file();
    fd.refuse(Verb::CreateCq, Errno::REMOTEIO, 2);
    assert_eq!(fd.execute(&Refused::<true>), Ok(None));
    fd.refuse(Verb::DestroyCq, Errno::IO, 1);
    let given = Rc::new(());
    let error = fd.execute_with(&Refused::<false>, Rc::clone(&given));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("nonsense"), "{error}");
    // Nothing is destroyed, and what the object would have used goes back.
    assert_eq!((fd.refusals_left(), Rc::strong_count(&given)), (1, 1));
}

/// A file whose kernel takes everything.
fn file() -> (std::os::fd::OwnedFd, CommandFd) {
    let (kernel, file) = rustix::pipe::pipe().unwrap();
    (kernel, CommandFd::new(file, 14, Route::Best))
}

/// Would catch memory that goes back although the kernel still has the object that uses it.
#[test]
fn what_the_kernel_may_use_stays() {
    let (_kernel, fd) = file();
    let given = Rc::new(());
    let is_kept = || Rc::strong_count(&given) > 1;
    // The object is destroyed.
    let with_handle = Nonsense::<true>(create_cq());
    fd.execute_with(&with_handle, Rc::clone(&given))
        .unwrap_err();
    assert!(!is_kept());
    // There was none.
    fd.refuse(Verb::CreateCq, Errno::INVAL, 1);
    fd.execute_with(&with_handle, Rc::clone(&given))
        .unwrap_err();
    assert!(!is_kept());
    // It cannot be destroyed.
    fd.refuse(Verb::DestroyCq, Errno::IO, 1);
    let error = fd
        .execute_with(&with_handle, Rc::clone(&given))
        .unwrap_err();
    assert!(error.to_string().contains("nonsense"), "{error}");
    assert_eq!((fd.refusals_left(), is_kept()), (0, true));
}

/// As above, if nobody knows the handle.
#[test]
fn what_a_nameless_object_uses_stays() {
    let (_kernel, fd) = file();
    let given = Rc::new(());
    let nameless = Nonsense::<false>(create_cq());
    fd.execute_with(&nameless, Rc::clone(&given)).unwrap_err();
    assert_eq!(Rc::strong_count(&given), 2);
}

/// Would catch a device that is taken for removed because it has failed a command.
#[test]
fn a_command_that_the_device_fails_is_no_removal() {
    let fails = |route, has_device| {
        let (_kernel, file) = rustix::pipe::pipe().unwrap();
        let fd = CommandFd::new(file, 14, route);
        fd.refuse(Verb::DestroyCq, Errno::IO, 1);
        match has_device {
            true => fd.allow(Verb::QueryDevice),
            false => fd.refuse(Verb::QueryDevice, Errno::IO, 1),
        }
        let error = fd.execute(&Destroy(CqHandle(7))).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::IO));
        (error.is_device_gone(), fd.refusals_left())
    };
    assert_eq!(fails(Route::Best, true), (false, 0));
    assert_eq!(fails(Route::Best, false), (true, 0));
    // Without ioctl nobody is asked.
    assert_eq!(fails(Route::Write, true), (true, 1));
}

/// Drivers find out that an answer makes no sense after the command.
#[test]
fn what_an_abandoned_object_uses_goes_with_it() {
    let (_kernel, fd) = file();
    let given = Rc::new(());
    fd.abandon_with(CqHandle(7), Rc::clone(&given));
    assert_eq!(Rc::strong_count(&given), 1);
    fd.refuse(Verb::DestroyCq, Errno::IO, 1);
    fd.abandon_with(CqHandle(7), Rc::clone(&given));
    assert_eq!(Rc::strong_count(&given), 2);
}

/// The panic unwinds past what the kernel has by then.
#[test]
fn a_subscriber_that_panics_gives_nothing_back() {
    let (_kernel, fd) = file();
    let given = Rc::new(());
    let panics = Listener("uverbs::command", |text| panic!("told of {text}"));
    tracing::subscriber::with_default(panics, || {
        let create = || fd.execute_with(&create_cq(), Rc::clone(&given));
        assert!(catch_unwind(AssertUnwindSafe(create)).is_err());
        let abandon = || fd.abandon_with(CqHandle(7), Rc::clone(&given));
        assert!(catch_unwind(AssertUnwindSafe(abandon)).is_err());
    });
    assert_eq!(Rc::strong_count(&given), 3);
}
