//! The kernel's object behind a queue pair. A reset may put another in its place.

use std::mem;

use uverbs_uapi::handle::QpHandle;

use crate::command::{Command, DriverData, WrittenModifyQp};
use crate::context::Context;
use crate::driver::{QpBacking, QpName, Replacement};
use crate::error::{Cause, Error, Result, Subject, Verb};
use crate::owned::Owned;

use super::{QpAttr, QpState};

type Object = Owned<QpHandle, QpBacking>;

/// The kernel's queue pair, and its number.
#[derive(Debug)]
pub(super) struct KernelQp {
    object: Object,
    qpn: u32,
    /// Those whose place it took and that have to stay until then; in the state RESET.
    before: Vec<Object>,
}

impl KernelQp {
    pub(super) fn new(context: &Context, handle: QpHandle, qpn: u32, backing: QpBacking) -> Self {
        Self {
            object: Owned::backed(context, handle, backing).on_the_wire(qpn),
            qpn,
            before: Vec::new(),
        }
    }

    pub(super) fn handle(&self) -> QpHandle {
        self.object.handle()
    }

    pub(super) fn qpn(&self) -> u32 {
        self.qpn
    }

    /// How drivers name it.
    pub(super) fn name(&self) -> QpName {
        QpName {
            handle: self.handle(),
            qpn: self.qpn,
        }
    }

    pub(super) fn backing(&self) -> &QpBacking {
        self.object.backing()
    }

    /// Puts another in its place, and gives it back if it need not stay.
    pub(super) fn replace(&mut self, by: Replacement) -> Option<Object> {
        let Replacement {
            handle,
            qpn,
            backing,
            stays,
        } = by;
        let new = Owned::backed(self.object.context(), handle, backing).on_the_wire(qpn);
        let old = mem::replace(&mut self.object, new);
        self.qpn = qpn;
        if stays {
            self.keep(old);
            return None;
        }
        Some(old)
    }

    /// Keeps one whose place it took until it goes itself.
    pub(super) fn keep(&mut self, old: Object) {
        self.before.push(old);
    }

    /// How errors name it.
    pub(super) fn subject(&self) -> Subject {
        self.object.subject()
    }

    pub(super) fn execute<C: Command>(&self, command: &C) -> Result<C::Reply> {
        if self.object.is_gone() {
            return Err(self.gone(C::VERB));
        }
        self.object.execute(command)
    }

    /// Changes attributes, without a part of the driver's.
    pub(super) fn modify(&self, change: &WrittenModifyQp) -> Result<()> {
        if self.object.is_gone() {
            return Err(self.gone(Verb::ModifyQp));
        }
        let modified = self.object.context().fd().modify_qp(change);
        modified.map_err(|error| error.about(self.subject()))
    }

    /// The error of a verb on what has been destroyed: whoever has a [`Control`](super::Control) may come too
    /// late.
    #[cold]
    fn gone(&self, verb: Verb) -> Error {
        let cause = Cause::NotFound("it has been destroyed".into());
        Error::new(verb, self.subject(), cause)
    }

    pub(super) fn destroy(&mut self) -> Result<()> {
        self.object.destroy()?;
        self.before.clear();
        Ok(())
    }

    /// Destroys it where nobody can be told of an error. If the kernel refuses, it is to forget all requests;
    /// false if it refuses that as well.
    pub(super) fn end(&mut self) -> bool {
        // Whatever becomes of it, its requests are forgotten.
        self.object.backing().close();
        let mut forgotten = false;
        self.object.end(|object| forgotten = reset_kept(object)) || forgotten
    }
}

/// Has the kernel forget all requests of a queue pair that it keeps.
fn reset_kept(object: &Object) -> bool {
    let reset = QpAttr {
        state: Some(QpState::RESET),
        ..QpAttr::default()
    };
    let reset = object.execute(&reset.command(object.handle(), DriverData::default()));
    if let Err(error) = &reset {
        tracing::warn!(target: "uverbs", %error, "a QP that the kernel keeps could not be reset");
    }
    reset.is_ok()
}
