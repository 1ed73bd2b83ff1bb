//! Objects that commands of users have created, and commands on objects of the kernel.

use std::fmt;

use uverbs_uapi::handle::{CqHandle, QpHandle, SrqHandle};
use zerocopy::{FromZeros, IntoBytes};

use super::command::{Create, Modify, ObjectHandle, Query};
use super::layout::Input;
use super::refusal::CommandError;
use super::{Direct, lengths, take};
use crate::context::Context;
use crate::error::{DestroyError, Error, Result, Subject, Verb};
use crate::owned::Owned;

/// An object of the kernel on which commands may be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsObject(u32);

impl From<QpHandle> for VerbsObject {
    fn from(handle: QpHandle) -> Self {
        Self(handle.0)
    }
}

impl From<CqHandle> for VerbsObject {
    fn from(handle: CqHandle) -> Self {
        Self(handle.0)
    }
}

impl From<SrqHandle> for VerbsObject {
    fn from(handle: SrqHandle) -> Self {
        Self(handle.0)
    }
}

impl Direct {
    /// Creates an object by a command, as bytes. The device's answer is in `output`, even if it refuses.
    ///
    /// # Errors
    ///
    /// [`CommandError::Device`] if the device refuses. Otherwise the kernel refuses: the command creates
    /// nothing (`EINVAL`). Lengths as for [`Direct::command`]. Manual page: `mlx5dv_devx_obj_create(3)`.
    ///
    /// # Safety
    ///
    /// As long as the object lives, which may be longer than this value:
    ///
    /// - Every UMEM that the command names stays registered, and nobody has a reference to the memory to
    ///   which the device writes for the object: the entries of a completion queue, and memory that requests
    ///   name.
    /// - The regions whose keys the command names stay registered, and queues that it names live. So does
    ///   every [`Uar`](super::Uar) whose number it names: a page that is freed may become another's, and who
    ///   rings there rings for the object.
    /// - Requests that are posted to a queue name memory that the device may use as the request says, until
    ///   the request has completed.
    #[doc(alias = "mlx5dv_devx_obj_create")]
    pub unsafe fn create(
        &self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<DevxObject, CommandError> {
        self.create_object(input, output)
    }

    /// As [`create`](Self::create), with a structure, and returns its answer.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    ///
    /// # Safety
    ///
    /// As for [`create`](Self::create).
    pub unsafe fn create_by<I: Input>(
        &self,
        command: &I,
    ) -> Result<(DevxObject, I::Output), CommandError> {
        let mut output = I::Output::new_zeroed();
        let object = self.create_object(command.as_bytes(), output.as_mut_bytes())?;
        Ok((object, output))
    }

    pub(super) fn create_object(
        &self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<DevxObject, CommandError> {
        let subject = || Subject::the("DEVX object");
        let command = Create {
            input,
            output: lengths(Verb::DevxObjCreate, subject, input, output)?,
        };
        let (handle, answer) = self.context().fd().execute(&command)?;
        // First: if the answer makes no sense, the object is destroyed again.
        let object = handle.map(|handle| DevxObject {
            object: Owned::new(self.context(), handle),
        });
        take((Verb::DevxObjCreate, subject), input, &answer, output)?;
        object.ok_or_else(|| {
            let what = "an object without a handle";
            Error::malformed(Verb::DevxObjCreate, subject(), what).into()
        })
    }

    /// Queries the state of an object of the kernel by a structure that has its number in the device. The
    /// kernel checks that the number is the object's.
    ///
    /// # Errors
    ///
    /// [`CommandError::Device`] if the device refuses; `EINVAL` if the command does not query, or names
    /// another object. Manual page: `mlx5dv_devx_qp_query(3)`.
    #[doc(alias = "mlx5dv_devx_qp_query")]
    pub fn query<I: Input>(
        &self,
        object: impl Into<VerbsObject>,
        command: &I,
    ) -> Result<I::Output, CommandError> {
        let VerbsObject(handle) = object.into();
        let mut output = I::Output::new_zeroed();
        query(
            self.context(),
            handle,
            command.as_bytes(),
            output.as_mut_bytes(),
        )?;
        Ok(output)
    }

    /// Changes an object of the kernel by a structure that has its number in the device. The kernel checks
    /// that the number is the object's.
    ///
    /// # Errors
    ///
    /// As for [`query`](Self::query). Manual page: `mlx5dv_devx_qp_modify(3)`.
    ///
    /// # Safety
    ///
    /// The object is this program's, and all its other users, including this library, expect the change.
    #[doc(alias = "mlx5dv_devx_qp_modify")]
    pub unsafe fn modify<I: Input>(
        &self,
        object: impl Into<VerbsObject>,
        command: &I,
    ) -> Result<I::Output, CommandError> {
        let VerbsObject(handle) = object.into();
        let mut output = I::Output::new_zeroed();
        modify(
            self.context(),
            handle,
            command.as_bytes(),
            output.as_mut_bytes(),
        )?;
        Ok(output)
    }
}

/// As [`Direct::query`], with bytes.
pub(crate) fn query(
    context: &Context,
    handle: u32,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), CommandError> {
    let subject = || Subject::numbered("object", handle.into());
    let command = Query {
        handle,
        input,
        output: lengths(Verb::DevxObjQuery, subject, input, output)?,
    };
    let answer = context.fd().execute(&command)?;
    take((Verb::DevxObjQuery, subject), input, &answer, output)
}

/// As [`Direct::modify`], with bytes.
pub(crate) fn modify(
    context: &Context,
    handle: u32,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), CommandError> {
    let subject = || Subject::numbered("object", handle.into());
    let command = Modify {
        handle,
        input,
        output: lengths(Verb::DevxObjModify, subject, input, output)?,
    };
    let answer = context.fd().execute(&command)?;
    take((Verb::DevxObjModify, subject), input, &answer, output)
}

/// An object that a command has created. Dropping it destroys it.
pub struct DevxObject {
    object: Owned<ObjectHandle>,
}

impl DevxObject {
    /// The context in which it was created.
    pub fn context(&self) -> &Context {
        self.object.context()
    }

    /// The kernel's handle.
    pub fn handle(&self) -> u32 {
        self.object.handle().0
    }

    /// Queries its state by a command, as bytes.
    ///
    /// # Errors
    ///
    /// [`CommandError::Device`] if the device refuses; `EINVAL` if the command does not query, or names
    /// another object. Lengths as for [`Direct::command`]. Manual page: `mlx5dv_devx_obj_query(3)`.
    #[doc(alias = "mlx5dv_devx_obj_query")]
    pub fn query(&self, input: &[u8], output: &mut [u8]) -> Result<(), CommandError> {
        query(self.context(), self.handle(), input, output)
    }

    /// As [`query`](Self::query), with a structure, and returns its answer.
    ///
    /// # Errors
    ///
    /// As for [`query`](Self::query).
    pub fn query_by<I: Input>(&self, command: &I) -> Result<I::Output, CommandError> {
        let mut output = I::Output::new_zeroed();
        self.query(command.as_bytes(), output.as_mut_bytes())?;
        Ok(output)
    }

    /// Changes it by a command, as bytes.
    ///
    /// # Errors
    ///
    /// As for [`query`](Self::query). Manual page: `mlx5dv_devx_obj_modify(3)`.
    ///
    /// # Safety
    ///
    /// The contract of [`Direct::create`] holds for the object as it is after the change.
    #[doc(alias = "mlx5dv_devx_obj_modify")]
    pub unsafe fn modify(&self, input: &[u8], output: &mut [u8]) -> Result<(), CommandError> {
        modify(self.context(), self.handle(), input, output)
    }

    /// As [`modify`](Self::modify), with a structure, and returns its answer.
    ///
    /// # Errors
    ///
    /// As for [`modify`](Self::modify).
    ///
    /// # Safety
    ///
    /// As for [`modify`](Self::modify).
    pub unsafe fn modify_by<I: Input>(&self, command: &I) -> Result<I::Output, CommandError> {
        let mut output = I::Output::new_zeroed();
        modify(
            self.context(),
            self.handle(),
            command.as_bytes(),
            output.as_mut_bytes(),
        )?;
        Ok(output)
    }

    /// Destroys it.
    ///
    /// # Errors
    ///
    /// The kernel or the device refuses; the error returns it. Manual page: `mlx5dv_devx_obj_destroy(3)`.
    #[doc(alias = "mlx5dv_devx_obj_destroy")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        let result = self.destroy_in_place();
        DestroyError::of(self, result)
    }

    pub(crate) fn destroy_in_place(&mut self) -> Result<()> {
        self.object.destroy()
    }

    /// Destroys it when its owner is dropped; false if that was refused.
    pub(super) fn end(&mut self) -> bool {
        self.object.end(|_| ())
    }

    /// An object that was created elsewhere.
    #[cfg(feature = "c-abi")]
    pub(crate) fn imported(context: &Context, handle: ObjectHandle) -> Self {
        Self {
            object: Owned::new(context, handle),
        }
    }

    /// Leaves it until the context is closed.
    pub(crate) fn leave(&mut self) {
        self.object.leave();
    }

    /// The error for destroying it while this process still needs it.
    pub(super) fn busy(&self, by: String) -> Error {
        self.object.busy(by)
    }
}

impl fmt::Debug for DevxObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevxObject")
            .field("handle", &self.handle())
            .finish()
    }
}
