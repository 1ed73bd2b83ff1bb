//! A kernel object that this process destroys: exactly once, and no later than on drop.

use std::fmt;
use std::mem::ManuallyDrop;

use crate::command::{Command, CommandFd, Destroy, Object};
use crate::context::Context;
use crate::error::{Cause, Error, Result, Subject};

/// A kernel object, as its handle, and its *backing*: what the kernel or the device uses until the object is
/// gone, such as the memory of its rings.
///
/// The backing is dropped only after the kernel has destroyed the object. Whatever else must outlive the
/// object is a later field of the struct that has both, since fields are dropped in order.
pub(crate) struct Owned<H: Object, B = ()> {
    handle: H,
    /// Its number on the wire, if errors name it by that.
    number: Option<u32>,
    stand: Stand,
    backing: ManuallyDrop<B>,
    context: Context,
}

/// Which party destroys an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// This process destroys it.
    Ours,
    /// Others destroy it, or the end of the context does.
    Left,
    /// Unknown: a subscriber of traces panicked during the command. The object may be destroyed, and another
    /// object may have its handle by now.
    Unknown,
    /// It is destroyed.
    Gone,
}

impl<H: Object> Owned<H> {
    /// A new object of a context, without a backing.
    pub(crate) fn new(context: &Context, handle: H) -> Self {
        Self::backed(context, handle, ())
    }
}

impl<H: Object, B> Owned<H, B> {
    /// A new object of a context, with its backing.
    pub(crate) fn backed(context: &Context, handle: H, backing: B) -> Self {
        Self {
            handle,
            number: None,
            stand: Stand::Ours,
            backing: ManuallyDrop::new(backing),
            context: context.clone(),
        }
    }

    /// Makes errors name it by its number on the wire, as completions do, not by the kernel's handle.
    pub(crate) fn on_the_wire(mut self, number: u32) -> Self {
        self.number = Some(number);
        self
    }

    /// The context in which it was created.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// The kernel's handle.
    pub(crate) fn handle(&self) -> H {
        self.handle
    }

    /// What must stay until the object is gone.
    pub(crate) fn backing(&self) -> &B {
        &self.backing
    }

    /// Executes a command on it.
    pub(crate) fn execute<C: Command>(&self, command: &C) -> Result<C::Reply> {
        let result = self.context.fd().execute(command);
        result.map_err(|error| self.named(error))
    }

    fn named(&self, error: Error) -> Error {
        match self.number {
            // The command names the handle.
            None => error,
            Some(_) => error.about(self.subject()),
        }
    }

    /// Destroys it, if that has not been done yet.
    pub(crate) fn destroy(&mut self) -> Result<()> {
        self.destroy_by(|fd, handle| fd.execute(&Destroy(handle)))
    }

    /// As [`Self::destroy`], by a function that destroys it.
    pub(crate) fn destroy_by(
        &mut self,
        how: impl FnOnce(&CommandFd, H) -> Result<()>,
    ) -> Result<()> {
        match self.stand {
            Stand::Ours => (),
            Stand::Unknown => return Err(self.busy("a panic while it was destroyed".into())),
            Stand::Left | Stand::Gone => return Ok(()),
        }
        self.stand = Stand::Unknown;
        let destroyed = how(self.context.fd(), self.handle).map_err(|error| self.named(error));
        self.stand = match destroyed {
            Ok(()) => Stand::Gone,
            Err(_) => Stand::Ours,
        };
        destroyed
    }

    /// Destroys it where no error can be returned. If the kernel refuses, the object lives until the context
    /// is closed, and the backing stays; `instead` then does what can still be done. Returns whether the
    /// kernel keeps nothing that belongs to this process.
    pub(crate) fn end(&mut self, instead: impl FnOnce(&Self)) -> bool {
        self.end_by(CommandFd::destroy_patiently, instead)
    }

    /// As [`Self::end`], by a function that destroys it.
    pub(crate) fn end_by(
        &mut self,
        how: impl FnOnce(&CommandFd, H) -> Result<()>,
        instead: impl FnOnce(&Self),
    ) -> bool {
        if self.stand == Stand::Unknown {
            return false;
        }
        let Err(error) = self.destroy_by(how) else {
            return true;
        };
        self.leave();
        instead(self);
        let what = H::NAME;
        tracing::debug!(target: "uverbs", %error, "{what} could not be destroyed when it was dropped");
        false
    }

    /// Whether it has been destroyed.
    pub(crate) fn is_gone(&self) -> bool {
        self.stand == Stand::Gone
    }

    /// Leaves it to other owners.
    pub(crate) fn leave(&mut self) {
        self.stand = Stand::Left;
    }

    /// The error for destroying it while this process still needs it.
    pub(crate) fn busy(&self, by: String) -> Error {
        Error::new(H::DESTROY, self.subject(), Cause::Busy(by.into()))
    }

    /// The name of it in errors.
    pub(crate) fn subject(&self) -> Subject {
        match self.number {
            None => Destroy(self.handle).subject(),
            Some(number) => Subject::on_the_wire(H::NAME, number),
        }
    }
}

impl<H: Object, B> Drop for Owned<H, B> {
    fn drop(&mut self) {
        // If a subscriber of traces panics, it unwinds from here, and the backing stays as after a refusal.
        self.end(|_| ());
        if self.stand == Stand::Gone {
            // SAFETY: it is dropped once, here, and nothing can reach it any more.
            unsafe { ManuallyDrop::drop(&mut self.backing) };
        }
    }
}

impl<H: Object, B> fmt::Debug for Owned<H, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owned").field(&self.handle).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::fmt::{self, Write};
    use std::os::fd::OwnedFd;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;
    use std::sync::Arc;

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};
    use uverbs_uapi::cmd;
    use uverbs_uapi::handle::CqHandle;
    use uverbs_uapi::write::CmdHdr;
    use zerocopy::FromBytes;

    use super::*;
    use crate::error::{Errno, Verb};

    /// A subscriber that calls a function with the text of each event of a target.
    pub(crate) struct Listener<F>(pub(crate) &'static str, pub(crate) F);

    struct Text(String);

    impl Visit for Text {
        fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
            write!(self.0, "{value:?} ").unwrap();
        }
    }

    impl<F: Fn(String) + 'static> Subscriber for Listener<F> {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == self.0
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.1(text.0);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// Counts how often it is dropped.
    struct Backing(Rc<Cell<u32>>);

    impl Drop for Backing {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    /// An object of a context whose file is a pipe, with the count of its backing's drops. The reader of the
    /// pipe is the kernel: without a reader commands fail.
    fn object() -> (OwnedFd, Owned<CqHandle, Backing>, Rc<Cell<u32>>) {
        let (kernel, file) = rustix::pipe::pipe().unwrap();
        let drops = Rc::new(Cell::new(0));
        let context = Context::over(file);
        let object = Owned::backed(&context, CqHandle(7), Backing(Rc::clone(&drops)));
        (kernel, object, drops)
    }

    #[test]
    fn the_backing_goes_once_with_the_object() {
        let (kernel, mut object, drops) = object();
        object.destroy().unwrap();
        object.destroy().unwrap();
        assert_eq!(drops.get(), 0, "it can still be looked at");
        drop(object);
        assert_eq!(drops.get(), 1);
        let mut buffer = [0; 64];
        let length = rustix::io::read(&kernel, &mut buffer).unwrap();
        let (header, _) = CmdHdr::read_from_prefix(&buffer).unwrap();
        assert_eq!(header.command, cmd::DESTROY_CQ);
        assert_eq!(length, usize::from(header.in_words) * 4, "only one command");
    }

    #[test]
    fn the_backing_of_what_the_kernel_keeps_stays() {
        let (kernel, mut object, drops) = object();
        drop(kernel);
        object.destroy().unwrap_err();
        let instead = Cell::new(false);
        object.end(|_| instead.set(true));
        assert!(instead.get());
        drop(object);
        assert_eq!(drops.get(), 0);
    }

    /// Would catch an object that stays because another holder of the file has just looked at it.
    #[test]
    fn what_is_dropped_while_others_look_goes_when_they_have() {
        let (_kernel, object, drops) = object();
        let fd = Arc::clone(object.context().fd());
        fd.refuse(Verb::DestroyCq, Errno::BUSY, 3);
        drop(object);
        assert_eq!((fd.refusals_left(), drops.get()), (0, 1));
    }

    #[test]
    fn the_backing_of_what_is_left_to_others_stays() {
        let (kernel, mut object, drops) = object();
        object.leave();
        drop(object);
        assert_eq!(drops.get(), 0);
        assert_eq!(
            rustix::io::read(&kernel, &mut [0; 64]).unwrap(),
            0,
            "no command"
        );
    }

    /// Would catch a second command for a handle that may belong to another object by then.
    #[test]
    fn a_subscriber_that_panics_does_not_have_it_destroyed_twice() {
        let (kernel, object, drops) = object();
        let panics = Listener("uverbs::command", |text| panic!("told of {text}"));
        let mut object = object;
        let destroyed = tracing::subscriber::with_default(panics, || {
            catch_unwind(AssertUnwindSafe(|| object.destroy()))
        });
        assert!(destroyed.is_err(), "the subscriber was not asked");
        assert!(!object.end(|_| panic!("the handle is used once more")));
        drop(object);
        assert_eq!(drops.get(), 0);
        let mut buffer = [0; 64];
        let length = rustix::io::read(&kernel, &mut buffer).unwrap();
        let (header, _) = CmdHdr::read_from_prefix(&buffer).unwrap();
        assert_eq!(length, usize::from(header.in_words) * 4, "only one command");
    }

    /// The panic unwinds past the backing, which the kernel still uses or may still use.
    #[test]
    fn a_subscriber_that_panics_does_not_free_the_backing() {
        for target in ["uverbs", "uverbs::command"] {
            let (kernel, object, drops) = object();
            drop(kernel);
            let panics = Listener(target, |text| panic!("told of {text}"));
            let dropped = tracing::subscriber::with_default(panics, || {
                catch_unwind(AssertUnwindSafe(|| drop(object)))
            });
            assert!(dropped.is_err(), "the subscriber was not asked");
            assert_eq!(drops.get(), 0, "{target}");
        }
    }
}
