//! Destroying objects: one command for all kinds, which differ only by their ids.

use std::fmt::Debug;

use uverbs_uapi::handle::{
    AhHandle, CqHandle, DmHandle, MrHandle, MwHandle, PdHandle, QpHandle, SrqHandle, XrcdHandle,
};
use uverbs_uapi::{attr, cmd, method, object, write as abi};

#[cfg(feature = "c-abi")]
use super::Malformed;
use super::{Command, Decode, Request, nothing};
use crate::error::{Subject, Verb};

/// Destroys the object with this handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destroy<H>(pub(crate) H);

/// A kind of object, by its handle, that has a command to destroy it.
pub(crate) trait Object: Copy + Debug + From<u32> + Into<u32> {
    /// The verb that destroys it.
    const DESTROY: Verb;

    /// Its name in errors.
    const NAME: &'static str;

    /// The method that destroys it: the ids of object and method, and of the attribute with the handle.
    const METHOD: (u16, u16, u16);

    /// The attribute of the method's answer and its length, if there is one. The answer is the number of the
    /// object's events that were delivered. It is not needed: events identify the object by a number and not
    /// by an address, so a late one does no harm.
    const ANSWER: Option<(u16, usize)> = None;

    /// Writes the write command that destroys it; `None` if the kernel's ABI has none.
    fn write(self, _request: &mut Request) -> Option<&mut Request> {
        None
    }
}

impl<H: Object> Command for Destroy<H> {
    type Reply = ();
    const VERB: Verb = H::DESTROY;

    fn subject(&self) -> Subject {
        let handle: u32 = self.0.into();
        Subject::numbered(H::NAME, handle.into())
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        let (object, method, handle) = H::METHOD;
        request.method(object, method).handle(handle, self.0.into());
        if let Some((answer, length)) = H::ANSWER {
            request.output(answer, length);
        }
        Some(nothing)
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        self.0.write(request)?;
        Some(nothing)
    }
}

/// Like [`Destroy`], for an object that has events. The answer says how many of them were delivered: the C
/// library, whose events carry addresses, waits until all have been acknowledged.
#[cfg(feature = "c-abi")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DestroyCounting<H>(pub(crate) H);

/// An object with a count of its events in the answer to its destruction.
#[cfg(feature = "c-abi")]
pub(crate) trait Counted: Object {
    type Counts: std::fmt::Debug + zerocopy::FromBytes;
}

#[cfg(feature = "c-abi")]
impl Counted for CqHandle {
    type Counts = abi::DestroyCqResp;
}

#[cfg(feature = "c-abi")]
impl Counted for QpHandle {
    type Counts = abi::DestroyQpResp;
}

#[cfg(feature = "c-abi")]
impl Counted for SrqHandle {
    type Counts = abi::DestroySrqResp;
}

#[cfg(feature = "c-abi")]
impl<H: Counted> Command for DestroyCounting<H> {
    type Reply = H::Counts;
    const VERB: Verb = H::DESTROY;

    fn subject(&self) -> Subject {
        Destroy(self.0).subject()
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        Destroy(self.0).native(request)?;
        Some(|_, answer| {
            let (id, _) = H::ANSWER.ok_or(Malformed::Contradicts("an object without events"))?;
            answer.answer(id)
        })
    }

    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        self.0.write(request)?;
        Some(|_, answer| answer.response())
    }
}

impl Object for PdHandle {
    const DESTROY: Verb = Verb::DeallocPd;
    const NAME: &'static str = "PD";
    const METHOD: (u16, u16, u16) = (object::PD, method::pd::DESTROY, attr::destroy_pd::HANDLE);

    fn write(self, request: &mut Request) -> Option<&mut Request> {
        let core = abi::DeallocPd { pd_handle: self.0 };
        Some(request.write_command::<_, ()>(cmd::DEALLOC_PD, &core))
    }
}

impl Object for MrHandle {
    const DESTROY: Verb = Verb::DeregMr;
    const NAME: &'static str = "MR";
    const METHOD: (u16, u16, u16) = (object::MR, method::mr::DESTROY, attr::destroy_mr::HANDLE);

    fn write(self, request: &mut Request) -> Option<&mut Request> {
        let core = abi::DeregMr { mr_handle: self.0 };
        Some(request.write_command::<_, ()>(cmd::DEREG_MR, &core))
    }
}

impl Object for MwHandle {
    const DESTROY: Verb = Verb::DeallocMw;
    const NAME: &'static str = "MW";
    const METHOD: (u16, u16, u16) = (object::MW, method::mw::DESTROY, attr::destroy_mw::HANDLE);

    fn write(self, request: &mut Request) -> Option<&mut Request> {
        let core = abi::DeallocMw { mw_handle: self.0 };
        Some(request.write_command::<_, ()>(cmd::DEALLOC_MW, &core))
    }
}

impl Object for AhHandle {
    const DESTROY: Verb = Verb::DestroyAh;
    const NAME: &'static str = "AH";
    const METHOD: (u16, u16, u16) = (object::AH, method::ah::DESTROY, attr::destroy_ah::HANDLE);

    fn write(self, request: &mut Request) -> Option<&mut Request> {
        let core = abi::DestroyAh { ah_handle: self.0 };
        Some(request.write_command::<_, ()>(cmd::DESTROY_AH, &core))
    }
}

impl Object for CqHandle {
    const DESTROY: Verb = Verb::DestroyCq;
    const NAME: &'static str = "CQ";
    const METHOD: (u16, u16, u16) = (object::CQ, method::cq::DESTROY, attr::destroy_cq::HANDLE);
    const ANSWER: Option<(u16, usize)> =
        Some((attr::destroy_cq::RESP, size_of::<abi::DestroyCqResp>()));

    fn write(self, request: &mut Request) -> Option<&mut Request> {
        let core = abi::DestroyCq {
            cq_handle: self.0,
            ..Default::default()
        };
        Some(request.write_command::<_, abi::DestroyCqResp>(cmd::DESTROY_CQ, &core))
    }
}

impl Object for QpHandle {
    const DESTROY: Verb = Verb::DestroyQp;
    const NAME: &'static str = "QP";
    const METHOD: (u16, u16, u16) = (object::QP, method::qp::DESTROY, attr::destroy_qp::HANDLE);
    const ANSWER: Option<(u16, usize)> =
        Some((attr::destroy_qp::RESP, size_of::<abi::DestroyQpResp>()));

    fn write(self, request: &mut Request) -> Option<&mut Request> {
        let core = abi::DestroyQp {
            qp_handle: self.0,
            ..Default::default()
        };
        Some(request.write_command::<_, abi::DestroyQpResp>(cmd::DESTROY_QP, &core))
    }
}

impl Object for SrqHandle {
    const DESTROY: Verb = Verb::DestroySrq;
    const NAME: &'static str = "SRQ";
    const METHOD: (u16, u16, u16) = (object::SRQ, method::srq::DESTROY, attr::destroy_srq::HANDLE);
    const ANSWER: Option<(u16, usize)> =
        Some((attr::destroy_srq::RESP, size_of::<abi::DestroySrqResp>()));

    fn write(self, request: &mut Request) -> Option<&mut Request> {
        let core = abi::DestroySrq {
            srq_handle: self.0,
            ..Default::default()
        };
        Some(request.write_command::<_, abi::DestroySrqResp>(cmd::DESTROY_SRQ, &core))
    }
}

impl Object for XrcdHandle {
    const DESTROY: Verb = Verb::CloseXrcd;
    const NAME: &'static str = "XRC domain";
    const METHOD: (u16, u16, u16) = (
        object::XRCD,
        method::xrcd::DESTROY,
        attr::destroy_xrcd::HANDLE,
    );

    fn write(self, request: &mut Request) -> Option<&mut Request> {
        let core = abi::CloseXrcd {
            xrcd_handle: self.0,
        };
        Some(request.write_command::<_, ()>(cmd::CLOSE_XRCD, &core))
    }
}

impl Object for DmHandle {
    const DESTROY: Verb = Verb::FreeDm;
    const NAME: &'static str = "DM";
    const METHOD: (u16, u16, u16) = (object::DM, method::dm::FREE, attr::free_dm::HANDLE);
}
