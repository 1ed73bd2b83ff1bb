//! The kernel's object of a queue pair. A reset may replace it by another.

use std::mem;

use uverbs_uapi::handle::QpHandle;

use crate::command::{Command, DriverData, WrittenModifyQp};
use crate::context::Context;
use crate::driver::{QpBacking, QpName};
use crate::error::{Cause, Error, Result, Subject, Verb};
use crate::owned::Owned;

use super::{QpAttr, QpState};

type Object = Owned<QpHandle, QpBacking>;

/// The kernel's queue pair, and its number.
#[derive(Debug)]
pub(super) struct KernelQp {
    object: Object,
    qpn: u32,
    /// The objects that it replaced and that have to stay as long as it does, in the state RESET.
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

    /// The name of it for drivers.
    pub(super) fn name(&self) -> QpName {
        QpName {
            handle: self.handle(),
            qpn: self.qpn,
        }
    }

    pub(super) fn backing(&self) -> &QpBacking {
        self.object.backing()
    }

    /// Replaces it by another one, and returns the old one unless that `stays`.
    pub(super) fn replace(&mut self, by: Self, stays: bool) -> Option<Object> {
        let old = mem::replace(&mut self.object, by.object);
        self.qpn = by.qpn;
        if stays {
            self.keep(old);
            return None;
        }
        Some(old)
    }

    /// Keeps a replaced object until this one is destroyed.
    pub(super) fn keep(&mut self, old: Object) {
        self.before.push(old);
    }

    /// The name of it in errors.
    pub(super) fn subject(&self) -> Subject {
        self.object.subject()
    }

    pub(super) fn execute<C: Command>(&self, command: &C) -> Result<C::Reply> {
        if self.object.is_gone() {
            return Err(self.gone(C::VERB));
        }
        self.object.execute(command)
    }

    /// Changes attributes, without a driver's part of the command.
    pub(super) fn modify(&self, change: &WrittenModifyQp) -> Result<()> {
        if self.object.is_gone() {
            return Err(self.gone(Verb::ModifyQp));
        }
        let modified = self.object.context().fd().modify_qp(change);
        modified.map_err(|error| error.about(self.subject()))
    }

    /// The error of a verb on a queue pair that has been destroyed: a user of a [`Control`](super::Control)
    /// may come too late.
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

    /// Destroys it where no error can be returned. If the kernel refuses, it makes the kernel forget all
    /// requests; false if the kernel refuses that too.
    pub(super) fn end(&mut self) -> bool {
        // In any case its requests are forgotten.
        self.object.backing().close();
        let mut forgotten = false;
        self.object.end(|object| forgotten = reset_kept(object)) || forgotten
    }
}

/// Makes the kernel forget all requests of a queue pair that it keeps.
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
